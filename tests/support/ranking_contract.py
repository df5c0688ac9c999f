"""A wire contract that nobody serves: candidates for a place, ranked by their probability."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import StrictStr, TypeAdapter

from steelyard_runtime.contracts.answer_details import ModelIdentity
from steelyard_runtime.contracts.contract import AskedDecisions, DecisionContract, Shape
from steelyard_runtime.contracts.error_formats import ErrorFormat
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.validation import NonEmpty, Sized, Strict, validated
from steelyard_runtime.contracts.wire import Probability, Wire
from steelyard_runtime.decision import Answer, DecisionRequest, Option, Question
from steelyard_runtime.errors import Counts, Kind, Problem
from steelyard_runtime.settings import MAX_OPTIONS


class Ranking(Strict):
    """The body."""

    place: NonEmpty
    candidates: Annotated[list[StrictStr], Sized("candidate", low=2, most=MAX_OPTIONS, setting="max_options")]
    model: StrictStr | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(AskedDecisions):
    """A valid request."""

    candidates: tuple[str, ...]


class Ranked(Wire):
    """One candidate."""

    candidate: str
    probability: Probability


class Response(Wire):
    """The candidates, the likeliest first."""

    ranked: list[Ranked]


class Failure(Wire, Counts):
    """A problem."""

    failed: Literal[True]
    why: str
    kind: Kind


def decode(body: Any, limits: Limits) -> Asked:
    ranking = validated(Ranking, body, limits)
    options = tuple(Option(id=name, text=name, name=name) for name in ranking.candidates)
    question = Question(instructions=f"Who is best for the place {ranking.place}?", options=options)
    return Asked(
        request=DecisionRequest(state=ranking.place, questions=(question,)),
        model=ranking.model,
        candidates=tuple(ranking.candidates),
    )


def encode(asked: Asked, answers: Sequence[Answer], _: ModelIdentity, __: float) -> Response:
    pairs = sorted(zip(answers[0].probabilities, asked.candidates, strict=True), reverse=True)
    return {"ranked": [{"candidate": name, "probability": p} for p, name in pairs]}


def failure(problem: Problem, _: int) -> Failure:
    return {"failed": True, "why": problem.message, "kind": problem.kind, **problem.counts}


CONTRACT = DecisionContract(
    name="ranking",
    prefix="Ranking",
    paths={"/v2/rank": "Rank candidates"},
    shape=Shape(title="ranking", example="{'place': ..., 'candidates': [...]}", fields=("candidates",)),
    request=Ranking,
    answer=TypeAdapter(Response),
    errors=ErrorFormat(
        name="RankingError",
        title="Ranking",
        body_type=TypeAdapter(Failure),
        body=failure,
        statuses={Kind.INVALID: 400},
    ),
    decode=decode,
    encode=encode,
    golden=({"place": "the goal", "candidates": ["Ada", "Bo"]},),
)
