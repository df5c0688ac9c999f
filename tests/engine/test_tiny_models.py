"""The tiny models must be worth testing on: loadable, sensitive to the whole prompt, and the same on every machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import llama_child
import tiny_models

PROMPTS = (
    "The state is red. Question: which answer",
    "The state is blue. Question: which answer",
    "The state is red. Question: which answer",
    "漢字 🎉 \u0000 <|im_end|> answer",
)


@pytest.mark.parametrize("kind", tiny_models.KINDS)
def test_the_same_seed_gives_the_same_bytes(kind: str, tmp_path: Path) -> None:
    path = tiny_models.write(kind, tmp_path / "model.gguf")
    assert tiny_models.write(kind, tmp_path / "again.gguf").read_bytes() == path.read_bytes()
    assert tiny_models.write(kind, tmp_path / "other.gguf", seed=1).read_bytes() != path.read_bytes()
    assert path.stat().st_size < 4 << 20


@pytest.mark.parametrize("kind", tiny_models.SCORING_KINDS)
def test_llama_cpp_decodes_it_and_the_logits_depend_on_the_prompt(kind: str, tmp_path: Path) -> None:
    red, blue, red_again, unusual = llama_child.last_logits(tiny_models.write(kind, tmp_path / "model.gguf"), PROMPTS)
    for logits in (red, blue, unusual):
        assert np.isfinite(logits).all()
        assert 0.5 < logits.std() < 10
    # Both prompts end alike, so only what came earlier can tell them apart.
    assert np.abs(red - blue).max() > 0.01
    assert (red == red_again).all()


@pytest.mark.parametrize("kind", tiny_models.EMBEDDING_KINDS)
def test_a_pooling_model_gives_embeddings(kind: str, tmp_path: Path) -> None:
    path = tiny_models.write(kind, tmp_path / "model.gguf")
    red, blue, red_again, _ = llama_child.embeddings(path, PROMPTS)
    assert red.shape == (64,)
    assert np.isfinite(red).all()
    assert np.abs(red - blue).max() > 0.01
    assert (red == red_again).all()


def test_a_model_without_pooling_gives_no_embeddings(tmp_path: Path) -> None:
    path = tiny_models.write("llama", tmp_path / "model.gguf")
    with pytest.raises(RuntimeError, match="gives no embeddings"):
        llama_child.embeddings(path, PROMPTS)


def test_a_split_model_decodes_like_the_whole(tmp_path: Path) -> None:
    whole = llama_child.last_logits(tiny_models.write("llama", tmp_path / "whole.gguf"), PROMPTS)
    first = tiny_models.write_split("llama", tmp_path)[0]
    assert (llama_child.last_logits(first, PROMPTS) == whole).all()


def test_a_broken_file_ends_the_child_and_not_the_test(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="does not load"):
        llama_child.last_logits(tiny_models.write_truncated(tmp_path / "broken.gguf"), PROMPTS)


# Kinds that are not listed share the tokenizer of "llama".
@pytest.fixture(scope="module", params=("llama", "llama-space-prefix", "qwen35", "mamba2"))
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    kind: str = request.param
    return kind, tiny_models.write(kind, tmp_path_factory.mktemp(kind) / f"{kind}.gguf")


def test_every_tokenizer_has_slots_for_all_labels_in_one_token_each(tokenizer: tuple[str, Path]) -> None:
    _, path = tokenizer
    # A space before a label belongs to the label's token.
    leads = {"Answer:\n": "Answer:\n", "Answer:": "Answer: "}
    texts = [text for before, lead in leads.items() for text in (before, *(lead + x for x in tiny_models.LABELS))]
    found = llama_child.tokens(path, texts)
    for start in (0, len(texts) // 2):
        before, *labelled = found[start : start + len(texts) // 2]
        assert all(label.ids[:-1] == before.ids for label in labelled)
        assert len({label.ids[-1] for label in labelled}) == len(tiny_models.LABELS) >= 255


def test_every_tokenizer_takes_any_text_without_loss(tokenizer: tuple[str, Path]) -> None:
    kind, path = tokenizer
    texts = ["漢字 ‰ 🎉\n\t", "\u202eعربى", "\x01\x7f", "ordinary text, 123.", "ABC DEF  the question"]
    prefix = " " if kind == "llama-space-prefix" else ""
    assert [found.raw.decode() for found in llama_child.tokens(path, texts)] == [prefix + text for text in texts]


def test_spelled_out_control_tokens_are_text_unless_asked_for(tokenizer: tuple[str, Path]) -> None:
    _, path = tokenizer
    plain = llama_child.tokens(path, tiny_models.CONTROL_TOKENS)
    special = llama_child.tokens(path, tiny_models.CONTROL_TOKENS, special=True)
    assert [len(found.ids) for found in special] == [1] * len(tiny_models.CONTROL_TOKENS)
    control = {found.ids[0] for found in special}
    assert len(control) == len(tiny_models.CONTROL_TOKENS)
    assert all(control.isdisjoint(found.ids) for found in plain)
