"""A file that is read as a whole is a file, within its limit; nothing waits for one that nobody writes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from steelyard.client.decision_file import read_text
from steelyard.decisions.folder import read_cases, read_contract
from steelyard.decisions.template import new_contract
from steelyard.decisions.workflow import read_baseline
from steelyard.evaluation.gating import read_gates
from steelyard.evaluation.result import read_evaluation
from steelyard.releases.manifest import load_release
from steelyard_base.exit_codes import CommandError
from steelyard_runtime.decisions.contract import write_contract
from steelyard_runtime.decisions.head import HeadError, load_head
from steelyard_runtime.decisions.registry import RegistryError, load_registry
from steelyard_runtime.settings import SettingsError, load_settings
from steelyard_runtime.whole_files import read_whole

CONTRACT = new_contract("small", kind="yesno", question="Is it?", options=())


def test_a_file_is_read_up_to_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"x" * 5)
    assert read_whole(path, most=5) == b"xxxxx"
    with pytest.raises(OSError, match="it has 5 bytes and 4 are allowed"):
        read_whole(path, most=4)
    # Files of the kernel say that they have none.
    assert read_whole(Path("/proc/self/status"), most=1 << 20)
    with pytest.raises(OSError, match="it has more than 10 bytes, which is the limit"):
        read_whole(Path("/proc/self/status"), most=10)


@pytest.mark.parametrize("pipes", [False, True])
def test_a_device_is_no_file(pipes: bool) -> None:
    with pytest.raises(OSError, match="it is no regular file"):
        read_whole(Path("/dev/zero"), most=5, pipes=pipes)


def test_a_shells_pipe_is_a_file_where_a_person_names_it() -> None:
    with subprocess.Popen(["printf", "hello"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert read_whole(Path(f"/dev/fd/{process.stdout.fileno()}"), most=5, pipes=True) == b"hello"
    with subprocess.Popen(["printf", "hello"], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        with pytest.raises(OSError, match="more than 4 bytes"):
            read_whole(Path(f"/dev/fd/{process.stdout.fileno()}"), most=4, pipes=True)


@pytest.mark.parametrize(
    ("name", "read", "error"),
    [
        ("contract.toml", read_contract, CommandError),
        ("contract.toml", lambda folder: load_registry(folder.parent), RegistryError),
        ("cases.jsonl", lambda folder: read_cases(folder / "cases.jsonl", CONTRACT), CommandError),
        ("baseline.json", read_baseline, CommandError),
        ("head.json", load_head, HeadError),
        ("head.safetensors", load_head, HeadError),
    ],
)
def test_a_pipe_in_a_decisions_folder_holds_nobody_up(
    tmp_path: Path, name: str, read: Callable[[Path], object], error: type[Exception]
) -> None:
    for each in ("contract.toml", "head.json"):
        (tmp_path / "small").mkdir(exist_ok=True)
        (tmp_path / "small" / each).write_text(write_contract(CONTRACT))
    (tmp_path / "small" / name).unlink(missing_ok=True)
    os.mkfifo(tmp_path / "small" / name)
    with pytest.raises(error, match="it is no regular file"):
        read(tmp_path / "small")


@pytest.mark.parametrize(
    ("read", "error"),
    [
        (read_evaluation, CommandError),
        (read_gates, CommandError),
        (lambda path: read_text(path, None), CommandError),
        (lambda path: load_release(str(path)), CommandError),
        (lambda path: load_settings(config=path), SettingsError),
    ],
)
def test_a_file_without_an_end_is_refused(
    tmp_path: Path, read: Callable[[Path], object], error: type[Exception]
) -> None:
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    with pytest.raises(error, match="it is no regular file"):
        read(tmp_path / "endless.json")
