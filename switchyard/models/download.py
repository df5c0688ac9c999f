"""One file over HTTP: resumed, checked against its sha256, and there only when it is complete."""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import tenacity

from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models.storage import BLOCK, human_size, require_space

ATTEMPTS_WITHOUT_PROGRESS = 6
RETRIED_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
Report = Callable[[int, int | None], None]
"""Called with bytes on disk and total bytes (None while unknown)."""


def http_client() -> httpx.Client:
    """A client with the machine's proxies and certificates (``PIP_CERT``, else ``SSL_CERT_FILE``, else certifi's)."""
    authority = os.environ.get("PIP_CERT")
    verify: ssl.SSLContext | bool = True
    if authority:
        path = Path(authority)
        if not path.exists():
            raise CommandError(f"PIP_CERT names {authority}, which does not exist", code=ExitCode.USAGE)
        verify = ssl.create_default_context(
            cafile=authority if path.is_file() else None, capath=authority if path.is_dir() else None
        )
    return httpx.Client(
        verify=verify,
        follow_redirects=True,
        timeout=httpx.Timeout(30.0, connect=15.0),
        headers={"User-Agent": "switchyard", "Accept-Encoding": "identity"},
    )


class _TransientError(Exception):
    """A fault that another attempt may not meet."""


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
    url: str,
    target: Path,
    *,
    sha256: str,
    size: int | None = None,
    report: Report = lambda _done, _total: None,
    wait: Callable[[tenacity.RetryCallState], float] | None = None,
) -> None:
    """Fetch ``url`` into ``target``; what is already in ``target``'s ``.part`` file is kept and continued.

    Args:
        client: See ``http_client``.
        url: Where the file is.
        target: Replaced in one step at the end; until then the bytes are in ``NAME.part`` beside it.
        sha256: What the file must hash to.
        size: In bytes, when it is known beforehand.
        report: Progress.
        wait: Seconds before the next attempt; exponential with jitter by default.

    Raises:
        CommandError: The server refused, the network failed several times in a row, the disk is too small, or the
            content is not the pinned one. Whatever can be continued is kept.
    """
    part = target.with_name(target.name + ".part")
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type((_TransientError, httpx.TransportError)),
        stop=_Stop(part),
        wait=wait or tenacity.wait_exponential_jitter(multiplier=0.5, max=15),
        reraise=True,
    )
    resumed = part.exists() and part.stat().st_size > 0
    try:
        found = retrying(_fetch, client, url, part, size, report)
        if found != sha256 and resumed:
            # The kept bytes may be of another day; the whole file decides.
            part.unlink()
            found = retrying(_fetch, client, url, part, size, report)
    except (_TransientError, httpx.TransportError) as error:
        kept = part.stat().st_size if part.exists() else 0
        raise CommandError(
            f"cannot download {url}: {error or type(error).__name__}",
            code=ExitCode.DOWNLOAD,
            hint=f"{human_size(kept)} are kept. Check the network (or the proxy), then run the command again.",
        ) from error
    if found != sha256:
        part.unlink()
        raise CommandError(
            f"{url} is not the pinned file: its sha256 is {found}, and {sha256} was expected. It was thrown away",
            code=ExitCode.MODEL,
            hint="It was changed on the way or at its source. Do not use it; tell the maintainers of the catalogue.",
        )
    part.replace(target)
    _etag_path(part).unlink(missing_ok=True)


def _etag_path(part: Path) -> Path:
    return part.with_name(part.name + ".etag")


def _fetch(client: httpx.Client, url: str, part: Path, size: int | None, report: Report) -> str:
    """One attempt; returns the sha256 of the complete file."""
    digest = hashlib.sha256()
    done = _hash_existing(part, digest)
    if size is not None and done == size:
        report(done, size)
        return digest.hexdigest()
    if size is not None and done > size:
        part.unlink()
        digest, done = hashlib.sha256(), 0
    headers: dict[str, str] = {}
    if done:
        headers["Range"] = f"bytes={done}-"
        etag = _etag_path(part)
        if etag.is_file():
            headers["If-Range"] = etag.read_text(encoding="ascii")
    with client.stream("GET", url, headers=headers) as response:
        if response.status_code == 416:
            # Already complete, or of another version: only a fresh start tells.
            total = _range_total(response)
            if total == done:
                return digest.hexdigest()
            part.unlink()
            raise _TransientError("the server has fewer bytes than are kept here; starting again")
        _require_success(response, url)
        if response.status_code != 206 or _range_start(response) != done:
            if response.status_code == 206:
                part.unlink(missing_ok=True)
                raise _TransientError("the server sent another range than was asked for")
            digest, done = hashlib.sha256(), 0
        total = size if size is not None else _total(response, done)
        _remember_etag(part, response)
        if total is not None:
            require_space(part.parent, total - done)
        with part.open("r+b" if part.exists() else "w+b") as file:
            file.truncate(done)
            file.seek(done)
            report(done, total)
            for block in response.iter_raw():
                file.write(block)
                digest.update(block)
                done += len(block)
                report(done, total)
            file.flush()
            os.fsync(file.fileno())
        if total is not None and done < total:
            raise _TransientError(f"the connection ended after {done} of {total} bytes")
    return digest.hexdigest()


def _hash_existing(part: Path, digest: hashlib._Hash) -> int:
    done = 0
    if part.exists():
        with part.open("rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
                done += len(block)
    return done


def _require_success(response: httpx.Response, url: str) -> None:
    status = response.status_code
    if status in RETRIED_STATUSES:
        raise _TransientError(f"the server answered {status} {response.reason_phrase}")
    if status not in (200, 206):
        raise CommandError(
            f"cannot download {url}: the server answered {status} {response.reason_phrase}", code=ExitCode.DOWNLOAD
        )
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise CommandError(f"cannot download {url}: it came encoded as {encoding}, unasked", code=ExitCode.DOWNLOAD)


def _content_range(response: httpx.Response) -> re.Match[str] | None:
    return re.match(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)$", response.headers.get("Content-Range", ""))


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
    return done + int(length) if length.isdecimal() else None


def _remember_etag(part: Path, response: httpx.Response) -> None:
    """Keep the version's tag for If-Range. A weak tag does not promise the same bytes, so it is not kept."""
    etag = response.headers.get("ETag", "")
    path = _etag_path(part)
    if etag.startswith('"') and etag.isascii():
        path.write_text(etag, encoding="ascii")
    elif response.status_code == 200:
        path.unlink(missing_ok=True)
