"""Where downloaded models lie, and whether they are what the catalogue says."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models.catalogue import CatalogueEntry, catalogue, find

BLOCK = 1 << 20
Advance = Callable[[int], None]


class State(StrEnum):
    """What is known of a model's file without reading all of it."""

    ABSENT = "absent"
    PARTIAL = "partial"
    UNVERIFIED = "unverified"
    VERIFIED = "verified"


def cache_folder() -> Path:
    """``SWITCHYARD_CACHE``, else ``switchyard`` in ``XDG_CACHE_HOME`` or ``~/.cache``. Not created."""
    own = os.environ.get("SWITCHYARD_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that relative paths are to be ignored.
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "switchyard"


def model_folder(entry: CatalogueEntry) -> Path:
    """The folder of one pinned file: a new pin never meets an old file."""
    return cache_folder() / "models" / entry.name / entry.file.sha256[:16]


def model_path(entry: CatalogueEntry) -> Path:
    """Where the model's GGUF file lies once it has been pulled."""
    return model_folder(entry) / entry.file.name


def _mark_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _mark(path: Path, sha256: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def state(entry: CatalogueEntry) -> State:
    """Whether the file is there, and unchanged since its hash was last checked."""
    path = model_path(entry)
    if not path.is_file():
        folder = model_folder(entry)
        return State.PARTIAL if folder.is_dir() and any(folder.glob("*.part")) else State.ABSENT
    try:
        known = json.loads(_mark_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return State.UNVERIFIED
    return State.VERIFIED if known == _mark(path, entry.file.sha256) else State.UNVERIFIED


def file_sha256(path: Path, advance: Advance = lambda _: None) -> str:
    """The sha256 of a file in hexadecimal; ``advance`` is told the bytes of each block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def mark_verified(entry: CatalogueEntry) -> None:
    """Remember that the file's hash was right, for as long as its size and time of change stay the same."""
    path = model_path(entry)
    write_atomically(_mark_path(path), json.dumps(_mark(path, entry.file.sha256)))


def verify(entry: CatalogueEntry, advance: Advance = lambda _: None) -> Path:
    """Read the whole file again and compare its hash with the pin.

    Raises:
        CommandError: It is missing, or it is not the pinned file (both hashes are named).
    """
    path = model_path(entry)
    if not path.is_file():
        raise missing(entry)
    found = file_sha256(path, advance)
    if found != entry.file.sha256:
        _mark_path(path).unlink(missing_ok=True)
        raise CommandError(
            f"{path} is not the pinned file: its sha256 is {found}, and {entry.file.sha256} was expected",
            code=ExitCode.MODEL,
            hint=f"Fetch it again: switchyard model pull {entry.name}",
        )
    mark_verified(entry)
    return path


def missing(entry: CatalogueEntry) -> CommandError:
    """The error for a model that has not been pulled."""
    return CommandError(
        f"the model {entry.name} is not on this machine (looked at {model_path(entry)})",
        code=ExitCode.MODEL,
        hint=f"Fetch it: switchyard model pull {entry.name}",
    )


def resolve(model: str, advance: Advance = lambda _: None) -> tuple[Path, str | None]:
    """A model setting as a path, and the catalogue name when it was one.

    A name of the catalogue wins; write ``./NAME`` for a file of the same name. A file changed since its last
    verification is verified again. A path is handed on as it is: the server looks at it and says what is wrong.

    Raises:
        CommandError: A catalogue model that is missing or not the pinned file, or neither a name nor a path.
    """
    if model in catalogue():
        entry = find(model)
        if state(entry) is State.VERIFIED:
            return model_path(entry), entry.name
        return verify(entry, advance), entry.name
    path = Path(model).expanduser()
    if path.exists() or "/" in model or model.endswith(".gguf"):
        return path, None
    find(model)
    raise AssertionError("find() raises for a name that is not in the catalogue")


def require_space(folder: Path, needed: int) -> None:
    """Refuse to start what the disk cannot hold.

    Args:
        folder: Where the bytes will be written; must exist.
        needed: Bytes still to be written.

    Raises:
        CommandError: Too little is free; the message has both numbers.
    """
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CommandError(
            f"{human_size(needed)} are needed in {folder}, and {human_size(free)} are free",
            code=ExitCode.DOWNLOAD,
            hint="Free some space, or set SWITCHYARD_CACHE to a folder on a larger disk.",
        )


def human_size(count: int) -> str:
    """Bytes for people, in decimal units: ``253 MB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit in ("B", "kB", "MB") else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def write_atomically(path: Path, text: str) -> None:
    """Replace a small text file so that a reader sees the old one or the new one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


@contextmanager
def exclusive(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a folder against other processes; ``waiting`` is called once when another one has it.

    The kernel lets go of the lock when its holder dies, so a lock is never left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        told = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not told:
                    waiting()
                    told = True
                time.sleep(0.2)
        yield
