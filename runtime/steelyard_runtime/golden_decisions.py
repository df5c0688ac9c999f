"""Decisions that make each contract say all of its words, so that a hash of their prompts is a hash of the words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from steelyard_runtime.contracts import decide, openai_decisions, systemone
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.decision import DecisionRequest

_OPTIONS = [{"id": "billing", "description": "money"}, {"id": "other"}]
_JSON = {"type": "input_json", "data": {"order": [7, None, True, "é"]}}
_TEXT = {"type": "input_text", "text": "One line.\nAnother."}
_CALL = {"call_id": "c1", "name": "track", "namespace": "shop", "status": "completed"}
_INSTRUCTIONS = [{"type": "input_text", "text": "Is it"}, {"type": "input_json", "data": {"late": 1}}]

WALKTHROUGH: tuple[dict[str, Any], ...] = (
    {"decision": {"id": "a", "state": "My card was charged twice.", "question": "Which team?", "options": _OPTIONS}},
    {"decision": {"id": "a", "state": {"order": [7, None]}, "question": " ", "options": _OPTIONS}},
)
SYSTEM_ONE: tuple[dict[str, Any], ...] = (
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
)
OPENAI_DECISIONS: tuple[dict[str, Any], ...] = (
    {
        "model": "default",
        "input": [
            {"role": "system", "content": "Be polite."},
            {"role": "developer", "content": [_TEXT]},
            {"role": "user", "content": [_TEXT, _JSON]},
            {"role": "assistant", "content": "Wait.", "phase": "commentary"},
            {
                "role": "assistant",
                "content": [{"type": "output_text", "text": "No."}, {"type": "refusal", "refusal": "I cannot."}],
            },
            {"type": "function_call", "arguments": "{}", **_CALL},
            {"type": "function_call_output", "call_id": "c1", "status": "completed", "output": "in transit"},
            {"type": "custom_tool_call", "input": "look", **(_CALL | {"call_id": "c2"})},
            {"type": "custom_tool_call_output", "call_id": "c2", "output": [_TEXT, _JSON]},
        ],
        "questions": [
            {"type": "predicate", "instructions": _INSTRUCTIONS},
            {
                "type": "choice",
                "instructions": "Which?",
                "choices": [{"value": "true", "description": "a word"}, {"value": True}, {"value": "other"}],
            },
            {"type": "choice", "instructions": "Which?", "choices": [{"value": False}, {"value": "other"}]},
            {
                "type": "score",
                "instructions": "How angry?",
                "levels": [{"label": "calm", "description": "no anger"}, {"label": "angry"}],
            },
        ],
    },
    {"input": "As it is.", "questions": [{"type": "predicate", "instructions": "Is it late?"}]},
)


def requests() -> Iterator[DecisionRequest]:
    """Every golden body, decoded by its contract."""
    limits = Limits()
    for body in WALKTHROUGH:
        yield decide.decode(body, limits=limits).request
    for body in SYSTEM_ONE:
        yield systemone.decode(body, limits=limits).request
    for body in OPENAI_DECISIONS:
        yield openai_decisions.CONTRACT.decode(body, limits).request
