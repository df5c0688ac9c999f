"""Starts and stops a local cloud, and stands at its side: clients, images, models."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from steelyard_localcloud.details import LOG_NAME, CloudDetails, own_folder, read_details
from steelyard_localcloud.manifests import manifest
from steelyard_localcloud.options import PUBLISHED_ACCOUNT, Options
from steelyard_localcloud.registry.names import host_of

_START_S = 60.0
_STOP_S = 90.0
_LOOK_EVERY_S = 0.05


class LocalCloud:
    """A local cloud in a process of its own; it ends with this object, and with the process that made it.

    Example::

        with LocalCloud(Path("build/cloud")) as cloud:
            subprocess.run(["cdk", "bootstrap"], env={**os.environ, **cloud.environment()}, check=True)
            cloud.client("sagemaker").list_endpoints()

    Args:
        home: Folder for everything it writes; made when missing.
        port: Port of the AWS endpoint on 127.0.0.1; 0 picks a free one.
        options: Further settings of ``Options``.
    """

    def __init__(self, home: Path, port: int = 0, **options: Any) -> None:
        self.options = Options(home=home.resolve(), port=port, **options)
        self._process: subprocess.Popen[bytes] | None = None
        self._details: CloudDetails | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self, *, detached: bool = False) -> CloudDetails:
        """Start it and wait until it answers.

        Args:
            detached: Let it outlive this process; ``stop_cloud`` ends it.

        Raises:
            RuntimeError: It does not start, with the end of its log; or one runs in ``home`` already.
        """
        home = self.options.home
        own_folder(home)
        if (running := running_cloud(home)) is not None:
            raise RuntimeError(f"a local cloud runs in {home} already, at {running.url} (process {running.pid})")
        (home / "cloud.json").unlink(missing_ok=True)
        environment = {**os.environ, **({} if detached else {"STEELYARD_LOCALCLOUD_LIFELINE": "1"})}
        with (home / LOG_NAME).open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-m", "steelyard_localcloud.emulator", self.options.to_json()],
                stdin=subprocess.DEVNULL if detached else subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                start_new_session=True,
            )
        self._process = process
        self._details = self._await_answer(process)
        return self._details

    def stop(self) -> None:
        """Stop it, its endpoints included, and wait."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.terminate()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process = None

    @property
    def details(self) -> CloudDetails:
        """Its address, keys and folder."""
        if self._details is None:
            raise RuntimeError("the local cloud has not been started")
        return self._details

    def environment(self) -> dict[str, str]:
        """Variables for boto3, the CDK's command line and any AWS SDK; see ``CloudDetails.environment``."""
        return self.details.environment()

    def client(self, service: str, **credentials: Any) -> Any:
        """A boto3 client, as the administrator unless other credentials are given."""
        return client(self.details, service, **credentials)

    def register_image(self, repository: str, digest: str | None = None, **options: Any) -> str:
        """Put an image into the emulated registry; see ``register_image``."""
        return register_image(self.details, repository, digest, **options)

    def publish_base(self, image: str, repository: str, **options: Any) -> str:
        """Put an image into the registry of AWS's published containers; see ``publish_base``."""
        return publish_base(self.details, image, repository, **options)

    def processes(self) -> list[int]:
        """Ids of the endpoints' guard processes that run; see ``endpoint_processes``."""
        return endpoint_processes(self.options.home)

    def _await_answer(self, process: subprocess.Popen[bytes]) -> CloudDetails:
        deadline = time.monotonic() + _START_S
        while time.monotonic() < deadline and process.poll() is None:
            details = running_cloud(self.options.home)
            if details is not None and _answers(details):
                return details
            time.sleep(_LOOK_EVERY_S)
        self.stop()
        log = (self.options.home / LOG_NAME).read_text(encoding="utf-8", errors="replace")
        raise RuntimeError(f"the local cloud in {self.options.home} did not start:\n{log[-2000:]}")


def running_cloud(home: Path) -> CloudDetails | None:
    """The local cloud that runs in ``home``; None when none does."""
    try:
        details = read_details(home)
        os.kill(details.pid, 0)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return details


def stop_cloud(home: Path) -> bool:
    """Stop a detached local cloud and wait until it has ended; whether one ran."""
    details = running_cloud(home)
    if details is None:
        return False
    os.kill(details.pid, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_S
    while time.monotonic() < deadline:
        try:
            os.kill(details.pid, 0)
        except ProcessLookupError:
            return True
        if _is_zombie(details.pid):
            return True
        time.sleep(_LOOK_EVERY_S)
    os.kill(details.pid, signal.SIGKILL)
    return True


def client(cloud: CloudDetails, service: str, **credentials: Any) -> Any:
    """A boto3 client of a running local cloud.

    Args:
        cloud: What ``read_details`` gave.
        service: Such as ``sagemaker-runtime``.
        credentials: ``aws_access_key_id``, ``aws_secret_access_key`` and ``aws_session_token`` of somebody else than
            the administrator, ``region_name``, ``config``.
    """
    given = {
        "region_name": cloud.region,
        "aws_access_key_id": cloud.access_key_id,
        "aws_secret_access_key": cloud.secret_access_key,
        "config": Config(proxies={}),
        **credentials,
    }
    # Not the process's default session: that one remembers the configuration of whatever was reached first.
    return boto3.Session().client(service, endpoint_url=cloud.url, verify=cloud.ca_bundle, **given)


def register_image(
    cloud: CloudDetails,
    repository: str,
    digest: str | None = None,
    *,
    tag: str | None = None,
    command: list[str] | None = None,
) -> str:
    """Put an image into a repository of the emulated registry, so that an endpoint finds it by digest.

    There is no container behind it: an endpoint with this image runs our server, or ``command``.

    Args:
        cloud: What ``read_details`` gave.
        repository: Name of a repository that exists.
        digest: Digest to register it under, such as that of a release manifest; None computes the manifest's own.
        tag: Tag to give it.
        command: Command to run in place of our server, for images that are broken on purpose.

    Returns:
        The digest, ``sha256:...``.
    """
    chosen: dict[str, str] = {name: value for name, value in (("imageDigest", digest), ("imageTag", tag)) if value}
    text = json.dumps(manifest(command))
    answer = client(cloud, "ecr").put_image(repositoryName=repository, imageManifest=text, **chosen)
    registered: str = answer["image"]["imageId"]["imageDigest"]
    return registered


def publish_base(
    cloud: CloudDetails,
    image: str,
    repository: str,
    *,
    account: str = PUBLISHED_ACCOUNT,
    tag: str = "latest",
    storage: Path | None = None,
) -> str:
    """Put an image into a registry of AWS's, from which every role may pull that its own policy lets.

    Args:
        cloud: What ``read_details`` gave.
        image: An image in a storage of podman's.
        repository: The repository, such as ``llama-cpp``; made when it is missing.
        account: The account of AWS; one of the option ``published_accounts``.
        tag: The tag.
        storage: The configuration of that storage, as in ``CONTAINERS_STORAGE_CONF``; None for the cloud's own.

    Returns:
        The digest under which it can be pulled.

    Raises:
        RuntimeError: podman did not push it, with what it said.
    """
    target = f"docker://{cloud.registry}/{host_of(account, cloud.region)}/{repository}:{tag}"
    keys = f"{cloud.access_key_id}:{cloud.secret_access_key}"
    environment = {**os.environ, **cloud.environment()}
    if storage is not None:
        environment["CONTAINERS_STORAGE_CONF"] = str(storage)
    with tempfile.TemporaryDirectory() as folder:
        digest = Path(folder) / "digest"
        words = ["podman", "push", "--quiet", "--creds", keys, "--digestfile", str(digest), image, target]
        pushed = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        if pushed.returncode:
            raise RuntimeError(f"{image} could not be pushed to {target}: {pushed.stderr.strip()}")
        return digest.read_text(encoding="utf-8").strip()


def endpoint_processes(home: Path) -> list[int]:
    """Ids of the processes of the endpoints of the local cloud in ``home`` that still run."""
    found = []
    for record in sorted(home.glob("endpoints/*/*/process.json")):
        pid = int(json.loads(record.read_text(encoding="utf-8"))["guard"])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            continue
        if not _is_zombie(pid):
            found.append(pid)
    return found


def _answers(details: CloudDetails) -> bool:
    """Return whether it knows its administrator; there is nothing that it would tell to anyone else."""
    once = Config(proxies={}, retries={"max_attempts": 1}, connect_timeout=5, read_timeout=5)
    try:
        return bool(client(details, "sts", config=once).get_caller_identity()["Account"] == details.account)
    except (BotoCoreError, ClientError):
        return False


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
