"""Real container images for the tests, and containers started as SageMaker starts them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from steelyard_localcloud.cloud import LocalCloud
from steelyard_localcloud.ports import free_port
from steelyard_localcloud.sagemaker.launch import Launch
from steelyard_localcloud.sagemaker.podman import PODMAN, remove, run
from steelyard_localcloud.sagemaker.process import Process

START_S = 120.0

# Of the standard library: what no test's server needs, and what only takes room.
_LEFT_OUT = {"test", "idlelib", "site-packages", "tkinter", "ensurepip", "lib2to3", "__pycache__", "turtledemo"}


def podman(*words: str, environment: Mapping[str, str]) -> str:
    """What podman says; a failure fails the test."""
    done = subprocess.run([*PODMAN, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def pushed(cloud: LocalCloud, image: str, repository: str) -> str:
    """Push an image of the storage in which images are built to a local cloud's ECR; its digest.

    ``repository`` is the registry's host and the repository's name.
    """
    target = f"docker://{cloud.details.registry}/{repository}:{uuid.uuid4().hex}"
    keys = f"{cloud.details.access_key_id}:{cloud.details.secret_access_key}"
    digest = cloud.options.home / "digest"
    words = ("push", "--quiet", "--tls-verify=false", "--creds", keys, "--digestfile", str(digest), image, target)
    podman(*words, environment=os.environ)
    return digest.read_text().strip()


class ServedImage:
    """An image that serves in a container without a network, started as SageMaker starts it: by the local cloud's code.

    ``lines`` holds the log so far, ``others`` what was printed and is no line of the log.
    """

    def __init__(
        self, image: str, *, model: Path, folder: Path, environment: Mapping[str, str], **settings: object
    ) -> None:
        self.lines: list[dict[str, Any]] = []
        self.others: list[str] = []
        self._name = f"served-{uuid.uuid4().hex[:8]}"
        variables = {f"STEELYARD_{name.upper()}": str(value) for name, value in settings.items()}
        command = run(
            image,
            name=self._name,
            # As in the tests' own processes: threads that spin starve each other on a busy machine.
            variables={"OMP_WAIT_POLICY": "passive", **variables},
            model_folder=model,
            isolated=True,
            pid_file=folder / "pid",
        )
        self._launch = Launch(
            command,
            dict(environment),
            "/ping",
            "/invocations",
            [],
            pid_file=folder / "pid",
            afterwards=remove(self._name),
        )
        self._folder = folder
        self.url = ""
        self.process: Process

    @contextmanager
    def running(self) -> Iterator[ServedImage]:
        """Start, wait for the health check, stop at the end."""
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.process = Process(self._launch, port=port, folder=self._folder, write=self._take)
        try:
            deadline = time.monotonic() + START_S
            while not self.process.healthy():
                said = (self.lines, self.others)
                assert self.process.exit_status() is None, (self.process.exit_status(), *said)
                assert time.monotonic() < deadline, said
                time.sleep(0.05)
            yield self
        finally:
            self.process.stop()

    def _take(self, line: str) -> None:
        try:
            self.lines.append(json.loads(line))
        except ValueError:
            self.others.append(line)


def import_python(
    programs: Sequence[Path], *, name: str, environment: Mapping[str, str], folder: Path, changes: Sequence[str] = ()
) -> None:
    """Make an image of the interpreter that runs the tests, its standard library, and some programs.

    Args:
        programs: Files that go into ``/programs``; the first is the entrypoint.
        name: The image's name.
        environment: podman's, with the storage in which it goes.
        folder: For the archive.
        changes: Further lines of a Dockerfile, such as ``ENV A=b``.
    """
    python, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib")).resolve()
    extensions = list((library / "lib-dynload").glob("*.so"))
    archive = folder / f"{name.replace('/', '-').replace(':', '-')}.tar"
    with tarfile.open(archive, "w") as image:
        image.add(python, arcname=str(python))
        image.add(library, arcname=str(library), filter=_wanted)
        for shared in {path for file in (python, *extensions) for path in _libraries(file)}:
            image.add(shared.resolve(), arcname=str(shared))
        for program in programs:
            image.add(program, arcname=f"/programs/{program.name}")
    entrypoint = f"ENTRYPOINT {json.dumps([str(python), f'/programs/{programs[0].name}'])}"
    options = [word for change in (entrypoint, *changes) for word in ("--change", change)]
    podman("import", *options, str(archive), name, environment=environment)
    archive.unlink()


def _wanted(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    parts = set(Path(entry.name).parts)
    return None if parts & _LEFT_OUT or any(part.startswith("config-") for part in parts) else entry


def _libraries(file: Path) -> list[Path]:
    linked = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", linked)]
