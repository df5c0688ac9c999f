"""Templates that want out of the sandbox, or all of the machine. Each is refused after a bounded number of steps."""

from __future__ import annotations

import threading

import pytest

from steelyard_runtime import template_sandbox
from steelyard_runtime.chat_template import BadTemplateError, ChatTemplate
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import Message

TEXT = "{{ messages[0].content }}"

ENDLESS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops that a condition empties": (
        "{% for a in range(9999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}"
    ),
    "recursion in two directions": (
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "lazy filters": "{% for i in range(99999) %}{{ range(99999) | map('string') | list | length }}{% endfor %}",
    "text by number": "{{ 'a' * 10000000000 }}",
    "list by number": "{{ ([1] * 100000 * 100000) | length }}",
    "doubled text": (
        "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}"
    ),
    "joined text": "{% set ns = namespace(x='aaaa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "nested lists": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}"
    ),
    "nested objects": (
        "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = dict(a=ns.x, b=ns.x) %}{% endfor %}"
    ),
    "a growing replacement": "{{ ('a' * 1000000) | replace('', 'b' * 1000000) }}",
    "a growing replacement, as a method": "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "a growing join": "{{ ('b' * 1000000).join(['a'] * 1000) }}",
    "long text in a captured loop": "{% set x %}{% for i in range(99999) %}" + "z" * 60000 + "{% endfor %}{% endset %}",
    "repeated slices": "{% set s = 'a' * 6000000 %}{% for i in range(99999) %}{% set y = s[1:] %}{% endfor %}",
    "repeated comparison": (
        "{% set s = 'a' * 6000000 %}{% set u = 'a' * 6000000 %}{% for i in range(99999) %}{{ s == u }}{% endfor %}"
    ),
    "repeated search": "{% for i in range(99999) %}{{ 'c' ~ i in 'a' * 100000 }}{% endfor %}",
    "repeated splits": (
        "{% set ns = namespace(l=[]) %}{% set s = 'a ' * 1000000 %}"
        "{% for i in range(9999) %}{% set ns.l = (s.split(), ns.l) %}{% endfor %}"
    ),
    "long output": "{% for i in range(99999) %}" + "z" * 6000 + "{% endfor %}",
    "long output of call blocks": (
        "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in range(99999) %}{% call m() %}"
        + "z" * 60000
        + "{% endcall %}{% endfor %}"
    ),
}

FORBIDDEN = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by item": "{{ ''['__class__']['__mro__'] }}",
    "its own reference": "{{ self.__init__.__globals__ }}",
    "formats": "{{ '{:10000000000}'.format(3) }}",
    "old formats": "{{ '%10000000000d' % 3 }}",
    "padding": "{{ 'a'.ljust(10000000000) }}",
    "bytes": "{{ (5).to_bytes(10000000000, 'big') }}",
    "powers": "{{ 10 ** 10 ** 10 }}",
    "squares": "{% set ns = namespace(x=3) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loops": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "too long a range": "{% for x in range(100001) %}{% endfor %}",
    "files": "{% include '/etc/passwd' %}",
    "modules": "{% import 'os' as os %}",
    "changing messages": "{% set _ = messages.append(1) %}",
    "changing a message": "{% set _ = messages[0].update(role='system') %}",
    "wide indents": "{{ ('\n' * 1000) | indent(100000) }}",
    "wide JSON": "{{ messages | tojson(indent=1000000000) }}",
    "wide dates": "{{ strftime_now('%999999999d') }}",
    "the sandbox's objects": "{% set ns = namespace() %}{{ ns }}",
    "a cycle": "{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns] | string }}",
    "sums of texts": "{{ ['a', 'b'] | sum(start='') }}",
    "fillers": "{{ lipsum(n=10000) }}",
}

NOT_COMPILED = {
    "unknown filters": "{{ 'a' | center(10000000000) }}",
    "attributes by filter": "{{ '' | attr('__class__') }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}


def rendered(source: str) -> str:
    pieces = ChatTemplate(source + TEXT, bos_text="", eos_text="").render([Message("user", "x")])
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("name", ENDLESS)
def test_endless_work_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_STEPS", 100_000)  # a fifth of the wait, the same refusals
    with pytest.raises(Problem, match=r"more than [0-9]+ (steps|characters)") as caught:
        rendered(ENDLESS[name])
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_things_are_refused(name: str) -> None:
    with pytest.raises(Problem, match="template fails on these messages") as caught:
        rendered(FORBIDDEN[name])
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_what_does_not_compile(name: str) -> None:
    with pytest.raises(BadTemplateError, match="does not compile"):
        rendered(NOT_COMPILED[name])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }} ", "1 x"),
        ("{{ messages | map(attribute='role') | join(', ') }} ", "user x"),
        ("{{ range(3) | map('string') | join('-') }} ", "0-1-2 x"),
        ("{% for m in messages %}{% if loop.first and loop.last %}{{ loop.index }}{% endif %}{% endfor %} ", "1 x"),
        ("{% for i in range(5) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "0234x"),
        ("{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012x"),
        ("{% macro m(a, b=2) %}{{ a }}{{ b }}{% endmacro %}{{ m(1, b=3) }}", "13x"),
        ("{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "3x"),
        ("{{ dict(a=1, b=[1, 'é']) | tojson }}", '{"a": 1, "b": [1, "é"]}x'),
        ("{{ {'a': 1}.items() | list }}{{ messages[0].get('name', 'none') }}", "[('a', 1)]nonex"),
        ("{{ 'a,b'.split(',')[1] ~ 'ABC'.lower()[::-1] }}", "bcbax"),
        ("{% if tools is none and 'user' in ['user', 'tool'] and not missing %}y{% endif %}", "yx"),
        ("{{ 'a\nb' | indent(2) }}{{ 2 ** 5 }}{{ 7 % 4 }}{{ 2 * 3 }}{{ 'a' * 2 }}", "a\n  b3236aax"),
        ("{% for c in [[1, [2]]] recursive %}{{ c if c is number else loop(c) }}{% endfor %}", "12x"),
        ("{% for a, b in {'k': 1} | dictsort %}{{ a }}{{ b }}{% endfor %}", "k1x"),
    ],
)
def test_what_templates_use_works(source: str, expected: str) -> None:
    assert rendered(source) == expected


def test_each_render_has_its_own_allowance() -> None:
    """More than half the allowance, three times over and in two threads at once, is never too much."""
    half = ChatTemplate("{% for i in range(90000) %}{% endfor %}" * 3 + TEXT, bos_text="", eos_text="")
    results: list[int] = []

    def render() -> None:
        results.extend(len(half.render([Message("user", "x")])) for _ in range(3))

    threads = [threading.Thread(target=render) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1] * 6
