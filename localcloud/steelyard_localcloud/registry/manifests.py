"""Manifests of images: their kind, what they refer to, how large that is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from steelyard_localcloud.registry.names import DIGEST

DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
OCI = "application/vnd.oci.image.manifest.v1+json"
INDEXES = (
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.index.v1+json",
)
LARGEST = 4 << 20
"""The largest manifest, in bytes; ECR's limit too."""


class InvalidManifestError(ValueError):
    """It is not a manifest, with what is wrong."""


@dataclass(frozen=True)
class Manifest:
    """An image's manifest, or an index of images.

    Attributes:
        media_type: Its kind.
        blobs: Digests of the configuration and the layers; none for an index.
        images: Digests of the images of an index.
        size: Bytes of configuration and layers together, which ECR calls the image's size.
        artifact: The configuration's media type, which ECR calls the artifact's.
    """

    media_type: str
    blobs: frozenset[str]
    images: frozenset[str]
    size: int
    artifact: str


def read_manifest(content: bytes | str, media_type: str) -> Manifest:
    """Read a manifest.

    Raises:
        InvalidManifestError: It is none of the kinds that are known, or not what its media type says.
    """
    if media_type not in (DOCKER, OCI, *INDEXES):
        raise InvalidManifestError(f"the media type {media_type!r} is not one of an image or an index")
    try:
        document = json.loads(content)
    except ValueError as error:
        raise InvalidManifestError(f"the manifest is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schemaVersion") != 2:
        raise InvalidManifestError("the manifest has no schemaVersion 2")
    if document.get("mediaType", media_type) != media_type:
        raise InvalidManifestError(f"the manifest says {document['mediaType']!r}, its request {media_type!r}")
    if media_type in INDEXES:
        images = frozenset(_descriptor(each)[0] for each in _listed(document, "manifests"))
        return Manifest(media_type, frozenset(), images, 0, media_type)
    config = document.get("config")
    blobs = [_descriptor(config), *(_descriptor(each) for each in _listed(document, "layers"))]
    kind = config.get("mediaType", "") if isinstance(config, dict) else ""
    return Manifest(media_type, frozenset(dict(blobs)), frozenset(), sum(size for _, size in blobs), kind)


def _listed(document: dict[str, Any], name: str) -> list[Any]:
    found = document.get(name)
    if not isinstance(found, list):
        raise InvalidManifestError(f"the manifest has no list {name!r}")
    return found


def _descriptor(value: object) -> tuple[str, int]:
    digest = value.get("digest") if isinstance(value, dict) else None
    size = value.get("size") if isinstance(value, dict) else None
    if not isinstance(digest, str) or DIGEST.fullmatch(digest) is None or not isinstance(size, int) or size < 0:
        raise InvalidManifestError(f"{value!r} is not a descriptor with a sha256 digest and a size")
    return digest, size
