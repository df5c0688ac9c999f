"""System One: questions by id, of the types noul (yes or no), choice and score.

A question's id never reaches the model. The model reads an option as ``name: description``, or as the name when the
description is null or empty; the two options of a noul are ``yes`` and ``no``. A level is read as its description, and
a null or empty one as ``Level 2 of 5``. A question without instructions gets the general ones of its type, below.

Ours beside these: the type ``registered``, ``{"type": "registered", "use": "support-route@3"}``, asks a registered
decision. Its answer has the type that the decision's contract has, and an action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictStr, TypeAdapter, WithJsonSchema

from steelyard_runtime.contracts.answer_details import (
    Extensions,
    ModelIdentity,
    TotalTime,
    argmax,
    choice_confidence,
    expected_level,
    extensions,
    score_confidence,
)
from steelyard_runtime.contracts.contract import AskedDecisions, DecisionContract, Shape
from steelyard_runtime.contracts.error_formats import SYSTEM_ONE
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.model_names import GENERIC_NAMES
from steelyard_runtime.contracts.option_names import PATTERN, RULE, check_names
from steelyard_runtime.contracts.text import labelled, render
from steelyard_runtime.contracts.validation import (
    LAYOUT,
    READOUT,
    USE,
    Content,
    Lenient,
    MaybeContent,
    Path,
    Sized,
    Strict,
    Use,
    fault,
    unsupported,
    validated,
)
from steelyard_runtime.contracts.wire import Count, Open, Probability, Wire
from steelyard_runtime.decision import Answer, DecisionRequest, DecisionType, Layout, Option, Question, Readout
from steelyard_runtime.settings import MAX_OPTIONS, MAX_QUESTIONS

AnswerType = Literal["noul", "choice", "score"]

MAX_LEVELS = 10
NOUL_INSTRUCTIONS = "Does this apply to the state: yes or no?"
CHOICE_INSTRUCTIONS = "Which option fits the state best?"
SCORE_INSTRUCTIONS = "Which level fits the state best?"

_UNIONS: tuple[Path, ...] = (("questions", ...),)


class NoulCriteria(Strict):
    """Descriptions of yes and of no; either may be left out."""

    true: MaybeContent = None
    false: MaybeContent = None


class Noul(Strict):
    """A question with the answers yes and no."""

    type: Literal["noul"]
    instructions: MaybeContent = None
    criteria: NoulCriteria | None = None


def _named_options(options: Any) -> Any:
    if isinstance(options, dict) and "" in options:
        raise fault("empty_name", "an option has the empty string as its name; every option needs a name")
    if isinstance(options, dict):
        check_names(options, "option name")
    return options


class Choice(Strict):
    """A question with named options."""

    type: Literal["choice"]
    instructions: MaybeContent = None
    criteria: Annotated[
        dict[str, MaybeContent],
        Field(
            description="Option names with what each means. " + RULE,
            json_schema_extra={"propertyNames": {"pattern": PATTERN}},
        ),
        BeforeValidator(_named_options),
        Sized("option", low=2, most=MAX_OPTIONS, setting="max_options"),
    ]


class Score(Strict):
    """A question with levels, from low to high."""

    type: Literal["score"]
    instructions: MaybeContent = None
    criteria: Annotated[
        list[MaybeContent],
        Field(description="The levels, low to high."),
        Sized("level", low=2, most=MAX_LEVELS, setting="max_options"),
    ]


class Registered(Strict):
    """A registered decision; the answer is a noul, a choice or a score, as its contract has it."""

    type: Literal["registered"]
    use: Use = Field(description=USE)


AnyQuestion = Noul | Choice | Score | Registered
_TYPES: Mapping[DecisionType, AnswerType] = {"yesno": "noul", "choice": "choice", "score": "score"}


def _named_questions(questions: Any) -> Any:
    if isinstance(questions, dict) and "" in questions:
        raise fault("empty_name", "a question has the empty string as its id; every question needs an id")
    return questions


def _no_assets(assets: Any) -> None:
    if assets not in (None, {}, []):
        raise unsupported("assets are not supported: this server's models read text only; remove the field")


class Request(Lenient):
    """The body. Unknown fields at the top level are ignored."""

    state: Content = Field(description="What all questions are about.")
    model: StrictStr | None = Field(
        "jev-latest",
        description="The model's id, an alias of it, 'jev-latest' or 'default'; empty and absent are the model that is "
        "served. Another name is a 404.",
    )
    questions: Annotated[
        dict[str, Annotated[AnyQuestion, Discriminator("type")]],
        Field(
            description="Questions by id; the answers come back under the same ids.",
            json_schema_extra={"propertyNames": {"minLength": 1}},
        ),
        BeforeValidator(_named_questions),
        Sized("question", low=1, most=MAX_QUESTIONS, setting="max_questions"),
    ]
    x_layout: Layout | None = LAYOUT
    x_readout: Readout | None = READOUT
    assets: Annotated[None, BeforeValidator(_no_assets), WithJsonSchema({"enum": [None, {}, []]})] = Field(
        None, description="Media cannot be read here."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded(AskedDecisions):
    """A valid request; ``ids`` and ``types`` are in the order of ``request.questions``."""

    ids: tuple[str, ...]
    types: tuple[AnswerType, ...]
    legends: tuple[tuple[str, ...], ...]
    """The texts of a score's levels as its answer reports them; empty for the other types."""


def decode(body: Any, limits: Limits) -> Decoded:
    """The questions of a body.

    Raises:
        Problem: ``INVALID`` (or ``UNSUPPORTED`` for media), with a fault for every field that is wrong.
    """
    parsed = validated(Request, body, limits, unions=_UNIONS)
    asked = tuple(parsed.questions.values())
    questions = tuple(_question(each, limits) for each in asked)
    return Decoded(
        request=DecisionRequest(
            state=render(parsed.state), questions=questions, layout=parsed.x_layout, readout=parsed.x_readout
        ),
        model=parsed.model,
        ids=tuple(parsed.questions),
        types=tuple(map(_type, asked, questions)),
        legends=tuple(map(_legend, asked, questions)),
    )


class NoulAnswer(Extensions):
    """The probability of yes."""

    type: Literal["noul"]
    noul: Probability


class ChoiceAnswer(Extensions):
    """The likeliest option, and how likely each is."""

    type: Literal["choice"]
    choice: str
    probabilities: dict[str, Probability]
    confidence: Probability


class ScoreAnswer(Extensions):
    """The expected level; ``legend`` and ``probabilities`` are by the levels' numbers."""

    type: Literal["score"]
    score: Annotated[float, Field(ge=0)]
    legend: dict[str, str]
    probabilities: dict[str, Probability]
    confidence: Probability


class Usage(Wire):
    """Tokens of all prompts, reused ones included."""

    input_tokens: Count
    output_tokens: Literal[0]


class Response(Wire):
    """The answers, by the questions' ids."""

    model: str
    answers: dict[str, NoulAnswer | ChoiceAnswer | ScoreAnswer]
    usage: Usage
    x_identity: Open
    x_timing: TotalTime


def encode(decoded: Decoded, answers: Sequence[Answer], identity: ModelIdentity, timing_ms: float) -> Response:
    """The response body. ``usage.input_tokens`` is the sum of the questions' prompts, reused tokens included."""
    return {
        "model": identity.model_id,
        "answers": {
            question_id: _answer(kind, question, legend, answer)
            for question_id, kind, question, legend, answer in zip(
                decoded.ids, decoded.types, decoded.request.questions, decoded.legends, answers, strict=True
            )
        },
        "usage": {"input_tokens": sum(answer.tokens.prompt for answer in answers), "output_tokens": 0},
        "x_identity": identity.summary(),
        "x_timing": {"total_ms": timing_ms},
    }


def _question(question: AnyQuestion, limits: Limits) -> Question:
    if isinstance(question, Registered):
        return limits.registered()[question.use]
    given = question.instructions
    match question:
        case Noul():
            criteria = question.criteria or NoulCriteria()
            return Question(
                instructions=_instructions(given, NOUL_INSTRUCTIONS),
                options=(_option("yes", criteria.true), _option("no", criteria.false)),
            )
        case Choice():
            return Question(
                instructions=_instructions(given, CHOICE_INSTRUCTIONS),
                options=tuple(_option(name, description) for name, description in question.criteria.items()),
            )
        case Score():
            levels = question.criteria
            return Question(
                instructions=_instructions(given, SCORE_INSTRUCTIONS),
                options=tuple(
                    Option(id=str(index), text=_level(level, index, len(levels))) for index, level in enumerate(levels)
                ),
                ordered=True,
            )


def _instructions(given: Any, general: str) -> str:
    return general if given is None or given == "" else render(given)


def _option(name: str, description: Any) -> Option:
    return Option(id=name, text=labelled(name, "" if description is None else render(description)), name=name)


def _level(level: Any, index: int, levels: int) -> str:
    return f"Level {index + 1} of {levels}" if level is None or level == "" else render(level)


def _type(asked: AnyQuestion, question: Question) -> AnswerType:
    if isinstance(asked, Registered):
        return "choice" if question.registration is None else _TYPES[question.registration.type]
    return asked.type


def _legend(asked: AnyQuestion, question: Question) -> tuple[str, ...]:
    if isinstance(asked, Registered):
        return tuple(option.text for option in question.options)
    if not isinstance(asked, Score):
        return ()
    levels = asked.criteria
    # A level that is a string, even an empty one, comes back as it was sent.
    return tuple(
        level if isinstance(level, str) else _level(level, index, len(levels)) for index, level in enumerate(levels)
    )


def _answer(
    kind: str, question: Question, legend: tuple[str, ...], answer: Answer
) -> NoulAnswer | ChoiceAnswer | ScoreAnswer:
    probabilities = answer.probabilities
    if kind == "noul":
        return {"type": "noul", "noul": probabilities[0], **extensions(answer)}
    # A score's levels have numbers, a registered one's options names of their own.
    names = [str(index) if kind == "score" else option.id for index, option in enumerate(question.options)]
    by_option = dict(zip(names, probabilities, strict=True))
    if kind == "choice":
        return {
            "type": "choice",
            "choice": question.options[argmax(probabilities)].id,
            "probabilities": by_option,
            "confidence": choice_confidence(probabilities),
            **extensions(answer),
        }
    return {
        "type": "score",
        "score": expected_level(probabilities),
        "legend": {str(index): text for index, text in enumerate(legend)},
        "probabilities": by_option,
        "confidence": score_confidence(probabilities),
        **extensions(answer),
    }


CONTRACT = DecisionContract(
    name="systemone",
    prefix="SystemOne",
    paths={"/v1/systemone": "Decisions: System One"},
    shape=Shape(
        title="System One",
        example="{'state': ..., 'questions': {...}}",
        fields=("questions",),
        holds=dict,
    ),
    request=Request,
    answer=TypeAdapter(Response),
    errors=SYSTEM_ONE,
    generic_names=GENERIC_NAMES | {"jev-latest"},
    decode=decode,
    encode=encode,
    golden=(
        {
            "state": "My card was charged twice.",
            "questions": {
                "noul": {"type": "noul"},
                "noul with all": {
                    "type": "noul",
                    "instructions": "Is it late?",
                    "criteria": {"true": "due before today", "false": {"due": "later"}},
                },
                "choice": {"type": "choice", "criteria": {"billing": "money", "other": None}},
                "score": {"type": "score", "criteria": ["calm", None, {"level": "furious"}]},
            },
        },
    ),
)
