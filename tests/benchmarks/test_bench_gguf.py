"""llama-server's copy of a model: same tensors, same metadata, and the entries that make it a decision model."""

from __future__ import annotations

import gguf
import jinja2
import numpy as np
import pytest

import tiny_models
from benchmarks.peers.cases import routing
from benchmarks.peers.decision_gguf import TEMPLATES, write_decision_copy


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
def test_the_copy_has_the_same_weights_and_says_that_it_decides(tmp_path, kind):
    model = tiny_models.write(kind, tmp_path / "model.gguf")
    copy = tmp_path / "deeper" / "copy.gguf"
    write_decision_copy(model, copy, template="a template")
    first, second = gguf.GGUFReader(model), gguf.GGUFReader(copy)
    assert [tensor.name for tensor in first.tensors] == [tensor.name for tensor in second.tensors]
    for one, other in zip(first.tensors, second.tensors, strict=True):
        assert (one.tensor_type, one.shape.tolist()) == (other.tensor_type, other.shape.tolist())
        assert np.array_equal(one.data, other.data)
    added = {f"{kind}.decision.type": "openjev", "tokenizer.chat_template.systemone": "a template"}
    for name, value in added.items():
        assert second.fields[name].contents() == value
    for name, field in first.fields.items():
        if not name.startswith("GGUF."):
            assert second.fields[name].contents() == field.contents(), name
    assert [path.name for path in copy.parent.iterdir()] == ["copy.gguf"]


@pytest.mark.parametrize("layout", TEMPLATES)
def test_the_templates_hold_the_state_the_question_and_all_options(layout):
    case = routing(0)
    asked = case.questions[0]
    options = [{"key": name, "description": text} for name, text in asked.options.items()]
    text = jinja2.Template(TEMPLATES[layout]).render(
        state=case.state, instructions=asked.question, type="choice", options=options, images=[]
    )
    assert f"State:\n{case.state}\n" in text
    assert f"Question: {asked.question}\nOptions:\n[A] billing: Payments, refunds" in text
    assert "[F] sales: " in text
    assert (text.index("State:") < text.index("Question:")) == (layout == "state-first")
    assert text.endswith("<|im_start|>assistant\n")
