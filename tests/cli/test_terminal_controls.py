"""What a terminal would obey is spelled, wherever a text comes from; rich's own colours and bars are not."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
from rich.text import Text

from steelyard.terminal import chats, console
from steelyard_base.exit_codes import CommandError

HOSTILE = "a\x1b[31m\x9b2J\u202e\x1b]0;title\x07\nb"


@pytest.fixture(params=[True, False])
def terminal(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    written = io.StringIO()
    told = console.SpellingConsole(file=written, force_terminal=request.param, width=200)
    monkeypatch.setattr(console, "out", told)
    monkeypatch.setattr(console, "err", told)
    return written


def test_no_text_moves_the_cursor(terminal: io.StringIO) -> None:
    console.note(HOSTILE)
    console.fail(CommandError(HOSTILE, hint=HOSTILE))
    console.rows([(HOSTILE, HOSTILE)], heads=("one", "other"))
    console.heading(HOSTILE)
    console.out.print(HOSTILE, markup=False)
    result = {"option_ids": [HOSTILE, "b"], "probabilities": [0.5, 0.5]}
    console.out.print(console.decision_table(result, descriptions={"b": HOSTILE}, question=HOSTILE))
    said = terminal.getvalue()
    assert "\\x1b[31m" in said
    assert "\\x9b" in said
    assert not [each for each in ("\x1b[31m", "\x9b", "\u202e", "\x1b]") if each in said.replace("\x1b[31merror", "")]


def test_colours_stay() -> None:
    written = io.StringIO()
    console.SpellingConsole(file=written, force_terminal=True, color_system="standard").print(Text("a", style="red"))
    assert written.getvalue() == "\x1b[31ma\x1b[0m\n"


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class _Client:
    def chat(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        raise NotImplementedError

    def stream_chat(self, messages: list[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        yield {"choices": [{"delta": {"content": HOSTILE}}]}


@pytest.mark.parametrize(("sink", "controls"), [(_Terminal(), False), (io.StringIO(), True)])
def test_a_model_cannot_move_the_cursor_either(
    sink: io.StringIO, controls: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout", sink)
    assert chats.say(_Client(), [], {}) == HOSTILE
    assert ("\x1b" in sink.getvalue()) is controls
