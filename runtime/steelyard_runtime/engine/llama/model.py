"""Weights in memory, and the vocabulary that turns text into token ids and back."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard_runtime.engine.interface import Memory, Piece, Pooling
from steelyard_runtime.engine.llama.library import LOG, L, LlamaError, gpu_available
from steelyard_runtime.engine.plain_text import (
    BYTE,
    CONTROL,
    NORMAL,
    STRIPS,
    UNKNOWN,
    USER_DEFINED,
    Boundaries,
    Spellings,
    UnwritableTextError,
    is_marker,
    looks_special,
    spellings,
    words,
)
from steelyard_runtime.engine.tokenizer import TokenizerKind, VocabularyFacts, facts_of

POOLING: dict[int, Pooling] = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
TokenIds = npt.NDArray[np.int32]
RARE = "\U0001e2c0"
"""A letter of the Wancho script, which no vocabulary has as a token."""
TOKENIZERS: dict[int, TokenizerKind] = {1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv"}  # llama_vocab_type
EVERY_BYTE = "".join(
    map(chr, (*range(1, 0x800), *range(0x800, 0xD800, 0x800), 0xE000, 0xF000, *range(0x10000, 0x110000, 0x10000)))
)
"""Text with every byte that UTF-8 has but 0: of one and two bytes all characters, of longer ones some of each start."""


class Vocabulary:
    """Text to token ids and back. Safe from any thread."""

    def __init__(self, model: Model) -> None:
        self._model = model  # keeps the C object alive
        self._vocab = L.llama_model_get_vocab(model.pointer)
        self.size = int(L.llama_vocab_n_tokens(self._vocab))
        self.bos = int(L.llama_vocab_bos(self._vocab))
        self.eos = int(L.llama_vocab_eos(self._vocab))
        self.adds_bos = bool(L.llama_vocab_get_add_bos(self._vocab)) and self.bos >= 0
        self._newline = self._raw("\n").tolist()
        # SentencePiece vocabularies put a space before the first text of every call; a continued text must not get one.
        self._adds_space = self._raw("a").tolist() != self._raw("\na").tolist()[len(self._newline) :]

    def _raw(self, text: str, *, special: bool = False) -> TokenIds:
        data = text.encode()
        room = len(data) + 8  # of most texts no more tokens come than bytes, so that one call is enough
        while True:
            tokens = (L.llama_token * room)()
            count = int(L.llama_tokenize(self._vocab, data, len(data), tokens, room, False, special))
            if count >= 0:
                return np.frombuffer(tokens, np.int32, count).copy()
            if -count <= room:
                raise LlamaError(f"tokenizing {len(data)} bytes gave {-count} tokens and no room for them in {room}")
            room = -count

    def _continued(self, text: str, *, special: bool = False) -> TokenIds:
        if not self._adds_space:
            return self._raw(text, special=special)
        tokens = self._raw("\n" + text, special=special)
        start = len(self._newline)
        return tokens[start:] if tokens[:start].tolist() == self._newline else self._raw(text, special=special)

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> list[int]:
        """Token ids; neighbouring pieces of one kind are tokenized together. See ``Engine.encode``.

        Raises:
            UnwritableTextError: A character of a text that only a control token stands for.
        """
        tokens: list[int] = []
        begins = start
        for text, control in _merge(pieces):
            if not control:
                tokens += self._encode_text(text, begins=begins)
            else:
                found = (self._raw if begins else self._continued)(text, special=True).tolist()
                # The begin-of-text token is put there below, once.
                written = next((at for at, token in enumerate(found) if token != self.bos), len(found))
                tokens += found[written if start and self.adds_bos and not tokens else 0 :]
            begins = False
        return [self.bos, *tokens] if start and self.adds_bos else tokens

    def _encode_text(self, text: str, *, begins: bool) -> list[int]:
        tokens: list[int] = []
        for piece in self._lookalikes.cut(text):
            tokens += self._encode_whole(piece, begins=begins, cuts=(self._markers.cut, words, list))
            begins = False
        return tokens

    def _encode_whole(self, text: str, *, begins: bool, cuts: Sequence[Callable[[str], Iterable[str]]]) -> list[int]:
        """Tokens of a text as llama.cpp gives them; with a marker among them, those of ever smaller pieces."""
        first, *others = self._boundaries.blocks(text)
        # What follows a user-defined token is tokenized as at the beginning of a text.
        tokens = np.concatenate([(self._raw if begins else self._continued)(first), *map(self._raw, others)])
        if not (self._forbidden[tokens] | (tokens < 0)).any():
            return list(tokens.tolist())
        if not cuts:
            raise UnwritableTextError(
                f"the character {text!r} (U+{ord(text):04X}) is only a control token in the model's vocabulary"
            )
        pieces: list[int] = []
        for piece in cuts[0](text):
            pieces += self._encode_whole(piece, begins=begins, cuts=cuts[1:])
            begins = False
        return pieces

    @cached_property
    def _attributes(self) -> list[int]:
        return [int(L.llama_vocab_get_attr(self._vocab, token)) for token in range(self.size)]

    def _spelling(self, token: int) -> str:
        return bytes(L.llama_vocab_get_text(self._vocab, token)).decode("utf-8", "replace")

    @cached_property
    def _unknown(self) -> frozenset[int]:
        """Tokens that stand for characters without one: of a vocabulary that has bytes for these, none."""
        return frozenset(
            token for token in self._raw(RARE).tolist() if token >= 0 and self._attributes[token] & (CONTROL | UNKNOWN)
        )

    @cached_property
    def _forbidden(self) -> npt.NDArray[np.bool_]:
        """Tokens that callers' text may not become, shape ``(vocabulary,)``."""
        template = self._model.chat_template or ""
        forbidden = np.zeros(self.size, np.bool_)
        for token, attributes in enumerate(self._attributes):
            if attributes != NORMAL and is_marker(self._spelling(token), attributes, template=template):
                forbidden[token] = True
        for token in (self.bos, self.eos):
            if token >= 0 and looks_special(self._spelling(token)):
                forbidden[token] = True
        forbidden[list(self._unknown)] = False
        return forbidden

    @cached_property
    def _boundaries(self) -> Boundaries:
        matched = [token for token, attributes in enumerate(self._attributes) if attributes & USER_DEFINED]
        if any(self._attributes[token] & STRIPS for token in matched):
            return Boundaries(frozenset())
        return Boundaries(
            frozenset(self._spelling(token) for token in matched if not self._attributes[token] & (CONTROL | UNKNOWN))
        )

    @cached_property
    def _markers(self) -> Spellings:
        return spellings(self._spelling(int(token)) for token in np.flatnonzero(self._forbidden))

    @cached_property
    def _lookalikes(self) -> Spellings:
        """Spellings of bytes and of the unknown token, where the tokenizer takes them for these.

        The tokens themselves are no sign of it: they also stand for characters that have no token of their own.
        """
        found = []
        for token, attributes in enumerate(self._attributes):
            if attributes & BYTE or token in self._unknown:
                spelling = self._spelling(token)
                if token in self._continued(spelling):
                    found.append(spelling)
        return spellings(found)

    @cached_property
    def facts(self) -> VocabularyFacts:
        """Facts of the vocabulary that bound and cut texts."""
        buffer = ctypes.create_string_buffer(4096)
        pieces = []
        for token in range(self.size):
            size = int(L.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, True))
            pieces.append(buffer.raw[:size] if size >= 0 else self.token_bytes(token, special=True))
        kind = TOKENIZERS.get(int(L.llama_vocab_type(self._vocab)), "other")
        return facts_of(kind, pieces, adds_space=self._adds_space)

    def token_bytes(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of one token; control tokens give none unless ``special``."""
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            written = int(L.llama_token_to_piece(self._vocab, token, buffer, size, 0, special))
            if written >= 0:
                return buffer.raw[:written]
            size = -written

    def check(self) -> None:
        """Use what a request may use: tokenize every byte that UTF-8 has, and spell every token.

        llama.cpp ends the process for a vocabulary that has no token for a byte, or one that it cannot spell.
        """
        for special in (False, True):
            self._raw(EVERY_BYTE, special=special)
            self._continued(EVERY_BYTE, special=special)
        buffer, spell = ctypes.create_string_buffer(256), L.llama_token_to_piece
        for token in range(self.size):
            spell(self._vocab, token, buffer, 256, 0, True)

    def text_of(self, token: int) -> str:
        """A control token's spelling; empty for none."""
        return self.token_bytes(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def is_text(self, token: int) -> bool:
        """Tell whether callers' text may become ``token``."""
        return not self._forbidden[token]

    def ends_generation(self, token: int) -> bool:
        """Tell whether ``token`` ends a turn or a text."""
        return bool(L.llama_vocab_is_eog(self._vocab, token))

    @property
    def pointer(self) -> Any:
        """The C vocabulary, for samplers."""
        return self._vocab


def _merge(pieces: Sequence[Piece]) -> Iterator[tuple[str, bool]]:
    text, control = "", False
    for piece in pieces:
        if piece.text and text and piece.control == control:
            text += piece.text
        elif piece.text:
            if text:
                yield text, control
            text, control = piece.text, piece.control
    if text:
        yield text, control


class Model:
    """Weights in memory, mapped from one GGUF file or its shards.

    Raises:
        LlamaError: The file cannot be loaded, or fewer layers reached the GPU than asked for.
    """

    def __init__(self, path: Path, *, gpu_layers: int = 0) -> None:
        if gpu_layers and not gpu_available():
            raise LlamaError(
                f"gpu_layers={gpu_layers} but this build of llama.cpp has no GPU backend with a device; "
                "install a CUDA build and a driver, or set gpu_layers=0"
            )
        params = L.llama_model_default_params()
        params.n_gpu_layers = 999_999 if gpu_layers < 0 else gpu_layers
        LOG.lines.clear()
        self.pointer = L.llama_model_load_from_file(str(path).encode(), params)
        if not self.pointer:
            raise LlamaError(f"llama.cpp cannot load {path}: {LOG.why()}")
        self.path = path
        self.layers = int(L.llama_model_n_layer(self.pointer))
        self.offloaded = 0
        if gpu_layers:
            self._check_offload(self.layers + 1 if gpu_layers < 0 else gpu_layers)

    def _check_offload(self, wanted: int) -> None:
        match = LOG.search(r"offloaded ([0-9]+)/([0-9]+) layers")
        self.offloaded = int(match.group(1)) if match else 0
        if self.offloaded < min(wanted, self.layers + 1):
            offloaded = self.offloaded
            self.close()
            raise LlamaError(
                f"{wanted} layers were asked onto the GPU and {offloaded} went; "
                "the model does not fit or no GPU is free"
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The model's vocabulary."""
        return Vocabulary(self)

    def metadata(self, key: str) -> str | None:
        """A GGUF metadata value as text; None if absent."""
        size = 256
        while True:
            buffer = ctypes.create_string_buffer(size)
            length = int(L.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size))
            if length < 0:
                return None
            if length < size:
                return buffer.value.decode("utf-8", "replace")
            size = length + 1

    @property
    def chat_template(self) -> str | None:
        """The default chat template's source."""
        raw = L.llama_model_chat_template(self.pointer, None)
        return raw.decode("utf-8", "replace") if raw else None

    @property
    def named_templates(self) -> dict[str, str]:
        """Sources of the chat templates beside the default one, by name."""
        prefix, found = "tokenizer.chat_template.", {}
        for index in range(L.llama_model_meta_count(self.pointer)):
            buffer = ctypes.create_string_buffer(256)
            if 0 <= L.llama_model_meta_key_by_index(self.pointer, index, buffer, 256) < 256:
                key = buffer.value.decode("utf-8", "replace")
                if key.startswith(prefix):
                    found[key.removeprefix(prefix)] = self.metadata(key) or ""
        return found

    @property
    def architecture(self) -> str:
        """``general.architecture``."""
        return self.metadata("general.architecture") or "unknown"

    @property
    def description(self) -> str:
        """llama.cpp's short description, such as ``gemma3 270M Q4_K - Medium``."""
        buffer = ctypes.create_string_buffer(256)
        L.llama_model_desc(self.pointer, buffer, 256)
        return buffer.value.decode("utf-8", "replace")

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return int(L.llama_model_n_params(self.pointer))

    @property
    def trained_context(self) -> int:
        """Positions the model was trained on."""
        return int(L.llama_model_n_ctx_train(self.pointer))

    @property
    def embedding_size(self) -> int:
        """Width of an embedding."""
        return int(L.llama_model_n_embd_out(self.pointer))

    @property
    def pooling(self) -> Pooling:
        """The pooling of embeddings, from its metadata; ``none`` for models that are not made for it."""
        value = self.metadata(f"{self.architecture}.pooling_type")
        return POOLING.get(int(value), "none") if value and re.fullmatch(r"-?[0-9]{1,9}", value) else "none"

    @property
    def causal(self) -> bool:
        """Tell whether a token sees those before it only, so that a text can be evaluated in pieces."""
        return self.metadata(f"{self.architecture}.attention.causal") != "false"

    @property
    def memory(self) -> Memory:
        """The kind of state that a sequence has."""
        if L.llama_model_is_hybrid(self.pointer):
            return "hybrid"
        if L.llama_model_is_recurrent(self.pointer):
            return "recurrent"
        return "swa" if L.llama_model_n_swa(self.pointer) > 0 else "dense"

    @property
    def windowed(self) -> bool:
        """Tell whether some layers see the last positions only, so that their cells are used again."""
        return int(L.llama_model_n_swa(self.pointer)) > 0

    @property
    def generates(self) -> bool:
        """Tell whether the model has a decoder with next-token logits."""
        return bool(L.llama_model_has_decoder(self.pointer)) and not L.llama_model_has_encoder(self.pointer)

    def close(self) -> None:
        """Free the weights; the object must not be used afterwards."""
        if self.pointer:
            L.llama_model_free(self.pointer)
            self.pointer = None
