"""Which contract a body of ``/invocations`` speaks, by its shape."""

from __future__ import annotations

from typing import Any, Literal

from steelyard_runtime.contracts.validation import quote, shorten
from steelyard_runtime.errors import Kind, Problem

Shape = Literal["semif", "systemone", "openai_decisions", "chat", "completions", "embeddings"]

SHAPES = (
    "{'decision': {...}} or {'decisions': [...]} (decisions), "
    "{'state': ..., 'questions': {...}} (System One), "
    "{'model': ..., 'input': ..., 'questions': [...]} (OpenAI Decisions), "
    "{'messages': [...]} (chat), {'prompt': ...} (completion), {'input': ...} without questions (embeddings)"
)


def shape(body: Any) -> Shape:
    """The contract of ``body``, to be decoded by the module of that name.

    Raises:
        Problem: ``UNKNOWN_SHAPE`` when the body has none of the shapes, or more than one; the message lists them.
    """
    if not isinstance(body, dict):
        raise _unknown(f"The body must be a JSON object; got {quote(body)}.")
    found: dict[Shape, str] = {}
    if "decision" in body or "decisions" in body:
        found["semif"] = "decision" if "decision" in body else "decisions"
    if "questions" in body:
        questions = body["questions"]
        if isinstance(questions, dict):
            found["systemone"] = "questions"
        elif isinstance(questions, list):
            found["openai_decisions"] = "questions"
        else:
            raise _unknown(
                f"'questions' must be an object (System One) or an array (OpenAI Decisions); got {quote(questions)}."
            )
    elif "input" in body:
        found["embeddings"] = "input"
    if "messages" in body:
        found["chat"] = "messages"
    if "prompt" in body:
        found["completions"] = "prompt"
    if len(found) == 1:
        return next(iter(found))
    if found:
        fields = ", ".join(f"'{field}'" for field in found.values())
        raise _unknown(f"The fields {fields} belong to different shapes; send one of them.")
    names = ", ".join(repr(shorten(name)) for name in list(body)[:8]) or "none"
    raise _unknown(f"No known shape; the fields are: {names}{', …' if len(body) > 8 else ''}.")


def _unknown(what: str) -> Problem:
    return Problem(Kind.UNKNOWN_SHAPE, f"{what} The shapes of a request are: {SHAPES}.")
