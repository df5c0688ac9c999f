"""A download is the pinned file or an error; what was fetched before a fault is not fetched again."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from steelyard.models import download as module
from steelyard.models import storage
from steelyard.models.download import download, http_client
from steelyard_base.exit_codes import CommandError, ExitCode

DATA = b"".join(hashlib.sha256(str(n).encode()).digest() for n in range(3000))
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def fetch(web, cache, tmp_path):
    """Fetch ``/model`` from ``web``, without pauses between attempts."""
    target = tmp_path / "model.gguf"
    web.files["/model"] = DATA

    def fetch(**options):
        options = {"sha256": SHA256, "size": len(DATA)} | options
        with http_client() as client:
            download(client, f"{web.url}/model", target, wait=lambda _state: 0.0, **options)
        return target

    fetch.target = target
    fetch.part = Path(f"{target}.part")
    return fetch


def test_a_download_leaves_the_file_alone(fetch):
    assert fetch().read_bytes() == DATA
    assert sorted(p.name for p in fetch.target.parent.glob("model*")) == ["model.gguf"]


def test_progress_is_told_in_bytes(fetch):
    told = []
    fetch(report=lambda done, total: told.append((done, total)))
    assert told[0] == (0, len(DATA))
    assert told[-1] == (len(DATA), len(DATA))


@pytest.mark.parametrize("etag", ['"one"', None, 'W/"weak"'])
def test_a_broken_connection_is_continued_where_it_broke(fetch, web, etag):
    web.etag = etag
    web.cut_after = [40_000, 30_000]
    assert fetch().read_bytes() == DATA
    assert len(web.requests) == 3
    assert all(int(asked.removeprefix("bytes=").removesuffix("-")) > 0 for asked in web.ranges_asked())
    assert len(web.ranges_asked()) == 2


def test_an_earlier_run_is_continued(fetch, web):
    fetch.part.write_bytes(DATA[:50_000])
    assert fetch().read_bytes() == DATA
    assert web.ranges_asked() == ["bytes=50000-"]


def test_a_server_without_ranges_starts_again(fetch, web):
    web.ranges = False
    fetch.part.write_bytes(DATA[:50_000])
    assert fetch().read_bytes() == DATA


def test_another_version_on_the_server_starts_again(fetch, web):
    web.cut_after = [40_000]
    web.statuses = []
    fetch.part.write_bytes(b"x" * 10)
    Path(f"{fetch.part}.etag").write_text('"older"')
    assert fetch().read_bytes() == DATA


def test_kept_bytes_of_another_file_are_found_out_by_the_hash(fetch, web):
    web.etag = None
    fetch.part.write_bytes(b"x" * 50_000)
    assert fetch().read_bytes() == DATA


def test_more_kept_bytes_than_the_file_has_start_again(fetch):
    fetch.part.write_bytes(b"x" * (len(DATA) + 1))
    assert fetch().read_bytes() == DATA


def test_a_size_that_is_not_pinned_comes_from_the_server(fetch, web):
    web.cut_after = [40_000]
    assert fetch(size=None).read_bytes() == DATA


def test_a_complete_part_of_unknown_size_is_recognised(fetch, web):
    fetch.part.write_bytes(DATA)
    assert fetch(size=None).read_bytes() == DATA


def test_busy_servers_are_asked_again(fetch, web):
    web.statuses = [503, 429, 500]
    assert fetch().read_bytes() == DATA


def test_a_refusal_is_not_repeated(fetch, web):
    web.statuses = [403, 403]
    with pytest.raises(CommandError, match="403") as caught:
        fetch()
    assert caught.value.code is ExitCode.DOWNLOAD
    assert len(web.requests) == 1


def test_attempts_without_progress_end(fetch, web):
    web.statuses = [503] * 50
    with pytest.raises(CommandError, match="503") as caught:
        fetch()
    assert caught.value.code is ExitCode.DOWNLOAD
    assert len(web.requests) == module.ATTEMPTS_WITHOUT_PROGRESS


def test_a_line_that_breaks_often_and_moves_on_gets_there(fetch, web):
    web.cut_after = [7_000] * 12
    assert fetch().read_bytes() == DATA
    assert len(web.requests) == 13


def test_content_that_is_not_the_pinned_one_is_thrown_away(fetch, web):
    web.files["/model"] = DATA[:-1] + b"?"
    found = hashlib.sha256(web.files["/model"]).hexdigest()
    with pytest.raises(CommandError) as caught:
        fetch()
    assert caught.value.code is ExitCode.MODEL
    assert found in caught.value.message
    assert SHA256 in caught.value.message
    assert not fetch.target.exists()
    assert not fetch.part.exists()


def test_a_full_disk_is_told_beforehand_with_both_numbers(fetch, monkeypatch):
    monkeypatch.setattr(storage.shutil, "disk_usage", lambda _path: SimpleNamespace(free=1_000))
    with pytest.raises(CommandError, match=r"96 kB are needed.*1 kB are free"):
        fetch()


def test_an_interrupted_download_is_continued(fetch, web):
    def interrupt(done, _total):
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(report=interrupt)
    kept = fetch.part.stat().st_size
    assert kept > 0
    assert not fetch.target.exists()
    assert fetch().read_bytes() == DATA


# In ranges, several at a time.


@pytest.fixture
def in_ranges(monkeypatch):
    monkeypatch.setattr(module, "RANGE_BYTES", 10_000)


def spans(web):
    return sorted(tuple(map(int, re.findall(r"\d+", asked))) for asked in web.ranges_asked())


def test_a_large_file_comes_in_ranges(fetch, web, in_ranges):
    told = []
    assert fetch(report=lambda done, total: told.append((done, total))).read_bytes() == DATA
    assert spans(web) == [(start, min(start + 10_000, len(DATA)) - 1) for start in range(0, len(DATA), 10_000)]
    assert told[-1] == (len(DATA), len(DATA))
    assert [done for done, _ in told] == sorted(done for done, _ in told)


def test_ranges_go_on_where_an_earlier_run_ended(fetch, web, in_ranges):
    fetch.part.write_bytes(DATA[:45_001])
    assert fetch().read_bytes() == DATA
    assert spans(web)[0] == (45_001, 55_000)


def test_a_range_that_breaks_off_keeps_those_before_it(fetch, web, in_ranges, monkeypatch):
    monkeypatch.setattr(module, "RANGES_AT_ONCE", 1)
    web.cut_after = [10_000, 10_000, 500]
    assert fetch().read_bytes() == DATA
    assert [int(asked[6:].split("-")[0]) for asked in web.ranges_asked()][:5] == [0, 10_000, 20_000, 20_000, 30_000]


def test_a_server_without_ranges_sends_the_whole_file(fetch, web, in_ranges):
    web.ranges = False
    assert fetch().read_bytes() == DATA


def test_ranges_of_another_file_are_found_out(fetch, web, in_ranges):
    web.files["/model"] = DATA[:-1] + b"?"
    with pytest.raises(CommandError, match="is not the pinned file: its sha256 is"):
        fetch()
    web.files["/model"] = DATA + b"?"
    with pytest.raises(CommandError, match=f"the server has {len(DATA) + 1} bytes, and {len(DATA)} were expected"):
        fetch()
    assert not fetch.part.exists() or fetch.part.stat().st_size == 0


def test_an_interrupted_download_in_ranges_keeps_a_beginning(fetch, in_ranges):
    def interrupt(done, _total):
        if done > 50_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(report=interrupt)
    assert DATA.startswith(fetch.part.read_bytes())
    assert fetch().read_bytes() == DATA


def test_nobody_listens(fetch, web, tmp_path):
    with http_client() as client, pytest.raises(CommandError, match="cannot download") as caught:
        download(client, "http://127.0.0.1:9/x", tmp_path / "x", sha256=SHA256, wait=lambda _state: 0.0)
    assert caught.value.code is ExitCode.DOWNLOAD


def test_a_certificate_file_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("PIP_CERT", "/nowhere/ca.pem")
    with pytest.raises(CommandError, match=r"/nowhere/ca\.pem"):
        http_client()
