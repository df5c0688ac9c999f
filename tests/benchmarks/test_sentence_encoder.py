"""The sentence encoder is the transformer that its weights belong to: compared with sums written out one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.sentence_encoder import SentenceEncoder, WordPieces, split

VOCABULARY = ("[UNK]", "[CLS]", "[SEP]", "card", "lost", "##s", "my", "?")
SIZE, WIDE, HEADS, LAYERS = 6, 9, 2, 2
PIECES = WordPieces(index={piece: index for index, piece in enumerate(VOCABULARY)})


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    rng = np.random.default_rng(0)
    shapes = {
        "embeddings.word_embeddings.weight": (len(VOCABULARY), SIZE),
        "embeddings.position_embeddings.weight": (16, SIZE),
        "embeddings.token_type_embeddings.weight": (2, SIZE),
        "embeddings.LayerNorm.weight": (SIZE,),
        "embeddings.LayerNorm.bias": (SIZE,),
    }
    for layer in range(LAYERS):
        for name, shape in (
            *((f"attention.self.{each}", (SIZE, SIZE)) for each in ("query", "key", "value")),
            ("attention.output.dense", (SIZE, SIZE)),
            ("intermediate.dense", (WIDE, SIZE)),
            ("output.dense", (SIZE, WIDE)),
        ):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shape
            shapes[f"encoder.layer.{layer}.{name}.bias"] = shape[:1]
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"encoder.layer.{layer}.{name}.weight"] = shapes[f"encoder.layer.{layer}.{name}.bias"] = (SIZE,)
    tensors = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return SentenceEncoder(pieces=PIECES, tensors=tensors, layers=LAYERS, heads=HEADS)


def test_words_are_made_of_the_longest_pieces() -> None:
    ids = PIECES("My CARDS, lóst?")
    assert [VOCABULARY[each] for each in ids] == ["[CLS]", "my", "card", "##s", "[UNK]", "lost", "?", "[SEP]"]
    assert list(split("a$b c\u4f60d\x00e")) == ["a", "$", "b", "c", "\u4f60", "de"]


def _linear(encoder: SentenceEncoder, x: list[float], at: str) -> list[float]:
    weight, bias = encoder.tensors[f"{at}.weight"], encoder.tensors[f"{at}.bias"]
    return [
        sum(a * float(b) for a, b in zip(x, row, strict=True)) + float(c) for row, c in zip(weight, bias, strict=True)
    ]


def _normal(encoder: SentenceEncoder, x: list[float], at: str) -> list[float]:
    mean = sum(x) / len(x)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in x) / len(x) + 1e-12)
    weight, bias = encoder.tensors[f"{at}.weight"], encoder.tensors[f"{at}.bias"]
    return [(each - mean) / deviation * float(a) + float(b) for each, a, b in zip(x, weight, bias, strict=True)]


def _by_hand(encoder: SentenceEncoder, text: str) -> list[float]:
    states = []
    for place, token in enumerate(PIECES(text)):
        parts = (("word", token), ("position", place), ("token_type", 0))
        rows = [encoder.tensors[f"embeddings.{name}_embeddings.weight"][row] for name, row in parts]
        states.append(_normal(encoder, [float(sum(each)) for each in zip(*rows, strict=True)], "embeddings.LayerNorm"))
    size = SIZE // HEADS
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        query, key, value = (
            [_linear(encoder, x, f"{at}.attention.self.{name}") for x in states] for name in ("query", "key", "value")
        )
        after = []
        for own, x in zip(query, states, strict=True):
            seen: list[float] = []
            for head in range(HEADS):
                part = slice(head * size, (head + 1) * size)
                scores = [sum(a * b for a, b in zip(own[part], k[part], strict=True)) / math.sqrt(size) for k in key]
                weights = [math.exp(score) for score in scores]
                seen += [
                    sum(w * v[number] for w, v in zip(weights, value, strict=True)) / sum(weights)
                    for number in range(part.start, part.stop)
                ]
            attended = _linear(encoder, seen, f"{at}.attention.output.dense")
            summed = [a + b for a, b in zip(x, attended, strict=True)]
            y = _normal(encoder, summed, f"{at}.attention.output.LayerNorm")
            wide = [z * (1 + math.erf(z / math.sqrt(2))) / 2 for z in _linear(encoder, y, f"{at}.intermediate.dense")]
            out = _linear(encoder, wide, f"{at}.output.dense")
            after.append(_normal(encoder, [a + b for a, b in zip(y, out, strict=True)], f"{at}.output.LayerNorm"))
        states = after
    mean = [sum(each) / len(states) for each in zip(*states, strict=True)]
    length = math.sqrt(sum(each**2 for each in mean))
    return [each / length for each in mean]


def test_it_is_the_transformer(encoder: SentenceEncoder) -> None:
    texts = ["my cards?", "lost"]
    assert encoder.read(texts) == pytest.approx(np.array([_by_hand(encoder, text) for text in texts]), abs=1e-5)
