"""Layers and configurations of images on disk, one folder for each repository; never whole in memory."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard_localcloud.registry.names import Repository


@dataclass
class Upload:
    """A blob that is on its way.

    Attributes:
        repository: Where it goes.
        path: What has arrived.
        size: How many bytes that is.
        digest: The hash of them, continued with each part.
    """

    repository: Repository
    path: Path
    size: int = 0
    digest: Any = field(default_factory=hashlib.sha256)

    def append(self, part: bytes) -> None:
        """Take the next bytes."""
        with self.path.open("ab") as file:
            file.write(part)
        self.digest.update(part)
        self.size += len(part)


class Blobs:
    """All blobs of one local cloud.

    Args:
        folder: Theirs alone; what is there from another run is removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "uploads").mkdir(parents=True)
        self._uploads: dict[str, Upload] = {}

    def start(self, repository: Repository) -> str:
        """Begin an upload; its name."""
        name = secrets.token_hex(16)
        self._uploads[name] = Upload(repository, self._folder / "uploads" / name)
        self._uploads[name].path.touch()
        return name

    def upload(self, repository: Repository, name: str) -> Upload | None:
        """An upload to a repository that has begun and not ended."""
        found = self._uploads.get(name)
        return found if found is not None and found.repository == repository else None

    def finish(self, name: str, digest: str) -> bool:
        """End an upload; whether its bytes have the digest. Otherwise they are gone."""
        upload = self._uploads.pop(name)
        if digest != f"sha256:{upload.digest.hexdigest()}":
            upload.path.unlink()
            return False
        path = self.path(upload.repository, digest)
        path.parent.mkdir(parents=True, exist_ok=True)
        upload.path.replace(path)
        return True

    def cancel(self, name: str) -> None:
        """Drop an upload."""
        self._uploads.pop(name).path.unlink()

    def mount(self, digest: str, *, source: Repository, target: Repository) -> bool:
        """Give a repository a blob of another; whether that one has it."""
        there = self.path(target, digest)
        if there.is_file():
            return True
        there.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(self.path(source, digest), there)
        except FileNotFoundError:
            return False
        return True

    def path(self, repository: Repository, digest: str) -> Path:
        """Return the path of a blob, there or not."""
        return self._of(repository) / digest.removeprefix("sha256:")

    def keep(self, repository: Repository, digests: set[str], *, of: set[str]) -> None:
        """Remove those blobs ``of`` a removed image that no other image needs."""
        for digest in of - digests:
            self.path(repository, digest).unlink(missing_ok=True)

    def forget(self, repository: Repository) -> None:
        """Remove a repository with all that is on its way to it."""
        for name in [name for name, upload in self._uploads.items() if upload.repository == repository]:
            self.cancel(name)
        shutil.rmtree(self._of(repository), ignore_errors=True)

    def _of(self, repository: Repository) -> Path:
        return self._folder / repository.account / repository.region / re.sub("/", "%", repository.name)
