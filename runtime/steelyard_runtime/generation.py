"""The one internal form of a text generation, between the contracts' codecs and the chat service."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from steelyard_runtime.engine.interface import Done, TokenLogprob

Role = Literal["system", "developer", "user", "assistant", "tool"]
TokenLogprobs = tuple[tuple[TokenLogprob, tuple[TokenLogprob, ...]], ...]


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation; ``content`` is the caller's text, never control tokens."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonOutput:
    """The answer must be JSON: of ``schema``, or any object when it is None."""

    schema: dict[str, Any] | None


TextPrompt = str | tuple[int, ...]
"""A text, or its token ids in the model's vocabulary."""


@dataclass(frozen=True, slots=True)
class TextPrompts:
    """Texts to continue as they are, each by itself; with ``echo`` each answer begins with its prompt."""

    prompts: tuple[TextPrompt, ...]
    echo: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """A request of a chat or completion, in the fields of no particular contract.

    Attributes:
        prompt: Messages for the model's chat template, or texts to continue as they are.
        model: The name that the caller gave the model; None for no name.
        max_tokens: The caller's limit; None for the server's default.
        max_tokens_param: The field that holds that limit, for messages about it.
        top_logprobs: None for no logprobs, else how many alternatives beside the chosen token (0 to 20).
        json_output: Set when the answer has to be JSON.
        stream: Send the answer as server-sent events.
        include_usage: End a stream with a chunk of token counts.
    """

    prompt: tuple[Message, ...] | TextPrompts
    model: str | None = None
    max_tokens: int | None = None
    max_tokens_param: str = "max_tokens"
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    top_logprobs: int | None = None
    n: int = 1
    json_output: JsonOutput | None = None
    stream: bool = False
    include_usage: bool = False

    @property
    def choices(self) -> int:
        """The number of answers: ``n`` for each prompt, those of the first prompt first."""
        return self.n * (len(self.prompt.prompts) if isinstance(self.prompt, TextPrompts) else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest:
    """Texts to embed; ``dimensions`` is the length the caller expects, None when it expects none."""

    inputs: tuple[str, ...]
    model: str | None = None
    dimensions: int | None
    base64: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One finished continuation."""

    index: int
    text: str
    logprobs: TokenLogprobs
    reason: Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """All choices in order, with the engine's counts and timings."""

    choices: tuple[Choice, ...]
    done: Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Embeddings:
    """One L2-normalised vector and one prompt hash per input, and the tokens of all inputs together."""

    vectors: tuple[tuple[float, ...], ...]
    prompt_sha256: tuple[str, ...]
    prompt_tokens: int
    model: str
    identity: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The fields that every body of one answer repeats.

    Attributes:
        id: Unique per answer, with the contract's own prefix put before it by the encoder.
        created: Unix seconds.
        model: The id of the model that answers, whatever the caller called it.
        identity: The short identity, JSON-ready.
        prompt_sha256: For each prompt the hash of its exact token ids, as little-endian uint32.
        submitted: ``time.perf_counter()`` when the engine was given the prompt; no part of any body.
    """

    id: str
    created: int
    model: str
    identity: dict[str, Any]
    prompt_sha256: tuple[str, ...]
    submitted: float = 0.0
