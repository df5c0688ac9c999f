"""Real container images for the tests, and containers started as SageMaker starts them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from switchyard_localcloud.sagemaker.podman import PODMAN

# Of the standard library: what no test's server needs, and what only takes room.
_LEFT_OUT = {"test", "idlelib", "site-packages", "tkinter", "ensurepip", "lib2to3", "__pycache__", "turtledemo"}


def podman(*words: str, environment: Mapping[str, str]) -> str:
    """What podman says; a failure fails the test."""
    done = subprocess.run([*PODMAN, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


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
