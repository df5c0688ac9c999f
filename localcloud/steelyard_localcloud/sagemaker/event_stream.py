"""Messages of AWS's event stream encoding, in which a streamed response reaches the caller."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping

CONTENT_TYPE = "application/vnd.amazon.eventstream"

_STRING = 7
_PRELUDE_BYTES, _CHECKSUM_BYTES = 12, 4


def payload_part(content: bytes) -> bytes:
    """A ``PayloadPart``: some bytes of the response."""
    headers = {
        ":message-type": "event",
        ":event-type": "PayloadPart",
        ":content-type": "application/octet-stream",
    }
    return message(headers, content)


def failure(kind: str, **members: str) -> bytes:
    """An exception in the middle of a stream, such as ``ModelStreamError``."""
    headers = {
        ":message-type": "exception",
        ":exception-type": kind,
        ":content-type": "application/json",
    }
    return message(headers, json.dumps(members).encode())


def message(headers: Mapping[str, str], payload: bytes) -> bytes:
    """One message: two lengths and their checksum, headers, payload, checksum of it all."""
    encoded = b"".join(_header(name, value) for name, value in headers.items())
    total = _PRELUDE_BYTES + len(encoded) + len(payload) + _CHECKSUM_BYTES
    prelude = struct.pack(">II", total, len(encoded))
    checked = prelude + struct.pack(">I", zlib.crc32(prelude)) + encoded + payload
    return checked + struct.pack(">I", zlib.crc32(checked))


def _header(name: str, value: str) -> bytes:
    name_bytes, value_bytes = name.encode(), value.encode()
    return bytes([len(name_bytes)]) + name_bytes + struct.pack(">BH", _STRING, len(value_bytes)) + value_bytes
