"""A wire contract: its paths, its shape, its request and its answer, and how it reports problems.

A contract is a constant ``CONTRACT`` in a file of its own and an entry of ``registry.CONTRACTS``. Its routes, its place
in ``/invocations``, its error bodies, its part of the OpenAPI document and its name in logs and metrics follow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, TypeAdapter

from steelyard_runtime.contracts.answer_details import ModelIdentity
from steelyard_runtime.contracts.error_formats import ErrorFormat
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.model_names import GENERIC_NAMES
from steelyard_runtime.decision import Answer, Correction, DecisionRequest
from steelyard_runtime.engine.interface import Event
from steelyard_runtime.generation import EmbeddingRequest, Embeddings, GenerationRequest, Head, Reply


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The signs by which a body shows that it is of a contract, where several are served on one path.

    Attributes:
        title: What the contract is called in messages.
        example: The shape, for messages.
        fields: Names of fields; a body of this shape has one of them.
        holds: The JSON type of that field, where another contract has a field of this name too.
        without: Fields that a body of this shape does not have.
    """

    title: str
    example: str
    fields: tuple[str, ...]
    holds: type[dict[str, Any]] | type[list[Any]] | None = None
    without: tuple[str, ...] = ()

    def field_in(self, body: Mapping[str, Any]) -> str | None:
        """Return the field that makes ``body`` one of this shape, or None."""
        if any(name in body for name in self.without):
            return None
        for name in self.fields:
            if name in body and (self.holds is None or isinstance(body[name], self.holds)):
                return name
        return None


class Asked(Protocol):
    """A valid request."""

    @property
    def model(self) -> str | None:
        """The name that the caller gave the model."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedDecisions:
    """A valid request for decisions; a contract adds what its answers need.

    Attributes:
        request: The questions.
        model: The name that the caller gave the model; None where a contract names none.
    """

    request: DecisionRequest
    model: str | None = None


AskedT = TypeVar("AskedT", bound=Asked)
DecisionsT = TypeVar("DecisionsT", bound=AskedDecisions)
AnswerT = TypeVar("AnswerT")
AnswerT_co = TypeVar("AnswerT_co", covariant=True)


class ChunkEncoder(Protocol):
    """The chunks of one streamed answer, JSON-ready."""

    def start(self) -> Sequence[Mapping[str, Any]]:
        """Chunks before any event."""
        ...

    def event(self, event: Event) -> Sequence[Mapping[str, Any]]:
        """Chunks for one event of the engine."""
        ...


class MakeChunks(Protocol):
    """The class of a contract's chunk encoders."""

    def __call__(self, head: Head, *, n: int, include_usage: bool) -> ChunkEncoder:
        """Return the encoder of a streamed answer with ``n`` choices."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Contract(Generic[AskedT, AnswerT]):
    """A wire contract. Every one is served at ``/invocations``, too.

    Attributes:
        name: In logs, metrics and traces of requests.
        prefix: Of its schemas' names in the OpenAPI document.
        paths: Its own paths, each with one line for people.
        shape: How its bodies are recognised.
        request: The model of a body.
        answer: The type of an answer's body; of a streamed one's, where it was not streamed.
        errors: How it reports problems.
        decode: From any JSON value to a request; raises a Problem, ``INVALID`` or ``UNSUPPORTED``.
        generic_names: Names of models that mean the one that is served.
        group: The operations that it is listed with.
        streams: Whether an answer may be a stream of events.
    """

    name: str
    prefix: str
    shape: Shape
    request: type[BaseModel]
    answer: TypeAdapter[AnswerT]
    errors: ErrorFormat[Any]
    decode: Callable[[Any, Limits], AskedT]
    paths: Mapping[str, str] = field(default_factory=dict)
    generic_names: frozenset[str] = GENERIC_NAMES
    group: ClassVar[str]
    streams: ClassVar[bool] = False


AnyContract: TypeAlias = Contract[Any, Any]


@dataclass(frozen=True, eq=False, kw_only=True)
class DecisionContract(Contract[DecisionsT, AnswerT], Generic[DecisionsT, AnswerT]):
    """A contract for decisions.

    Attributes:
        encode: From a request, its answers, the server's identity and the milliseconds that it took to a body.
        golden: Bodies that make the contract say all of its words. The identity of prompts is a hash of theirs.
    """

    encode: Callable[[DecisionsT, Sequence[Answer], ModelIdentity, float], AnswerT]
    golden: tuple[Mapping[str, Any], ...]
    group: ClassVar[str] = "Decisions"


@dataclass(frozen=True, eq=False, kw_only=True)
class GenerationContract(Contract[GenerationRequest, AnswerT], Generic[AnswerT]):
    """A contract for generated text, whole or as a stream of chunks."""

    encode: Callable[[Reply, Head], AnswerT]
    chunks: MakeChunks
    group: ClassVar[str] = "Generation"
    streams: ClassVar[bool] = True


@dataclass(frozen=True, eq=False, kw_only=True)
class EmbeddingContract(Contract[EmbeddingRequest, AnswerT], Generic[AnswerT]):
    """A contract for embeddings."""

    encode: Callable[[EmbeddingRequest, Embeddings], AnswerT]
    group: ClassVar[str] = "Generation"


class EncodeFeedback(Protocol[AnswerT_co]):
    """Makes the body that says what became of feedback."""

    def __call__(
        self, correction: Correction, *, state_sha256: str | None, recorded: bool, with_state: bool
    ) -> AnswerT_co:
        """Return the body."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class FeedbackContract(Contract[Correction, AnswerT], Generic[AnswerT]):
    """A contract for what people found right."""

    encode: EncodeFeedback[AnswerT]
    group: ClassVar[str] = "Decisions"
