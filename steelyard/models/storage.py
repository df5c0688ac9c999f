"""Downloaded models: where they lie, and whether they are what the catalogue says."""

from __future__ import annotations

import errno
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

from steelyard.models.catalogue import CatalogueEntry, ModelFile, catalogue, find
from steelyard_base.exit_codes import CommandError, ExitCode

BLOCK = 1 << 20
Advance = Callable[[int], None]


class State(StrEnum):
    """State of a model's files, as far as it is known without reading all of them."""

    ABSENT = "absent"
    PARTIAL = "partial"
    UNVERIFIED = "unverified"
    VERIFIED = "verified"


def cache_folder() -> Path:
    """``STEELYARD_CACHE``, else ``steelyard`` in ``XDG_CACHE_HOME`` or ``~/.cache``. Not created."""
    own = os.environ.get("STEELYARD_CACHE")
    if own:
        return Path(own).expanduser().absolute()
    xdg = os.environ.get("XDG_CACHE_HOME")
    # The XDG specification says that relative paths are to be ignored.
    base = Path(xdg) if xdg and Path(xdg).is_absolute() else Path.home() / ".cache"
    return base / "steelyard"


def model_folder(entry: CatalogueEntry) -> Path:
    """The folder of one pinned set of files: a new pin never meets an old file."""
    pins = entry.files[0].sha256
    if len(entry.files) > 1:
        listed = "".join(f"{file.sha256} {file.name}\n" for file in entry.files)
        pins = hashlib.sha256(listed.encode()).hexdigest()
    return cache_folder() / "models" / entry.name / pins[:16]


def model_path(entry: CatalogueEntry) -> Path:
    """Return the path of the file for llama.cpp, pulled or not: the weights, or their first shard."""
    return file_path(entry, entry.file)


def file_path(entry: CatalogueEntry, file: ModelFile) -> Path:
    """Return the path of one of the model's files, pulled or not."""
    return model_folder(entry) / file.name


def _mark_path(path: Path) -> Path:
    return path.with_name(path.name + ".verified")


def _mark(path: Path, sha256: str) -> dict[str, object]:
    stat = path.stat()
    return {"sha256": sha256, "size": stat.st_size, "mtime_ns": stat.st_mtime_ns}


def state(entry: CatalogueEntry) -> State:
    """Return whether all files are there, and unchanged since their hashes were last checked."""
    states = [file_state(entry, file) for file in entry.files]
    if all(each is State.VERIFIED for each in states):
        return State.VERIFIED
    if State.ABSENT not in states:
        return State.UNVERIFIED
    folder = model_folder(entry)
    some = any(each is not State.ABSENT for each in states) or (folder.is_dir() and any(folder.glob("*.part")))
    return State.PARTIAL if some else State.ABSENT


def file_state(entry: CatalogueEntry, file: ModelFile) -> State:
    """ABSENT, UNVERIFIED or VERIFIED, for one file."""
    path = file_path(entry, file)
    if not path.is_file():
        return State.ABSENT
    try:
        known = json.loads(_mark_path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return State.UNVERIFIED
    return State.VERIFIED if known == _mark(path, file.sha256) else State.UNVERIFIED


def file_sha256(path: Path, advance: Advance = lambda _: None) -> str:
    """The sha256 of a file in hexadecimal; ``advance`` receives the bytes of each block."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            advance(len(block))
    return digest.hexdigest()


def mark_verified(entry: CatalogueEntry, file: ModelFile) -> None:
    """Remember that the file's hash was right, for as long as its size and time of change stay the same."""
    path = file_path(entry, file)
    write_atomically(_mark_path(path), json.dumps(_mark(path, file.sha256)))


def verify(entry: CatalogueEntry, advance: Advance = lambda _: None) -> Path:
    """Read all files again and compare their hashes with the pins.

    Returns:
        The path of the file for llama.cpp.

    Raises:
        CommandError: One is missing, or is not the pinned file (both sizes or hashes are named).
    """
    for file in entry.files:
        path = file_path(entry, file)
        if not path.is_file():
            raise missing(entry, file)
        require_pinned(path, file, found=file_sha256(path, advance), size=path.stat().st_size)
        mark_verified(entry, file)
    return model_path(entry)


def require_pinned(path: Path, file: ModelFile, *, found: str, size: int) -> None:
    """Refuse a file that is not the pinned one; what was known of it is forgotten.

    Args:
        path: Where it lies.
        file: The pin.
        found: Its sha256.
        size: Its size in bytes.

    Raises:
        CommandError: It differs.
    """
    if found == file.sha256 and size == (file.size or size):
        return
    said = f"its sha256 is {found}, and {file.sha256} was expected"
    if file.size is not None and size != file.size:
        said += f"; it has {size} bytes, and {file.size} were expected"
    _mark_path(path).unlink(missing_ok=True)
    raise CommandError(
        f"{path} is not the pinned file: {said}",
        code=ExitCode.MODEL,
        hint="Do not use it. Fetch it again: steelyard model pull NAME",
    )


def missing(entry: CatalogueEntry, file: ModelFile | None = None) -> CommandError:
    """The error for a model, or one of its files, that has not been pulled."""
    file = file or entry.file
    what = f"the model {entry.name} is" if len(entry.files) == 1 else f"{file.name} of the model {entry.name} is"
    return CommandError(
        f"{what} not on this machine (looked at {file_path(entry, file)})",
        code=ExitCode.MODEL,
        hint=f"Fetch it: steelyard model pull {entry.name}",
    )


def as_path(model: str) -> Path | None:
    """Return the path that a model setting is; None when it can only be a name of the catalogue.

    A name of the catalogue wins; write ``./NAME`` for a file of the same name.
    """
    path = Path(model).expanduser()
    if model in catalogue():
        return None
    return path if "/" in model or model.endswith(".gguf") or (model and path.exists()) else None


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
    if (path := as_path(model)) is not None:
        return path, None
    raise CommandError(
        f"there is no model {model!r} in the catalogue",
        code=ExitCode.MODEL,
        hint=f"Known models: {', '.join(catalogue())}. A GGUF file can be given by its path.",
    )


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
            hint="Free some space, or set STEELYARD_CACHE to a folder on a larger disk.",
        )


def disk_error(folder: Path, error: OSError) -> CommandError:
    """The error for a folder that could not be written, a full disk most of all."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CommandError(
            f"the disk is full: {folder} cannot be written ({error.strerror})",
            code=ExitCode.DOWNLOAD,
            hint="Free some space, or use a folder on a larger disk, then run the command again. "
            "What was downloaded is kept and continued; STEELYARD_CACHE names the folder of downloads.",
        )
    return CommandError(
        f"cannot write to {folder}: {error.strerror or error}",
        code=ExitCode.DOWNLOAD,
        hint="Set STEELYARD_CACHE (or --to) to a folder that you may write to.",
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
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def exclusive(folder: Path, waiting: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Hold a folder against other processes; ``waiting`` is called once when another one has it.

    The kernel lets go of the lock when its holder dies, so a lock is never left behind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        reported = False
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not reported:
                    waiting()
                    reported = True
                time.sleep(0.2)
        yield
