"""Check the head of an HTTP/1.1 request where h11 is more lenient than RFC 9112 wants a server to be.

What two servers in a row may read differently (two lengths, folded lines, line ends of one character) is refused, so
that a request that a proxy let pass is the one that is answered here.
"""

from __future__ import annotations

import re

import h11

MAX_HEAD_BYTES = 32 << 10
"""Most bytes of a request line and its headers together."""
MAX_HEADERS = 100
"""Most header lines of a request."""
MAX_CHUNKS = 16_384
"""Most chunks of a body: tiny ones cost far more time than their bytes."""

_EMPTY_LINES = re.compile(rb"\A(?:\r\n)+")
_END = b"\r\n\r\n"
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r(?!\n|\Z)")
_FOLDED = re.compile(rb"\r\n[ \t]")
# Letters, digits and marks of a name or an address, in brackets or not, and a port. [RFC 3986, section 3.2.2]
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%:\[\]-]*")
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)


class Refused(h11.RemoteProtocolError):
    """A request that is not answered by the application; ``error_status_hint`` is the status."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message, error_status_hint=status)


def without_empty_lines(received: bytes) -> bytes:
    """Return what follows the empty lines that some clients send before a request. See RFC 9112, section 2.2."""
    return _EMPTY_LINES.sub(b"", received, count=1)


def check_bytes(received: bytes) -> None:
    """Check a head, whole or as far as it came, before it is parsed.

    Args:
        received: Bytes since the last request; what follows the head is not examined.

    Raises:
        Refused: 400, 414 or 431.
    """
    end = received.find(_END)
    head = received if end < 0 else received[: end + len(_END)]
    if len(head) > MAX_HEAD_BYTES:
        if b"\r\n" not in head[:MAX_HEAD_BYTES]:
            raise Refused(f"The request line has more than {MAX_HEAD_BYTES} bytes; send a shorter path.", 414)
        raise Refused(f"The request's headers have more than {MAX_HEAD_BYTES} bytes; send fewer or shorter ones.", 431)
    if _BARE_LINE_END.search(head):
        raise Refused("A line of the request's head ends with a bare LF or holds a bare CR; end lines with CR LF.")
    if _FOLDED.search(head):
        raise Refused("A header is folded over several lines, which HTTP/1.1 no longer allows; send it on one line.")
    if head.count(b"\r\n") > MAX_HEADERS + 2:
        raise Refused(f"The request has more than {MAX_HEADERS} headers; send fewer.", 431)


def check_request(request: h11.Request) -> h11.Request:
    """Check a parsed head; the same request, with the target as a path.

    Raises:
        Refused: 400 or 417.
    """
    headers = [(name, value) for name, value in request.headers]
    names = [name for name, _ in headers]
    if not request.http_version.startswith(b"1."):
        raise Refused(f"HTTP/{request.http_version.decode('ascii')} is not served; send HTTP/1.1.")
    if b"transfer-encoding" in names:
        if b"content-length" in names:
            raise Refused("The request has both Content-Length and Transfer-Encoding; send one of them.")
        if request.http_version == b"1.0":
            raise Refused("Transfer-Encoding is no part of HTTP/1.0; send Content-Length, or HTTP/1.1.")
    if not all(_HOST.fullmatch(value) for name, value in headers if name == b"host"):
        raise Refused("The header Host is not a host's name or address with an optional port.")
    expected = [part for name, value in headers if name == b"expect" for part in value.split(b",")]
    if any(part.strip().lower() not in (b"", b"100-continue") for part in expected):
        raise Refused("The header Expect asks for more than 100-continue, which is all that can be expected.", 417)
    return _with_path(request, headers)


def _with_path(request: h11.Request, headers: list[tuple[bytes, bytes]]) -> h11.Request:
    target = request.target
    if target.startswith(b"/") or (target == b"*" and request.method == b"OPTIONS"):
        return request
    absolute = _ABSOLUTE.fullmatch(target)
    if absolute is None or not absolute[1] or not _HOST.fullmatch(absolute[1]):
        raise Refused("The request's target is neither a path nor an http or https address; send a path such as /ping.")
    path = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
    # The address counts, whatever Host says. [RFC 9112, section 3.2.2]
    headers = [(name, absolute[1] if name == b"host" else value) for name, value in headers]
    return h11.Request(method=request.method, target=path, headers=headers, http_version=request.http_version)
