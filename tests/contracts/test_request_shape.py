"""Which contract a body of ``/invocations`` is taken for."""

from __future__ import annotations

import json

import pytest

from steelyard_runtime.contracts.dispatch import contract_of
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.errors import Kind, Problem


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"decision": {}}, "decide"),
        ({"decisions": []}, "decide"),
        ({"decision": None, "decisions": None}, "decide"),
        ({"state": "", "questions": {}}, "systemone"),
        ({"state": "", "questions": {}, "input": "ignored, as System One ignores what it does not know"}, "systemone"),
        ({"input": "", "questions": []}, "openai_decisions"),
        ({"questions": []}, "openai_decisions"),
        ({"messages": None}, "openai_chat"),
        ({"messages": [], "model": "m", "stream": True}, "openai_chat"),
        ({"prompt": ""}, "openai_completions"),
        ({"input": ["a"]}, "openai_embeddings"),
        ({"feedback": {}}, "feedback"),
    ],
)
def test_one_shape(body: dict[str, object], name: str) -> None:
    assert contract_of(body, CONTRACTS).name == name


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "the fields are: none"),
        ({"state": "x", "model": "m"}, "'state', 'model'"),
        pytest.param({"k" * 1000: 1}, "k" * 80 + "…", id="long name"),
        ({str(i): i for i in range(100)}, "'7', …"),
        ({"messages": [], "prompt": ""}, "'messages', 'prompt'"),
        ({"decision": {}, "questions": {}}, "'decision', 'questions'"),
        ({"decisions": [], "input": ""}, "'decisions', 'input'"),
        ({"questions": "which?"}, 'must be an object (System One) or an array (OpenAI Decisions); got "which?"'),
        ({"questions": None}, "got null"),
        ([], "an array with 0 items"),
        ("decision", 'got "decision"'),
        (None, "got null"),
        pytest.param(10**4000, "digits", id="huge"),
    ],
)
def test_none_or_several(body: object, said: str) -> None:
    with pytest.raises(Problem) as caught:
        contract_of(body, CONTRACTS)
    assert caught.value.kind is Kind.UNKNOWN_SHAPE
    assert said in caught.value.message
    for field in ("decision", "decisions", "questions", "messages", "prompt", "input", "feedback"):
        assert f"'{field}': " in caught.value.message
    assert len(json.dumps(caught.value.message)) < 1500
