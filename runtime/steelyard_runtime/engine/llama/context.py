"""Sequences over a model: decodes that can be interrupted, snapshots, embeddings."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from steelyard_runtime.engine.interface import HIDDEN_TAIL_TOKENS, Hidden, Logits, Pooling
from steelyard_runtime.engine.llama.library import BINDING, LOG, L, LlamaError
from steelyard_runtime.engine.llama.model import POOLING, Model
from steelyard_runtime.legible import reason_of

FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
CacheType = Literal["f16", "q8_0"]
CACHE_TYPES: dict[CacheType, int] = {"f16": 1, "q8_0": 8}  # ggml_type
OWN_PAGES_FROM = 1 << 20
"""Bytes of a snapshot from which it has pages of its own."""
NODES_BETWEEN_STOPS = 4
"""Nodes of the graph, an eighth of a layer. Stopping there costs less than a hundredth of a chunk of a prompt."""
UNCHANGED = (-1, 1)
"""Results of ``llama_decode`` for a batch that it refuses whole, and for one that finds no room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShape:
    """Parameters of a context, asked for and read back."""

    sequence_tokens: int
    sequences: int
    batch_tokens: int
    threads: int
    flash_attention: Literal["auto", "on", "off"] = "auto"
    cache_type: CacheType = "f16"
    pooling: Pooling = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The contents of a sequence, its used cells and recurrent state, in this process's memory and not the context's.

    Attributes:
        data: llama.cpp's own format; only a context of the same shape over the same model may take it.
    """

    data: ctypes.Array[ctypes.c_uint8]

    def __len__(self) -> int:
        """Bytes."""
        return len(self.data)


def room(size: int) -> ctypes.Array[ctypes.c_uint8]:
    """Bytes for a snapshot. If they are many they go back to the system when they are let go.

    What malloc takes back stays with the process, in holes that the next long chat does not fit into: a server's memory
    would grow by steps for hours. Small ones fit; a mapping for each would be more than Linux allows.
    """
    kind = ctypes.c_uint8 * size
    if size < OWN_PAGES_FROM:
        return kind()
    return kind.from_buffer(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens of one sequence inside a batch. ``output``: logits after its last token are wanted."""

    tokens: Sequence[int]
    sequence: int
    position: int
    output: bool


class DecodeInterrupter:
    """Interrupts a decode between nodes of llama.cpp's graph, and calls something there.

    llama.cpp asks before each node whether anyone wants to look at its result, evaluates all nodes up to one of which
    that is so, and then shows it. Nothing is evaluated at that moment, so another context may be.
    """

    def __init__(self) -> None:
        self._between: Callable[[], None] | None = None
        self._nodes = 0
        self._error: BaseException | None = None
        self.callback = L.ggml_backend_sched_eval_callback(self._called)  # kept: C holds only a pointer

    def _called(self, _node: int, ask: bool, _data: int) -> bool:
        if self._between is None or self._error is not None:  # after an error llama.cpp continues with the next batch
            return False
        if ask:
            self._nodes += 1
            return self._nodes % NODES_BETWEEN_STOPS == 0
        try:
            self._between()
        except BaseException as error:  # C cannot pass it on; False ends the decode
            self._error = error
            return False
        return True

    @contextmanager
    def interrupting(self, between: Callable[[], None]) -> Iterator[None]:
        """Call ``between`` at each stop; what it raises ends the decode and is raised here."""
        self._between, self._nodes = between, 0
        try:
            yield
        finally:
            self._between = None
            error, self._error = self._error, None
            if error is not None:
                raise error


class Context:
    """Sequences over one model.

    Every sequence has its own cells (``kv_unified=False``), so that what other sequences hold cannot change a result
    by a single bit.

    Attributes:
        interruptible: Its decodes can be stopped in the middle.

    Args:
        model: The model.
        shape: What is asked.
        interruptible: Let ``decode`` stop in the middle. Costs a call per node; on a GPU also a synchronisation.

    Raises:
        LlamaError: The context does not fit in memory, or libllama did not take what was set (a foreign build).
    """

    def __init__(self, model: Model, shape: ContextShape, *, interruptible: bool = False) -> None:
        self.model = model
        self.shape = shape
        self.interruptible = interruptible
        cells = math.ceil(shape.sequence_tokens / 256) * 256
        params = L.llama_context_default_params()
        params.n_ctx = cells * shape.sequences
        params.n_batch = params.n_ubatch = shape.batch_tokens
        params.n_seq_max = shape.sequences
        params.n_threads = params.n_threads_batch = shape.threads
        params.flash_attn_type = FLASH_ATTENTION[shape.flash_attention]
        params.type_k = params.type_v = CACHE_TYPES[shape.cache_type]
        params.kv_unified = False
        params.swa_full = False  # cells outside the window are never used again: no sequence is ever cut back
        params.no_perf = True
        self._interrupter = DecodeInterrupter()
        if interruptible:
            params.cb_eval = self._interrupter.callback
        params.embeddings = shape.pooling != "none"
        params.pooling_type = next(code for code, name in POOLING.items() if name == shape.pooling)
        if not params.embeddings:
            params.n_outputs_max = min(HIDDEN_TAIL_TOKENS * shape.sequences, shape.batch_tokens)
        LOG.lines.clear()
        self.pointer = L.llama_init_from_model(model.pointer, params)
        if not self.pointer:
            raise LlamaError(
                f"llama.cpp cannot make a context of {shape.sequences} sequences of {cells} tokens: {LOG.why()}; "
                "lower context_tokens or sequences"
            )
        self._read_back(cells)
        self._memory = L.llama_get_memory(self.pointer)
        self._batch = L.llama_batch_init(shape.batch_tokens, 0, 1)
        self.vocabulary_size = model.vocabulary.size

    def _read_back(self, cells: int) -> None:
        wanted = {
            "n_ctx_seq": (cells, L.llama_n_ctx_seq),
            "n_batch": (self.shape.batch_tokens, L.llama_n_batch),
            "n_ubatch": (self.shape.batch_tokens, L.llama_n_ubatch),
            "n_seq_max": (self.shape.sequences, L.llama_n_seq_max),
            "n_threads": (self.shape.threads, L.llama_n_threads),
        }
        for name, (asked, read) in wanted.items():
            if (got := int(read(self.pointer))) != asked:
                raise LlamaError(
                    f"{name} was set to {asked} and libllama says {got}: the library has another interface than "
                    f"{BINDING}; put the right one there, or name its build in LLAMA_CPP_BUILD"
                )

    def decode(self, runs: Sequence[Run], *, between: Callable[[], None] | None = None) -> list[Logits]:
        """Evaluate ``runs`` (together at most ``batch_tokens`` tokens) in one ``llama_decode``.

        Args:
            runs: What to evaluate.
            between: Called again and again in the middle, if the context is interruptible. It may use other contexts,
                not this one.

        Returns:
            Logits of shape ``(vocabulary,)``, copied, one for each run with ``output``, in order.

        Raises:
            LlamaError: llama.cpp failed; the sequences involved are in an unknown state.
        """
        with self._interrupter.interrupting(between) if between and self.interruptible else nullcontext():
            wanted = self._decode(runs)
        return [self._row(index) for index in wanted]

    def decode_hidden(self, runs: Sequence[Run]) -> list[tuple[Logits, Hidden]]:
        """Like ``decode``, with the hidden states of shape ``(embedding_size,)`` beside the logits.

        llama.cpp computes both for every token, and has room for ``HIDDEN_TAIL_TOKENS`` of each sequence.

        Raises:
            LlamaError: llama.cpp failed; the sequences involved are in an unknown state.
        """
        if (count := sum(len(run.tokens) for run in runs)) > HIDDEN_TAIL_TOKENS * self.shape.sequences:
            raise LlamaError(f"{count} tokens are too many for hidden states", unchanged=True)
        L.llama_set_embeddings(self.pointer, True)
        try:
            wanted = self._decode(runs, all_outputs=True)
        finally:
            L.llama_set_embeddings(self.pointer, False)
        return [(self._row(index), self._hidden(index)) for index in wanted]

    def _decode(self, runs: Sequence[Run], *, all_outputs: bool = False) -> list[int]:
        try:
            index, wanted = self._fill(runs, all_outputs=all_outputs)
        except Exception as error:
            raise LlamaError(f"a batch cannot be made: {reason_of(error)}", unchanged=True) from error
        code = int(L.llama_decode(self.pointer, self._batch))
        if code:
            raise LlamaError(
                f"llama_decode of {index} tokens returned {code}: {LOG.why()}", unchanged=code in UNCHANGED
            )
        return wanted

    def _fill(self, runs: Sequence[Run], *, all_outputs: bool) -> tuple[int, list[int]]:
        """Put ``runs`` into the batch; its tokens, and the indices of the logits that are wanted."""
        batch, index, wanted = self._batch, 0, list[int]()
        for run in runs:
            for offset, token in enumerate(run.tokens):
                batch.token[index] = token
                batch.pos[index] = run.position + offset
                batch.n_seq_id[index] = 1
                batch.seq_id[index][0] = run.sequence
                batch.logits[index] = all_outputs
                index += 1
            if run.output:
                batch.logits[index - 1] = 1
                wanted.append(index - 1)
        batch.n_tokens = index
        return index, wanted

    def _row(self, index: int) -> Logits:
        pointer = L.llama_get_logits_ith(self.pointer, index)
        if not pointer:
            raise LlamaError(f"llama.cpp has no logits for batch index {index}")
        return np.ctypeslib.as_array(pointer, shape=(self.vocabulary_size,)).copy()

    def _hidden(self, index: int) -> Hidden:
        pointer = L.llama_get_embeddings_ith(self.pointer, index)
        if not pointer:
            raise LlamaError(f"llama.cpp has no hidden state for batch index {index}")
        return np.ctypeslib.as_array(pointer, shape=(self.model.embedding_size,)).copy()

    def embed(self, tokens: Sequence[int], *, position: int = 0) -> Logits:
        """The embedding of one batch of a text, pooled over these tokens, not normalised; ``(embedding_size,)``.

        Args:
            tokens: At most ``batch_tokens``; they continue sequence 0, which is emptied for the first ones.
            position: Of the first of them.
        """
        if not position:
            self.clear(0)
        batch = self._batch
        for index, token in enumerate(tokens):
            batch.token[index] = token
            batch.pos[index] = position + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = 1
        batch.n_tokens = len(tokens)
        if code := int(L.llama_decode(self.pointer, batch)):
            raise LlamaError(f"llama_decode of {len(tokens)} tokens returned {code}: {LOG.why()}")
        pointer = L.llama_get_embeddings_seq(self.pointer, 0)
        if not pointer:
            raise LlamaError("llama.cpp gave no pooled embedding")
        return np.ctypeslib.as_array(pointer, shape=(self.model.embedding_size,)).copy()

    def snapshot_bytes(self, sequence: int) -> int:
        """Return the bytes that a snapshot of ``sequence`` would have now."""
        return int(L.llama_state_seq_get_size(self.pointer, sequence))

    def save(self, sequence: int) -> Snapshot:
        """Take a snapshot of ``sequence``. Its cost grows with the cells in use, not with the size of the context.

        Raises:
            LlamaError: llama.cpp did not give it.
        """
        size = self.snapshot_bytes(sequence)
        data = room(size)
        if (got := int(L.llama_state_seq_get_data(self.pointer, data, size, sequence))) != size or not size:
            raise LlamaError(f"llama.cpp saved {got} of {size} bytes of sequence {sequence}: {LOG.why()}")
        return Snapshot(data)

    def restore(self, snapshot: Snapshot, sequence: int) -> None:
        """Make ``sequence``, which must be empty, what it was when ``snapshot`` was saved; the same to the bit.

        Raises:
            LlamaError: llama.cpp did not take it.
        """
        size = len(snapshot)
        if (got := int(L.llama_state_seq_set_data(self.pointer, snapshot.data, size, sequence))) != size:
            raise LlamaError(f"llama.cpp restored {got} of {size} bytes into sequence {sequence}: {LOG.why()}")

    def clear(self, sequence: int) -> None:
        """Empty one sequence, whole: the only removal that every architecture takes."""
        if self._memory and not L.llama_memory_seq_rm(self._memory, sequence, -1, -1):
            raise LlamaError(f"llama.cpp did not clear sequence {sequence}")

    def close(self) -> None:
        """Free the context."""
        if self.pointer:
            L.llama_batch_free(self._batch)
            L.llama_free(self.pointer)
            self.pointer = None


@contextmanager
def opened(path: Path, shape: ContextShape, *, gpu_layers: int = 0) -> Iterator[Context]:
    """A model and a context for the length of a ``with`` block."""
    model = Model(path, gpu_layers=gpu_layers)
    try:
        context = Context(model, shape)
        try:
            yield context
        finally:
            context.close()
    finally:
        model.close()


def logits_of_file(path: Path, tokens: Sequence[int]) -> Logits:
    """The logits of a small model after the last of ``tokens``, shape ``(vocabulary,)``, evaluated on one thread."""
    shape = ContextShape(sequence_tokens=256, sequences=1, batch_tokens=max(32, len(tokens)), threads=1)
    with opened(path, shape) as context:
        (logits,) = context.decode([Run(tokens, sequence=0, position=0, output=True)])
    return logits
