"""Starting: what cannot work is refused with a sentence that names the file and what to do."""

from __future__ import annotations

import queue
import shutil
import time
from pathlib import Path

import pytest

import tiny_models
from steelyard_runtime.engine import abi, llama
from steelyard_runtime.engine.interface import Done, Event, Failed, GenerationJob, Piece, Sampling
from steelyard_runtime.engine.start import EngineStartError, start_engine
from steelyard_runtime.settings import load_settings


def refusal(model: Path, **changes: object) -> str:
    with pytest.raises(EngineStartError) as caught:
        start_engine(load_settings(model=str(model), threads=1, **changes))
    return str(caught.value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_models.write("llama", tmp_path / "model.gguf")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    assert "nowhere.gguf" in refusal(tmp_path / "nowhere.gguf")


def test_a_truncated_file_is_named_with_both_sizes(tmp_path: Path) -> None:
    path = tiny_models.write_truncated(tmp_path / "short.gguf")
    message = refusal(path)
    assert "short.gguf" in message
    assert str(path.stat().st_size) in message.replace(",", "")


def test_a_foreign_file_is_named(tmp_path: Path) -> None:
    assert "foreign.gguf" in refusal(tiny_models.write_bad_magic(tmp_path / "foreign.gguf"))


def test_a_projector_alone_is_refused(tmp_path: Path) -> None:
    assert "mmproj.gguf" in refusal(tiny_models.write_projector(tmp_path / "mmproj.gguf"))


def test_a_projector_beside_the_model_is_left_alone(model: Path) -> None:
    tiny_models.write_projector(model.parent / "a-mmproj.gguf")
    engine = start_engine(load_settings(model=str(model.parent), threads=1, probe=False))
    assert engine.identity.model.file_name == "model.gguf"
    engine.close(timeout_s=0)


def test_two_models_in_a_folder_are_both_named(model: Path) -> None:
    shutil.copy(model, model.parent / "other.gguf")
    message = refusal(model.parent)
    assert "model.gguf" in message
    assert "other.gguf" in message


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards = tiny_models.write_split("llama", tmp_path)
    shards[1].unlink()
    assert shards[1].name in refusal(shards[0])


def test_shards_load_as_one_model(tmp_path: Path) -> None:
    shards = tiny_models.write_split("llama", tmp_path)
    engine = start_engine(load_settings(model=str(shards[0]), threads=1, probe=False))
    assert engine.identity.model.size_bytes == sum(shard.stat().st_size for shard in shards)
    engine.close(timeout_s=0)


def test_a_gpu_profile_does_not_start_without_a_gpu(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama, "gpu_available", lambda: False)
    message = refusal(model, gpu_layers=-1)
    assert "gpu_layers=-1" in message
    assert "gpu_layers=0" in message


def test_fewer_layers_on_the_gpu_than_asked_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build with a GPU backend whose card is too small: llama.cpp loads anyway and says so only in its log."""
    monkeypatch.setattr(llama, "gpu_available", lambda: True)
    assert "layers" in refusal(model, gpu_layers=2)


def test_more_context_than_the_model_was_trained_on_is_refused(model: Path) -> None:
    message = refusal(model, context_tokens=5000)
    assert "5000" in message
    assert str(tiny_models.CONTEXT_LENGTH) in message


@pytest.mark.parametrize(
    ("changes", "least", "names"),
    [
        ({"chats": 64, "batch_tokens": 64}, 80, ["chats=64", "batch_tokens=64"]),
        ({"chats": 33, "batch_tokens": 32}, 49, ["chats=33", "batch_tokens=32"]),
        ({"chats": 63, "batch_tokens": 64}, 79, ["chats=63", "batch_tokens=64"]),
        ({"chats": 17, "batch_tokens": 32}, 33, ["chats=17", "batch_tokens=32"]),
        ({"chats": 3, "context_tokens": 18}, 19, ["chats=3", "context of 18", "context_tokens to 19"]),
        ({"chats": 60, "context_tokens": 70, "batch_tokens": 72}, 76, ["batch_tokens and context_tokens to 76"]),
        ({"decisions_together": 65, "batch_tokens": 64}, 65, ["decisions_together=65", "batch_tokens to 65"]),
        ({"decisions_together": 65, "context_tokens": 64}, 65, ["decisions_together=65", "context of 64"]),
    ],
    ids=str,
)
def test_a_batch_too_small_for_what_shares_it_is_refused(
    model: Path, changes: dict[str, int], least: int, names: list[str]
) -> None:
    message = refusal(model, **changes)
    assert f"to {least} or more" in message
    assert all(name in message for name in names), message


@pytest.mark.parametrize(
    "changes",
    [
        {"chats": 16, "batch_tokens": 32},
        {"chats": 4, "context_tokens": 20},
        {"chats": 1, "decisions_together": 32, "batch_tokens": 32},
    ],
    ids=str,
)
def test_the_least_batch_serves_as_many_chats_as_may_run(model: Path, changes: dict[str, int]) -> None:
    engine = start_engine(load_settings(model=str(model), threads=1, **changes))
    try:
        prompt = tuple(engine.encode([Piece("order order order")], start=True))[:10]
        over: queue.Queue[Event] = queue.Queue()
        for seed in range(2 * changes["chats"]):
            sampling = Sampling(max_tokens=6, seed=seed)
            job = GenerationJob(prompt=prompt, sampling=sampling, deadline=time.monotonic() + 60)
            engine.submit_generation(job, lambda event: over.put(event) if isinstance(event, Done | Failed) else None)
        assert all(isinstance(over.get(timeout=60), Done) for _ in range(2 * changes["chats"]))
        assert engine.health().ready
    finally:
        engine.close(timeout_s=0)


def test_too_little_memory_for_embeddings_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, context = tiny_models.write("llama-pooling", tmp_path / "pooling.gguf"), llama.Context

    def made(model: llama.Model, shape: llama.ContextShape, **more: bool) -> llama.Context:
        if shape.pooling != "none":
            raise llama.LlamaError("no room for the context that embeds")
        return context(model, shape, **more)

    monkeypatch.setattr(llama, "Context", made)
    assert "no room for the context that embeds" in refusal(path)


def test_an_embedding_model_is_refused(tmp_path: Path) -> None:
    assert "embedding" in refusal(tiny_models.write("llama-embed", tmp_path / "embed.gguf"))


@pytest.mark.parametrize("name", ["llama_n_ctx_seq", "llama_n_batch", "llama_n_ubatch", "llama_n_seq_max"])
def test_a_foreign_libllama_is_found_by_reading_back(model: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """A library of another build reads the parameters at other places in the struct."""
    monkeypatch.setattr(abi, "prove", lambda: None)  # which finds that the function is not a library's
    monkeypatch.setattr(llama.L, name, lambda _: 77)
    message = refusal(model, probe=False)
    assert name.removeprefix("llama_") in message
    assert "77" in message


def test_the_identity_repeats_what_was_asked(model: Path) -> None:
    asked = {"context_tokens": 500, "chats": 2, "batch_tokens": 128, "threads": 1}
    engine = start_engine(load_settings(model=str(model), probe=False, **asked))
    identity = engine.identity
    assert identity.model.context_tokens == 500
    assert (identity.sequences, identity.batch_tokens, identity.threads, identity.gpu_layers) == (3, 128, 1, 0)
    assert len(identity.model.sha256) == 64
    engine.close(timeout_s=0)
