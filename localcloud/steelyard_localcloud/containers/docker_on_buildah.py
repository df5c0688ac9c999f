"""``docker`` for machines without a Docker daemon: the verbs that builds here use, by buildah and podman, as root.

``python -m steelyard_localcloud.containers.docker_on_buildah``; the runner of build specifications puts it on ``PATH``
as ``docker``. Any other verb or flag is refused by name.

Images lie in the storage that ``CONTAINERS_STORAGE_CONF`` names, by default one in the user's cache. A registry that
``CONTAINERS_REGISTRIES_CONF`` maps to another place (``prefix`` and ``location``) is pulled from, pushed to and logged
in to at that place: the container tools themselves do that for pulls only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from steelyard_localcloud.containers.storage import VARIABLE, own_storage

BUILD_LABEL = "steelyard.build"
"""The label that names the build which started a container."""

_PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
# Podman 4 lowers its own limit of processes to this.
_MOST = 32768
_PLAIN = {"cp", "exec", "images", "info", "inspect", "kill", "logs", "port", "ps", "rm", "rmi", "start"}
_PLAIN |= {"stop", "tag", "wait"}
"""Verbs whose words podman takes as Docker does."""


class _Parser(argparse.ArgumentParser):
    """Refuses what it does not know with one sentence."""

    def error(self, message: str) -> NoReturn:
        refuse(f"{self.prog}: {message}")


def refuse(message: str) -> NoReturn:
    """End with status 125, Docker's own for a command that it cannot run."""
    sys.stderr.write(f"{message}. This docker is a stand-in on buildah and podman: docs/explanation/local-cloud.md\n")
    raise SystemExit(125)


def location(reference: str) -> str:
    """Return the real place of an image or a registry: the reference with the first fitting prefix replaced."""
    found = os.environ.get("CONTAINERS_REGISTRIES_CONF")
    if not found:
        return reference
    try:
        registries = tomllib.loads(Path(found).read_text(encoding="utf-8")).get("registry", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        refuse(f"CONTAINERS_REGISTRIES_CONF={found} cannot be read: {error}")
    for registry in registries:
        prefix, place = registry.get("prefix", ""), registry.get("location", "")
        rest = reference.removeprefix(prefix)
        if prefix and place and rest != reference and (not rest or rest[0] in "/:@"):
            return f"{place}{rest}"
    return reference


def build(words: Sequence[str]) -> int:
    """``docker build`` and ``docker buildx build``."""
    parser = _Parser(prog="docker build", allow_abbrev=False, add_help=False)
    parser.add_argument("--file", "-f")
    parser.add_argument("--tag", "-t", action="append", default=[])
    parser.add_argument("--iidfile")
    parser.add_argument("--target")
    parser.add_argument("--platform")
    parser.add_argument("--build-arg", action="append", default=[])
    parser.add_argument("--label", action="append", default=[])
    parser.add_argument("--secret", action="append", default=[])
    parser.add_argument("--network", choices=["default", "host", "none"], default="host")
    parser.add_argument("--progress", choices=["auto", "plain", "tty"])
    parser.add_argument("--provenance", choices=["false"])
    parser.add_argument("--sbom", choices=["false"])
    parser.add_argument("--output", "-o", choices=["type=docker", "type=docker,rewrite-timestamp=true"])
    parser.add_argument("--pull", action="store_true")
    parser.add_argument("--load", action="store_true")
    parser.add_argument("--no-cache", action="store_true")
    parser.add_argument("--quiet", "-q", action="store_true")
    parser.add_argument("context")
    given = parser.parse_args(words)
    command = ["buildah", "build", "--isolation", "chroot", "--format", "docker", "--layers"]
    command += ["--network", "host" if given.network == "default" else given.network]
    command.append(f"--pull={'true' if given.pull else 'false'}")
    for name in ("file", "iidfile", "target", "platform"):
        if value := getattr(given, name):
            command += [f"--{name}", value]
    for name in ("tag", "build_arg", "label", "secret"):
        for value in getattr(given, name):
            command += [f"--{name.replace('_', '-')}", value]
    for argument in given.build_arg:
        # BuildKit dates what it makes with this argument; buildah has an option for it.
        name, _, value = argument.partition("=")
        if name == "SOURCE_DATE_EPOCH":
            command += ["--timestamp", value or os.environ.get(name, "0")]
    command += ["--no-cache"] * given.no_cache + ["--quiet"] * given.quiet
    return _run([*command, given.context])


def buildx(words: Sequence[str]) -> int:
    """``docker buildx build`` and ``docker buildx version``."""
    if words[:1] == ["version"]:
        return _run(["buildah", "--version"])
    if words[:1] != ["build"]:
        refuse(f"docker buildx {' '.join(words[:1])} is not known")
    return build(words[1:])


def login(words: Sequence[str]) -> int:
    """``docker login``; the password comes from standard input only."""
    parser = _Parser(prog="docker login", allow_abbrev=False, add_help=False)
    parser.add_argument("--username", "-u", required=True)
    parser.add_argument("--password-stdin", action="store_true", required=True)
    parser.add_argument("registry")
    given = parser.parse_args(words)
    registry = location(given.registry.removeprefix("https://"))
    return _run([*_PODMAN, "login", "--username", given.username, "--password-stdin", registry])


def logout(words: Sequence[str]) -> int:
    """``docker logout``."""
    parser = _Parser(prog="docker logout", allow_abbrev=False, add_help=False)
    parser.add_argument("registry")
    return _run([*_PODMAN, "logout", location(parser.parse_args(words).registry.removeprefix("https://"))])


def pull(words: Sequence[str]) -> int:
    """``docker pull``."""
    parser = _Parser(prog="docker pull", allow_abbrev=False, add_help=False)
    parser.add_argument("--platform")
    parser.add_argument("--quiet", "-q", action="store_true")
    parser.add_argument("image")
    given = parser.parse_args(words)
    options = ["--platform", given.platform] if given.platform else []
    return _run([*_PODMAN, "pull", *options, *["--quiet"] * given.quiet, given.image])


def push(words: Sequence[str]) -> int:
    """``docker push``; the last line names the digest, as Docker's does."""
    parser = _Parser(prog="docker push", allow_abbrev=False, add_help=False)
    parser.add_argument("--quiet", "-q", action="store_true")
    parser.add_argument("image")
    given = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as folder:
        digest = Path(folder) / "digest"
        place = f"docker://{location(given.image)}"
        # With a format, a refused manifest is not tried again as another kind, which would hide the reason.
        command = [
            *_PODMAN,
            "push",
            "--format",
            "v2s2",
            "--digestfile",
            str(digest),
            *["--quiet"] * given.quiet,
            given.image,
            place,
        ]
        if status := _run(command):
            return status
        tag = given.image.rpartition("/")[2].partition(":")[2] or "latest"
        sys.stdout.write(f"{tag}: digest: {digest.read_text(encoding='utf-8').strip()}\n")
    return 0


def run(words: Sequence[str]) -> int:
    """``docker run``, in the machine's network unless it is to have none."""
    parser = _Parser(prog="docker run", allow_abbrev=False, add_help=False)
    taken = ("cpus", "entrypoint", "hostname", "memory", "name", "platform", "pull", "shm-size", "stop-timeout", "user")
    for name in (*taken, "workdir", "cidfile", "gpus"):
        parser.add_argument(f"--{name}")
    several = ("env", "env-file", "mount", "tmpfs", "volume", "label", "security-opt", "cap-drop", "ulimit")
    for name in several:
        short = {"env": ["-e"], "volume": ["-v"]}.get(name, [])
        parser.add_argument(f"--{name}", *short, action="append", default=[])
    flags = ("detach", "init", "interactive", "read-only", "rm")
    for name in flags:
        short = {"detach": ["-d"], "interactive": ["-i"]}.get(name, [])
        parser.add_argument(f"--{name}", *short, action="store_true")
    parser.add_argument("--network", choices=["host", "none"], default="host")
    parser.add_argument("image")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    if given.gpus is not None:
        refuse("docker run --gpus is not known")
    command = [*_PODMAN, "run", "--network", given.network]
    if owner := os.environ.get("CODEBUILD_BUILD_ID"):
        command += ["--label", f"{BUILD_LABEL}={owner}"]
    for name in (*taken, "workdir", "cidfile"):
        if (value := getattr(given, name.replace("-", "_"))) is not None:
            command += [f"--{name}", value]
    for name in several:
        for value in getattr(given, name.replace("-", "_")):
            command += [f"--{name}", value]
    if not given.ulimit:
        command += [word for limit in _limits() for word in ("--ulimit", limit)]
    command += [f"--{name}" for name in flags if getattr(given, name.replace("-", "_"))]
    return _run([*command, given.image, *given.command])


def _limits() -> list[str]:
    """Limits that podman can set: by default it raises them, which even root may not do everywhere."""
    names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard = {name: resource.getrlimit(limit)[1] for name, limit in names.items()}
    return [f"{name}={_MOST if most == resource.RLIM_INFINITY else min(most, _MOST)}" for name, most in hard.items()]


def remove_containers(build: str, environment: Mapping[str, str]) -> None:
    """End and remove the containers that a build has started and left.

    Args:
        build: The build's ``CODEBUILD_BUILD_ID``.
        environment: Its variables, which name the storage.
    """
    asked = [*_PODMAN, "ps", "--all", "--quiet", "--filter", f"label={BUILD_LABEL}={build}"]
    with contextlib.suppress(FileNotFoundError):
        found = subprocess.run(asked, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
        if names := found.stdout.split():
            removing = [*_PODMAN, "rm", "--force", "--time", "0", *names]
            subprocess.run(removing, env=environment, capture_output=True, check=False)  # noqa: S603


def image(words: Sequence[str]) -> int:
    """``docker image inspect``, ``ls`` and ``rm``."""
    if words[:1] not in (["inspect"], ["ls"], ["rm"]):
        refuse(f"docker image {' '.join(words[:1])} is not known")
    return _run([*_PODMAN, "image", *words])


def save(words: Sequence[str]) -> int:
    """``docker save``, in Docker's own format."""
    parser = _Parser(prog="docker save", allow_abbrev=False, add_help=False)
    parser.add_argument("--output", "-o", required=True)
    parser.add_argument("image")
    given = parser.parse_args(words)
    Path(given.output).unlink(missing_ok=True)
    return _run([*_PODMAN, "save", "--format", "docker-archive", "--output", given.output, given.image])


def version(_words: Sequence[str]) -> int:
    """``docker version``: what answers in its place."""
    sys.stdout.write("docker stand-in of Steelyard\n")
    sys.stdout.flush()
    return _run(["buildah", "--version"]) or _run(["podman", "--version"])


_VERBS: dict[str, Callable[[Sequence[str]], int]] = {
    "build": build,
    "buildx": buildx,
    "image": image,
    "login": login,
    "logout": logout,
    "pull": pull,
    "push": push,
    "run": run,
    "save": save,
    "version": version,
    "--version": version,
}


def _make_logins(path: Path) -> None:
    """A file without logins: podman refuses to run anything while the one that is named does not exist."""
    with contextlib.suppress(FileExistsError), path.open("x", encoding="utf-8") as file:
        path.chmod(0o600)
        file.write("{}")


def _run(words: Sequence[str]) -> int:
    """Become another program's caller: its output is ours, and so is its exit status."""
    try:
        return subprocess.run(words, check=False).returncode  # noqa: S603 - the words were checked above
    except FileNotFoundError:
        refuse(f"{words[0]} is not installed; on Debian: apt-get install buildah podman runc")


def main(words: Sequence[str]) -> int:
    """Do what ``docker`` would."""
    if os.geteuid() != 0:
        refuse("building and running containers needs root here")
    if VARIABLE not in os.environ:
        os.environ[VARIABLE] = str(own_storage())
    if logins := os.environ.get("REGISTRY_AUTH_FILE"):
        _make_logins(Path(logins))
    verb = words[0] if words else ""
    if verb in _VERBS:
        return _VERBS[verb](list(words[1:]))
    if verb in _PLAIN:
        return _run([*_PODMAN, *words])
    refuse(f"docker {verb} is not known")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
