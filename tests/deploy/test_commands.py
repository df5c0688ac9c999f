"""The operator's commands against a deployed environment, as a person types them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from world import DECISION as DECISION_ENDPOINT
from world import World

from live_server import eventually
from registered_decisions import TEAMS, contract, write_decision
from steelyard.aws.session import Aws
from steelyard.deploy.local_cloud import reached
from steelyard.releases.manifest import parse_release
from steelyard.releases.packing import pack, place
from steelyard.releases.served import served_by
from steelyard_runtime.decisions.record import sha256_of_state

ROOT = Path(__file__).resolve().parent.parent.parent
DECISION = ["--state", "a refund", "--question", "is it true?", "--option", "yes=true", "--option", "no"]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(world: World) -> Run:
    return world.steelyard


def test_invoke_prints_a_decision(run: Run) -> None:
    done = run("invoke", "decision", *DECISION)
    assert done.returncode == 0, done.stderr
    assert "is it true?" in done.stdout
    assert "%" in done.stdout
    done = run("invoke", "decision", *DECISION, "--json")
    assert json.loads(done.stdout)["option_ids"] == ["yes", "no"]


def test_what_an_endpoint_decided_is_recorded_and_counted(run: Run, world: World) -> None:
    """Both leave a container without a network by its log; nobody else has the state."""
    state = f"a refund of {os.getpid()}"
    done = run("invoke", "decision", "--state", state, *DECISION[2:], "--json")
    answer = json.loads(done.stdout)

    cloudwatch = world.cloud.client("cloudwatch")
    ours = {"Namespace": "Steelyard", "Dimensions": [{"Name": "EndpointName", "Value": DECISION_ENDPOINT}]}
    assert eventually(
        lambda: {"Requests", "Latency"} <= {each["MetricName"] for each in cloudwatch.list_metrics(**ours)["Metrics"]},
        within_s=60,
    )
    found: list[dict[str, Any]] = []

    def recorded() -> bool:
        done = run("records", "decision", "--hours", "1")
        assert done.returncode == 0, done.stderr
        assert state not in done.stdout
        lines = [json.loads(line) for line in done.stdout.splitlines()]
        found[:] = [each for each in lines if each["prompt_sha256"] == answer["prompt_sha256"]]
        return bool(found)

    assert eventually(recorded, within_s=60)
    (record,) = found
    assert record["probabilities"] == answer["probabilities"]
    assert record["state_sha256"] == sha256_of_state(state)


def test_invoke_takes_decisions_from_a_file_and_from_standard_input(run: Run) -> None:
    file = ROOT / "examples" / "ticket.json"
    done = run("invoke", "decision", str(file), "--json")
    assert done.returncode == 0, done.stderr
    piped = run("invoke", "decision", "-", "--json", stdin=file.read_text())
    assert json.loads(piped.stdout)["probabilities"] == json.loads(done.stdout)["probabilities"]


def test_invoke_takes_many_states_as_decide_does(run: Run, tmp_path: Path) -> None:
    states, out = tmp_path / "states.csv", tmp_path / "out.csv"
    states.write_text("id,text\na,a refund\nb,true\nc,a refund\n")
    words = [
        "invoke",
        "decision",
        "--states",
        str(states),
        "--state-field",
        "text",
        *DECISION[2:],
        "--concurrency",
        "2",
    ]
    done = run(*words, "--out", str(out))
    assert done.returncode == 0, done.stderr
    lines = out.read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["id", "a", "b", "c"]
    assert lines[1].split(",")[3:] == lines[3].split(",")[3:]
    out.write_text("\n".join(lines[:2]) + "\nb,deci")
    done = run(*words, "--out", str(out), "--resume")
    assert (done.returncode, out.read_text().splitlines()) == (0, lines)
    states.write_text("a refund\n" + "the " * 5000 + "\n")
    done = run(*words[:2], "--states", str(states), "--states-format", "txt", *DECISION[2:])
    assert done.returncode == 7, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["error"] is None for row in rows] == [True, False]
    assert "the endpoint steelyard-dev-decision refused (4" in rows[1]["error"]


def test_invoke_streams_a_chat_and_gives_the_same_as_a_whole_one(run: Run) -> None:
    words = ["invoke", "chat", "the answer", "--max-tokens", "6", "--temperature", "0"]
    streamed = run(*words)
    assert streamed.returncode == 0, streamed.stderr
    whole = json.loads(run(*words, "--json").stdout)
    assert streamed.stdout == whole["choices"][0]["message"]["content"] + "\n"
    assert run("invoke", "chat", *words[3:], stdin="the answer").stdout == streamed.stdout


def test_invoke_with_a_kind_asks_no_stack(run: Run) -> None:
    """So a caller who may only invoke can use it; and a decision endpoint chats too."""
    done = run("invoke", "decision", "the answer", "--kind", "chat", "--max-tokens", "2")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["decision", *DECISION[:-2]], 3, "2 to 255 must be given"),
        (["decision"], 2, "lacks state and question and options"),
        (["chat", "hello", "--state", "a"], 2, "--state: for decisions"),
        (["decision", *DECISION, "--seed", "0"], 2, "--seed: for chat"),
        (["chat", "hello", "--states", "x.csv"], 2, "--states: for decisions"),
        (["nothing", "hello"], 2, "there is no endpoint 'nothing' in the environment 'dev'; it has chat, decision"),
        (["decision-cpu", "--env", "staging", "--kind", "decision", *DECISION], 4, "there is no endpoint steelyard-"),
        (["decision-cpu", "--env", "staging", *DECISION], 1, "is not deployed in 'staging'"),
        (["chat", "hello", "--max-tokens", "1000000000"], 3, "the endpoint steelyard-dev-chat refused (4"),
    ],
)
def test_invoke_says_what_is_wrong(run: Run, words: list[str], code: int, said: str) -> None:
    done = run("invoke", *words)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "code", "said"),
    [
        ({"AWS_ACCESS_KEY_ID": "AKIAUNKNOWN"}, 3, "AWS_PROFILE"),
        ({"AWS_SECRET_ACCESS_KEY": "wrong"}, 3, "AWS_PROFILE"),
        ({"AWS_ENDPOINT_URL": "https://127.0.0.1:1"}, 4, "AWS cannot be reached"),
        ({"AWS_PROFILE": "nobody"}, 2, "no AWS credentials"),
    ],
)
def test_invoke_says_what_is_wrong_with_the_way_to_aws(
    run: Run, variables: dict[str, str], code: int, said: str
) -> None:
    done = run("invoke", "chat", "hello", **variables)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_cloud_tells_how_to_reach_it(world: World, run: Run) -> None:
    home = str(world.cloud.options.home)
    script = f"{run('cloud', 'env', '--home', home).stdout}\nenv"
    shell = subprocess.run(["bash", "-c", script], env={"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    given = dict(line.split("=", 1) for line in shell.stdout.splitlines() if "=" in line)
    wanted = {name: value for name, value in world.cloud.environment().items() if "proxy" not in name.lower()}
    assert {name: given[name] for name in wanted} == wanted
    assert world.cloud.details.url in run("cloud", "status", "--home", home).stdout
    nowhere = run("cloud", "status", "--home", home + "/nowhere")
    assert (nowhere.returncode, nowhere.stderr) == (1, "")
    nowhere = run("cloud", "env", "--home", home + "/nowhere")
    assert nowhere.returncode == 4
    assert "no local cloud runs in" in nowhere.stderr
    script = f'eval "$({sys.executable} -m steelyard cloud env --home {home}/nowhere)"; echo reached'
    shell = subprocess.run(["sh", "-c", script], capture_output=True, text=True)
    assert (shell.returncode, shell.stdout) == (1, "")


def test_sweep_removes_only_what_aws_made_again(world: World, run: Run) -> None:
    logs = world.client("logs")
    again = "/aws/sagemaker/Endpoints/steelyard-dev-gone"
    builds = "/aws/codebuild/Steelyard-dev-Gone-ImagecpuBuild-1A2B"
    kept = "/aws/sagemaker/Endpoints/steelyard-dev-kept"
    others = ("/aws/sagemaker/Endpoints/somebody-else", "/aws/sagemaker/Endpoints/steelyard-developers-x")
    for name in (again, builds, *others):
        logs.create_log_group(logGroupName=name)
    logs.create_log_group(logGroupName=kept, tags={"steelyard:environment": "dev"})
    before = groups(world)

    listed = run("sweep")
    assert listed.returncode == 0, listed.stderr
    assert "2 to remove; nothing was removed" in listed.stderr
    for name in (again, builds, kept, f"/aws/sagemaker/Endpoints/{DECISION_ENDPOINT}"):
        assert name in listed.stdout
    for name in others:
        assert name not in listed.stdout
    assert groups(world) == before

    removed = run("sweep", "--yes")
    assert removed.returncode == 0, removed.stderr
    assert groups(world) == before - {again, builds}
    assert "nothing of dev is left over" in run("sweep").stderr
    for name in (kept, *others):
        logs.delete_log_group(logGroupName=name)


def test_sweep_finds_what_no_stack_has_and_deletes_it_by_name(world: World, run: Run) -> None:
    """A bucket that was renamed, and a repository and a key that a stack kept: nothing told of them before."""
    s3, ecr, kms = world.client("s3"), world.client("ecr"), world.client("kms")
    mark = [{"Key": "steelyard:environment", "Value": "dev"}]
    s3.create_bucket(Bucket="renamed-away")
    s3.put_bucket_versioning(Bucket="renamed-away", VersioningConfiguration={"Status": "Enabled"})
    s3.put_bucket_tagging(Bucket="renamed-away", Tagging={"TagSet": mark})
    for _ in range(2):
        s3.put_object(Bucket="renamed-away", Key="model", Body=b"weights")
    ecr.create_repository(repositoryName="kept-images", tags=mark)
    key = kms.create_key(Tags=[{"TagKey": "steelyard:environment", "TagValue": "dev"}])["KeyMetadata"]
    s3.create_bucket(Bucket="of-staging")
    s3.put_bucket_tagging(Bucket="of-staging", Tagging={"TagSet": [{**mark[0], "Value": "staging"}]})

    listed = run("sweep")
    assert listed.returncode == 0, listed.stderr
    for arn in ("arn:aws:s3:::renamed-away", ":repository/kept-images", key["Arn"]):
        assert arn in listed.stdout
    assert "of-staging" not in listed.stdout
    stacks = [each.split()[1] for each in world.everything() if each.startswith("bucket ")]
    assert len(stacks) > 2
    assert [name for name in stacks if f"arn:aws:s3:::{name}" in listed.stdout] == ["renamed-away"]
    assert "3 kept without a stack" in listed.stderr

    refused = run("sweep", "--delete", "arn:aws:s3:::of-staging", "--yes")
    assert refused.returncode == 2
    assert "is not a resource of dev that stands outside its stacks" in refused.stderr
    assert run("sweep", "--delete", "arn:aws:s3:::renamed-away", stdin="n\n").returncode == 0
    assert "renamed-away" in run("sweep").stdout
    repository = next(word for word in listed.stdout.split() if word.endswith(":repository/kept-images"))
    done = run("sweep", "--yes", "--delete", "arn:aws:s3:::renamed-away", "--delete", repository)
    assert done.returncode == 0, done.stderr
    assert "with 2 versions of objects" in done.stderr
    done = run("sweep", "--yes", "--delete", key["Arn"])
    assert "will be deleted in 30 days" in done.stderr
    after = run("sweep").stdout
    assert "renamed-away" not in after
    assert "kept-images" not in after
    s3.delete_bucket(Bucket="of-staging")


def groups(world: World) -> set[str]:
    return {each["logGroupName"] for each in world.client("logs").describe_log_groups()["logGroups"]}


def test_up_deploys_asks_and_says_where_everything_is(world: World, run: Run, tmp_path: Path) -> None:
    """``make run`` with a tiny model in place of the embedded one: the release is in the bucket already.

    It has a registered decision too, whose answer is shown beside the raw one.
    """
    write_decision(tmp_path / "support-route", contract(TEAMS, readout={"strategy": "letters"}))
    packed = pack(["support-route@3"], folder=tmp_path)
    data = world.wanted.release_data("tiny-up")
    data["decision_contracts"] = [each.released.model_dump(mode="json") for each in packed]
    endpoint = world.wanted.environment().endpoints["decision"]
    served = served_by(parse_release(data, source="the test"), endpoint)
    with reached(world.cloud.environment()):
        place(Aws("us-east-1"), served, packed, bucket=world.bucket())
    manifest = tmp_path / "tiny-up.json"
    manifest.write_text(json.dumps(data))
    world.stands = False
    done = run("up", "--local", "--home", str(world.cloud.options.home), "--release", str(manifest))
    assert done.returncode == 0, done.stderr
    for word in (
        "a decision by steelyard-dev-decision",
        "delivery",
        "decision support-route@3",
        "a chat with steelyard-dev-chat",
    ):
        assert word in done.stdout
    for word in (world.cloud.details.url, world.bucket(), "Steelyard-dev-Endpoint-chat", "release tiny-up"):
        assert word in done.stdout
    assert world.outputs("Steelyard-dev-Endpoint-chat")["Release"] == "tiny-up"
    result = world.ask(body={"decision": {"use": "support-route", "state": "a refund"}})["result"]
    assert result["decision"] == "support-route@3"


def documented() -> Iterator[Any]:
    """Each fenced block of the documentation that is marked ``deployed``."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(bash|python) deployed\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            yield pytest.param(match[1], match[2], id=f"{path.relative_to(ROOT)}:{line}")


@pytest.mark.parametrize(("language", "code"), list(documented()))
def test_documented_examples_run(world: World, language: str, code: str) -> None:
    code = code.replace(".venv/bin/", f"{Path(sys.executable).parent}/")
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
    # A shell block says itself where it goes; a program is started in a shell that has been sent there.
    sent = {} if language == "bash" else world.cloud.environment()
    home = {"STEELYARD_CLOUD": str(world.cloud.options.home)}
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **home, **sent}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr
