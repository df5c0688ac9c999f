"""Real processes, interrupted with real signals and writing to a disk that is really full."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from model_sources import as_toml, hub_entry, on_hub, tiny_model
from steelyard.models import storage
from steelyard.models.download import RANGE_BYTES
from steelyard_base.exit_codes import ExitCode

CONTENT = tiny_model()
FILES = {"tiny.gguf": CONTENT, "mmproj-tiny.gguf": CONTENT[::-1]}
COMMAND = [sys.executable, "-m", "steelyard", "model"]


@pytest.fixture
def entry(web, cache, tmp_path, monkeypatch):
    """A model of two files on the hub, in a catalogue of one's own, for processes."""
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    monkeypatch.setenv("STEELYARD_MODELS", str(tmp_path / "catalogue"))
    (tmp_path / "catalogue").mkdir()
    entry = hub_entry(FILES)
    (tmp_path / "catalogue" / "tiny.toml").write_text(as_toml(entry))
    on_hub(web, FILES)
    return entry


def interrupted(command, reached, *, timeout_s=60):
    """Start ``command``, send SIGINT as soon as ``reached`` says so; returns its exit code and what it said."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        end = time.monotonic() + timeout_s
        while not reached() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=timeout_s)
    return process.returncode, out, err


def kept(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.part"))


@pytest.mark.parametrize("at", [0, 1, 100_000, len(CONTENT) - 1])
def test_a_pull_interrupted_at_any_point_goes_on(entry, web, at):
    """The server falls silent there, in both files. What is kept is a beginning, and the next run ends it.

    The threads that wait for the network are not waited for: the silence would last longer than this test may.
    """
    web.hold_at = at
    folder = storage.model_folder(entry)
    buffered = 2 * 8192
    code, _, err = interrupted(
        [*COMMAND, "pull", "tiny"], lambda: len(web.requests) == 2 and kept(folder) >= 2 * at - buffered
    )
    assert code == ExitCode.INTERRUPTED, err
    assert "Traceback" not in err
    for name, data in FILES.items():
        path, part = folder / name, folder / f"{name}.part"
        assert not path.exists() or path.read_bytes() == data
        assert not part.exists() or data.startswith(part.read_bytes())
    before = {path.name: path.stat().st_size for path in folder.glob("*.part")}
    web.hold_at = None
    web.requests.clear()
    done = subprocess.run([*COMMAND, "pull", "tiny"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {f"bytes={size}-" for size in before.values() if size} == set(web.ranges_asked())
    marks = [f"{name}.verified" for name in FILES]
    assert sorted(path.name for path in folder.iterdir()) == sorted([".lock", *FILES, *marks])
    assert all((folder / name).read_bytes() == data for name, data in FILES.items())


def test_a_pull_in_ranges_interrupted_goes_on(web, entry, tmp_path):
    """A file large enough to come in ranges: what is kept is a beginning all the same."""
    data = CONTENT + bytes(range(256)) * (60 << 12)
    large = hub_entry({"tiny.gguf": data})
    (tmp_path / "catalogue" / "tiny.toml").write_text(as_toml(large))
    on_hub(web, {"tiny.gguf": data})
    web.hold_at = 2 * RANGE_BYTES
    folder = storage.model_folder(large)
    code, _, err = interrupted([*COMMAND, "pull", "tiny"], lambda: kept(folder) >= 2 * RANGE_BYTES)
    assert code == ExitCode.INTERRUPTED, err
    part = folder / "tiny.gguf.part"
    before = part.stat().st_size
    assert data.startswith(part.read_bytes())
    web.hold_at = None
    web.requests.clear()
    done = subprocess.run([*COMMAND, "pull", "tiny"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (folder / "tiny.gguf").read_bytes() == data
    assert min(int(asked[6:].split("-")[0]) for asked in web.ranges_asked()) == before == 2 * RANGE_BYTES


def pulled_alone(web, tmp_path, data):
    """A model of one large file, pulled from a folder: for what takes a while to package."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "tiny.gguf").write_bytes(data)
    entry = hub_entry({"tiny.gguf": data})
    text = as_toml(entry).split("[source]")[0] + f"[source]\nkind = 'file'\nfolder = {json.dumps(str(source))}\n"
    (tmp_path / "catalogue" / "tiny.toml").write_text(text)
    subprocess.run([*COMMAND, "pull", "tiny"], check=True, capture_output=True)
    return entry


SLOW_PACKAGE = """
import sys, time
from steelyard import cli
from steelyard.models import archive
real = archive._Hashing.read
def slowly(*given):
    time.sleep(0.1)
    return real(*given)
archive._Hashing.read = slowly
sys.exit(cli.run(sys.argv[1:]))
"""


@pytest.mark.parametrize("size", [0, 1, 1 << 20])
def test_packaging_interrupted_at_any_point_leaves_nothing(entry, web, tmp_path, size):
    """Zeros after the tensors do not matter to a GGUF file; they make it take longer than this test waits."""
    pulled_alone(web, tmp_path, CONTENT + bytes(32 << 20))
    to = tmp_path / "package"
    building = tmp_path / ".package.tiny.building"
    (tmp_path / "slowly.py").write_text(SLOW_PACKAGE)

    def reached():
        archive = building / "model.tar.gz"
        return building.exists() and (size == 0 or (archive.exists() and archive.stat().st_size >= size))

    command = ["package", "tiny", "--archive", "--to", str(to)]
    code, _, err = interrupted([sys.executable, str(tmp_path / "slowly.py"), "model", *command], reached)
    assert code == ExitCode.INTERRUPTED, err
    assert not to.exists()
    assert not building.exists()
    done = subprocess.run([*COMMAND, *command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in to.iterdir()) == ["model-manifest.json", "model.tar.gz"]


def test_a_run_that_was_killed_leaves_no_trace_after_the_next(entry, tmp_path):
    pulled_alone(None, tmp_path, CONTENT)
    building = tmp_path / ".package.tiny.building"
    building.mkdir()
    (building / "model.tar.gz").write_bytes(b"half")
    done = subprocess.run([*COMMAND, "package", "tiny", "--to", str(tmp_path / "package")], capture_output=True)
    assert done.returncode == 0
    assert not building.exists()


def on_small_disk(script: str, disk: Path, size_kb: int) -> subprocess.CompletedProcess[str]:
    """Run a shell script where ``disk`` is a file system of its own, that vanishes with the script."""
    disk.mkdir(parents=True, exist_ok=True)
    mount = f"mount -t tmpfs -o size={size_kb}k tmpfs {disk} && {script}"
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return subprocess.run(["unshare", *rights, "--mount", "sh", "-c", mount], capture_output=True, text=True)


def test_a_disk_that_fills_up_during_a_pull(entry, web, cache, tmp_path):
    """A server that does not tell a size cannot be refused beforehand: the write fails, with ENOSPC."""
    text = (tmp_path / "catalogue" / "tiny.toml").read_text()
    unsized = "\n".join(line for line in text.splitlines() if not line.startswith("size ="))
    (tmp_path / "catalogue" / "tiny.toml").write_text(unsized)
    web.chunked = True
    pull = f"{sys.executable} -m steelyard model pull tiny"
    ended = on_small_disk(f"{pull}; echo code $?; find {cache} -type f -name '*.gguf*'", cache, 400)
    assert "code 6" in ended.stdout, ended.stderr
    assert "the disk is full" in ended.stderr
    assert "No space left on device" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert all(line.endswith((".part", ".etag")) for line in ended.stdout.splitlines()[1:])
    done = subprocess.run([*COMMAND, "pull", "tiny"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_disk_that_is_too_small_is_told_before_a_byte_is_fetched(entry, web, cache):
    ended = on_small_disk(f"{sys.executable} -m steelyard model pull tiny; echo code $?", cache, 400)
    assert "code 6" in ended.stdout
    assert "1 MB are needed" in ended.stderr
    assert web.requests == []


@pytest.mark.parametrize("archive", ["", "--archive"])
def test_a_disk_that_is_too_small_for_a_package_leaves_nothing(entry, tmp_path, archive):
    pulled_alone(None, tmp_path, CONTENT)
    disk = tmp_path / "small"
    package = f"{sys.executable} -m steelyard model package tiny {archive} --to {disk}/package"
    ended = on_small_disk(f"{package}; echo code $?; find {disk} -mindepth 1", disk, 400)
    assert ended.stdout.splitlines() == ["code 6"], ended.stderr
    assert "are needed" in ended.stderr


def test_a_disk_that_fills_up_while_a_package_is_written_leaves_nothing(entry, tmp_path):
    """Someone else takes the space between the check and the write."""
    pulled_alone(None, tmp_path, CONTENT)
    disk = tmp_path / "small"
    taker = (
        "import pathlib, sys; from steelyard.models import archive, package\n"
        f"disk = pathlib.Path({str(disk)!r})\n"
        "real = archive.write_archive\n"
        "def taking(*given, **named):\n"
        "    (disk / 'taken').write_bytes(bytes(500 << 10))\n"
        "    return real(*given, **named)\n"
        "package.write_archive = taking\n"
        "from steelyard.cli import run\n"
        "sys.exit(run(['model', 'package', 'tiny', '--archive', '--to', str(disk / 'package')]))\n"
    )
    (tmp_path / "taker.py").write_text(taker)
    ended = on_small_disk(f"{sys.executable} {tmp_path}/taker.py; echo code $?; ls -A {disk}", disk, 800)
    assert ended.stdout.splitlines() == ["code 6", "taken"], ended.stderr
    assert "the disk is full" in ended.stderr
