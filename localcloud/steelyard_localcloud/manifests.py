"""The manifest of an image that the emulated registry holds in place of a real one."""

from __future__ import annotations

import hashlib
import json
from typing import Any

COMMAND_ANNOTATION = "steelyard.localcloud.command"

_MEDIA_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def manifest(command: list[str] | None = None) -> dict[str, Any]:
    """A Docker image manifest without layers.

    Args:
        command: Command that the local cloud runs in place of our server; None for our server.
    """
    config = b"{}"
    result: dict[str, Any] = {
        "schemaVersion": 2,
        "mediaType": _MEDIA_TYPE,
        "config": {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            "size": len(config),
            "digest": f"sha256:{hashlib.sha256(config).hexdigest()}",
        },
        "layers": [],
    }
    if command is not None:
        result["annotations"] = {COMMAND_ANNOTATION: json.dumps(command)}
    return result
