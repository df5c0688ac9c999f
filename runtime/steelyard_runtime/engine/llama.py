"""The only importer of llama_cpp: a typed, checked surface over the C API. No policy here.

Nothing in this module is safe to call from two threads at once, except ``Vocabulary``, which only reads.
"""

from __future__ import annotations

import ctypes
import inspect
import math
import mmap
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

try:
    import llama_cpp as L  # noqa: N812
    import llama_cpp.llama_cpp as binding
    from llama_cpp._ggml import libggml as ggml
except (AttributeError, OSError, RuntimeError) as error:
    raise ImportError(
        f"llama-cpp-python cannot use its libllama: {error}. The library is missing, or of another build than the "
        "binding was made for; install both from one release"
    ) from error

from steelyard_runtime.engine.interface import HIDDEN_TAIL_TOKENS, Hidden, Logits, Memory, Piece, Pooling
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
from steelyard_runtime.legible import legible, reason_of

BINDING_VERSION = str(L.__version__)
BINDING = f"llama-cpp-python {BINDING_VERSION}"
LIBRARIES = Path(binding._base_path)  # the folder that the binding took libllama from
ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
ggml.ggml_backend_load_all_from_path.restype = None
POOLING: dict[int, Pooling] = {0: "none", 1: "mean", 2: "cls", 3: "last", 4: "rank"}
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}
CacheType = Literal["f16", "q8_0"]
TokenIds = npt.NDArray[np.int32]
CACHE_TYPES: dict[CacheType, int] = {"f16": 1, "q8_0": 8}  # ggml_type
RARE = "\U0001e2c0"
"""A letter of the Wancho script, which no vocabulary has as a token."""
TOKENIZERS: dict[int, TokenizerKind] = {1: "spm", 2: "bpe", 3: "wpm", 4: "ugm", 5: "rwkv"}  # llama_vocab_type
GGML_LOG_ERROR = 4
GGML_LOG_CONTINUE = 5
OWN_PAGES_FROM = 1 << 20
"""Bytes of a snapshot from which it has pages of its own."""
NODES_BETWEEN_STOPS = 4
"""Of a decode's graph: an eighth of a layer. Stopping there costs less than a hundredth of a chunk of a prompt."""


COLDEST = 1e-6
"""A temperature below this is greedy: dividing by less leaves no number."""
UNCHANGED = (-1, 1)
"""What ``llama_decode`` returns for a batch that it refuses whole, and for one that finds no room."""
SEEDS = 0xFFFFFFFF
"""llama.cpp takes a seed below this; this very one makes it draw its own."""

EVERY_BYTE = "".join(
    map(chr, (*range(1, 0x800), *range(0x800, 0xD800, 0x800), 0xE000, 0xF000, *range(0x10000, 0x110000, 0x10000)))
)
"""Text with every byte that UTF-8 has but 0: of one and two bytes all characters, of longer ones some of each start."""


class LlamaError(RuntimeError):
    """llama.cpp refused or failed; the message carries its own last words.

    Attributes:
        unchanged: Every sequence holds what it held before the call.
    """

    def __init__(self, message: str, *, unchanged: bool = False) -> None:
        super().__init__(message)
        self.unchanged = unchanged


class _Log:
    """Keeps llama.cpp's recent lines, so that an error can say why, and nothing is written to the caller's terminal."""

    def __init__(self) -> None:
        self.lines: deque[tuple[int, str]] = deque(maxlen=400)
        self._level = 0
        self._callback = L.llama_log_callback(self._take)  # kept: C holds only a pointer
        L.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _take(self, level: int, text: bytes, _: object) -> None:
        line = text.decode("utf-8", "replace").rstrip("\n")
        if level == GGML_LOG_CONTINUE and self.lines:
            previous_level, previous = self.lines.pop()
            self.lines.append((previous_level, previous + line))
        elif line.strip():
            self.lines.append((level, line))

    def why(self) -> str:
        """The most recent error lines, shortened."""
        errors = [line.strip() for level, line in self.lines if level == GGML_LOG_ERROR]
        return legible("; ".join(errors[-3:])) or "llama.cpp gave no reason"

    def search(self, pattern: str) -> re.Match[str] | None:
        """The latest match of ``pattern`` in the kept lines."""
        for _, line in reversed(self.lines):
            if match := re.search(pattern, line):
                return match
        return None


def _load_backends() -> None:
    """Load the CPU's and the GPU's code where it lies in files of its own (a library built with ``GGML_BACKEND_DL``).

    llama.cpp's programs do that themselves; a library that has its backends inside has devices from the start.
    """
    if not ggml.ggml_backend_dev_count():
        ggml.ggml_backend_load_all_from_path(str(LIBRARIES).encode())


LOG = _Log()
_load_backends()
L.llama_backend_init()


def llama_version() -> str:
    """The version that libllama reports of itself."""
    return str(L.llama_version().decode())


def system_info() -> str:
    """llama.cpp's CPU features and backends, on one line."""
    return " ".join(L.llama_print_system_info().decode().split())


def gpu_available() -> bool:
    """Whether this build of llama.cpp has a GPU backend and finds a device for it."""
    return bool(L.llama_supports_gpu_offload())


def struct_sizes(names: Iterable[str]) -> dict[str, int]:
    """Bytes of the binding's structs, by name."""
    return {name: ctypes.sizeof(getattr(binding, name)) for name in names}


def default_values() -> dict[str, dict[str, Any]]:
    """The library's default parameters as the binding reads them: members that are numbers, by struct."""
    found = {
        "llama_model_params": L.llama_model_default_params(),
        "llama_context_params": L.llama_context_default_params(),
    }
    return {struct: _numbers(values) for struct, values in found.items()}


def _numbers(values: Any) -> dict[str, Any]:
    members = {name: getattr(values, name) for name, *_ in values._fields_}
    return {name: value for name, value in members.items() if isinstance(value, int | float)}


_NUMBERS = {"?": "bool", "f": "float32", "d": "float64"}
_SIGNED = "bhilq"


def signatures(names: Iterable[str]) -> dict[str, str]:
    """How the binding declares llama.cpp's functions, by name: result and parameters; "missing" where it has none.

    >>> signatures(["llama_sampler_init_min_p"])
    {'llama_sampler_init_min_p': 'pointer(p: float32, min_keep: uint64)'}
    """
    return {name: _signature(getattr(L, name, None)) for name in names}


def _signature(function: Any) -> str:
    if not hasattr(function, "argtypes"):
        return "missing"
    names = list(inspect.signature(function.__wrapped__).parameters)
    kinds = [_kind(declared) for declared in function.argtypes]
    parameters = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=False))
    if len(names) != len(kinds):
        parameters = f"{len(names)} names for {len(kinds)} parameters"
    return f"{_kind(function.restype)}({parameters})"


def _kind(declared: Any) -> str:
    """A C type as it is passed: numbers by their size, structs by their name, everything else an address."""
    if declared is None:
        return "void"
    if issubclass(declared, ctypes.Structure):
        return str(declared.__name__)
    code = getattr(declared, "_type_", None)
    if not isinstance(code, str) or code in "zZP":
        return "pointer"
    if code in _NUMBERS:
        return _NUMBERS[code]
    return f"{'' if code in _SIGNED else 'u'}int{8 * ctypes.sizeof(declared)}"


def logits_of_file(path: Path, tokens: Sequence[int]) -> Logits:
    """The logits of a small model after the last of ``tokens``, shape ``(vocabulary,)``, evaluated on one thread."""
    shape = ContextShape(sequence_tokens=256, sequences=1, batch_tokens=max(32, len(tokens)), threads=1)
    with opened(path, shape) as context:
        (logits,) = context.decode([Run(tokens, sequence=0, position=0, output=True)])
    return logits


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
        """What bounds and cuts texts."""
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
        """Whether callers' text may become ``token``."""
        return not self._forbidden[token]

    def ends_generation(self, token: int) -> bool:
        """Whether ``token`` ends a turn or a text."""
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
        """How the model pools embeddings, from its metadata; ``none`` for models that are not made for it."""
        value = self.metadata(f"{self.architecture}.pooling_type")
        return POOLING.get(int(value), "none") if value and re.fullmatch(r"-?[0-9]{1,9}", value) else "none"

    @property
    def causal(self) -> bool:
        """Whether a token sees those before it only, so that a text can be evaluated in pieces."""
        return self.metadata(f"{self.architecture}.attention.causal") != "false"

    @property
    def memory(self) -> Memory:
        """What kind of state a sequence has."""
        if L.llama_model_is_hybrid(self.pointer):
            return "hybrid"
        if L.llama_model_is_recurrent(self.pointer):
            return "recurrent"
        return "swa" if L.llama_model_n_swa(self.pointer) > 0 else "dense"

    @property
    def windowed(self) -> bool:
        """Whether some layers see the last positions only, so that their cells are used again."""
        return int(L.llama_model_n_swa(self.pointer)) > 0

    @property
    def generates(self) -> bool:
        """Whether the model has a decoder with next-token logits."""
        return bool(L.llama_model_has_decoder(self.pointer)) and not L.llama_model_has_encoder(self.pointer)

    def close(self) -> None:
        """Free the weights; the object must not be used afterwards."""
        if self.pointer:
            L.llama_model_free(self.pointer)
            self.pointer = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShape:
    """What is asked of a context, and read back from it."""

    sequence_tokens: int
    sequences: int
    batch_tokens: int
    threads: int
    flash_attention: Literal["auto", "on", "off"] = "auto"
    cache_type: CacheType = "f16"
    pooling: Pooling = "none"


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """What a sequence held: its used cells, and a recurrent model's state. In this process's memory, not the context's.

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


class _Stops:
    """Stops llama.cpp in the middle of a decode, between nodes of its graph, and calls something there.

    llama.cpp asks before each node whether anyone wants to look at its result, evaluates all nodes up to one of which
    that is so, and then shows it. Nothing is evaluated at that moment, so another context may be.
    """

    def __init__(self) -> None:
        self._between: Callable[[], None] | None = None
        self._nodes = 0
        self._error: BaseException | None = None
        self.callback = L.ggml_backend_sched_eval_callback(self._called)  # kept: C holds only a pointer

    def _called(self, _node: int, ask: bool, _data: int) -> bool:
        if self._between is None or self._error is not None:  # after an error llama.cpp goes on with the next batch
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
    def calling(self, between: Callable[[], None]) -> Iterator[None]:
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
        self._stops = _Stops()
        if interruptible:
            params.cb_eval = self._stops.callback
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
                    f"{name} was set to {asked} and libllama says {got}: the library is not the build that {BINDING} "
                    "was made for; reinstall both from one release"
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
        with self._stops.calling(between) if between and self.interruptible else nullcontext():
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
            tokens: At most ``batch_tokens``; they go on in sequence 0, which is emptied for the first ones.
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
        """How many bytes a snapshot of ``sequence`` has now."""
        return int(L.llama_state_seq_get_size(self.pointer, sequence))

    def save(self, sequence: int) -> Snapshot:
        """What ``sequence`` holds. Its cost grows with the cells in use, not with the size of the context.

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


class Sampler:
    """Chooses tokens of one choice from logits; keeps the state that penalties and seeds need.

    Args:
        size: Tokens of the vocabulary.
        temperature: 0 is greedy.
        top_p: 1 switches it off.
        top_k: 0 switches it off.
        min_p: 0 switches it off.
        seed: Less than ``SEEDS``.
        presence_penalty: Taken once from the logit of every token that was chosen.
        frequency_penalty: Taken as often as the token was chosen.
        logit_bias: Added to the logits of tokens, all of the vocabulary.
    """

    def __init__(
        self,
        size: int,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int = 0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = (),
    ) -> None:
        self._chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        try:
            self._array = (L.llama_token_data * size)()
            self._view = np.frombuffer(self._array, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
            self._all = np.arange(size, dtype=np.int32)
            if logit_bias:
                items = (L.llama_logit_bias * len(logit_bias))(*[L.llama_logit_bias(t, b) for t, b in logit_bias])
                self._add(L.llama_sampler_init_logit_bias(size, len(logit_bias), items))
            if presence_penalty or frequency_penalty:
                window = 1 << 16  # everything generated so far, as OpenAI counts it
                self._add(L.llama_sampler_init_penalties(size, window, 1.0, frequency_penalty, presence_penalty))
            self._add_choice(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
        except BaseException:
            self.close()
            raise

    def _add_choice(self, *, temperature: float, top_p: float, top_k: int, min_p: float, seed: int) -> None:
        if temperature < COLDEST:
            self._add(L.llama_sampler_init_greedy())
            return
        if top_k:
            self._add(L.llama_sampler_init_top_k(top_k))
        if top_p < 1:
            self._add(L.llama_sampler_init_top_p(top_p, 1))
        if min_p > 0:
            self._add(L.llama_sampler_init_min_p(min_p, 1))
        self._add(L.llama_sampler_init_temp(temperature))
        self._add(L.llama_sampler_init_dist(seed))

    def _add(self, step: Any) -> None:
        L.llama_sampler_chain_add(self._chain, step)

    def sample(self, logits: Logits, *, allowed: npt.NDArray[np.bool_] | None = None) -> int:
        """The next token, one of those that are ``allowed``; shapes ``(vocabulary,)``."""
        tokens = self._all if allowed is None else np.flatnonzero(allowed).astype(np.int32)
        view = self._view[: len(tokens)]
        view["id"] = tokens
        view["logit"] = logits if allowed is None else logits[tokens]
        view["p"] = 0
        candidates = L.llama_token_data_array(self._array, len(tokens), -1, False)
        L.llama_sampler_apply(self._chain, ctypes.byref(candidates))
        token = int(candidates.data[candidates.selected].id)
        L.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Free the chain."""
        if self._chain:
            L.llama_sampler_free(self._chain)
            self._chain = None


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
