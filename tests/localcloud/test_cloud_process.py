"""The local cloud as a process: started, reached, ended; and nothing outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import boto3
import echo_container
import pytest
from cryptography import x509
from endpoint_template import REPOSITORY, deploy, endpoint_template, image_uri, reasons

from conftest import wait_until
from steelyard_localcloud.certificates import make_certificates
from steelyard_localcloud.cloud import LocalCloud, endpoint_processes, running_cloud, stop_cloud
from steelyard_localcloud.details import read_details
from steelyard_localcloud.sagemaker import guard


def serving(cloud: LocalCloud, **variables: str) -> str:
    """Deploy an endpoint with the scripted container, and give the stack's status."""
    ecr = cloud.client("ecr")
    if not ecr.describe_repositories()["repositories"]:
        ecr.create_repository(repositoryName=REPOSITORY)
    image = image_uri(cloud.register_image(REPOSITORY, command=[sys.executable, echo_container.__file__]))
    described = endpoint_template(name="one", image=image, data={"Mode": "SingleModel"}, environment=variables)
    return deploy(cloud.client("cloudformation"), "one", described)


def gone(pids: list[int]) -> bool:
    return all(not Path(f"/proc/{pid}").exists() or _is_zombie(pid) for pid in pids)


def family(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(each for child in children for each in family(int(child)))]


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_killed_emulator_takes_its_endpoints_along(tmp_path: Path) -> None:
    with LocalCloud(tmp_path, longest_startup_s=2) as cloud:
        assert serving(cloud) == "CREATE_COMPLETE"
        (guard_pid,) = cloud.processes()
        pids = family(guard_pid)
        assert len(pids) == 2
        os.kill(cloud.details.pid, signal.SIGKILL)
        wait_until(lambda: gone(pids))
    # And another one starts in the same folder.
    with LocalCloud(tmp_path) as cloud:
        assert cloud.client("sagemaker").list_endpoints()["Endpoints"] == []
        assert not list(tmp_path.glob("endpoints/*"))


def test_stopped_emulator_stops_its_endpoints_and_forgets_where_it_was(tmp_path: Path) -> None:
    with LocalCloud(tmp_path) as cloud:
        assert serving(cloud) == "CREATE_COMPLETE"
        pids = family(cloud.processes()[0])
    assert gone(pids)
    assert running_cloud(tmp_path) is None
    with pytest.raises(FileNotFoundError, match="no local cloud runs"):
        read_details(tmp_path)


def test_container_that_stays_unhealthy_is_given_up(tmp_path: Path) -> None:
    with LocalCloud(tmp_path, longest_startup_s=1.0) as cloud:
        assert serving(cloud, PING_STATUS="503") == "ROLLBACK_COMPLETE"
        assert "did not pass the ping health check" in reasons(cloud.client("cloudformation"), "one")
        assert cloud.processes() == []


def test_local_cloud_ends_with_the_program_that_started_it(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from steelyard_localcloud.cloud import LocalCloud\n"
        f"LocalCloud(Path({str(tmp_path)!r})).start(); print('up', flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "up\n"
        details = read_details(tmp_path)
        starter.kill()
    wait_until(lambda: gone([details.pid]))


def test_detached_cloud_outlives_its_starter_and_is_stopped(tmp_path: Path) -> None:
    program = (
        "from pathlib import Path; from steelyard_localcloud.cloud import LocalCloud\n"
        f"LocalCloud(Path({str(tmp_path)!r})).start(detached=True)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    details = running_cloud(tmp_path)
    assert details is not None
    with pytest.raises(RuntimeError, match=r"runs in .* already"):
        LocalCloud(tmp_path).start()
    assert stop_cloud(tmp_path)
    assert gone([details.pid])
    assert not stop_cloud(tmp_path)


@pytest.fixture
def foreground(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "steelyard_localcloud", "--home", str(tmp_path), "--region", "eu-west-1"]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        yield process
        process.kill()


def test_command_line_and_its_environment(
    foreground: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: running_cloud(tmp_path) is not None, limit_s=60)
    details = read_details(tmp_path)
    monkeypatch.setenv("AWS_PROFILE", "somebody-else")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "stale")
    for name, value in details.environment().items():
        monkeypatch.setenv(name, value)
    session = boto3.session.Session()

    def identity() -> str:
        return str(session.client("sts").get_caller_identity()["Arn"])

    deadline = time.monotonic() + 60
    arn = ""
    while not arn:
        try:
            arn = identity()
        except Exception:
            assert time.monotonic() < deadline
    assert arn == "arn:aws:iam::000000000000:user/local-cloud-administrator"
    assert session.region_name == "eu-west-1"
    foreground.send_signal(signal.SIGINT)
    assert foreground.wait(60) == 0
    assert running_cloud(tmp_path) is None


def test_secrets_are_readable_by_their_owner_only(tmp_path: Path) -> None:
    with LocalCloud(tmp_path):
        for path in (tmp_path / "cloud.json", tmp_path / "tls" / "server-key.pem"):
            assert path.stat().st_mode & 0o077 == 0


def test_certificates_are_for_this_machine_alone(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    leaf, authority = x509.load_pem_x509_certificates(files.chain.read_bytes())
    leaf.verify_directly_issued_by(authority)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost", "*.localhost"]
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not list(tmp_path.glob("*ca*key*"))


def test_cloud_that_cannot_start_says_why(tmp_path: Path) -> None:
    with LocalCloud(tmp_path / "first") as first:
        port = int(first.details.url.rpartition(":")[2])
        with pytest.raises(RuntimeError, match="did not start"):
            LocalCloud(tmp_path / "second", port=port).start()


def guarded(code: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", "-S", guard.__file__, sys.executable, "-c", code]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_guard_passes_on_the_exit_status() -> None:
    with guarded("raise SystemExit(7)") as process:
        assert process.wait(30) == 7


def test_guard_passes_on_sigterm() -> None:
    code = (
        "import signal, sys, time; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); time.sleep(99)"
    )
    with guarded(code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.terminate()
        assert process.wait(30) == 5


def test_guard_kills_when_its_lifeline_breaks() -> None:
    with guarded("import time; print('up', flush=True); time.sleep(99)") as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"up\n"
        process.stdin.close()
        assert process.wait(30) == 128 + signal.SIGKILL


def test_killed_guard_takes_its_command_along() -> None:
    with guarded("import os, time; print(os.getpid(), flush=True); time.sleep(99)") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        wait_until(lambda: gone([pid]))


def test_guard_says_what_it_cannot_start() -> None:
    command = [sys.executable, "-I", "-S", guard.__file__, "/does/not/exist"]
    ended = subprocess.run(command, stdin=subprocess.PIPE, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (127, "cannot start /does/not/exist: No such file or directory\n")


def test_no_processes_where_no_cloud_ran(tmp_path: Path) -> None:
    assert endpoint_processes(tmp_path) == []
