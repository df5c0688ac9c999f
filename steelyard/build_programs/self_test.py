"""The self-test of an image: started as SageMaker starts it, asked for one decision, stopped."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping
from typing import Any

from steelyard.build_programs.container_tool import docker, output
from steelyard.build_programs.program import say
from steelyard.models import catalogue
from steelyard.models.pull import pull
from steelyard_base.exit_codes import CommandError

SELF_TEST_MODEL = "gemma-3-270m"
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 20
POLL_S = 2.0

_PYTHON = "/opt/steelyard/bin/python"

_ASK = """\
import json, sys, urllib.error, urllib.request
path, body = sys.argv[1], sys.argv[2].encode() if sys.argv[2:] else None
request = urllib.request.Request("http://127.0.0.1:8080" + path, body, {"Content-Type": "application/json"})
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps({"status": answer.status, "body": answer.read().decode()}))
except urllib.error.HTTPError as error:
    print(json.dumps({"status": error.code, "body": error.read().decode()}))
except OSError as error:
    print(json.dumps({"status": 0, "body": str(error)}))
"""


def self_test(reference: str) -> None:
    """Start the image as SageMaker does, decide once, stop it.

    Without a network, the model's folder read-only, the argument ``serve``; and on the CPU, because a machine that
    builds has no GPU.

    Raises:
        CommandError: It does not start, does not decide, or does not stop.
    """
    model = pull(catalogue.find(SELF_TEST_MODEL))
    name = f"steelyard-self-test-{os.getpid()}"
    docker(
        *("run", "--detach", "--name", name, "--network", "none", "--volume", f"{model.parent}:/opt/ml/model:ro"),
        *("--env", "STEELYARD_GPU_LAYERS=0", reference, "serve"),
    )
    try:
        _try_out(name, reference)
    except CommandError:
        docker("logs", name, check=False)
        raise
    finally:
        docker("rm", "--force", name, check=False, quiet=True)


def _try_out(name: str, reference: str) -> None:
    began = time.monotonic()
    while (answer := _ask(name, "/ping"))["status"] != 200:
        if not _running(name):
            raise CommandError(f"the container of {reference} ended before it was ready; its log is above")
        if time.monotonic() - began > START_TIMEOUT_S:
            raise CommandError(f"{reference} is not ready after {START_TIMEOUT_S:.0f} s: {answer['body']}")
        time.sleep(POLL_S)
    say(f"ready after {time.monotonic() - began:.1f} s")
    request = catalogue.example("ticket.json").read_text(encoding="utf-8")
    answer = _ask(name, "/invocations", request)
    if answer["status"] != 200 or not _decided(answer["body"], json.loads(request)):
        raise CommandError(f"{reference} answered a decision with {answer['status']}: {answer['body'][:500]}")
    began = time.monotonic()
    docker("stop", "--time", str(STOP_TIMEOUT_S), name, quiet=True)
    code = output("inspect", "--format", "{{.State.ExitCode}}", name).strip()
    if code != "0":
        raise CommandError(f"{reference} ended with {code} after SIGTERM, not with 0 within {STOP_TIMEOUT_S} s")
    say(f"decided, and stopped in {time.monotonic() - began:.1f} s after SIGTERM")


def _ask(name: str, path: str, body: str | None = None) -> dict[str, Any]:
    words = ["exec", name, _PYTHON, "-I", "-c", _ASK, path, *([body] if body is not None else [])]
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode:
        return {"status": 0, "body": done.stderr.strip()}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _running(name: str) -> bool:
    return output("inspect", "--format", "{{.State.Running}}", name).strip() == "true"


def _decided(body: str, request: Mapping[str, Any]) -> bool:
    """Return whether an answer has a probability for each option, together 1."""
    wanted = [option["id"] for option in request["decision"]["options"]]
    try:
        result = json.loads(body)["result"]
        return bool(result["option_ids"] == wanted and abs(sum(result["probabilities"]) - 1) < 1e-6)
    except (KeyError, TypeError, ValueError):
        return False
