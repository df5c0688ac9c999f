"""Bodies that make OpenAI Decisions say all of its words."""

from __future__ import annotations

from typing import Any

_JSON = {"type": "input_json", "data": {"order": [7, None, True, "é"]}}
_TEXT = {"type": "input_text", "text": "One line.\nAnother."}
_CALL = {"call_id": "c1", "name": "track", "namespace": "shop", "status": "completed"}
_INSTRUCTIONS = [{"type": "input_text", "text": "Is it"}, {"type": "input_json", "data": {"late": 1}}]

GOLDEN: tuple[dict[str, Any], ...] = (
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
