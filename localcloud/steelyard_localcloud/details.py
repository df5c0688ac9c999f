"""``cloud.json``: where a running local cloud is, and the environment with which programs reach it."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

FILE_NAME = "cloud.json"
LOG_NAME = "emulator.log"


@dataclass(frozen=True, kw_only=True)
class CloudDetails:
    """A running local cloud.

    Attributes:
        url: The AWS endpoint, ``https://127.0.0.1:PORT``.
        region: Region of callers that name none.
        account: Account of the administrator's key.
        access_key_id: The administrator's key, made at start-up; it may do everything in the account.
        secret_access_key: Its secret.
        ca_bundle: Certificate authority to trust.
        home: The cloud's folder.
        pid: The emulator's process.
        registry: ``HOST:PORT`` of the container registry, plain HTTP.
    """

    url: str
    region: str
    account: str
    access_key_id: str
    secret_access_key: str
    ca_bundle: str
    home: str
    pid: int
    registry: str

    def environment(self) -> dict[str, str]:
        """Variables that send boto3, the CDK's command line, every AWS SDK and container tools to this cloud only.

        Empty values clear what the caller's shell may hold. Start a program with ``{**os.environ, **environment()}``.
        """
        profile = Path(self.home) / "aws-config"
        quiet = "127.0.0.1,localhost"
        inherited = os.environ.get("NO_PROXY") or os.environ.get("no_proxy")
        no_proxy = f"{inherited},{quiet}" if inherited else quiet
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_SESSION_TOKEN": "",
            "AWS_REGION": self.region,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_CA_BUNDLE": self.ca_bundle,
            "NODE_EXTRA_CA_CERTS": self.ca_bundle,
            "AWS_PROFILE": "default",
            "AWS_CONFIG_FILE": str(profile),
            "AWS_SHARED_CREDENTIALS_FILE": str(profile),
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": no_proxy,
            "no_proxy": no_proxy,
            # For podman and buildah: the registries of AWS are here, and images lie in this cloud's home.
            "CONTAINERS_REGISTRIES_CONF": str(self.registries_file),
            "CONTAINERS_STORAGE_CONF": str(self.containers / "storage.conf"),
            # A Docker daemon would ask AWS itself.
            "STEELYARD_DOCKER": "buildah",
        }

    @property
    def registries_file(self) -> Path:
        """Maps the registries of AWS to this cloud's, for container tools."""
        return Path(self.home) / "registries.conf"

    @property
    def containers(self) -> Path:
        """Folder of the images that container tools keep for this cloud."""
        return Path(self.home) / "containers"

    def write(self) -> None:
        """Write ``cloud.json``, readable by its owner only, and the empty profile that ``environment`` names."""
        home = Path(self.home)
        (home / "aws-config").write_text("[default]\n", encoding="utf-8")
        part = home / f"{FILE_NAME}.part"
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump(asdict(self), file, indent=2)
        part.replace(home / FILE_NAME)


def own_folder(home: Path) -> None:
    """Make a cloud's folder, and close it to everyone but its owner: keys lie in it.

    Raises:
        RuntimeError: A folder that exists belongs to somebody else, or holds other things and is open to others.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = home.stat()
    if status.st_uid != os.getuid():
        raise RuntimeError(
            f"{home} belongs to user {status.st_uid}, not to user {os.getuid()}; give the local cloud a folder of yours"
        )
    if not status.st_mode & 0o077:
        return
    if any(home.iterdir()) and not (home / LOG_NAME).exists():
        raise RuntimeError(
            f"{home} holds other things and is open to other users; give the local cloud a folder of its own"
        )
    home.chmod(0o700)


def read_details(home: Path) -> CloudDetails:
    """Read what the local cloud in ``home`` wrote.

    Raises:
        FileNotFoundError: No local cloud was started there, or it has ended.
    """
    path = home / FILE_NAME
    if not path.is_file():
        raise FileNotFoundError(f"no local cloud runs in {home}: {path} does not exist; start one there first")
    return CloudDetails(**json.loads(path.read_text(encoding="utf-8")))
