"""podman, which pulls and runs endpoints' images: with the local cloud's own storage and registry, and without traces.

A container ends with its endpoint's guard. What even the guard could not remove, because both it and the emulator were
killed, is found by its label when the next local cloud starts in the same folder.
"""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from botocore.exceptions import BotoCoreError, ClientError

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.role_client import role_client

if TYPE_CHECKING:
    # The emulator imports this module before ministack, whose settings must be made first.
    from steelyard_localcloud.service_role import Credentials

LABEL = "steelyard.localcloud.endpoint"
OUTSIDE = "slirp4netns"
"""The program that leads from a container's network to the outside, without a change to this machine's."""

PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR")
# Podman 4 lowers its own limit of processes to this, and cannot raise it again for the container everywhere.
_MOST = 32768

log = logging.getLogger("steelyard.localcloud")


def environment(cloud: CloudDetails) -> dict[str, str]:
    """Podman's whole environment: the cloud's storage and registry, and nothing of the user's settings for it."""
    passed_on = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    containers = {name: value for name, value in cloud.environment().items() if name.startswith("CONTAINERS_")}
    return {**passed_on, **containers, "CONTAINERS_CONF": os.devnull}


def require() -> None:
    """Refuse a real image on a machine that cannot run containers.

    Raises:
        ServiceError: With what is missing.
    """
    needed = ("podman", "runc", "conmon")
    if missing := [name for name in needed if shutil.which(name, path=_search_path()) is None]:
        raise ServiceError(
            f"The local cloud runs this image with podman, and {', '.join(missing)} is not installed; on Debian: "
            "apt-get install podman runc."
        )
    if os.geteuid() != 0:
        raise ServiceError("The local cloud runs this image with podman, as root; it was started by another user.")


def require_outside() -> None:
    """Refuse a container that is to reach the outside on a machine that gives it no way.

    Raises:
        ServiceError: With what is missing.
    """
    if shutil.which(OUTSIDE) is None:
        raise ServiceError(
            f"A container without EnableNetworkIsolation reaches the outside through {OUTSIDE}, which is not "
            f"installed; on Debian: apt-get install {OUTSIDE}."
        )


def pull(image: str, cloud: CloudDetails, credentials: Credentials) -> None:
    """Bring an image from the emulated registry into the cloud's storage, with an execution role's credentials.

    Args:
        image: Its URI by digest.
        cloud: The local cloud.
        credentials: The role's.

    Raises:
        ServiceError: The registry did not give it.
    """
    require()
    with tempfile.TemporaryDirectory(dir=Path(cloud.home) / "tmp") as folder:
        access = Path(folder) / "auth.json"
        access.write_text(_access(image, cloud, credentials), encoding="utf-8")
        pulled = _call([*PODMAN, "pull", "--quiet", "--authfile", str(access), image], cloud)
    if pulled.returncode:
        raise ServiceError(f"The image {image} could not be pulled: {_reason(pulled.stderr)}")


def run(
    image: str, *, name: str, variables: dict[str, str], model_folder: Path | None, isolated: bool, pid_file: Path
) -> list[str]:
    """The command that runs a container as SageMaker does, until it ends.

    The image's own entrypoint gets the argument ``serve``. The root file system is the image's, writable; the model is
    read-only. Nothing of this machine's settings (proxies, limits, health checks) is added.

    Args:
        image: Its URI by digest, in the storage.
        name: The container's name.
        variables: Its variables.
        model_folder: The model's files; None without model data.
        isolated: No network but its own loopback device.
        pid_file: Gets the id of its first process.
    """
    words = [*PODMAN, "run", "--rm", "--name", name, "--label", f"{LABEL}={name}", "--pull", "never"]
    words += ["--pidfile", str(pid_file), "--log-driver", "none", "--no-healthcheck", "--http-proxy=false"]
    words += ["--network", "none" if isolated else OUTSIDE]
    words += [word for limit in _limits() for word in ("--ulimit", limit)]
    words += [word for key, value in variables.items() for word in ("--env", f"{key}={value}")]
    if model_folder is not None:
        words += ["--volume", f"{model_folder}:/opt/ml/model:ro"]
    return [*words, image, "serve"]


def remove(name: str) -> list[str]:
    """The command that ends and removes a container, if it is there."""
    return [*PODMAN, "rm", "--force", "--time", "0", "--ignore", name]


def remove_leftovers(cloud: CloudDetails) -> None:
    """End and remove what endpoints of an earlier local cloud in this folder left running."""
    if not (cloud.containers / "graph").is_dir() or shutil.which("podman") is None:
        return
    listed = _call([*PODMAN, "ps", "--all", "--quiet", "--filter", f"label={LABEL}"], cloud)
    if listed.returncode:
        log.warning("cannot look for containers of an earlier local cloud: %s", _reason(listed.stderr))
    for container in listed.stdout.split():
        log.warning("removing the container %s of an earlier local cloud", container)
        _call(remove(container), cloud)


def _call(words: list[str], cloud: CloudDetails) -> subprocess.CompletedProcess[str]:
    # S603: names and image URIs were checked where they came in.
    return subprocess.run(words, env=environment(cloud), capture_output=True, text=True, check=False)  # noqa: S603


def _access(image: str, cloud: CloudDetails, credentials: Credentials) -> str:
    """Return what podman shows the registry: the token that the role gets from ECR."""
    client = role_client(cloud, "ecr", credentials)
    try:
        token: str = client.get_authorization_token()["authorizationData"][0]["authorizationToken"]
    except (ClientError, BotoCoreError) as error:
        raise ServiceError(f"The execution role got no token for the image {image}: {error}") from error
    return json.dumps({"auths": {place: {"auth": token} for place in (cloud.registry, image.partition("/")[0])}})


def _reason(said: str) -> str:
    """The last thing that podman said, without its log's frame."""
    last = next((line for line in reversed(said.splitlines()) if line.strip()), "podman gave no reason")
    return re.sub(r'^time="[^"]*" level=[a-z]+ msg=|^Error: ', "", last.strip())


def _limits() -> list[str]:
    names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard = {name: resource.getrlimit(limit)[1] for name, limit in names.items()}
    return [f"{name}={_MOST if most == resource.RLIM_INFINITY else min(most, _MOST)}" for name, most in hard.items()]


def _search_path() -> str:
    # conmon may lie where only podman looks.
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/libexec/podman", "/usr/lib/podman"])
