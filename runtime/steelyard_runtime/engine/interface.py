"""The engine's interface: all that the rest of the runtime knows of it. No llama.cpp here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, overload

import numpy as np
import numpy.typing as npt

from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.errors import Kind, Problem

Logits = npt.NDArray[np.float32]
Hidden = npt.NDArray[np.float32]
HIDDEN_TAIL_TOKENS = 4
"""The last decode of a prompt whose hidden state is wanted has so many tokens at most.

llama.cpp gives hidden states of all tokens of a decode, and computes the whole vocabulary's logits for each of them.
Four tokens take a CPU as long as one.
"""
Memory = Literal["dense", "swa", "hybrid", "recurrent"]
Pooling = Literal["none", "mean", "cls", "last", "rank"]


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of prompt. Only ``control`` text (from templates, never from callers) may become control tokens."""

    text: str
    control: bool = False


class Tokens(Sequence[int]):
    """Token ids in parts, which other prompts may share: joining them copies nothing.

    Args:
        parts: The ids, in order.
        count: How many there are, where parts that no prompt can take were left out.
    """

    __slots__ = ("_count", "_hash", "parts")

    def __init__(self, parts: Iterable[tuple[int, ...]], *, count: int | None = None) -> None:
        self.parts = tuple(parts)
        self._count = sum(map(len, self.parts)) if count is None else count
        self._hash: int | None = None

    @overload
    def __getitem__(self, index: int) -> int: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[int, ...]: ...

    def __getitem__(self, index: int | slice) -> int | tuple[int, ...]:
        """Return one id, or a copy of some."""
        if isinstance(index, slice):
            start, stop, step = index.indices(self._count)
            if step == 1:
                return tuple(self._between(start, stop))
        return tuple(self)[index]

    def _between(self, start: int, stop: int) -> Iterator[int]:
        at = 0
        for part in self.parts:
            if at < stop and start < at + len(part):
                yield from part[max(0, start - at) : stop - at]
            at += len(part)

    def __iter__(self) -> Iterator[int]:
        for part in self.parts:
            yield from part

    def __len__(self) -> int:
        return self._count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokens) and self.parts == other.parts

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(self.parts)
        return self._hash


@dataclass(slots=True, kw_only=True)
class Tokenizing:
    """The tokenizing of one request.

    Attributes:
        allowed_bytes: Most bytes of text that may be tokenized for it.
        wanted: Called again and again; raises when the request is over.
        taken_bytes: Bytes that were tokenized so far.
        known: What was tokenized, so that nothing is tokenized twice.
    """

    allowed_bytes: int
    wanted: Callable[[], None] = lambda: None
    taken_bytes: int = 0
    known: dict[tuple[Piece, bool], tuple[int, ...]] = field(default_factory=dict)

    def take(self, size: int) -> None:
        """Account for ``size`` bytes that are about to be tokenized.

        Raises:
            Problem: OVER_BUDGET.
        """
        self.wanted()
        self.taken_bytes += size
        if self.taken_bytes > self.allowed_bytes:
            raise Problem(
                Kind.OVER_BUDGET,
                f"The texts of this request have more than {self.allowed_bytes} bytes to tokenize, and "
                f"{self.allowed_bytes} are allowed; shorten them, send fewer questions or inputs in one request, or "
                "raise max_text_bytes on the server.",
                counts={"allowed_bytes": self.allowed_bytes},
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """Facts of the loaded model, read from its GGUF file and read back from the context."""

    path: str
    file_name: str
    sha256: str
    size_bytes: int
    architecture: str
    description: str
    parameters: int
    vocabulary: int
    trained_context: int
    context_tokens: int
    chat_template: str | None
    bos_text: str
    eos_text: str
    pooling: Pooling
    embedding_size: int
    named_templates: Mapping[str, str] = field(default_factory=dict)
    """Chat templates beside the default one, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """The findings of the start-up probe. See ``docs/explanation/exactness.md``.

    Attributes:
        memory: The kind of sequence memory: dense, swa, hybrid, recurrent.
        prefix_sharing: Whole-sequence copies work; else prefixes are recomputed.
        exact: Copied, fresh and re-made prefixes give bit-identical logits.
        noise_floor: Largest difference of any logit seen between them; 0.0 when exact.
        comparisons: How many logit vectors were compared.
        note: Why, when a child died or an answer is worse than expected.
    """

    memory: Memory
    prefix_sharing: bool
    exact: bool
    noise_floor: float
    comparisons: int
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineIdentity:
    """The parts of every answer's identity that only the engine knows."""

    model: ModelInfo
    probe: Probe
    llama_cpp: str
    binding: str
    system_info: str
    device: str
    threads: int
    gpu_layers: int
    sequences: int
    batch_tokens: int


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of a prompt that is evaluated by itself, with boundaries that depend on nothing else.

    Attributes:
        tokens: Token ids; not empty.
        private: It holds a caller's text, so that it serves no other caller.
    """

    tokens: tuple[int, ...]
    private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorePrompt:
    """One prompt to score.

    Attributes:
        shared: Segments that other prompts may begin with too, evaluated in this order.
        tail: Token ids, hashable; the logits after the last one are the result.
        hidden: The hidden state after the last one is wanted too. Its last tokens have a decode of their own then, so
            that the logits differ a little from those of the same prompt without.
    """

    shared: tuple[Segment, ...]
    tail: tuple[int, ...] | Tokens
    hidden: bool = False

    def __len__(self) -> int:
        """Tokens."""
        return sum(len(segment.tokens) for segment in self.shared) + len(self.tail)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreJob:
    """Score prompts; nothing is generated.

    Attributes:
        prompts: Each is scored alone; what they share is evaluated once.
        deadline: ``time.monotonic()`` value after which the answer is worthless.
        caller: The caller's name, for fairness and for the privacy of what is kept; "" is every caller without one.
    """

    prompts: tuple[ScorePrompt, ...]
    deadline: float
    caller: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The end of one prompt.

    Attributes:
        logits: Over the whole vocabulary, shape ``(vocabulary,)``.
        tokens: What was evaluated.
        queue_ms: Milliseconds of waiting.
        engine_ms: Milliseconds in the engine.
        hidden: The last layer's output after the final norm, shape ``(embedding_size,)``; None where it was not wanted.
    """

    logits: Logits
    tokens: TokenCounts
    queue_ms: float
    engine_ms: float
    hidden: Hidden | None = None


class ConstrainedText(Protocol):
    """A generation in progress under a constraint. Its methods raise ``JsonOutputError`` when it cannot continue."""

    def allowed(self) -> npt.NDArray[np.bool_]:
        """Return which tokens may follow, shape ``(vocabulary,)``; at least one may."""
        ...

    def add(self, token: int) -> None:
        """Append ``token``."""
        ...


class Grammar(Protocol):
    """A constraint on one generation's text."""

    def begin(self) -> ConstrainedText:
        """Start an empty text: one for each choice."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Parameters of the choice of tokens. Neutral values switch a step off (``top_k=0``, ``top_p=1``, ``min_p=0``).

    ``temperature=0`` is greedy. ``grammar`` is from ``Engine.grammar``. ``top_logprobs`` is None for no
    logprobs, else how many alternatives to report (0 to 20), from the distribution before any of these steps.
    """

    max_tokens: int
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    grammar: Grammar | None = None
    top_logprobs: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationJob:
    """Continue one prompt ``n`` times. The prompt is evaluated once."""

    prompt: tuple[int, ...]
    sampling: Sampling
    deadline: float
    n: int = 1
    caller: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLogprob:
    """One token's bytes and natural-log probability."""

    token_id: int
    bytes: bytes
    logprob: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Text that became final for choice ``index`` (may be empty while bytes or a possible stop string are held back).

    ``logprobs`` pairs each token with its alternatives, for the tokens whose text this delta completes.
    """

    index: int
    text: str
    logprobs: tuple[tuple[TokenLogprob, tuple[TokenLogprob, ...]], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The end of choice ``index``; after the last one the job is over."""

    index: int
    reason: Literal["stop", "length"]
    generated_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """All choices ended. ``tokens`` is the prompt's; timings are milliseconds."""

    tokens: TokenCounts
    generated_tokens: int
    queue_ms: float
    prefill_ms: float
    generate_ms: float


@dataclass(frozen=True, slots=True)
class Failed:
    """The job ended without an answer; ``problem`` is a ``steelyard_runtime.errors.Problem``."""

    problem: Exception


Event = Delta | Finished | Done | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingJob:
    """Embed each text's tokens; the result has shape ``(len(inputs), embedding_size)``, L2-normalised."""

    inputs: tuple[tuple[int, ...], ...]
    deadline: float
    caller: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """``ready`` is what ``/ping`` needs: loaded, self-tested, thread alive, last decode not overdue, not draining.

    ``dead`` says that it will never be ready again: the process has to end with a status that is not zero.
    """

    ready: bool
    reason: str = ""
    dead: bool = False


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals since start, and what is held now. What ``Engine.counters`` gives is a copy."""

    decoded_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    decodes: int = 0
    decisions: int = 0
    generations: int = 0
    embeddings: int = 0
    rejected: int = 0
    cancelled: int = 0
    joined: int = 0
    faults: int = 0
    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_evictions: int = 0
    prefix_bytes: int = 0
    prefixes: int = 0
    queue_depth: int = 0
    active_generations: int = 0
    interruptions: int = 0
    busy_seconds: float = 0.0


class Cancel(Protocol):
    """Stops a generation; safe from any thread, any number of times."""

    def __call__(self) -> None:
        """Cancel."""
        ...


class Engine(Protocol):
    """One model, one owner thread. Every method is safe to call from any thread.

    ``submit_*`` raises ``Problem`` (busy, deadline, draining, not ready, over budget) at once when it refuses;
    later faults arrive in the future, or as ``Failed``.
    """

    @property
    def identity(self) -> EngineIdentity:
        """The engine's part of every answer's identity."""
        ...

    @property
    def counters(self) -> Counters:
        """Totals since start."""
        ...

    @property
    def start_seconds(self) -> dict[str, float]:
        """Seconds that the start took, by stage."""
        ...

    def health(self) -> Health:
        """Tell whether work can be taken, and why not. Never blocks."""
        ...

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> list[int]:
        """Token ids of ``pieces``; with ``start`` the first token is BOS exactly once, if the model wants one."""
        ...

    @property
    def max_text_bytes(self) -> int:
        """A prompt of more bytes of text has more tokens than the context, or is too long to be tokenized at once."""
        ...

    def tokenize(self, pieces: Sequence[Piece], *, start: bool, work: Tokenizing) -> Tokens:
        """As ``encode``, for one request of callers: in chunks, each of them once, and within bounds.

        The result is not whole when it has more tokens than the context; its length is right.

        Raises:
            Problem: OVER_BUDGET, or whatever ``work.wanted`` raises.
        """
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for; empty for control tokens."""
        ...

    def is_text(self, token_id: int) -> bool:
        """Tell whether callers' text may become this token; control tokens and turn markers are none."""
        ...

    def submit_score(self, job: ScoreJob) -> Future[list[Score]]:
        """One ``Score`` per prompt, in order."""
        ...

    def keep_warm(self, shared: tuple[Segment, ...]) -> Future[None]:
        """Evaluate the beginning of prompts and never give it up."""
        ...

    def submit_generation(self, job: GenerationJob, on_event: Callable[[Event], None]) -> Cancel:
        """``on_event`` is called on the engine's thread and must return at once."""
        ...

    def submit_embedding(self, job: EmbeddingJob) -> Future[list[Logits]]:
        """One unit vector of shape ``(embedding_size,)`` per input."""
        ...

    def grammar(self, schema: dict[str, Any] | None) -> Grammar:
        """Compile a constraint to a JSON schema, or to any JSON object when None.

        Raises ``Problem`` for a schema that is wrong or cannot be kept whole.
        """
        ...

    def start_draining(self) -> None:
        """Refuse new work; finish what was accepted."""
        ...

    def close(self, *, timeout_s: float) -> None:
        """Fail what is left after ``timeout_s`` seconds, stop the thread, free the model."""
        ...
