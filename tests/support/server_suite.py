"""The whole server with the embedded model: conformance, the real clients' paths, many clients, a clean log.

A suite for whatever serves the embedded model: a module of tests imports all of it and has a fixture ``server`` with a
``url`` and the log's ``lines``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from live_server import Serving


@pytest.mark.timeout(1200)
def test_jevcompat_finds_it_conformant(server: Serving) -> None:
    command = [str(Path(sys.executable).with_name("jevcompat")), "test", server.url, "--timeout", "600"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = re.search(r"^conformant to spec [\d.]+: MUST (\d+)/(\d+), SHOULD (\d+)/(\d+)", done.stdout, re.M)
    assert verdict, done.stdout
    assert verdict[1] == verdict[2], done.stdout
    assert verdict[3] == verdict[4], done.stdout


def test_32_clients_get_the_answers_they_get_alone(server: Serving, decision: dict[str, Any]) -> None:
    def ask(number: int) -> list[float]:
        body = {"decision": {**decision["decision"], "state": f"Parcel {number} is late."}}
        response = httpx.post(server.url + "/invocations", json=body, timeout=300, verify=False)
        assert response.status_code == 200, response.text
        return response.json()["result"]["option_logits"]

    alone = [ask(number) for number in range(32)]
    with ThreadPoolExecutor(32) as pool:
        together = list(pool.map(ask, range(32)))
    assert together == alone
    assert len({tuple(logits) for logits in alone}) == 32


def test_a_model_without_pooling_says_that_it_gives_no_embeddings(server: Serving) -> None:
    response = httpx.post(server.url + "/v1/embeddings", json={"input": "a"})
    assert response.status_code == 400
    assert "embeddings" in response.json()["error"]["message"]


def test_ping_answers_while_the_model_works(server: Serving, chat: dict[str, Any]) -> None:
    with ThreadPoolExecutor(1) as pool:
        working = pool.submit(
            httpx.post, server.url + "/v1/chat/completions", json={**chat, "max_tokens": 60}, timeout=300
        )
        while not working.done():
            assert httpx.get(server.url + "/ping", timeout=2).status_code == 200
        assert working.result().status_code == 200


def test_it_says_what_it_is(server: Serving, gemma: Any) -> None:
    identity = httpx.get(server.url + "/v1/identity").json()
    assert identity["id"] == "gemma-3-270m"
    assert len(identity["sha256"]) == 64
    assert httpx.get(server.url + "/v1/models").json()["data"][0]["id"] == "gemma-3-270m"
    assert not [line for line in server.lines if line["level"] == "error"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_chat_is_timed_to_its_first_token_and_for_each_other(
    server: Serving, chat: dict[str, Any], stream: bool
) -> None:
    names = [f"steelyard_time_{part}_seconds" for part in ("to_first_token", "per_output_token")]

    def times() -> dict[str, float]:
        text = httpx.get(server.url + "/metrics", timeout=60).text
        labelled = {
            f"{name}_{end}": f'{name}_{end}{{contract="openai_chat"}} ' for name in names for end in ("count", "sum")
        }
        lines = {key: [line for line in text.splitlines() if line.startswith(start)] for key, start in labelled.items()}
        return {key: float(found[0].split()[-1]) if found else 0.0 for key, found in lines.items()}

    before = times()
    body = {**chat, "max_tokens": 6, **({"stream": True, "stream_options": {"include_usage": True}} if stream else {})}
    answer = httpx.post(server.url + "/v1/chat/completions", json=body, timeout=120)
    tokens = int(re.findall(r'"completion_tokens": ?(\d+)', answer.text)[-1])
    taken = {key: value - before[key] for key, value in times().items()}
    first, each = (taken[f"{name}_sum"] for name in names)
    assert [taken[f"{name}_count"] for name in names] == [1, tokens > 1]
    assert 0 < first + (tokens - 1) * each <= answer.elapsed.total_seconds()
