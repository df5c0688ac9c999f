"""One file over HTTP: resumed, checked against its sha256, and there only when it is complete."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import tenacity

from steelyard.models.parallel import Tally, check, ordered
from steelyard.models.storage import BLOCK, human_size, require_space
from steelyard_base.exit_codes import CommandError, ExitCode

ATTEMPTS_WITHOUT_PROGRESS = 6
LONGEST_PAUSE_S = 60.0
RANGE_BYTES = 16 << 20
RANGES_AT_ONCE = 4
"""A large file comes in ranges, several at a time, each held in memory until those before it are on the disk."""
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
# As HTTP writes numbers; other scripts' digits are none there, and Python reads no number of any length.
_WHOLE = re.compile(r"[0-9]{1,20}")
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,20})-[0-9]{1,20}|\*)/([0-9]{1,20}|\*)")
Report = Callable[[int, int | None], None]
"""Called with bytes on disk and total bytes (None while unknown)."""


def http_client(authority_variable: str = "PIP_CERT") -> httpx.Client:
    """A client with the machine's proxies and certificates.

    Args:
        authority_variable: Environment variable that names a certificate authority; without it ``SSL_CERT_FILE``,
            else certifi's.
    """
    authority = os.environ.get(authority_variable)
    verify: ssl.SSLContext | bool = True
    if authority:
        path = Path(authority)
        if not path.exists():
            raise CommandError(f"{authority_variable} names {authority}, which does not exist", code=ExitCode.USAGE)
        verify = ssl.create_default_context(
            cafile=authority if path.is_file() else None, capath=authority if path.is_dir() else None
        )
    return httpx.Client(
        verify=verify,
        follow_redirects=True,
        timeout=httpx.Timeout(30.0, connect=15.0),
        headers={"User-Agent": "steelyard", "Accept-Encoding": "identity"},
    )


class _NoRangesError(Exception):
    """The server sends the whole file where a range was asked for."""


class _TransientError(Exception):
    """A fault that another attempt may not meet.

    Args:
        message: What happened.
        retry_after_s: Seconds that the server asked to wait.
    """

    def __init__(self, message: str, *, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass
class _Stop:
    """Stop after several attempts in a row that added nothing; a slow line may take as long as it needs."""

    part: Path
    size: int = -1
    idle: int = 0

    def __call__(self, _state: tenacity.RetryCallState) -> bool:
        size = self.part.stat().st_size if self.part.exists() else 0
        self.idle = 0 if size > self.size >= 0 else self.idle + 1
        self.size = size
        return self.idle >= ATTEMPTS_WITHOUT_PROGRESS


def download(
    client: httpx.Client,
    url: str | Callable[[], str],
    target: Path,
    *,
    sha256: str,
    size: int | None = None,
    shown: str | None = None,
    headers: Mapping[str, str] | None = None,
    inspect: Callable[[httpx.Response], None] = lambda _response: None,
    stop: threading.Event | None = None,
    report: Report = lambda _done, _total: None,
    wait: Callable[[tenacity.RetryCallState], float] | None = None,
) -> None:
    """Fetch ``url`` into ``target``; what is already in ``target``'s ``.part`` file is kept and continued.

    Args:
        client: See ``http_client``.
        url: Where the file is; a function is asked before each attempt, for addresses that expire.
        target: Replaced in one step at the end; until then the bytes are in ``NAME.part`` beside it.
        sha256: What the file must hash to.
        size: In bytes, when it is known beforehand.
        shown: What messages call the file; the address by default.
        headers: Sent with each request.
        inspect: Looks at each answer before its body is read, redirects before their targets; may raise.
        stop: When set, the download ends at the next block with ``StoppedError``.
        report: Progress.
        wait: Seconds before the next attempt; by default exponential with jitter, or what the server asks for.

    Raises:
        CommandError: The server refused, the network failed several times in a row, the disk is too small, or the
            content is not the pinned one. Whatever can be continued is kept.
        OSError: The disk cannot be written.
    """
    stop = stop or threading.Event()
    part = target.with_name(target.name + ".part")
    request = _Request(
        client=client,
        url=url if callable(url) else lambda: url,
        part=part,
        size=size,
        shown=shown or (url if isinstance(url, str) else target.name),
        headers=headers or {},
        inspect=inspect,
        stop=stop,
        report=report,
    )
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((_TransientError, httpx.TransportError)),
        stop=_Stop(part),
        wait=wait or _pause,
        sleep=lambda seconds: _sleep(seconds, stop),
        reraise=True,
    )
    resumed = part.exists() and part.stat().st_size > 0
    try:
        found = retrying(_fetch, request)
        if found != sha256 and resumed:
            # The kept bytes may be of another day; the whole file decides.
            part.unlink()
            found = retrying(_fetch, request)
    except (_TransientError, httpx.HTTPError, httpx.InvalidURL) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise CommandError(
            f"cannot download {request.shown}: {error or type(error).__name__}",
            code=ExitCode.DOWNLOAD,
            hint=f"{human_size(kept)} are kept. Check the network (or the proxy), then run the command again.",
        ) from error
    if found != sha256:
        got = part.stat().st_size
        part.unlink()
        _etag_path(part).unlink(missing_ok=True)
        sizes = f", and it has {got} bytes instead of {size}" if size is not None and got != size else ""
        raise CommandError(
            f"{request.shown} is not the pinned file: its sha256 is {found}, and {sha256} was expected{sizes}. "
            "It was thrown away",
            code=ExitCode.MODEL,
            hint="It was changed on the way or at its source. Do not use it; tell the maintainers of the catalogue.",
        )
    part.replace(target)
    _etag_path(part).unlink(missing_ok=True)


def _sleep(seconds: float, stop: threading.Event) -> None:
    stop.wait(seconds)


def _pause(state: tenacity.RetryCallState) -> float:
    fault = state.outcome.exception() if state.outcome else None
    asked = fault.retry_after_s if isinstance(fault, _TransientError) else 0.0
    return max(tenacity.wait_exponential_jitter(multiplier=0.5, max=15)(state), asked)


@dataclass(frozen=True, kw_only=True)
class _Request:
    client: httpx.Client
    url: Callable[[], str]
    part: Path
    size: int | None
    shown: str
    headers: Mapping[str, str]
    inspect: Callable[[httpx.Response], None]
    stop: threading.Event
    report: Report


def _etag_path(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _fetch(request: _Request) -> str:
    """One attempt; returns the sha256 of the complete file."""
    check(request.stop)
    part, size, report = request.part, request.size, request.report
    digest = hashlib.sha256()
    done = _hash_existing(part, digest)
    if size is not None and done == size:
        report(done, size)
        return digest.hexdigest()
    if size is not None and done > size:
        part.unlink()
        digest, done = hashlib.sha256(), 0
    if size is not None and size - done > RANGE_BYTES:
        try:
            return _fetch_ranges(request, digest, done, size)
        except _NoRangesError:
            pass  # nothing was written
    headers = dict(request.headers)
    if done:
        headers["Range"] = f"bytes={done}-"
        etag = _etag_path(part)
        if etag.is_file():
            headers["If-Range"] = etag.read_text(encoding="ascii")
    with request.client.stream("GET", request.url(), headers=headers) as response:
        for each in (*response.history, response):
            request.inspect(each)
        if response.status_code == 416:
            # Already complete, or of another version: only a fresh start tells.
            total = _range_total(response)
            if total == done:
                return digest.hexdigest()
            part.unlink()
            raise _TransientError("the server has fewer bytes than are kept here; starting again")
        _require_success(response, request.shown)
        if response.status_code != 206 or _range_start(response) != done:
            if response.status_code == 206:
                part.unlink(missing_ok=True)
                raise _TransientError("the server sent another range than was asked for")
            digest, done = hashlib.sha256(), 0
        sent = _total(response, done)
        _require_size(sent, request)
        total = size if size is not None else sent
        _remember_etag(part, response)
        if total is not None:
            require_space(part.parent, total - done)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(done)
            file.seek(done)
            report(done, total)
            for block in response.iter_raw():
                check(request.stop)
                if size is not None and done + len(block) > size:
                    raise _TransientError(f"the server sends more than the {size} bytes of the file")
                file.write(block)
                digest.update(block)
                done += len(block)
                report(done, total)
            file.flush()
            os.fsync(file.fileno())
        if total is not None and done < total:
            raise _TransientError(f"the connection ended after {done} of {total} bytes")
    return digest.hexdigest()


def _fetch_ranges(request: _Request, digest: hashlib._Hash, done: int, size: int) -> str:
    """The rest of a file over several connections; returns the sha256 of the whole.

    The ranges are written in their order, so that the ``.part`` file is a beginning of the file at any time.
    """
    require_space(request.part.parent, size - done)
    tally = Tally(lambda fetched, _total: request.report(done + fetched, size), None)
    ranges = [(start, min(start + RANGE_BYTES, size)) for start in range(done, size, RANGE_BYTES)]

    def job(start: int, end: int) -> Callable[[threading.Event], bytes]:
        return lambda stop: _fetch_range(request, start, end, stop, tally)

    jobs = [job(start, end) for start, end in ranges]
    with (
        request.part.open("ab") as file,
        closing(ordered(jobs, workers=RANGES_AT_ONCE, ahead=RANGES_AT_ONCE)) as results,
    ):
        for data in results:
            check(request.stop)
            file.write(data)
            file.flush()
            digest.update(data)
        os.fsync(file.fileno())
    return digest.hexdigest()


def _fetch_range(request: _Request, start: int, end: int, stop: threading.Event, tally: Tally) -> bytes:
    headers = {**request.headers, "Range": f"bytes={start}-{end - 1}"}
    with request.client.stream("GET", request.url(), headers=headers) as response:
        for each in (*response.history, response):
            request.inspect(each)
        _require_success(response, request.shown)
        if response.status_code == 200:
            raise _NoRangesError
        _require_size(_range_total(response), request)
        if _range_start(response) != start:
            raise _TransientError("the server sent another range than was asked for")
        data = bytearray()
        for block in response.iter_raw():
            check(stop)
            check(request.stop)
            data += block
            if len(data) > end - start:
                raise _TransientError("the server sent more than the range that was asked for")
            tally.set(str(start), len(data))
    if len(data) < end - start:
        raise _TransientError(f"the connection ended after {start + len(data)} of {request.size} bytes")
    return bytes(data)


def _require_size(sent: int | None, request: _Request) -> None:
    if request.size is not None and sent is not None and sent != request.size:
        raise CommandError(
            f"{request.shown} is not the pinned file: the server has {sent} bytes, and {request.size} were expected",
            code=ExitCode.MODEL,
            hint="It was changed at its source. Do not use it; tell the maintainers of the catalogue.",
        )


def _hash_existing(part: Path, digest: hashlib._Hash) -> int:
    done = 0
    if part.exists():
        with part.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                done += len(block)
    return done


def _require_success(response: httpx.Response, shown: str) -> None:
    status = response.status_code
    if status in RETRIED_STATUSES:
        asked = response.headers.get("Retry-After", "")
        raise _TransientError(
            f"the server answered {status} {response.reason_phrase}",
            retry_after_s=min(float(asked), LONGEST_PAUSE_S) if _WHOLE.fullmatch(asked) else 0.0,
        )
    if status not in (200, 206):
        raise CommandError(
            f"cannot download {shown}: the server answered {status} {response.reason_phrase}", code=ExitCode.DOWNLOAD
        )
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise CommandError(f"cannot download {shown}: it came encoded as {encoding}, unasked", code=ExitCode.DOWNLOAD)


def _content_range(response: httpx.Response) -> re.Match[str] | None:
    return _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))


def _range_start(response: httpx.Response) -> int | None:
    match = _content_range(response)
    return int(match[1]) if match and match[1] else None


def _range_total(response: httpx.Response) -> int | None:
    match = _content_range(response)
    return int(match[2]) if match and match[2] != "*" else None


def _total(response: httpx.Response, done: int) -> int | None:
    if response.status_code == 206:
        return _range_total(response)
    length = response.headers.get("Content-Length", "")
    return done + int(length) if _WHOLE.fullmatch(length) else None


def _remember_etag(part: Path, response: httpx.Response) -> None:
    """Keep the version's tag for If-Range. A weak tag does not promise the same bytes, so it is not kept."""
    etag = response.headers.get("ETag", "")
    path = _etag_path(part)
    if etag.startswith('"') and etag.isascii():
        path.write_text(etag, encoding="ascii")
    elif response.status_code == 200:
        path.unlink(missing_ok=True)
