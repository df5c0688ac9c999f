"""Decisions are read where the template puts answers; where it shows no such place, they alone are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerProcess
from steelyard.serving.machine import model_checks
from steelyard_base.checks import Level
from steelyard_runtime.chat_template import PLAIN_TEMPLATE, BadTemplateError, ChatTemplate, choose
from steelyard_runtime.generation import Message
from steelyard_runtime.scoring import prompt
from steelyard_runtime.templates.answer_position import examine
from template_shapes import CHATML, SHAPES

RULES = {
    "chatml": ("turn", ""),
    "llama3": ("turn", ""),
    "gemma": ("turn", ""),
    "mistral": ("turn", ""),
    "thinking": ("turn", ""),
    "r1": ("reasoning-closed", "\n</think>\n\n"),
    "switches": ("reasoning-closed", "</think>\n\n"),
    "harmony": ("answer-opened", "<|channel|>final<|message|>"),
    "command": ("answer-opened", "<|START_RESPONSE|>"),
    "macro": ("reasoning-closed", "\n</think>\n\n"),
    "phi": ("turn", ""),
    "defaulted": ("turn", ""),
    "changed": ("turn", ""),
    "channels": ("turn", ""),
}
UNKNOWN = CHATML.replace("'<|im_start|>assistant\n'", "'<|im_start|>assistant\nHere are my reasoning steps:\n'")
NEEDS_TOOLS = "{% for tool in tools %}{{ tool.name }}{% endfor %}" + CHATML
SAYS_NOTHING = "{{ bos_token }}Hello."
DECISION = {"decision": {"id": "a", "state": "s", "question": "q", "options": [{"id": "x"}, {"id": "y"}]}}
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}


def template(source: str | None) -> ChatTemplate:
    return ChatTemplate(source, bos_text="<s>", eos_text="</s>")


def chosen_of(wanted: str | None, default: str | None, /, **named: str) -> tuple[ChatTemplate, str]:
    return choose(wanted, default=default, named=named, bos_text="<s>", eos_text="</s>")


@pytest.mark.parametrize("name", SHAPES)
def test_the_rule_of_each_shape(name: str) -> None:
    position = template(SHAPES[name]).answer_position
    assert (position.rule, position.appended) == RULES[name]
    last = prompt.frame(template(SHAPES[name])).after[-1].text
    assert last.endswith(position.appended)
    assert position.version == (f"+{position.rule}" if position.appended else "")


@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        ("<think>", "</think>"),
        ("<think>\n", "\n</think>\n\n"),
        ("<think>\n\n", "</think>\n\n"),
        ("<seed:think>", "</seed:think>"),
        ("[THINK]", "[/THINK]"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("◁think▷", "◁/think▷"),
        ("<|begin_of_thought|>\n\n", "<|end_of_thought|>\n\n"),
        ("<|channel>thought\n", "<channel|>"),
        ("<reasoning>\n", "\n</reasoning>\n\n"),
        ("<think>\nOkay", "\n</think>\n\n"),
        ("<think></think><think>", "</think>"),
    ],
)
def test_an_open_block_is_closed(opened: str, closed: str) -> None:
    position = examine(ending=f"<|a|>{opened}", cue=opened, before_answers="<|a|>")
    assert (position.rule, position.appended) == ("reasoning-closed", closed)
    assert position.completion(f"<|a|>{opened}{closed}") == ""


@pytest.mark.parametrize("ending", ["", "Here are my reasoning steps:\n", "<|a|>{", "<|b|>"])
def test_an_end_that_is_no_place_of_answers_is_unknown(ending: str) -> None:
    assert examine(ending=ending, cue=ending, before_answers="<|a|>").rule == "unknown"
    assert examine(ending=ending, cue=ending, before_answers=None).rule == "unknown"


def test_a_caller_cannot_open_a_block() -> None:
    """The end of a prompt is the template's own text, whatever stands in the last message."""
    for name, shape in SHAPES.items():
        plain = template(shape).render([Message("user", "x")])[-1].text
        assert template(shape).render([Message("user", "x<think>\n")])[-1].text.lstrip() == plain.lstrip(), name


@pytest.mark.parametrize("source", [UNKNOWN, "{{ messages[-1].content }}", "{{ messages | tojson }}"])
def test_no_frame_where_answers_have_no_known_place(source: str) -> None:
    with pytest.raises(prompt.NoFrameError):
        prompt.frame(template(source))


def test_the_first_suitable_template_is_chosen() -> None:
    assert chosen_of(None, CHATML)[0].name == "model"
    assert chosen_of(None, CHATML)[1] == ""
    chosen, note = chosen_of(None, NEEDS_TOOLS, rag=NEEDS_TOOLS, b=CHATML, a=SAYS_NOTHING)
    assert (chosen.name, chosen.sha256) == ("b", template(CHATML).sha256)
    assert "'b'" in note
    assert "model: " in note
    assert chosen_of(None, None, tool_use=CHATML, default=SHAPES["r1"])[0].name == "default"
    chosen, note = chosen_of(None, NEEDS_TOOLS)
    assert chosen.name == "plain"
    assert "plain" in note
    assert chosen_of(None, None)[1] == ""


def test_the_setting_chooses(tmp_path: Path) -> None:
    named = {"tool_use": SHAPES["r1"]}
    assert chosen_of("plain", CHATML, **named)[0].sha256 == template(PLAIN_TEMPLATE).sha256
    assert chosen_of("tool_use", CHATML, **named)[0].answer_position.rule == "reasoning-closed"
    file = tmp_path / "mine.jinja"
    file.write_text(SHAPES["harmony"])
    assert chosen_of(str(file), CHATML)[0].name == "mine.jinja"
    for wrong in ("tool_used", str(tmp_path)):
        with pytest.raises(BadTemplateError, match=r"no template of the model file \(it has: tool_use\)"):
            chosen_of(wrong, CHATML, **named)
    file.write_text(" \n")
    with pytest.raises(BadTemplateError, match="empty"):
        chosen_of(str(file), CHATML)


def served(path: Path, **settings: Any) -> tuple[dict[str, Any], httpx.Response, httpx.Response]:
    """The identity of a real server, and its answers to a decision and to a chat."""
    with ServerProcess(model=path, threads=1, **settings).running() as server:
        identity = httpx.get(f"{server.url}/v1/identity", timeout=60).json()
        decision = httpx.post(f"{server.url}/invocations", json=DECISION, timeout=60)
        return identity, decision, httpx.post(f"{server.url}/v1/chat/completions", json=CHAT, timeout=60)


def test_a_server_says_which_rule_it_applies(tmp_path: Path) -> None:
    path = tiny_models.write("llama", tmp_path / "tiny.gguf", template=SHAPES["r1"])
    identity, decision, chat = served(path)
    assert identity["prompt"]["answer_position"]["rule"] == "reasoning-closed"
    assert identity["prompt"]["answer_position"]["appended"] == "\n</think>\n\n"
    assert decision.json()["result"]["prompt_version"].endswith("+reasoning-closed")
    assert chat.status_code == 200
    _, checks = model_checks(str(path))
    assert any(check.level is Level.OK and "</think>" in check.finding for check in checks)


def test_an_answer_is_read_behind_the_block_that_the_template_left_open(tmp_path: Path) -> None:
    opened = SHAPES["r1"]
    closed = opened.replace("<|Assistant|><think>\n'", "<|Assistant|><think>\n\n</think>\n\n'")
    never = opened.replace("<|Assistant|><think>\n'", "<|Assistant|>'")
    answers = []
    for name, source in (("opened", opened), ("closed", closed), ("never", never)):
        path = tiny_models.write("llama", tmp_path / f"{name}.gguf", template=source)
        answers.append(served(path)[1].json()["result"]["probabilities"])
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


def test_a_server_whose_template_shows_no_place_for_answers_serves_chats_only(tmp_path: Path) -> None:
    path = tiny_models.write("llama", tmp_path / "tiny.gguf", template=UNKNOWN)
    identity, decision, chat = served(path)
    assert identity["prompt"]["answer_position"]["rule"] == "unknown"
    assert decision.status_code == 400
    assert "serves no decisions" in decision.json()["error"]
    assert "chat_template" in decision.json()["error"]
    assert chat.status_code == 200
    _, checks = model_checks(str(path))
    assert any(check.level is Level.WARNING and "chats only" in check.advice for check in checks)


def test_a_server_of_a_template_that_needs_tools_decides(tmp_path: Path) -> None:
    path = tiny_models.write(
        "llama", tmp_path / "tiny.gguf", template=NEEDS_TOOLS, named_templates={"chat": SHAPES["harmony"]}
    )
    identity, decision, chat = served(path)
    assert identity["prompt"]["template"] == "chat"
    assert "needs" in identity["prompt"]["template_note"] or "model: " in identity["prompt"]["template_note"]
    assert (decision.status_code, chat.status_code) == (200, 200)
