"""The two contracts that the peers speak, and what is kept of an answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from benchmarks.peers.cases import Case


@dataclass(frozen=True)
class Answer:
    """One question's answer.

    Attributes:
        choice: The option's id.
        numbers: Logits in the order of the options where the peer gives them, else probabilities.
        evaluated: Tokens that were evaluated for it, where the peer says so.
        reused: Prompt tokens that were not evaluated again, where the peer says so.
    """

    choice: str
    numbers: tuple[float, ...]
    evaluated: int | None = None
    reused: int | None = None


class UnreadableError(ValueError):
    """A body that does not answer what was asked."""


def systemone_body(case: Case, extra: dict[str, Any]) -> dict[str, Any]:
    """System One: each question is a choice."""
    questions = {
        asked.id: {"type": "choice", "instructions": asked.question, "criteria": asked.options}
        for asked in case.questions
    }
    return {"state": case.state, "model": "jev-latest", "questions": questions} | extra


def systemone_answers(case: Case, body: Any) -> list[Answer]:
    """The answers in the order of the questions.

    Raises:
        UnreadableError: A question is not answered, or its options are not the ones that were asked.
    """
    try:
        return [_systemone_answer(asked.options, body["answers"][asked.id]) for asked in case.questions]
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def _systemone_answer(options: dict[str, str], answer: dict[str, Any]) -> Answer:
    probabilities, choice = answer["probabilities"], answer["choice"]
    if set(probabilities) != set(options) or choice not in options:
        raise ValueError(f"the options {sorted(options)} were asked, {sorted(probabilities)} were answered")
    tokens = answer.get("x_tokens", {})
    numbers = answer.get("x_logits") or [probabilities[name] for name in options]
    return Answer(choice, tuple(map(float, numbers)), tokens.get("evaluated"), tokens.get("reused"))


def decide_body(case: Case) -> dict[str, Any]:
    """The decision contract of ``/invocations``: ``decision`` for one question, ``decisions`` for several."""
    decisions = [
        {
            "id": asked.id,
            "state": case.state,
            "question": asked.question,
            "options": [{"id": name, "description": text} for name, text in asked.options.items()],
        }
        for asked in case.questions
    ]
    return {"decision": decisions[0]} if len(decisions) == 1 else {"decisions": decisions}


def registered_body(case: Case) -> dict[str, Any]:
    """The same contract, for registered decisions: each question's id is its name."""
    decisions = [{"use": asked.id, "state": case.state} for asked in case.questions]
    return {"decision": decisions[0]} if len(decisions) == 1 else {"decisions": decisions}


def decide_answers(case: Case, body: Any) -> list[Answer]:
    """The answers in the order of the questions.

    Raises:
        UnreadableError: A question is not answered, or its options are not the ones that were asked.
    """
    try:
        results = [body["result"]] if len(case.questions) == 1 else body["results"]
        return [
            _decide_answer(asked.id, list(asked.options), result)
            for asked, result in zip(case.questions, results, strict=True)
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableError(f"{type(error).__name__}: {error}") from error


def _decide_answer(name: str, options: list[str], result: dict[str, Any]) -> Answer:
    if result["id"] != name or result["option_ids"] != options:
        raise ValueError(f"{name} with {options} was asked, {result['id']} with {result['option_ids']} was answered")
    logits = [float(value) for value in result["option_logits"]]
    tokens = result.get("tokens", {})
    choice = options[max(range(len(options)), key=result["probabilities"].__getitem__)]
    return Answer(choice, tuple(logits), tokens.get("evaluated"), tokens.get("reused"))


def retryable(status: int, body: Any) -> tuple[bool, float | None]:
    """Tell whether an answer is an honest refusal ("come back"), and the seconds after which if it says so."""
    if status not in (429, 503) or not isinstance(body, dict):
        return False, None
    for place in (body, body.get("error"), body.get("detail")):
        if isinstance(place, dict) and isinstance(place.get("retry_after_ms"), int | float):
            return True, place["retry_after_ms"] / 1000
    return body.get("retryable") is True, None
