"""``model-manifest.json``: what a model in an artifact bucket consists of. Its hash names the prefix that it lies in.

It is a function of the catalogue entry alone, so that whoever puts the model there (CodeBuild, the local cloud) arrives
at the same bytes and the same prefix.
"""

from __future__ import annotations

import hashlib
import json

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models.catalogue import CatalogueEntry

FILE_NAME = "model-manifest.json"
FORMAT = "switchyard-model/1"


def model_manifest(entry: CatalogueEntry, *, size: int | None = None) -> bytes:
    """The manifest of a model: JSON in UTF-8 with sorted keys and one newline at the end.

    Args:
        entry: The model.
        size: Size of its file in bytes, where the catalogue does not pin it.

    Raises:
        CommandError: The size is not known, or is not the pinned one.
    """
    pinned = entry.file.size
    if pinned is not None and size is not None and pinned != size:
        raise CommandError(
            f"the file {entry.file.name} has {size} bytes; the catalogue says {pinned}", code=ExitCode.MODEL
        )
    if (size := size or pinned) is None:
        raise CommandError(
            f"the catalogue does not say how large {entry.file.name} is; give the size of the file that was fetched",
            code=ExitCode.MODEL,
        )
    content = {
        "format": FORMAT,
        "name": entry.name,
        "licence": entry.licence.model_dump(mode="json"),
        "source": entry.source.model_dump(mode="json"),
        "files": [
            {"role": entry.file.role, "name": entry.file.name, "size": size, "sha256": entry.file.sha256},
        ],
    }
    return (json.dumps(content, sort_keys=True, indent=2, ensure_ascii=False) + "\n").encode()


def manifest_sha256(manifest: bytes) -> str:
    """Hash of a manifest, in hexadecimal digits."""
    return hashlib.sha256(manifest).hexdigest()


def model_prefix(entry: CatalogueEntry, manifest: bytes) -> str:
    """Where the model lies in an artifact bucket, ending in ``/``."""
    return f"models/{entry.name}/{manifest_sha256(manifest)}/"
