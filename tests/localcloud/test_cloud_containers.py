"""Endpoints from real images: pulled from the registry, run by podman, alone in their network, and gone afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import echo_container
import probing_container
import pytest
from botocore.exceptions import ClientError
from endpoint_template import ACCOUNT, REGION, REPOSITORY, delete, deploy, endpoint_template, image_uri, reasons, trust
from test_cloud_endpoints import traffic

from conftest import Furnished, wait_until
from served_image import import_python, podman
from steelyard_localcloud.cloud import LocalCloud
from steelyard_localcloud.sagemaker import guard
from steelyard_localcloud.sagemaker.podman import LABEL, OUTSIDE, remove, run

pytestmark = pytest.mark.containers

HOST = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"


def tools(cloud: LocalCloud) -> dict[str, str]:
    """podman's environment, with the cloud's storage and registry."""
    return {**os.environ, **cloud.environment()}


def push(cloud: LocalCloud, name: str = "localhost/probing") -> str:
    """Push an image as its owner would, and give its URI by digest."""
    digest_file = cloud.options.home / f"{uuid.uuid4().hex}.digest"
    target = f"{cloud.details.registry}/{HOST}/{REPOSITORY}:{uuid.uuid4().hex}"
    keys = f"{cloud.details.access_key_id}:{cloud.details.secret_access_key}"
    words = (
        "push",
        "--format",
        "v2s2",
        "--quiet",
        "--creds",
        keys,
        "--digestfile",
        str(digest_file),
        name,
        f"docker://{target}",
    )
    podman(*words, environment=tools(cloud))
    return image_uri(digest_file.read_text().strip())


def make_probing(cloud: LocalCloud, *changes: str, name: str = "localhost/probing") -> str:
    programs = [Path(probing_container.__file__), Path(echo_container.__file__)]
    import_python(programs, name=name, environment=tools(cloud), folder=cloud.options.home, changes=changes)
    return push(cloud, name)


def containers(cloud: LocalCloud) -> list[str]:
    """Names of the endpoints' containers that there are, whether they run or not."""
    listed = podman("ps", "--all", "--filter", f"label={LABEL}", "--format", "{{.Names}}", environment=tools(cloud))
    return listed.splitlines()


def traces(home: Path) -> list[str]:
    """What a container leaves: mounts of its files, and programs that were started for it."""
    mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if str(home) in line]
    commands = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(each.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    # podman's own words are those of the tests, too.
    return mounts + [command for command in commands if f"{home}/endpoints" in command or "/programs/" in command]


@pytest.fixture(scope="module")
def probing(furnished: Furnished) -> str:
    """URI of the scripted container's real image."""
    return make_probing(furnished.cloud, "ENV BAKED=in")


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Callable[..., LocalCloud]]:
    """Starts local clouds in one folder, which tests end as they like."""
    clouds: list[LocalCloud] = []

    def start() -> LocalCloud:
        cloud = LocalCloud(tmp_path / "cloud", longest_startup_s=20.0)
        cloud.start()
        clouds.append(cloud)
        return cloud

    yield start
    for cloud in clouds:
        cloud.stop()
        # After a failed test, too: the folder could not be removed.
        podman("rm", "--all", "--force", "--time", "0", environment=tools(cloud))


def serve_one(cloud: LocalCloud) -> str:
    """Deploy an endpoint from a real image in a cloud that has nothing, and give its name."""
    cloud.client("ecr").create_repository(repositoryName=REPOSITORY)
    template = endpoint_template(name="one", image=make_probing(cloud), data={"Mode": "SingleModel"})
    status = deploy(cloud.client("cloudformation"), "one", template)
    assert status == "CREATE_COMPLETE", reasons(cloud.client("cloudformation"), "one")
    return "one"


def log_of(furnished: Furnished, name: str) -> str:
    """Everything in an endpoint's log group."""
    logs = furnished.cloud.client("logs")
    events = logs.filter_log_events(logGroupName=f"/aws/sagemaker/Endpoints/{name}")["events"]
    return "\n".join(event["message"] for event in events)


def answers(furnished: Furnished, name: str) -> bool:
    """Whether an endpoint whose container was replaced answers again."""
    try:
        return furnished.invoke(name)["path"] == "/invocations"
    except ClientError:
        return False


def test_container_is_started_as_sagemaker_starts_it(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    assert stack(image=probing, environment={"VERSION": "1"}) == "CREATE_COMPLETE", reasons(
        furnished.cloudformation, name
    )
    seen = furnished.invoke(name, {"look": True})
    assert (seen["words"], seen["pid"], seen["user"]) == (["serve"], 1, 0)
    assert seen["model"] == {
        "/opt/ml/model/a.txt": "0o100444",
        "/opt/ml/model/sub": "0o40555",
        "/opt/ml/model/sub/b.txt": "0o100444",
    }
    assert seen["model_is_writable"] == "Read-only file system"
    assert seen["root_is_writable"] == "yes"
    # The image's, the model's, and nothing of this machine's.
    assert {"BAKED": "in", "VERSION": "1"}.items() <= seen["variables"].items()
    assert not [each for each in seen["variables"] if each.startswith(("AWS_", "CONTAINERS_")) or "proxy" in each]
    deployed = furnished.sagemaker.describe_endpoint(EndpointName=name)["ProductionVariants"][0]["DeployedImages"][0]
    assert deployed["ResolvedImage"] == probing
    assert "GET /ping HTTP/1.1" in log_of(furnished, name)
    (guard_pid,) = furnished.cloud.processes()
    assert guard_pid


@pytest.fixture
def listener() -> Iterator[tuple[str, int]]:
    """A port of this machine's address in its network, and at every other of its addresses."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        # Nothing is sent: the kernel only chooses the address that it would send from.
        asked.connect(("198.51.100.1", 9))
        address = asked.getsockname()[0]
    with socket.create_server(("0.0.0.0", 0)) as server:
        yield address, server.getsockname()[1]


def test_isolated_container_reaches_nothing_outside(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str, listener: tuple[str, int]
) -> None:
    assert stack(image=probing) == "CREATE_COMPLETE"
    address, port = listener
    emulator = int(furnished.cloud.details.url.rpartition(":")[2])
    outside = [(address, port), ("127.0.0.1", port), ("127.0.0.1", emulator), ("169.254.169.254", 80)]
    outside += [("198.51.100.1", 443), ("::1", port), ("pypi.org", 443)]
    seen = furnished.invoke(name, {"look": True, "reach": outside})
    assert (seen["interfaces"], seen["routes"], seen["routes_6"]) == (["lo"], [], [])
    assert "reached" not in seen["reached"]


def test_container_that_is_not_isolated_has_a_way_out_and_a_port_of_its_own(
    furnished: Furnished, probing: str, listener: tuple[str, int]
) -> None:
    name = f"open-{uuid.uuid4().hex[:8]}"
    template = json.loads(endpoint_template(name=name, image=probing, prefix="small/"))
    template["Resources"]["Model"]["Properties"]["EnableNetworkIsolation"] = False
    assert deploy(furnished.cloudformation, name, json.dumps(template)) == "CREATE_COMPLETE"
    address, port = listener
    seen = furnished.invoke(name, {"look": True, "reach": [(address, port), ("127.0.0.1", port)]})
    assert seen["interfaces"] == ["lo", "tap0"]
    # This machine's own loopback is not the container's.
    assert seen["reached"] == ["reached", "Connection refused"]
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"


def test_two_containers_listen_on_the_same_port(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    assert stack(image=probing, environment={"VERSION": "first"}) == "CREATE_COMPLETE"
    other = f"other-{uuid.uuid4().hex[:8]}"
    described = endpoint_template(name=other, image=probing, prefix="small/", environment={"VERSION": "second"})
    assert deploy(furnished.cloudformation, other, described) == "CREATE_COMPLETE"
    assert [furnished.invoke(each)["version"] for each in (name, other)] == ["first", "second"]
    assert delete(furnished.cloudformation, other) == "DELETE_COMPLETE"


def test_bodies_and_streams_pass_unchanged(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    assert stack(image=probing) == "CREATE_COMPLETE"
    big = {"filler": "a" * (5 << 20)}
    assert furnished.invoke(name, big)["bytes"] == len(json.dumps(big))
    answer = furnished.runtime.invoke_endpoint(EndpointName=name, Body=json.dumps({"size": 5 << 20}))
    assert len(answer["Body"].read()) == 5 << 20
    body = json.dumps({"chunks": ["one", "two"], "interval_s": 0.2})
    stream = furnished.runtime.invoke_endpoint_with_response_stream(EndpointName=name, Body=body)["Body"]
    assert [event["PayloadPart"]["Bytes"] for event in stream] == [b"one", b"two"]
    with pytest.raises(ClientError) as caught:
        furnished.invoke(name, {"crash": True})
    assert caught.value.response["Error"]["Code"] == "ModelError"


def test_container_that_ends_is_started_anew_and_its_status_logged(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    assert stack(image=probing) == "CREATE_COMPLETE"
    (before,) = containers(furnished.cloud)
    with pytest.raises(ClientError):
        furnished.invoke(name, {"crash": True})
    wait_until(lambda: "the container ended with status 3; it is started anew" in log_of(furnished, name))

    wait_until(lambda: answers(furnished, name))
    (after,) = containers(furnished.cloud)
    assert after != before


def test_container_that_cannot_start_fails_with_its_status_and_words_in_the_log(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    assert stack(image=probing, environment={"EXIT_STATUS": "7"}) == "ROLLBACK_COMPLETE"
    assert "did not pass the ping health check" in reasons(furnished.cloudformation, name)
    log = log_of(furnished, name)
    assert "this image is broken" in log
    assert "the container ended with status 7 before it was healthy" in log
    assert containers(furnished.cloud) == []


def test_container_that_listens_on_its_own_loopback_is_not_reached(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    """As behind SageMaker, whose health check comes from outside."""
    variant = {"ContainerStartupHealthCheckTimeoutInSeconds": 60}
    furnished_limit = furnished.cloud.options.longest_startup_s
    assert furnished_limit < 60
    status = stack(image=probing, environment={"BIND_HOST": "127.0.0.1"}, variant=variant)
    assert status == "ROLLBACK_COMPLETE"
    assert "did not pass the ping health check" in reasons(furnished.cloudformation, name)


def test_another_image_takes_over_without_a_failed_request(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    newer = make_probing(furnished.cloud, "ENV VERSION=2", name="localhost/newer")
    assert newer != probing
    assert stack(image=probing) == "CREATE_COMPLETE"
    with traffic(furnished, name) as answers:
        assert stack(image=newer) == "UPDATE_COMPLETE"
        wait_until(lambda: answers[-1]["version"] == "2")
    assert answers[0]["version"] is None
    assert len(containers(furnished.cloud)) == 1
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"
    assert log_of(furnished, name).count("told to stop") == 2
    assert containers(furnished.cloud) == []
    assert traces(furnished.cloud.options.home) == []


def test_stopped_cloud_leaves_nothing(alone: Callable[..., LocalCloud]) -> None:
    cloud = alone()
    serve_one(cloud)
    assert len(containers(cloud)) == 1
    assert traces(cloud.options.home) != []
    cloud.stop()
    assert containers(cloud) == []
    assert traces(cloud.options.home) == []


def test_killed_emulator_leaves_nothing(alone: Callable[..., LocalCloud]) -> None:
    cloud = alone()
    serve_one(cloud)
    os.kill(cloud.details.pid, signal.SIGKILL)
    wait_until(lambda: containers(cloud) == [])
    wait_until(lambda: traces(cloud.options.home) == [])


def test_next_cloud_removes_what_nobody_was_left_to_remove(alone: Callable[..., LocalCloud]) -> None:
    cloud = alone()
    serve_one(cloud)
    (guard_pid,) = cloud.processes()
    os.kill(cloud.details.pid, signal.SIGSTOP)
    os.kill(guard_pid, signal.SIGKILL)
    os.kill(cloud.details.pid, signal.SIGKILL)
    cloud.stop()
    assert len(containers(cloud)) == 1
    again = alone()
    assert containers(again) == []
    assert traces(again.options.home) == []


def test_killed_guard_s_container_is_replaced(
    furnished: Furnished, stack: Callable[..., str], name: str, probing: str
) -> None:
    assert stack(image=probing) == "CREATE_COMPLETE"
    (before,) = containers(furnished.cloud)
    (guard_pid,) = furnished.cloud.processes()
    os.kill(guard_pid, signal.SIGKILL)
    wait_until(lambda: containers(furnished.cloud) not in ([], [before]))
    wait_until(lambda: answers(furnished, name))
    assert before not in containers(furnished.cloud)


@pytest.mark.usefixtures("probing")
def test_container_that_ignores_sigterm_is_killed(furnished: Furnished, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    options = {"name": "deaf", "variables": {"DEAF": "1"}, "model_folder": None, "isolated": True}
    command = run("localhost/probing", pid_file=pid_file, **options)
    code = f"import sys; sys.path.insert(0, {str(Path(guard.__file__).parent)!r}); import guard; guard.GRACE_S = 1.0\n"
    code += "sys.exit(guard.main(sys.argv[1:]))"
    words = [sys.executable, "-I", "-S", "-c", code, "--afterwards", json.dumps(remove("deaf")), *command]
    with subprocess.Popen(words, stdin=subprocess.PIPE, env=tools(furnished.cloud)) as process:
        wait_until(lambda: pid_file.is_file() and bool(pid_file.read_text()))
        inner = int(pid_file.read_text())
        # Only then does it ignore the signal.
        wait_until(lambda: _ignores(inner, signal.SIGTERM))
        process.terminate()
        assert process.wait(60) == 128 + signal.SIGKILL
    assert not Path(f"/proc/{inner}").exists()
    assert containers(furnished.cloud) == []


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    ignored = next(line for line in status.splitlines() if line.startswith("SigIgn:"))
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


@pytest.mark.parametrize(
    ("absent", "isolated", "message"),
    [("podman", True, "podman is not installed"), (OUTSIDE, False, f"{OUTSIDE}, which is not installed")],
)
def test_missing_program_is_the_failure_reason(
    alone: Callable[..., LocalCloud],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    absent: str,
    isolated: bool,
    message: str,
) -> None:
    everything = os.environ["PATH"]
    programs = tmp_path / "programs"
    programs.mkdir()
    for each in {"podman", "runc", "conmon", OUTSIDE} - {absent}:
        (programs / each).symlink_to(shutil.which(each, path=everything) or each)
    monkeypatch.setenv("PATH", str(programs))
    cloud = alone()
    monkeypatch.setenv("PATH", everything)
    cloud.client("ecr").create_repository(repositoryName=REPOSITORY)
    described = json.loads(endpoint_template(name="one", image=make_probing(cloud), data={"Mode": "SingleModel"}))
    described["Resources"]["Model"]["Properties"]["EnableNetworkIsolation"] = isolated
    cloudformation = cloud.client("cloudformation")
    assert deploy(cloudformation, "one", json.dumps(described)) == "ROLLBACK_COMPLETE"
    failure = reasons(cloudformation, "one")
    assert message in failure
    assert "apt-get install" in failure


def test_index_of_images_is_refused_when_the_model_is_made(furnished: Furnished) -> None:
    index: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [],
    }
    put = furnished.cloud.client("ecr").put_image(
        repositoryName=REPOSITORY, imageManifest=json.dumps(index), imageManifestMediaType=index["mediaType"]
    )
    role = furnished.cloud.client("iam").create_role(
        RoleName=f"index-{uuid.uuid4().hex[:8]}", AssumeRolePolicyDocument=json.dumps(trust())
    )
    container = {"Image": image_uri(put["image"]["imageId"]["imageDigest"])}
    with pytest.raises(ClientError, match=r"Unsupported manifest media type application/vnd\.oci\.image\.index"):
        furnished.sagemaker.create_model(
            ModelName="index", PrimaryContainer=container, ExecutionRoleArn=role["Role"]["Arn"]
        )
