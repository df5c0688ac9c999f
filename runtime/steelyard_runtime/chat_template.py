"""A model's own chat template: from messages to the pieces of a prompt.

The template is rendered with the messages themselves, in a child process (see ``templates.process``), and every
character of the result is known to be the template's or a caller's. So its logic sees what a caller wrote, such as
``/no_think``, and neither the spelling of a special token nor Jinja syntax in a message means anything.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import Message
from steelyard_runtime.templates.answer_position import PLAIN, AnswerPosition, examine
from steelyard_runtime.templates.limits import (
    COMPILE_CPU_S,
    MAX_OUTPUT_CHARACTERS,
    MAX_TEMPLATE_CHARACTERS,
    MEMORY_MIB,
    RENDER_CPU_S,
)
from steelyard_runtime.templates.process import TemplateProcesses, shared
from steelyard_runtime.templates.traced_text import TEMPLATE

# For models that carry no template, base models most of all. The roles are words on a line of their own, so that the
# text after them is tokenized as at the start of a line; the stop strings end the answer where a new turn would begin.
PLAIN_TEMPLATE = (
    "{% for message in messages %}{{ message.role | capitalize }}:\n{{ message.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}Assistant:\n{% endif %}"
)
PLAIN_STOP_STRINGS = ("\nUser:", "\nSystem:", "\nAssistant:", "\nTool:")

SystemTexts = Literal["anywhere", "first", "nowhere"]
Result = TypeVar("Result")
_Stretches = list[tuple[int, str]]

_FAULTS = {
    "refused": "The model's chat template refuses these messages: {words}",
    "failed": "The model's chat template fails on these messages: {words}",
    "time": f"The model's chat template takes more than {RENDER_CPU_S:g} s of processor time for these {{count}} "
    "messages; send fewer, or shorter ones.",
    "memory": f"The model's chat template takes more than {MEMORY_MIB} MiB for these {{count}} messages; send fewer, "
    "or shorter ones.",
    "output": f"The model's chat template writes more than {MAX_OUTPUT_CHARACTERS} characters for these {{count}} "
    "messages; shorten them.",
    "died": "The process that renders the model's chat template ended on these {count} messages; send others.",
}
_COMPILING = {
    "time": f"it takes more than {COMPILE_CPU_S:g} s of processor time",
    "memory": f"it takes more than {MEMORY_MIB} MiB",
    "died": "the process that compiles it ended",
}


class BadTemplateError(ValueError):
    """The template cannot be used: it is not valid Jinja, or compiling it takes too much."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """The template's view of one or more messages; ``index`` is of the message that its role comes from."""

    role: str
    content: str
    index: int


class ChatTemplate:
    """Renders messages with a model's template, or with the plain one when the model has none.

    Where the template takes system texts at the beginning only, or one only, or none, the others are folded:
    leading ones are joined with a blank line between, all others go to the beginning of the next user message, or, if
    there is none, to the end of the conversation. ``developer`` is ``system`` to every template.

    Thinking is off: templates get ``enable_thinking=False``, and a reasoning block that one opens all the same
    is closed (see ``templates.answer_position``), for chats and for decisions.

    Args:
        source: Jinja source, or None.
        bos_text: Text of the beginning-of-sequence token; what the template calls ``bos_token``.
        eos_text: Text of the end-of-sequence token.
        name: Where the source is from.
        processes: Where to render.

    Raises:
        BadTemplateError: The source does not compile.
    """

    def __init__(
        self,
        source: str | None,
        *,
        bos_text: str,
        eos_text: str,
        name: str = "model",
        processes: TemplateProcesses | None = None,
    ) -> None:
        self._source = source if source is not None and source.strip() else PLAIN_TEMPLATE
        self._plain = self._source is PLAIN_TEMPLATE
        self._name = "plain" if self._plain else name
        self._processes = processes or shared()
        self._variables = {
            "bos_token": bos_text,
            "eos_token": eos_text,
            "enable_thinking": False,
            "thinking": False,
            "tools": None,
            "documents": None,
        }
        compiled = self._processes.submit({"want": "compile", "source": self._source}, convert=dict).result()
        if fault := compiled.get("fault"):
            words = _COMPILING.get(fault) or compiled["words"]
            raise BadTemplateError(
                f"the model's chat template does not compile: {words}. Set chat_template to another template of "
                "the model, to a file, or to plain"
            )
        self._system, self._several = self._system_texts()
        self.answer_position = self._examined()

    @property
    def name(self) -> str:
        """``"plain"`` for the one used without a template, else where the template is from; ``"model"`` by default."""
        return self._name

    @property
    def sha256(self) -> str:
        """Hash of the template's source."""
        return hashlib.sha256(self._source.encode("utf-8", "replace")).hexdigest()

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Texts at which an answer ends, for a model that may not know an end-of-turn token."""
        return PLAIN_STOP_STRINGS if self._plain else ()

    @property
    def system_texts(self) -> SystemTexts:
        """The places where the template takes system texts; elsewhere they are folded."""
        return self._system

    @property
    def unsuitable(self) -> str:
        """The reason why it takes no plain message of a user; empty when it does."""
        try:
            self.render([Message("user", "Text 0.")])
        except Problem as problem:
            return problem.message
        return ""

    def render(
        self, messages: Sequence[Message], *, add_generation_prompt: bool = True, continue_final: bool = False
    ) -> list[Piece]:
        """Wait for ``submit``."""
        return self.submit(
            messages, add_generation_prompt=add_generation_prompt, continue_final=continue_final
        ).result()

    def submit(
        self,
        messages: Sequence[Message],
        *,
        add_generation_prompt: bool = True,
        continue_final: bool = False,
        caller: str = "",
    ) -> Future[list[Piece]]:
        """Begin to render a conversation.

        Args:
            messages: The turns, oldest first.
            add_generation_prompt: End with the beginning of the assistant's next turn.
            continue_final: End right after the last message's text instead, so that the model continues it.
            caller: Name of the caller; callers take turns.

        Returns:
            Pieces in order, neighbours of different kinds. Equal messages give equal pieces. Or a ``Problem``: INVALID,
            when the template refuses the messages, leaves one out, fails, or takes too much.

        Raises:
            Problem: No messages, or BUSY.
        """
        turns = _normalised(messages, system=self._system, several=self._several)
        if not turns:
            raise Problem(Kind.INVALID, "There are no messages; give at least one.", param="messages")
        asks = add_generation_prompt and not continue_final

        def pieces(answer: dict[str, Any]) -> list[Piece]:
            stretches = _stretches(answer, turns)
            if continue_final:
                stretches = _up_to(stretches, len(turns) - 1)
            elif asks:
                tail = _tail(stretches)
                stretches.append((TEMPLATE, self.answer_position.completion(tail)))
            return _merged(stretches)

        return self._submit(turns, asks=asks, convert=pieces, caller=caller)

    def _submit(
        self, turns: Sequence[_Turn], *, asks: bool, convert: Callable[[dict[str, Any]], Result], caller: str = ""
    ) -> Future[Result]:
        request = {
            "want": "render",
            "source": self._source,
            "variables": self._variables | {"add_generation_prompt": asks},
            "turns": [(turn.role, turn.content) for turn in turns],
        }
        return self._processes.submit(request, convert=convert, caller=caller)

    def _tried(self, *roles: str, asks: bool = False) -> _Stretches | None:
        """Render short messages; None when the template does not take them."""
        turns = [_Turn(role, f"Text {index}.", index) for index, role in enumerate(roles)]
        convert: Callable[[dict[str, Any]], _Stretches] = functools.partial(_stretches, turns=turns)
        try:
            return self._submit(turns, asks=asks, convert=convert).result()
        except Problem:
            return None

    def _system_texts(self) -> tuple[SystemTexts, bool]:
        """Find the places where the template takes system texts, and whether it takes several at the beginning."""
        if not _in_order(self._tried("system", "user", asks=True), 2):
            # It may refuse more than the role; its own words reach the caller then.
            return ("nowhere" if self._tried("user", asks=True) else "anywhere"), True
        middle = self._tried("system", "user", "assistant", "system", "user", asks=True)
        several = _in_order(self._tried("system", "system", "user", asks=True), 3)
        return ("anywhere" if several and _in_order(middle, 5) else "first"), several

    def _examined(self) -> AnswerPosition:
        if self._plain:
            return PLAIN
        asking = self._tried("user", asks=True)
        if asking is None:
            return AnswerPosition(rule="unknown")
        ending, silent = _tail(asking), _tail(self._tried("user") or [])
        cue = ending[len(silent) :] if silent and ending.startswith(silent) and ending != silent else ending
        shown = self._tried("user", "assistant", "user", asks=True) or self._tried("user", "assistant")
        return examine(ending=ending, cue=cue, before_answers=_between(shown or [], 0, 1))


def _stretches(answer: dict[str, Any], turns: Sequence[_Turn]) -> _Stretches:
    """A rendered prompt: origins and characters.

    Raises:
        Problem: It was not, or not all of it.
    """
    if fault := answer.get("fault"):
        message = _FAULTS[fault].format(words=answer.get("words", ""), count=len(turns))
        raise Problem(Kind.INVALID, message, param="messages")
    for missing in answer["missing"]:
        turn = turns[missing]
        raise Problem(
            Kind.INVALID,
            f"The model's chat template leaves out message {turn.index} (role {turn.role!r}). Leave it out "
            "yourself, or give its text in a role that the template has; nothing is dropped silently.",
            param=f"messages.{turn.index}",
        )
    return [(origin, characters) for origin, characters in answer["stretches"]]


def _normalised(messages: Sequence[Message], *, system: SystemTexts, several: bool) -> list[_Turn]:
    """Developer as system, and system texts where the template takes them."""
    turns: list[_Turn] = []
    waiting: list[str] = []
    leading = True
    for index, message in enumerate(messages):
        role = "system" if message.role == "developer" else message.role
        leading = leading and role == "system"
        if role != "system":
            folded = waiting if role == "user" else []
            turns.append(_Turn(role, _joined(*folded, message.content), index))
            waiting = [] if role == "user" else waiting
        elif system == "nowhere" or (system == "first" and not leading):
            waiting.append(message.content)
        elif turns and leading and not several:
            turns[-1] = _Turn(role, _joined(turns[-1].content, message.content), turns[-1].index)
        else:
            turns.append(_Turn(role, message.content, index))
    if waiting and turns and turns[-1].role == "user":
        turns[-1] = _Turn("user", _joined(turns[-1].content, *waiting), turns[-1].index)
    elif waiting:
        turns.append(_Turn("user", _joined(*waiting), len(messages) - 1))
    return turns


def _joined(*texts: str) -> str:
    return texts[0] if len(texts) == 1 else "\n\n".join(text for text in texts if text)


def _in_order(stretches: _Stretches | None, count: int) -> bool:
    """Tell whether ``count`` messages appear, each at one place and in their order."""
    origins = [origin for origin, _ in stretches or () if origin != TEMPLATE]
    return origins == list(range(count))


def _tail(stretches: _Stretches) -> str:
    """The template's text after the last message."""
    return stretches[-1][1] if stretches and stretches[-1][0] == TEMPLATE else ""


def _between(stretches: _Stretches, first: int, second: int) -> str | None:
    """The template's text between two messages; None when they do not follow one another."""
    for before, middle, after in zip(stretches, stretches[1:], stretches[2:], strict=False):
        if (before[0], middle[0], after[0]) == (first, TEMPLATE, second):
            return middle[1]
    return None


def _up_to(stretches: _Stretches, index: int) -> _Stretches:
    """Stretches up to the last one of message ``index``; all of them when it has no text."""
    for position in range(len(stretches) - 1, -1, -1):
        if stretches[position][0] == index:
            return stretches[: position + 1]
    return stretches


def _merged(stretches: Iterable[tuple[int, str]]) -> list[Piece]:
    """Pieces, neighbours of the same kind as one."""
    merged: list[tuple[list[str], bool]] = []
    for origin, characters in stretches:
        control = origin == TEMPLATE
        if not characters:
            continue
        if merged and merged[-1][1] == control:
            merged[-1][0].append(characters)
        else:
            merged.append(([characters], control))
    return [Piece("".join(texts), control=control) for texts, control in merged]


def choose(
    wanted: str | None, *, default: str | None, named: Mapping[str, str], bos_text: str, eos_text: str
) -> tuple[ChatTemplate, str]:
    """The chat template to use, and a sentence about it where it is not simply the model's own.

    Args:
        wanted: The setting: a file, the name of one of the model's templates, ``plain``, or None for the first of the
            default one and the named ones, by name (``default`` before others), that takes a message without tools.
        default: The model's default template.
        named: Its other ones, by name.
        bos_text: See ``ChatTemplate``.
        eos_text: See ``ChatTemplate``.

    Raises:
        BadTemplateError: There is no such template, or it does not compile.
    """
    make = functools.partial(ChatTemplate, bos_text=bos_text, eos_text=eos_text)
    named = {name: source for name, source in named.items() if source.strip()}
    if wanted == "plain":
        return make(None), "The chat template is plain, as the setting chat_template says."
    if wanted is not None and wanted in named:
        return make(named[wanted], name=wanted), ""
    if wanted is not None:
        return make(_read(wanted, named), name=Path(wanted).name), ""
    candidates = [("model", default)] if default and default.strip() else []
    candidates += [(name, named[name]) for name in sorted(named, key=lambda name: (name != "default", name))]
    reasons = []
    for name, source in candidates:
        template = make(source, name=name)
        if reason := template.unsuitable:
            reasons.append(f"{name}: {reason}")
        else:
            return template, f"The chat template is {name!r} ({'; '.join(reasons)})." if reasons else ""
    note = "None of the model's chat templates takes a message without tools, so the plain one is used"
    return make(None), f"{note} ({'; '.join(reasons)})." if reasons else ""


def _read(path: str, named: Mapping[str, str]) -> str:
    known = ", ".join(sorted(named)) or "none"
    try:
        with Path(path).expanduser().open("rb") as file:
            content = file.read(4 * MAX_TEMPLATE_CHARACTERS + 1)
        source = content.decode()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise BadTemplateError(
            f"chat_template is {path!r}: that is no template of the model file (it has: {known}), and no file that can "
            f"be read ({why}); set it to one of these, or to plain"
        ) from error
    if not source.strip():
        raise BadTemplateError(
            f"chat_template is {path!r}, and that file is empty; set chat_template to plain for none"
        )
    return source
