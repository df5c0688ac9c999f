"""Common parts of the OpenAI contracts that generate text: sampling fields, refusals, bodies and chunks."""

from __future__ import annotations

import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Discriminator, Field, StrictFloat, StrictInt, StrictStr, Tag

from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.model_names import MODEL
from steelyard_runtime.contracts.neutral import IgnoredText, Neutral, is_neutral
from steelyard_runtime.contracts.server_fields import ServerFields
from steelyard_runtime.contracts.validation import SETTING, Path, Sized, Strict, invalid, quote, shorten, validated
from steelyard_runtime.contracts.wire import Count, Milliseconds, Open, Sha256, Wire
from steelyard_runtime.engine.interface import Delta, Done, Event, Finished, TokenLogprob
from steelyard_runtime.errors import Detail, Kind, Problem
from steelyard_runtime.generation import Head, TokenLogprobs
from steelyard_runtime.settings import MAX_CHOICES

MAX_STOP_STRINGS = 4
MAX_LOGIT_BIASES = 1024
MAX_INT32 = 2**31 - 1
MIN_SEED, MAX_SEED = -(2**63), 2**63 - 1
LOWEST_LOGPROB = -9999.0

TEXT = Tag("text")
LIST = Tag("list")
TEXT_OR_LIST = Discriminator(lambda value: "list" if isinstance(value, list) else "text")
"""Of the two branches of a union: so that an error is about the one that was meant."""

_Model = TypeVar("_Model", bound=Strict)


class StreamOptions(Strict):
    """Options of a streamed answer."""

    include_usage: bool | None = Field(None, description="End the stream with a chunk that holds the token counts.")
    include_obfuscation: Annotated[Any, Neutral(False, because="streams are not padded")] = None


class SamplingFields(ServerFields):
    """The sampling of tokens. Null is the same as absent."""

    model: StrictStr | None = MODEL
    max_tokens: Annotated[StrictInt, Field(ge=1, le=MAX_INT32)] | None = Field(
        None, description="Tokens to generate at most; the server's default_max_tokens when unset."
    )
    temperature: Annotated[StrictFloat, Field(ge=0, le=2)] | None = Field(
        None, description="0 is greedy, and so is less than 1e-6; default 1."
    )
    top_p: Annotated[StrictFloat, Field(ge=0, le=1)] | None = Field(
        None, description="Sample from the likeliest tokens of this total probability; default 1, all."
    )
    top_k: Annotated[StrictInt, Field(ge=-1, le=MAX_INT32)] | None = Field(
        None, description="Sample from this many likeliest tokens; default 0, all, and so is -1."
    )
    min_p: Annotated[StrictFloat, Field(ge=0, le=1)] | None = Field(
        None, description="Leave out tokens below this share of the likeliest one's probability; default 0, none."
    )
    seed: Annotated[StrictInt, Field(ge=MIN_SEED, le=MAX_SEED)] | None = Field(
        None, description="The same seed gives the same answer to the same request; -1 is a seed like any other."
    )
    stop: (
        Annotated[
            Annotated[StrictStr, TEXT] | Annotated[list[StrictStr], Field(max_length=MAX_STOP_STRINGS), LIST],
            TEXT_OR_LIST,
        ]
        | None
    ) = Field(
        None,
        description=f"Text, or up to {MAX_STOP_STRINGS} texts, at which the answer ends; it is not part of the answer. "
        "Empty texts end nothing.",
    )
    presence_penalty: Annotated[StrictFloat, Field(ge=-2, le=2)] | None = Field(
        None, description="Subtracted from the logit of a token that was already generated; default 0."
    )
    frequency_penalty: Annotated[StrictFloat, Field(ge=-2, le=2)] | None = Field(
        None, description="Subtracted from a token's logit for each time it was already generated; default 0."
    )
    logit_bias: (
        Annotated[
            dict[
                Annotated[StrictStr, Field(pattern=r"^(0|[1-9][0-9]{0,8})$")],
                Annotated[StrictFloat, Field(ge=-100, le=100)],
            ],
            # pydantic says what keys of the pattern hold, and not that there are no others.
            Field(json_schema_extra={"additionalProperties": False}),
            Sized("token", most=MAX_LOGIT_BIASES),
        ]
        | None
    ) = Field(None, description="Added to the logits of tokens, by token id.")
    n: Annotated[StrictInt, Field(ge=1, le=MAX_CHOICES, json_schema_extra={SETTING: "max_choices"})] | None = Field(
        None, description="Answers to generate, up to the server's max_choices; default 1."
    )
    stream: bool | None = Field(None, description="Send the answer as server-sent events.")
    stream_options: StreamOptions | None = Field(None, description="include_usage is only allowed with stream.")
    user: IgnoredText = None


UNIONS: tuple[Path, ...] = (("stop",),)


def parse(body: Any, model: type[_Model], *, limits: Limits, unions: Collection[Path]) -> _Model:
    """``body`` as ``model``.

    Args:
        body: Any JSON value.
        model: The contract's request.
        limits: How much it may ask.
        unions: Places of unions in the body, as ``from_pydantic`` wants them.

    Raises:
        Problem: UNSUPPORTED, naming the fields that this server does not have; INVALID for wrong values.
    """
    if isinstance(body, dict):
        strange = [name for name in body if name not in model.model_fields]
        if strange:
            raise _unsupported_fields(strange, model)
    return validated(model, body, limits, unions=unions)


def unsupported(loc: tuple[str | int, ...], message: str) -> Problem:
    """A request for something that this server does not have, at one place of the body."""
    param = ".".join(map(str, loc))
    return Problem(Kind.UNSUPPORTED, f"{param}: {message}", param=param, details=(Detail(loc, message, "unsupported"),))


def sampling(fields: SamplingFields, *, limits: Limits) -> dict[str, Any]:
    """The part of a ``GenerationRequest`` that all contracts share, as keyword arguments.

    Raises:
        Problem: INVALID, for more choices than the server allows, ``include_usage`` without ``stream``, or a window of
            penalties that are not the whole answer's.
    """
    if fields.n is not None and fields.n > limits.max_choices:
        raise invalid(
            ("n",), f"must be at most {limits.max_choices} (the server's setting max_choices); got {fields.n}"
        )
    include_usage = bool(fields.stream_options and fields.stream_options.include_usage)
    if include_usage and not fields.stream:
        raise invalid(("stream_options",), "is only allowed with stream: true; remove it, or stream")
    if fields.repeat_last_n not in (None, -1) and (fields.presence_penalty or fields.frequency_penalty):
        raise invalid(
            ("repeat_last_n",),
            f"{fields.repeat_last_n} is only allowed with presence_penalty and frequency_penalty at 0, because they "
            "count the whole answer here; send -1, or leave it out",
        )
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    given = {
        "temperature": fields.temperature,
        "top_p": fields.top_p,
        "top_k": None if fields.top_k is None else max(fields.top_k, 0),
        "min_p": fields.min_p,
        "presence_penalty": fields.presence_penalty,
        "frequency_penalty": fields.frequency_penalty,
        "n": fields.n,
    }
    return {name: value for name, value in given.items() if value is not None} | {
        "model": fields.model,
        "max_tokens": fields.max_tokens,
        "seed": fields.seed,
        "stop": tuple(text for text in stop if text),
        "logit_bias": tuple((int(token), bias) for token, bias in (fields.logit_bias or {}).items()),
        "stream": bool(fields.stream),
        "include_usage": include_usage,
    }


FinishReason = Literal["stop", "length"]


class CachedTokens(Wire):
    """Of a prompt's tokens, those reused."""

    cached_tokens: Count


class Usage(Wire):
    """Token counts as OpenAI has them."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: CachedTokens


class GenerationTokens(Wire):
    """Tokens of all prompts and of all choices."""

    prompt: Count
    evaluated: Count
    reused: Count
    generated: Count


class GenerationTimes(Wire):
    """Milliseconds."""

    queue_ms: Milliseconds
    prefill_ms: Milliseconds
    generate_ms: Milliseconds


class Opening(Wire):
    """The fields of every body of an answer."""

    created: int
    model: str
    system_fingerprint: str


class Provenance(Wire):
    """The identity that answered, the exact prompt and the cost; several prompts have a list of hashes."""

    x_identity: Open
    x_prompt_sha256: Sha256 | list[Sha256]
    x_tokens: GenerationTokens
    x_timing: GenerationTimes


class WholeAnswer(Opening, Provenance):
    """A whole answer, but for its ``object`` and its choices."""

    id: str
    usage: Usage


def opening(head: Head) -> Opening:
    """The fields that every body of an answer has."""
    return {"created": head.created, "model": head.model, "system_fingerprint": fingerprint(head.identity)}


def provenance(head: Head, done: Done) -> Provenance:
    """The fields that say how an answer came about."""
    return {
        "x_identity": head.identity,
        "x_prompt_sha256": head.prompt_sha256[0] if len(head.prompt_sha256) == 1 else list(head.prompt_sha256),
        "x_tokens": {
            "prompt": done.tokens.prompt,
            "evaluated": done.tokens.evaluated,
            "reused": done.tokens.reused,
            "generated": done.generated_tokens,
        },
        "x_timing": {
            "queue_ms": done.queue_ms,
            "prefill_ms": done.prefill_ms,
            "generate_ms": done.generate_ms,
        },
    }


def usage(done: Done) -> Usage:
    """Token counts as OpenAI has them; a reused token is a cached one."""
    return {
        "prompt_tokens": done.tokens.prompt,
        "completion_tokens": done.generated_tokens,
        "total_tokens": done.tokens.prompt + done.generated_tokens,
        "prompt_tokens_details": {"cached_tokens": done.tokens.reused},
    }


class Chunks(ABC):
    """The bodies of a streamed answer, one event after the other.

    The last chunk of a stream carries what a whole answer carries beside its choices: the ``x_`` fields, and, with
    ``include_usage``, the usage in a chunk of its own without choices.

    Args:
        head: Of the answer.
        n: How many choices.
        include_usage: The caller's wish.
    """

    prefix: ClassVar[str]
    kind: ClassVar[str]

    def __init__(self, head: Head, *, n: int, include_usage: bool) -> None:
        self._head = head
        self._opening = {"id": f"{self.prefix}-{head.id}", "object": self.kind, **opening(head)}
        self._include_usage = include_usage
        self._n = self._running = n
        self._last: dict[str, Any] = {}

    def start(self) -> list[dict[str, Any]]:
        """The chunks before any text."""
        return []

    def event(self, event: Event) -> list[dict[str, Any]]:
        """The chunks for one event of the engine; often one, sometimes none."""
        match event:
            case Delta(index=index, text=text, logprobs=tokens) if text or tokens:
                return [self._chunk(self._choice(index, text, tokens, None))]
            case Finished(index=index, reason=reason):
                self._running -= 1
                chunk = self._chunk(self._choice(index, "", (), reason))
                if self._running:
                    return [chunk]
                self._last = chunk  # held back for what Done brings
            case Done():
                return self._end(event)
        return []

    @abstractmethod
    def _choice(self, index: int, text: str, tokens: TokenLogprobs, reason: FinishReason | None) -> Mapping[str, Any]:
        """One choice of a chunk: with text, or at its end with a reason."""

    def _end(self, done: Done) -> list[dict[str, Any]]:
        chunks = [self._last] if self._last else []
        if self._include_usage:
            chunks.append({**self._opening, "choices": [], "usage": usage(done)})
        return [*chunks[:-1], {**chunks[-1], **provenance(self._head, done)}] if chunks else []

    def _chunk(self, choice: Mapping[str, Any]) -> dict[str, Any]:
        return {**self._opening, "choices": [choice], **({"usage": None} if self._include_usage else {})}


def fingerprint(identity: dict[str, Any]) -> str:
    """A short name for everything that determines answers: equal identities, equal fingerprints."""
    canonical = json.dumps(identity, sort_keys=True, ensure_ascii=False, default=str)
    return "fp_" + hashlib.sha256(canonical.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def token_text(token: TokenLogprob) -> str:
    r"""A token's text; for a part of a character its bytes, as ``bytes:\xe2\x82``."""
    try:
        return token.bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token.bytes)


def finite(logprob: float) -> float:
    """A logprob that JSON can carry: -9999.0 for an impossible token."""
    return max(logprob, LOWEST_LOGPROB) if math.isfinite(logprob) else LOWEST_LOGPROB


def _unsupported_fields(names: Sequence[str], model: type[Strict]) -> Problem:
    neutral = {*ServerFields.model_fields, *(name for name, field in model.model_fields.items() if is_neutral(field))}
    supported = ", ".join(name for name in model.model_fields if name not in neutral)
    shown = [shorten(name) for name in names[:8]]
    listed = ", ".join(quote(name) for name in shown) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    verb = "is" if len(names) == 1 else "are"
    return Problem(
        Kind.UNSUPPORTED,
        f"{listed} {verb} not supported here; nothing is ignored silently, so remove it. Supported: {supported}.",
        param=shown[0],
        details=tuple(Detail((name,), "is not supported", "unsupported") for name in shown),
    )
