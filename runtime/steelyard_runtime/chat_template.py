"""A model's own chat template: from messages to the pieces of a prompt.

The caller's text never enters the template. The template sees a placeholder in its place, and the text is put back
afterwards as a piece that cannot become control tokens. So neither the spelling of a special token nor Jinja syntax in
a message means anything, and no message can imitate a placeholder.

What a template does to a text is reproduced as far as it is trimming white space or quoting as JSON; the text is
otherwise put back character for character. A message that the template leaves out is an error.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import date

from jinja2 import TemplateError

from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import Message
from steelyard_runtime.template_sandbox import RefusalError, TemplateSandbox, WorkLimitError

MAX_PROMPT_CHARACTERS = 32 << 20

# For models that carry no template, base models most of all. The roles are words on a line of their own, so that the
# text after them is tokenized as at the start of a line; the stop strings end the answer where a new turn would begin.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}:\n{{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)
PLAIN_STOP_STRINGS = ("\nUser:", "\nSystem:", "\nAssistant:", "\nTool:")

# White space laid around each placeholder, outermost first before it and last after it. What is left of it shows what
# the template trims: nothing left, all white space; whole groups missing, their characters. The groups are too long for
# a template's own white space to pass for one, and they end at an em space, which none writes.
_GROUPS = ("\n" * 7, " " * 7, "\u2003")
_BEFORE = "".join(_GROUPS)
_AFTER = _BEFORE[::-1]
_WINDOW = len(_BEFORE.replace("\n", "\\n"))

# The fixed answer of strftime_now: the date that Llama 3 templates themselves fall back to. A clock would make equal
# requests give different prompts.
TEMPLATE_DATE = date(2024, 7, 26)


class BadTemplateError(ValueError):
    """The template is not valid Jinja, or does something while compiling that the sandbox forbids."""


class ChatTemplate:
    """Renders messages with a model's template, or with the plain one when the model has none.

    A template that refuses system messages (or drops them) gets system and developer texts at the beginning of the
    next user message, a blank line between. ``developer`` is ``system`` to every template. Thinking is off:
    templates are told ``enable_thinking=False``.

    Args:
        source: Jinja source as the GGUF file carries it, or None.
        bos_text: Text of the beginning-of-sequence token; what the template calls ``bos_token``.
        eos_text: Text of the end-of-sequence token.

    Raises:
        BadTemplateError: The source does not compile.
    """

    def __init__(self, source: str | None, *, bos_text: str, eos_text: str) -> None:
        self._plain = not (source and source.strip())
        self._source = PLAIN_TEMPLATE if self._plain or source is None else source
        self._variables = {
            "bos_token": bos_text,
            "eos_token": eos_text,
            "enable_thinking": False,
            "tools": None,
            "documents": None,
        }
        self._sandbox = TemplateSandbox(today=TEMPLATE_DATE)
        try:
            self._template = self._sandbox.from_string(self._source)
        except Exception as fault:
            raise BadTemplateError(f"the model's chat template does not compile: {_describe(fault)}") from fault
        # A constant of the template, so that equal messages give equal prompts whatever the template does with it.
        # Digits, because they survive a change of case.
        digest = hashlib.sha256(b"placeholder" + self._source.encode("utf-8", "replace")).digest()
        self._key = str(int.from_bytes(digest[:16], "big")).rjust(39, "0")
        self._placeholder = re.compile(self._key + r"([0-9]{7})")
        self._folds_system = self._refuses_system()

    @property
    def name(self) -> str:
        """``"model"`` for the model's own template, ``"plain"`` for the one used without it."""
        return "plain" if self._plain else "model"

    @property
    def sha256(self) -> str:
        """Hash of the template's source."""
        return hashlib.sha256(self._source.encode("utf-8", "replace")).hexdigest()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts at which an answer ends, for a model that may not know an end-of-turn token."""
        return PLAIN_STOP_STRINGS if self._plain else ()

    @property
    def folds_system(self) -> bool:
        """Whether system texts are put into user messages, because the template takes none."""
        return self._folds_system

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, continue_final: bool = False
    ) -> list[Piece]:
        """The prompt of a conversation.

        Args:
            messages: The turns, oldest first.
            add_generation_prompt: End with the beginning of the assistant's next turn.
            continue_final: End right after the last message's text instead, so that the model continues it.

        Returns:
            Pieces in order, neighbours of different kinds. Equal messages give equal pieces.

        Raises:
            Problem: INVALID, when the template refuses the messages, leaves one out, or fails.
        """
        turns = _normalise(messages, fold=self._folds_system)
        if not turns:
            raise Problem(Kind.INVALID, "There are no messages; give at least one.", param="messages")
        try:
            text = self._render_text(turns, add_generation_prompt and not continue_final)
        except Exception as fault:
            raise Problem(Kind.INVALID, self._explain(fault, len(turns)), param="messages") from fault
        pieces, used = self._put_back(text, turns)
        for index, turn in enumerate(turns):
            if index not in used and turn.content.strip():
                raise Problem(
                    Kind.INVALID,
                    f"The model's chat template leaves out message {index} (role {turn.role!r}). Leave it out "
                    "yourself, or give its text in a role that the template has; nothing is dropped silently.",
                    param=f"messages.{index}",
                )
        if continue_final:
            pieces = _up_to_last_text(pieces, len(turns) - 1)
        return _merge(piece for piece, _ in pieces)

    def _refuses_system(self) -> bool:
        user = Message("user", "u")
        try:
            both = self._render_text([Message("system", "s"), user], True)
        except Exception:
            try:
                self._render_text([user], True)
            except Exception:
                return False  # it refuses more than the role; its own words reach the caller
            return True
        return self._key + "0000000" not in both and self._key + "0000001" in both

    def _render_text(self, turns: Sequence[Message], add_generation_prompt: bool) -> str:
        shown = [
            {
                "role": turn.role,
                "content": f"{_BEFORE}{self._key}{index:07d}{_AFTER}" if turn.content else "",
            }
            for index, turn in enumerate(turns)
        ]
        variables = self._variables | {"messages": shown, "add_generation_prompt": add_generation_prompt}
        return self._sandbox.render(self._template, variables)

    def _put_back(self, text: str, turns: Sequence[Message]) -> tuple[list[tuple[Piece, int | None]], set[int]]:
        """Pieces of the rendered text, each caller's piece with its message's index."""
        pieces: list[tuple[Piece, int | None]] = []
        used: set[int] = set()
        size = position = 0
        for found in self._placeholder.finditer(text):
            index = int(found.group(1))
            if index >= len(turns):
                continue
            start, left, quoted_before = _left_over(
                text[max(position, found.start() - _WINDOW) : found.start()], before=True
            )
            end, right, quoted_after = _left_over(text[found.end() : found.end() + _WINDOW], before=False)
            content = _trim(turns[index].content, left=left, right=right)
            if quoted_before or quoted_after:
                content = json.dumps(content, ensure_ascii=False)[1:-1]
            pieces.append((Piece(text[position : found.start() - start], control=True), None))
            pieces.append((Piece(content), index))
            used.add(index)
            position = found.end() + end
            size += len(content)
            if size > MAX_PROMPT_CHARACTERS:
                raise Problem(
                    Kind.INVALID,
                    f"The model's chat template repeats the messages to more than {MAX_PROMPT_CHARACTERS} characters; "
                    "shorten them.",
                    param="messages",
                )
        pieces.append((Piece(text[position:], control=True), None))
        return pieces, used

    def _explain(self, fault: Exception, count: int) -> str:
        words = self._placeholder.sub(lambda found: f"(text of message {int(found.group(1))})", _describe(fault))
        if isinstance(fault, RefusalError):
            return f"The model's chat template refuses these messages: {words}"
        if isinstance(fault, WorkLimitError):
            return f"The model's chat template cannot render these {count} messages: {words}; send fewer."
        return f"The model's chat template fails on these messages: {words}"


def _normalise(messages: Sequence[Message], *, fold: bool) -> list[Message]:
    """Developer as system; with ``fold``, system texts at the beginning of the next user message."""
    turns = [replace(message, role="system") if message.role == "developer" else message for message in messages]
    if not fold:
        return turns
    folded: list[Message] = []
    waiting: list[str] = []
    for turn in turns:
        if turn.role == "system":
            waiting.append(turn.content)
        elif turn.role == "user" and waiting:
            folded.append(Message("user", "\n\n".join([*waiting, turn.content])))
            waiting = []
        else:
            folded.append(turn)
    if waiting:
        folded.append(Message("user", "\n\n".join(waiting)))
    return folded


def _left_over(text: str, *, before: bool) -> tuple[int, str | None, bool]:
    """What a template left of the white space on one side of a placeholder.

    Returns:
        How many characters of it are there; the characters that were trimmed (None for all white space, empty for
        nothing trimmed); whether it is quoted as JSON.
    """
    for missing in range(len(_GROUPS)):
        rest = "".join(_GROUPS[missing:])
        gone = "".join(group[0] for group in _GROUPS[:missing])
        if not before:
            rest = rest[::-1]
        quoted = rest.replace("\n", "\\n")
        for written in dict.fromkeys((quoted, rest)):
            if text.endswith(written) if before else text.startswith(written):
                return len(written), gone, written != rest
    return 0, None, False


def _trim(text: str, *, left: str | None, right: str | None) -> str:
    # str.strip("") strips nothing, str.strip(None) all white space: the two ends of what _left_over reports.
    return text.lstrip(left).rstrip(right)


def _up_to_last_text(pieces: list[tuple[Piece, int | None]], index: int) -> list[tuple[Piece, int | None]]:
    """Pieces up to the last one that holds message ``index``; all of them when it has no text."""
    for position in range(len(pieces) - 1, -1, -1):
        if pieces[position][1] == index:
            return pieces[: position + 1]
    return pieces


def _merge(pieces: Iterator[Piece]) -> list[Piece]:
    """Neighbours of the same kind as one piece, without empty ones."""
    merged: list[Piece] = []
    for piece in pieces:
        if not piece.text:
            continue
        if merged and merged[-1].control == piece.control:
            merged[-1] = Piece(merged[-1].text + piece.text, control=piece.control)
        else:
            merged.append(piece)
    return merged


def _describe(fault: Exception) -> str:
    text = " ".join(str(fault).split())[:500]
    return text if isinstance(fault, TemplateError) and text else f"{type(fault).__name__}: {text}"
