"""llama.cpp by its own calls: one model, one context, one sequence. The floor and the walkthrough's scorer use it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
BATCH_TOKENS = 512


@llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
def _quiet(_level: int, text: bytes, _data: ctypes.c_void_p) -> None:
    if os.environ.get("BENCHMARK_LLAMA_LOG"):
        print(text.decode(errors="replace"), end="", flush=True)


class Bare:
    """A model and a context with one sequence.

    Args:
        path: A GGUF file.
        threads: For single tokens and for batches.
        context_tokens: Most tokens of the sequence.
    """

    def __init__(self, path: Path, *, threads: int, context_tokens: int) -> None:
        llama_cpp.llama_log_set(_quiet, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = context_tokens, BATCH_TOKENS, BATCH_TOKENS, 1
        params.n_threads = params.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise SystemExit(f"llama.cpp cannot make a context of {context_tokens} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self._width = llama_cpp.llama_vocab_n_tokens(self._vocabulary)

    def template(self) -> str:
        """The model's chat template."""
        found = llama_cpp.llama_model_chat_template(self._model, None)
        return found.decode() if found else ""

    def piece(self, token: int) -> str:
        """A token's text."""
        buffer = ctypes.create_string_buffer(256)
        length = llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, 256, 0, True)
        return buffer.raw[: max(0, length)].decode(errors="replace")

    def special(self) -> tuple[int, int]:
        """Ids of the tokens that begin and end a text; -1 where there is none."""
        return llama_cpp.llama_vocab_bos(self._vocabulary), llama_cpp.llama_vocab_eos(self._vocabulary)

    def tokenize(self, text: str, *, special: bool, start: bool = False) -> list[int]:
        """Token ids; ``special`` reads spelled-out control tokens as such, ``start`` adds the model's first token."""
        raw = text.encode()
        room = (llama_cpp.llama_token * (len(raw) + 2))()
        count = llama_cpp.llama_tokenize(self._vocabulary, raw, len(raw), room, len(room), start, special)
        return list(room[:count])

    def clear(self) -> None:
        """Forget everything."""
        llama_cpp.llama_memory_clear(self._memory, True)

    def evaluate(self, tokens: Sequence[int], *, position: int) -> Logits:
        """Decode ``tokens`` from ``position`` on, in batches of 512; the last one's logits, shape ``(vocabulary,)``."""
        for at in range(0, len(tokens), BATCH_TOKENS):
            chunk = tokens[at : at + BATCH_TOKENS]
            last = at + len(chunk) == len(tokens)
            batch = llama_cpp.llama_batch_init(len(chunk), 0, 1)
            try:
                batch.n_tokens = len(chunk)
                for i, token in enumerate(chunk):
                    batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + at + i, 1
                    batch.seq_id[i][0] = 0
                    batch.logits[i] = int(last and i == len(chunk) - 1)
                if llama_cpp.llama_decode(self._context, batch) != 0:
                    raise RuntimeError(f"llama_decode of {len(chunk)} tokens at {position + at} failed")
            finally:
                llama_cpp.llama_batch_free(batch)
        pointer = llama_cpp.llama_get_logits_ith(self._context, -1)
        logits: Logits = np.ctypeslib.as_array(pointer, shape=(self._width,)).copy()
        return logits

    def save(self) -> Any:
        """The sequence's cells, for ``restore``."""
        size = llama_cpp.llama_state_seq_get_size(self._context, 0)
        saved = (ctypes.c_uint8 * size)()
        if llama_cpp.llama_state_seq_get_data(self._context, saved, size, 0) != size:
            raise RuntimeError("llama.cpp did not save the sequence")
        return saved

    def restore(self, saved: Any) -> None:
        """Replace the sequence by a saved one."""
        self.clear()
        if llama_cpp.llama_state_seq_set_data(self._context, saved, len(saved), 0) == 0:
            raise RuntimeError("llama.cpp did not restore the sequence")
