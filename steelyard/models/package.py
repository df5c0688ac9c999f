"""A model as an endpoint gets it: its files beside ``model-manifest.json``, or all of it as ``model.tar.gz``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from steelyard.models import storage
from steelyard.models.archive import archive_bytes, write_archive
from steelyard.models.catalogue import CatalogueEntry
from steelyard.models.claims import check_claims
from steelyard.models.manifest import FILE_NAME, ModelManifest, manifest_of, manifest_sha256
from steelyard.models.pull import Progress, Silent
from steelyard_base.exit_codes import CommandError, ExitCode

ARCHIVE = "model.tar.gz"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A model's package.

    Attributes:
        manifest: What it consists of.
        sha256: Hash of the manifest's bytes, which names the package.
        warnings: What to know of the model's chat template.
    """

    manifest: ModelManifest
    sha256: str
    warnings: tuple[str, ...]


def describe(entry: CatalogueEntry, progress: Progress | None = None) -> Package:
    """Verify a pulled model, hashes and claims, and make its manifest.

    Raises:
        CommandError: It is missing, not the pinned one, or not what the catalogue claims.
    """
    total = sum(path.stat().st_size for path in _paths(entry))
    storage.verify(entry, _counter("verifying", total, progress))
    _, warnings = check_claims(entry)
    manifest = manifest_of(entry, {path.name: path.stat().st_size for path in _paths(entry)})
    return Package(manifest=manifest, sha256=manifest_sha256(manifest.encode()), warnings=tuple(warnings))


def package(entry: CatalogueEntry, to: Path, *, archive: bool = False, progress: Progress | None = None) -> Package:
    """Write the package of a pulled model to the folder ``to``, which appears in one step.

    The same model gives the same bytes each time. A folder that holds just this package already is left as it is.

    Args:
        entry: The model.
        to: A folder that does not exist yet, or is empty, or holds this package.
        archive: Write ``model.tar.gz`` instead of the files themselves; the manifest lies beside it in both cases.
        progress: Receives progress.

    Raises:
        CommandError: The model is not what it should be, the disk is full, or ``to`` holds something else.
    """
    made = describe(entry, progress)
    encoded = made.manifest.encode()
    to = to.absolute()
    building = to.with_name(f".{to.name}.{entry.name}.building")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        with storage.exclusive(storage.model_folder(entry), (progress or Silent()).waiting):
            _require_free(to, encoded)
            _remove(building)  # of a run that was killed
            try:
                building.mkdir()
                (building / FILE_NAME).write_bytes(encoded)
                if archive:
                    write_package_archive(entry, building / ARCHIVE, encoded, progress)
                else:
                    _place_files(entry, building, progress)
                _put_in_place(building, to)
            finally:
                _remove(building)
    except OSError as error:
        raise storage.disk_error(to, error) from error
    return made


def write_package_archive(
    entry: CatalogueEntry, target: Path, manifest: bytes, progress: Progress | None = None
) -> None:
    """Write ``model.tar.gz``: the manifest first, then the files in the catalogue's order.

    Raises:
        CommandError: A file changed since it was verified, or the disk is too small.
    """
    paths = _paths(entry)
    sizes = [path.stat().st_size for path in paths]
    storage.require_space(target.parent, archive_bytes([len(manifest), *sizes]))
    digests = write_archive(
        target,
        [(FILE_NAME, manifest), *((path.name, path) for path in paths)],
        advance=_counter("packing", len(manifest) + sum(sizes), progress),
    )
    for file, path, size in zip(entry.files, paths, sizes, strict=True):
        storage.require_pinned(path, file, found=digests[file.name], size=size)


def _place_files(entry: CatalogueEntry, folder: Path, progress: Progress | None) -> None:
    """Hard links where the file system can, because nothing is copied then; else copies, hashed on the way."""
    paths = _paths(entry)
    count = _counter("copying", sum(path.stat().st_size for path in paths), progress)
    for file, path in zip(entry.files, paths, strict=True):
        target = folder / file.name
        try:
            os.link(path, target)
            continue
        except OSError:
            storage.require_space(folder, path.stat().st_size)
        with path.open("rb") as source, target.open("xb") as copy:
            while block := source.read(storage.BLOCK):
                copy.write(block)
                count(len(block))
            os.fsync(copy.fileno())
        storage.require_pinned(target, file, found=storage.file_sha256(target), size=target.stat().st_size)


def _require_free(to: Path, manifest: bytes) -> None:
    """Refuse a folder that holds something else before a long copy, not after it."""
    if to.exists() and not to.is_dir():
        raise CommandError(f"{to} is a file; name a folder that does not exist yet", code=ExitCode.USAGE)
    if to.is_dir() and any(to.iterdir()):
        there = to / FILE_NAME
        if not there.is_file() or there.read_bytes() != manifest:
            raise _occupied(to)


def _occupied(to: Path) -> CommandError:
    return CommandError(
        f"{to} is there already and holds something else; it was left as it is",
        code=ExitCode.USAGE,
        hint="Name a folder that does not exist yet: --to FOLDER",
    )


def _put_in_place(building: Path, to: Path) -> None:
    if to.is_dir() and any(to.iterdir()):
        if not _same(building, to):
            raise _occupied(to)
        return
    building.rename(to)  # an empty folder is replaced


def _same(one: Path, other: Path) -> bool:
    names = sorted(path.name for path in one.iterdir())
    return names == sorted(path.name for path in other.iterdir()) and all(
        (other / name).is_file()
        and (one / name).stat().st_size == (other / name).stat().st_size
        and (
            (one / name).samefile(other / name) or storage.file_sha256(one / name) == storage.file_sha256(other / name)
        )
        for name in names
    )


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def _paths(entry: CatalogueEntry) -> list[Path]:
    paths = [storage.file_path(entry, file) for file in entry.files]
    for file, path in zip(entry.files, paths, strict=True):
        if not path.is_file():
            raise storage.missing(entry, file)
    return paths


def _counter(what: str, total: int, progress: Progress | None) -> Callable[[int], None]:
    shown, done = progress or Silent(), 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        shown.step(what, done, total)

    return advance
