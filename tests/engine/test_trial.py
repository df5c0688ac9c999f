"""Files that llama.cpp ends a process for: each is one sentence, and the process that serves lives."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import gguf_mutations
import tiny_models
from gguf_mutations import Gguf, Value
from steelyard_runtime.engine import trial
from steelyard_runtime.engine.llama import ContextShape
from steelyard_runtime.engine.start import EngineStartError, start_engine
from steelyard_runtime.engine.trial import Limits, TrialError, try_out
from steelyard_runtime.legible import legible, reason_of
from steelyard_runtime.settings import load_settings

SHAPE = ContextShape(sequence_tokens=256, sequences=2, batch_tokens=64, threads=1)
PLENTY = trial.limits(1 << 20, gpu_layers=0)
FINDS = Path(__file__).with_name("gguf_finds.txt")
RANDOM = 12


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("bases")
    return {kind: tiny_models.write(kind, folder / "base.gguf").read_bytes() for kind in tiny_models.KINDS}


def with_value(file: Gguf, key: str, data: Any) -> None:
    file.values[:] = [
        (k, replace(v, data=data(v) if callable(data) else data) if k == key else v) for k, v in file.values
    ]


def with_tensors(file: Gguf, change: Callable[[gguf_mutations.Tensor], gguf_mutations.Tensor]) -> None:
    file.tensors[:] = [change(tensor) for tensor in file.tensors]


def all_equal(value: Value) -> list[Any]:
    return [value.data[0]] * len(value.data)


HOSTILE: dict[str, tuple[str, Callable[[Gguf], None], str]] = {
    "epsilon": ("llama", lambda f: with_value(f, "llama.attention.layer_norm_rms_epsilon", float("nan")), "a prompt"),
    "no blocks": ("llama", lambda f: with_value(f, "llama.block_count", 0), "while loading it"),
    "2^31 blocks": ("llama", lambda f: with_value(f, "llama.block_count", 2**31 - 1), "while loading it"),
    "a block more": ("llama", lambda f: with_value(f, "llama.block_count", 3), "blk.2.attn_norm.weight"),
    "a bert tokenizer": ("llama", lambda f: with_value(f, "tokenizer.ggml.model", "bert"), "SIGABRT"),
    "a llama tokenizer": ("qwen35", lambda f: with_value(f, "tokenizer.ggml.model", "llama"), "its vocabulary"),
    "integer norms": (
        "llama", lambda f: with_tensors(f, lambda t: replace(t, type=26) if "norm" in t.name else t), "a prompt"
    ),
    "equal tokens": ("llama", lambda f: with_value(f, "tokenizer.ggml.tokens", all_equal), "while loading it"),
    "no weights": ("llama", lambda f: with_tensors(f, lambda t: replace(t, data=bytes(len(t.data)))), "all equal"),
    "weights that are no numbers": (
        "llama", lambda f: with_tensors(f, lambda t: replace(t, data=b"\xff" * len(t.data))), "no finite numbers"
    ),
    "no context": ("llama", lambda f: with_value(f, "llama.context_length", 2**32 - 1), "trained on -1 positions"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_a_file_that_would_end_the_process_is_refused_with_a_sentence(
    bases: dict[str, bytes], tmp_path: Path, name: str
) -> None:
    base, change, said = HOSTILE[name]
    file = gguf_mutations.parse(bases[base])
    change(file)
    path = tmp_path / "hostile.gguf"
    path.write_bytes(file.bytes())
    outcome = gguf_mutations.start_of(path)
    assert not outcome.finding
    assert said in outcome.refused


def finds() -> list[tuple[str, int]]:
    """Cases that the fuzzer found once."""
    lines = [line.split("#")[0].split() for line in FINDS.read_text(encoding="utf-8").splitlines()]
    return [(base, int(number)) for base, number in filter(None, lines)]


@pytest.mark.parametrize(
    ("base", "number"),
    [*finds(), *((tiny_models.KINDS[number % len(tiny_models.KINDS)], number) for number in range(RANDOM))],
)
def test_fuzz_gguf_files(bases: dict[str, bytes], tmp_path: Path, base: str, number: int) -> None:
    raw, faults = gguf_mutations.mutated(bases[base], number)
    path = tmp_path / f"{base}-{number}.gguf"
    path.write_bytes(raw)
    outcome = gguf_mutations.start_of(path)
    assert not outcome.finding, faults


def test_what_only_the_self_test_finds_names_the_file_and_no_class(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "try_out", lambda *_, **__: "")
    broken = gguf_mutations.parse(model.read_bytes())
    HOSTILE["weights that are no numbers"][1](broken)
    model.write_bytes(broken.bytes())
    with pytest.raises(EngineStartError) as caught:
        start_engine(load_settings(model=str(model), threads=1, context_tokens=256))
    assert str(caught.value) == f"{model} cannot be served: some of the self-test's logits are no finite numbers"
    assert not [thread for thread in threading.enumerate() if thread.name == "steelyard-engine"]


def test_a_setting_that_does_not_fit_a_file_names_it(model: Path) -> None:
    with pytest.raises(EngineStartError, match=r"model\.gguf cannot be served: batch_tokens=32 is too small"):
        start_engine(load_settings(model=str(model), threads=1, context_tokens=256, batch_tokens=32, chats=20))


def test_the_mutations_start_from_the_whole_file(bases: dict[str, bytes]) -> None:
    for base in bases.values():
        file = gguf_mutations.parse(base)
        assert copy.deepcopy(file).bytes() == base


@pytest.fixture
def model(bases: dict[str, bytes], tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(bases["llama"])
    return path


def tried(path: Path, *, architecture: str = "llama", within: Limits = PLENTY) -> str:
    return try_out(path, SHAPE, architecture=architecture, gpu_layers=0, within=within)


@pytest.mark.parametrize("architecture", ["llama", "never heard of"])
def test_a_good_file_is_tried_and_nothing_is_held_against_it(model: Path, architecture: str) -> None:
    assert tried(model, architecture=architecture) == ""


def test_a_file_that_takes_too_long_is_refused(model: Path) -> None:
    with pytest.raises(TrialError, match=r"model.gguf .* did not come to an end within 0 s while starting a process"):
        tried(model, within=replace(PLENTY, seconds=0.02))


def test_a_file_that_takes_too_much_memory_is_refused(model: Path) -> None:
    with pytest.raises(TrialError, match=r"model.gguf cannot be served: "):
        tried(model, within=replace(PLENTY, memory_bytes=64 << 20))


@pytest.mark.parametrize(
    ("ends", "said"),
    [("kill -ABRT $$", "was ended by SIGABRT"), ("exit 1", "ended with status 1"), ("sleep 60", "did not come to an")],
)
def test_a_child_that_dies_from_a_snapshot_leads_to_recomputing(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str, said: str
) -> None:
    child = tmp_path / "child"
    child.write_text(f"#!/bin/sh\necho 'loading it'\necho '{trial.SNAPSHOTS}'\n{ends}\n", encoding="utf-8")
    child.chmod(0o755)
    monkeypatch.setattr(trial, "sys", SimpleNamespace(executable=str(child)))
    monkeypatch.setattr(trial, "limits", lambda *_, **__: replace(PLENTY, seconds=0.5 if "sleep" in ends else 60))
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=256))
    try:
        found = engine.identity.probe
        assert (found.prefix_sharing, found.exact) == (False, True)
        assert said in found.note
    finally:
        engine.close(timeout_s=0)


def test_the_limits_grow_with_the_file_and_a_gpu_has_none_of_memory() -> None:
    small, large = trial.limits(1 << 20, gpu_layers=0), trial.limits(1 << 34, gpu_layers=0)
    assert large.seconds > 800 > small.seconds
    assert large.memory_bytes > 1 << 35 > small.memory_bytes > 1 << 30
    assert trial.limits(1 << 34, gpu_layers=-1).memory_bytes == 0


def test_what_a_file_says_is_made_legible() -> None:
    assert legible("a\x1b[31m key\n of  many\u202e") == "a?[31m key of many?"
    assert legible("long " * 1000, most=20) == "long long long lo..."


def test_an_error_that_says_nothing_is_told_by_its_place() -> None:
    assert reason_of(ValueError("7 is too many")) == "7 is too many"
    with pytest.raises(AssertionError) as caught:
        _fail()
    assert reason_of(caught.value).startswith("AssertionError at test_trial.py:")


def _fail() -> None:
    raise AssertionError
