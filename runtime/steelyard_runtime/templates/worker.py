"""The child process that compiles and renders chat templates. It holds nothing worth stealing, and may be killed.

It reads requests from its standard input and writes an answer to each to its standard output: a length of four bytes,
big-endian, then JSON. Work that takes too much processor time ends the process without a word, wherever it is, in a
single call of C too; work that takes too much memory ends it after saying so. ``process.py`` starts another one then.
"""

from __future__ import annotations

import contextlib
import encodings.unicode_escape
import json
import resource
import signal
import sys
from collections import OrderedDict
from typing import Any, BinaryIO

import jinja2.debug
from jinja2 import TemplateError

from steelyard_runtime.templates.limits import COMPILE_CPU_S, MAX_OUTPUT_CHARACTERS, MEMORY_MIB, RENDER_CPU_S
from steelyard_runtime.templates.review import findings
from steelyard_runtime.templates.sandbox import RefusalError, TemplateSandbox
from steelyard_runtime.templates.traced_text import TEMPLATE, Text, text

KEPT_TEMPLATES = 8
MAX_WORDS = 500

# What Jinja would load at a template's first literal and its first fault; once the limits hold, no file can be opened.
LOADED_NOW = (encodings.unicode_escape, jinja2.debug)

# Stands in for a message of which nothing appeared, to see whether the template has a place for it at all.
_STAND_IN = "stand-in"
_LEAST_REDACTED = 4
_ROLE, _CONTENT = text("role", TEMPLATE), text("content", TEMPLATE)


def main() -> None:
    """Answer requests until the other side closes its end."""
    _limit_resources()
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    sandboxes: OrderedDict[str, TemplateSandbox] = OrderedDict()
    while (request := _read(requests)) is not None:
        try:
            answer = _answer(request, sandboxes)
        except MemoryError:
            _write(answers, {"fault": "memory"})
            return
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        _write(answers, answer)


def _answer(request: dict[str, Any], sandboxes: OrderedDict[str, TemplateSandbox]) -> dict[str, Any]:
    source = request["source"]
    signal.setitimer(signal.ITIMER_PROF, COMPILE_CPU_S)
    try:
        if request["want"] == "review":
            return {"findings": findings(source)}
        if source not in sandboxes:
            sandboxes[source] = TemplateSandbox(source)
            while len(sandboxes) > KEPT_TEMPLATES:
                sandboxes.popitem(last=False)
    except MemoryError:
        raise
    except Exception as fault:
        return {"fault": "compile", "words": _words(fault, [])}
    if request["want"] == "compile":
        return {}
    signal.setitimer(signal.ITIMER_PROF, RENDER_CPU_S)
    turns: list[tuple[str, str]] = request["turns"]
    try:
        rendered = _render(sandboxes[source], request["variables"], turns)
        stretches = list(rendered.stretches())
        missing = _missing(stretches, turns)
        if missing:
            shown = [(role, _STAND_IN if index in missing else words) for index, (role, words) in enumerate(turns)]
            again = _render(sandboxes[source], request["variables"], shown)
            missing &= _missing(again.stretches(), shown)
    except RefusalError as fault:
        return {"fault": "refused", "words": _redacted(fault.words)[:MAX_WORDS]}
    except MemoryError:
        raise
    except Exception as fault:
        return {"fault": "failed", "words": _words(fault, turns)}
    if len(rendered) > MAX_OUTPUT_CHARACTERS:
        return {"fault": "output"}
    return {"stretches": stretches, "missing": sorted(missing)}


def _render(sandbox: TemplateSandbox, variables: dict[str, Any], turns: list[tuple[str, str]]) -> Text:
    shown = {
        "messages": [
            {_ROLE: text(role, TEMPLATE), _CONTENT: text(content, index)} for index, (role, content) in enumerate(turns)
        ]
    }
    own = {name: text(value, TEMPLATE) if isinstance(value, str) else value for name, value in variables.items()}
    return sandbox.render(own | shown)


def _missing(stretches: Any, turns: list[tuple[str, str]]) -> set[int]:
    """Messages with something to say of which no character appears."""
    seen = {origin for origin, _ in stretches}
    return {index for index, (_, content) in enumerate(turns) if content.strip() and index not in seen}


def _redacted(words: Text) -> str:
    """Words of the template, with the messages in them replaced: they may end in a log."""
    return "".join(
        characters if origin == TEMPLATE else f"(text of message {origin})" if origin >= 0 else "(text of a message)"
        for origin, characters in words.stretches()
    )


def _words(fault: Exception, turns: list[tuple[str, str]]) -> str:
    words = str(fault).replace(f"{Text.__module__}.Text object", "str object")
    for index, (_, content) in enumerate(turns):
        if len(content.strip()) >= _LEAST_REDACTED:
            words = words.replace(content, f"(text of message {index})").replace(
                repr(content), f"(text of message {index})"
            )
    words = " ".join(words.split())[:MAX_WORDS]
    return words if isinstance(fault, TemplateError) and words else f"{type(fault).__name__}: {words}"


def _limit_resources() -> None:
    """Give up what rendering does not need. Not every system has every limit."""
    limits = {
        "RLIMIT_AS": MEMORY_MIB << 20,
        "RLIMIT_CORE": 0,
        "RLIMIT_FSIZE": 0,
        "RLIMIT_NPROC": 0,
        "RLIMIT_NOFILE": 3,
    }
    for name, value in limits.items():
        with contextlib.suppress(AttributeError, ValueError, OSError):
            number = getattr(resource, name)
            _, most = resource.getrlimit(number)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(number, (value, value))


def _read(stream: BinaryIO) -> dict[str, Any] | None:
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(int.from_bytes(head, "big"))
    request: dict[str, Any] = json.loads(body.decode("utf-8", "surrogatepass"))
    return request


def _write(stream: BinaryIO, answer: dict[str, Any]) -> None:
    body = json.dumps(answer, ensure_ascii=False).encode("utf-8", "surrogatepass")
    stream.write(len(body).to_bytes(4, "big") + body)
    stream.flush()
