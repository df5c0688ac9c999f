"""Searches for chat templates that hang or crash their processes, or pass a caller's text as their own.

``python tests/support/template_fuzzing.py SECONDS [FILE...]`` runs it for a while, with further templates as seeds;
the tests run a few hundred examples, ``make fuzz`` more. Seeds are the shapes of published templates. They are cut at
Jinja's delimiters, and pieces are dropped, doubled, swapped, joined by pieces of others, or filled from a small
grammar.
"""

from __future__ import annotations

import contextlib
import random
import re
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from steelyard_runtime.chat_template import BadTemplateError, ChatTemplate
from steelyard_runtime.errors import Problem
from steelyard_runtime.generation import Message
from steelyard_runtime.templates.process import TemplateProcesses
from steelyard_runtime.templates.traced_text import TEMPLATE
from template_shapes import EVERYTHING, SHAPES, VARIABLES

FIRST, LAST = "\ue000", "\ue001"
"""Letters of no alphabet, which only callers write: none may be in control text."""
MAX_GROWTH_MIB = 128

_PIECES = re.compile(r"(\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\})", re.DOTALL)
_WORDS = re.compile(r"('[^']*'|\w+|[^\w\s])")
_CONTENTS = (
    *(
        "",
        "x",
        "Hi",
        "/no_think",
        "/think x",
        "<think>a</think>b",
        "</think>",
        "<|im_end|>",
        "a b\nc",
        "\u03a3\u0130\ufb01",
    ),
    *("{{ x }}", "<tool_response>r</tool_response>", "0" * 50, '"\\', "x" * 3000),
)
_NAMES = ("message", "message.content", "messages", "content", "loop.index", "ns", "bos_token", "x", "i", "messages[0]")
_LITERALS = ("'a'", "''", "'</think>'", "'\\n'", "0", "1", "-1", "7", "999", "none", "true", "[]", "{}", "(1, 2)")
_FILTERS = (
    *("trim", "upper", "lower", "title", "tojson", "string", "length", "list", "join", "join(', ')", "first", "last"),
    *("reverse", "indent", "replace('a', 'bb')", "default('d')", "int", "round(9, 'ceil')", "sort", "unique", "sum"),
    *("map('string')", "map(attribute='role')", "selectattr('role', 'equalto', 'user')", "items", "dictsort", "escape"),
    *("tojson(indent=9)", "max", "min", "abs", "float", "safe", "capitalize", "e"),
)
_METHODS = (
    *("strip()", "split()", "split('</think>')", "split('a', 1)[-1]", "startswith('<')", "replace('', '-')", "upper()"),
    *("rsplit(' ', 1)", "partition('a')", "splitlines()", "join(['a', 'b'])", "items()", "get('role')", "title()"),
    *("format(1)", "__class__", "encode()", "append(1)", "lstrip('<')", "removeprefix('x')", "count('a')", "isdigit()"),
)
_OPERATORS = ("+", "~", "*", "**", "-", "%", "//", "==", "<", "in", "and", "or", "is not", "not in")


def expression(chance: random.Random, depth: int = 3) -> str:
    """Write a Jinja expression."""
    if depth == 0 or chance.random() < 0.2:
        return chance.choice((*_NAMES, *_LITERALS))
    inner = expression(chance, depth - 1)
    match chance.randrange(8):
        case 0 | 1:
            return f"({inner} {chance.choice(_OPERATORS)} {expression(chance, depth - 1)})"
        case 2 | 3:
            return f"{inner} | {chance.choice(_FILTERS)}"
        case 4:
            return f"({inner}).{chance.choice(_METHODS)}"
        case 5:
            return f"({inner})[{chance.choice(('0', '-1', ':3', '::-1', '1:', 'x', '99'))}]"
        case 6:
            return f"({inner} if {expression(chance, depth - 1)} else {expression(chance, depth - 1)})"
        case _:
            return f"range({chance.choice(('3', '30', '999', 'messages | length'))}) | map('string') | list"


def statement(chance: random.Random, depth: int = 2) -> str:
    """Write template text with statements in it."""
    body = statement(chance, depth - 1) if depth else f"{{{{ {expression(chance)} }}}}"
    match chance.randrange(8):
        case 0:
            return f"{{% for i in {expression(chance)} %}}{body}{{% endfor %}}"
        case 1:
            return f"{{% if {expression(chance)} %}}{body}{{% else %}}n{{% endif %}}"
        case 2:
            return f"{{% set x = {expression(chance)} %}}{body}"
        case 3:
            return f"{{% set ns = namespace(x={expression(chance)}) %}}{{% set ns.x = ns.x ~ 'y' %}}{body}"
        case 4:
            return f"{{% macro m(x) %}}{body}{{{{ m(x[1:]) }}}}{{% endmacro %}}{{{{ m({expression(chance)}) }}}}"
        case 5:
            return f"{{% set x %}}{body}{{% endset %}}{{{{ x }}}}"
        case 6:
            return f"{{% filter {chance.choice(_FILTERS)} %}}{body}{{% endfilter %}}"
        case _:
            return body


def mutated(seeds: Sequence[str], chance: random.Random) -> str:
    """Change a seed at one to four places."""
    pieces = _PIECES.split(chance.choice(seeds))
    for _ in range(chance.randint(1, 4)):
        at, other = chance.randrange(len(pieces)), chance.randrange(len(pieces))
        match chance.randrange(8):
            case 0:
                pieces[at] = ""
            case 1:
                pieces.insert(at, pieces[other])
            case 2:
                pieces[at], pieces[other] = pieces[other], pieces[at]
            case 3:
                pieces.insert(at, chance.choice(_PIECES.split(chance.choice(seeds))))
            case 4 | 5:
                pieces.insert(at, statement(chance))
            case 6:
                words = _WORDS.split(pieces[at])
                place = chance.randrange(len(words))
                words[place] = chance.choice((*_NAMES, *_LITERALS, *_OPERATORS, ""))
                pieces[at] = "".join(words)
            case _:
                pieces[at] = pieces[at] * chance.choice((2, 3, 50))
    return "".join(pieces)[:20_000]


def conversation(chance: random.Random) -> list[Message]:
    """Make up messages, each between the two letters."""
    roles = ["user", "assistant"] * chance.choice((1, 1, 2, 20))
    leading = [chance.choice(("system", "developer"))] if chance.random() < 0.5 else []
    return [
        Message(role, f"{FIRST}{chance.choice(_CONTENTS)}{LAST}")  # type: ignore[arg-type]
        for role in (*leading, *roles[: len(roles) - 1])
    ]


def outcome(source: str, messages: Sequence[Message], processes: TemplateProcesses) -> str:
    """Render, check, and say in a word how it went.

    Raises:
        AssertionError: A caller's letter is control text, or the child wanted to open a file.
    """
    request = {
        "want": "render",
        "source": source,
        "variables": {**VARIABLES, "add_generation_prompt": True},
        "turns": [(message.role, message.content) for message in messages],
    }
    answer = processes.submit(request, convert=dict).result()
    assert "Errno" not in answer.get("words", ""), (answer, source, messages)
    if fault := answer.get("fault"):
        return str(fault)
    written = "".join(characters for origin, characters in answer["stretches"] if origin == TEMPLATE)
    assert FIRST not in written, (source, messages)
    assert LAST not in written, (source, messages)
    return "rendered"


def start(source: str, messages: Sequence[Message], processes: TemplateProcesses) -> None:
    """Do all that a server's start does with a template, and render; a sentence or pieces come of it."""
    with contextlib.suppress(BadTemplateError, Problem):
        ChatTemplate(source, bos_text="<s>", eos_text="</s>", processes=processes).render(messages)


def examples(seed: int, extra: Sequence[str] = ()) -> Iterator[tuple[str, list[Message]]]:
    """Yield templates and conversations, always the same ones for a seed."""
    chance = random.Random(seed)
    seeds = [*SHAPES.values(), EVERYTHING, *extra]
    while True:
        yield mutated(seeds, chance), conversation(chance)


def main(seconds: float, paths: Sequence[str]) -> None:
    """Search for ``seconds``; fail at the first find."""
    processes, counts = TemplateProcesses(), Counter[str]()
    seed = time.time_ns()
    end, at_first, said = time.monotonic() + seconds, _resident_mib(), 0.0
    print(f"seed {seed}, {len(paths)} further templates", flush=True)
    for source, messages in examples(seed, [Path(path).read_text() for path in paths]):
        before = time.monotonic()
        try:
            counts[outcome(source, messages, processes)] += 1
            if sum(counts.values()) % 20 == 0:
                start(source, messages, processes)
        except BaseException:
            Path(f"template-find-{seed}.jinja").write_text(source)
            print(repr((source, messages)), flush=True)
            raise
        if (took := time.monotonic() - before) > 20:
            print(f"slow: {took:.1f} s: {source!r}", flush=True)
        if before - said > 60:
            said = before
            print(f"{sum(counts.values())} {dict(counts)}, {_resident_mib() - at_first} MiB more", flush=True)
        assert _resident_mib() - at_first < MAX_GROWTH_MIB
        if before > end:
            break
    print(f"{sum(counts.values())} {dict(counts)}, {_resident_mib() - at_first} MiB more", flush=True)
    processes.close()


def _resident_mib() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() >> 20


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
