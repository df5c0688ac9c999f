"""Runs llama.cpp in a process of its own, because it ends the whole process on some faults.

Imported, this module offers functions that start the child; run as a program, it is the child. The child uses the
settings that the engine uses for exact answers: a stream of cells per sequence, one thread, each text decoded alone.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


def last_logits(path: Path, prompts: Sequence[str], *, timeout_s: float = 60) -> Array:
    """Logits after the last token of each prompt, shape ``(len(prompts), vocabulary)``, decoded in a child process.

    Control tokens in ``prompts`` are recognised. At most eight prompts of at most 512 tokens.
    """
    return _array(_in_child("logits", path, prompts, timeout_s))


def embeddings(path: Path, texts: Sequence[str], *, timeout_s: float = 60) -> Array:
    """The pooled embedding of each text, shape ``(len(texts), width)``, not normalised; in a child process."""
    return _array(_in_child("embeddings", path, texts, timeout_s))


class Tokens(NamedTuple):
    """A text's token ids, and the bytes that the ids stand for."""

    ids: list[int]
    raw: bytes


def tokens(path: Path, texts: Sequence[str], *, special: bool = False, timeout_s: float = 60) -> list[Tokens]:
    """The tokens of each text without BOS; with ``special``, spelled-out control tokens become those tokens."""
    found = json.loads(_in_child("special" if special else "text", path, texts, timeout_s))
    return [Tokens(ids, bytes.fromhex(raw)) for ids, raw in found]


def _array(saved: bytes) -> Array:
    result: Array = np.load(io.BytesIO(saved), allow_pickle=False)
    return result


def _in_child(what: str, path: Path, texts: Sequence[str], timeout_s: float) -> bytes:
    child = subprocess.run(
        [sys.executable, __file__, what, str(path)],
        input=json.dumps(list(texts)).encode(),
        capture_output=True,
        timeout=timeout_s,
        check=False,
        # Without this an abort first waits for a debugger to print a backtrace.
        env=os.environ | {"GGML_NO_BACKTRACE": "1"},
    )
    if child.returncode != 0:
        raise RuntimeError(f"reading {path} ended with {child.returncode}: {child.stderr.decode(errors='replace')}")
    return child.stdout


# From here on: the child process.


def _load(path: str, *, vocabulary_only: bool) -> Any:
    import llama_cpp

    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.vocab_only = vocabulary_only
    model = llama_cpp.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise RuntimeError(f"llama.cpp does not load {path}")
    return model


def _token_ids(model: Any, text: str, *, bos: bool, special: bool) -> list[int]:
    import llama_cpp

    raw = text.encode()
    ids = (llama_cpp.llama_token * (len(raw) + 8))()
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    return list(ids[: llama_cpp.llama_tokenize(vocabulary, raw, len(raw), ids, len(ids), bos, special)])


def _piece(model: Any, token_id: int) -> bytes:
    import llama_cpp

    buffer = ctypes.create_string_buffer(64)
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    length = llama_cpp.llama_token_to_piece(vocabulary, token_id, buffer, len(buffer), 0, True)
    return buffer.raw[:length]


def _tokenize(path: str, texts: Sequence[str], *, special: bool) -> list[tuple[list[int], str]]:
    """Ids of each text and, as hex, the bytes that they stand for."""
    model = _load(path, vocabulary_only=True)
    each = [_token_ids(model, text, bos=False, special=special) for text in texts]
    return [(ids, b"".join(_piece(model, token_id) for token_id in ids).hex()) for ids in each]


def _decode(path: str, texts: Sequence[str], *, embed: bool) -> Array:
    """Each text on a sequence of its own, each in a decode of its own."""
    import llama_cpp

    model = _load(path, vocabulary_only=False)
    params = llama_cpp.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = 8 * 512, 512, 512
    params.n_seq_max, params.kv_unified = 8, False
    params.n_threads = params.n_threads_batch = 1
    params.embeddings = embed
    context = llama_cpp.llama_init_from_model(model, params)
    if not context:
        raise RuntimeError(f"llama.cpp makes no context for {path}")
    results = []
    for sequence, text in enumerate(texts):
        ids = _token_ids(model, text, bos=True, special=True)
        batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for position, token_id in enumerate(ids):
            batch.token[position], batch.pos[position] = token_id, position
            batch.n_seq_id[position], batch.seq_id[position][0] = 1, sequence
            batch.logits[position] = embed or position == len(ids) - 1
        status = llama_cpp.llama_decode(context, batch)
        if status != 0:
            raise RuntimeError(f"llama_decode of {len(ids)} tokens returned {status}")
        if embed:
            pointer = llama_cpp.llama_get_embeddings_seq(context, sequence)
            width = llama_cpp.llama_model_n_embd(model)
        else:
            pointer = llama_cpp.llama_get_logits_ith(context, len(ids) - 1)
            width = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        if not pointer:
            raise RuntimeError(f"{path} gives no {'embeddings' if embed else 'logits'}")
        results.append(np.ctypeslib.as_array(pointer, shape=(width,)).copy())
        llama_cpp.llama_batch_free(batch)
    return np.stack(results)


def _main(what: str, path: str) -> None:
    texts = json.load(sys.stdin)
    if what in ("text", "special"):
        json.dump(_tokenize(path, texts, special=what == "special"), sys.stdout)
    else:
        np.save(sys.stdout.buffer, _decode(path, texts, embed=what == "embeddings"), allow_pickle=False)


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2])
