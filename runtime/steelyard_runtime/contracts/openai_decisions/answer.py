"""The body of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

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
from steelyard_runtime.contracts.openai_decisions.request import Choice, Predicate, Score
from steelyard_runtime.contracts.openai_decisions.text import Decoded
from steelyard_runtime.contracts.wire import Count, Open, Probability, Wire
from steelyard_runtime.decision import Answer


class PredicateAnswer(Extensions):
    """The probability that the statement is true."""

    type: Literal["predicate"]
    name: str | None
    probability: Probability


class ChoiceProbability(Wire):
    """The probability of one choice."""

    value: str | bool
    probability: Probability


class ChoiceAnswer(Extensions):
    """The likeliest choice, and how likely each is."""

    type: Literal["choice"]
    name: str | None
    choice: str | bool
    confidence: Probability
    probabilities: list[ChoiceProbability]


class LevelProbability(Wire):
    """The probability of one level; its value is its number."""

    label: str
    value: Count
    probability: Probability


class ScoreAnswer(Extensions):
    """The expected level, and how likely each is."""

    type: Literal["score"]
    name: str | None
    score: Annotated[float, Field(ge=0)]
    confidence: Probability
    probabilities: list[LevelProbability]


QuestionAnswer = PredicateAnswer | ChoiceAnswer | ScoreAnswer


class InputTokens(Wire):
    """Of the tokens of all prompts, those reused; ``cache_write_tokens`` is 0, because no write is billed."""

    cached_tokens: Count
    cache_write_tokens: Literal[0]


class OutputTokens(Wire):
    """Nothing is generated."""

    reasoning_tokens: Literal[0]


class Usage(Wire):
    """Tokens of all questions' prompts together."""

    input_tokens: Count
    input_tokens_details: InputTokens
    output_tokens: Literal[0]
    output_tokens_details: OutputTokens
    total_tokens: Count


class Response(Wire):
    """The answers, in the order of the questions."""

    answers: list[QuestionAnswer]
    model: str
    usage: Usage
    x_identity: Open
    x_timing: TotalTime


def encode(decoded: Decoded, answers: Sequence[Answer], identity: ModelIdentity, timing_ms: float) -> Response:
    """The response body."""
    prompt_tokens = sum(answer.tokens.prompt for answer in answers)
    return {
        "answers": [_answer(question, answer) for question, answer in zip(decoded.questions, answers, strict=True)],
        "model": identity.model_id,
        "usage": {
            "input_tokens": prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": sum(answer.tokens.reused for answer in answers),
                "cache_write_tokens": 0,
            },
            "output_tokens": 0,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": prompt_tokens,
        },
        "x_identity": identity.summary(),
        "x_timing": {"total_ms": timing_ms},
    }


def _answer(question: Predicate | Choice | Score, answer: Answer) -> QuestionAnswer:
    probabilities = answer.probabilities
    match question:
        case Predicate():
            return {
                "type": "predicate",
                "name": question.name,
                "probability": probabilities[0],
                **extensions(answer),
            }
        case Choice():
            return {
                "type": "choice",
                "name": question.name,
                "choice": question.choices[argmax(probabilities)].value,
                "confidence": choice_confidence(probabilities),
                "probabilities": [
                    {"value": choice.value, "probability": p}
                    for choice, p in zip(question.choices, probabilities, strict=True)
                ],
                **extensions(answer),
            }
        case Score():
            return {
                "type": "score",
                "name": question.name,
                "score": expected_level(probabilities),
                "confidence": score_confidence(probabilities),
                "probabilities": [
                    {"label": level.label, "value": index, "probability": p}
                    for index, (level, p) in enumerate(zip(question.levels, probabilities, strict=True))
                ],
                **extensions(answer),
            }
