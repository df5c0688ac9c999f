"""Templates that want out of the sandbox, or all of the machine: their process is bounded, and replaced."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import tiny_models
from live_server import ServerProcess, eventually
from steelyard_runtime.chat_template import BadTemplateError, ChatTemplate
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import Message
from steelyard_runtime.templates.limits import MAX_TEMPLATE_CHARACTERS, MAX_WAITING
from steelyard_runtime.templates.process import TemplateProcesses

TEXT = "{{ messages[-1].content }}"

# Each passes any look at the text. The first ones are single calls into C, in which no Python code runs.
ENDLESS = {
    "a rounded number": "{{ (messages | length) | round(1000000000, 'ceil') }}",
    "a power": "{{ (6 + messages | length) ** 99999999 }}",
    "a comparison of shared tuples": (
        "{% set ns = namespace(a=(1,), b=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) %}"
        "{% set ns.b = (ns.b, ns.b) %}{% endfor %}{{ ns.a == ns.b }}"
    ),
    "a hash of shared tuples": (
        "{% set ns = namespace(a=(1,)) %}{% for i in range(60) %}{% set ns.a = (ns.a, ns.a) %}{% endfor %}"
        "{{ {ns.a: 1} }}"
    ),
    "a search in a range": "{% for i in range(100000) %}{{ 'x' in range(100000) | list }}{% endfor %}",
    "a growing replacement": "{{ ('a' * 1000000) | replace(old='', new='b' * 1000000) }}",
    "a join of a mapped range": "{{ range(9999) | map('string') | join('x' * 100000) }}",
    "indented JSON": (
        "{% set ns = namespace(x=[1]) %}{% for i in range(40) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}"
        "{{ ns.x | tojson(indent=64) }}"
    ),
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "recursion in two directions": (
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}"
    ),
    "long output": "{% for i in range(99999) %}{{ 'z' * 600 }}{% endfor %}",
}

FORBIDDEN = {
    "classes": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "classes by item": "{{ ''['__class__']['__mro__'] }}",
    "its own reference": "{{ self.__init__.__globals__ }}",
    "formats": "{{ '{:10000000000}'.format(3) }}",
    "old formats": "{{ '%10000000000d' % 3 }}",
    "padding": "{{ 'a'.ljust(10000000000) }}",
    "bytes": "{{ (5).to_bytes(10000000000, 'big') }}",
    "endless recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "recursive loops": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "too long a range": "{% for x in range(100001) %}{% endfor %}",
    "files": "{% include '/etc/passwd' %}",
    "modules": "{% import 'os' as os %}",
    "changing messages": "{% set _ = messages.append(1) %}",
    "changing a message": "{% set _ = messages[0].update(role='system') %}",
    "wide dates": "{{ strftime_now('%999999999d') }}",
    "the sandbox's objects": "{% set ns = namespace() %}{{ ns }}",
    "a cycle": "{% set ns = namespace() %}{% set ns.a = ns %}{{ [ns] | string }}",
    "fillers": "{{ lipsum(n=10000) }}",
}

NOT_COMPILED = {
    "unknown filters": "{{ 'a' | center(10000000000) }}",
    "attributes by filter": "{{ '' | attr('__class__') }}",
    "deep nesting": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
}
BOUNDED = "(more than [0-9]+ (s of processor time|MiB|characters)|OverflowError|MemoryError)"


def rendered(source: str) -> str:
    pieces = ChatTemplate(source + TEXT, bos_text="", eos_text="").render([Message("user", "x")])
    return "".join(piece.text for piece in pieces)


@pytest.mark.parametrize("name", FORBIDDEN)
def test_forbidden_things_are_refused(name: str) -> None:
    with pytest.raises(Problem, match="template fails on these messages") as caught:
        rendered(FORBIDDEN[name])
    assert caught.value.kind is Kind.INVALID


@pytest.mark.parametrize("name", NOT_COMPILED)
def test_what_does_not_compile(name: str) -> None:
    with pytest.raises(BadTemplateError, match="does not compile"):
        rendered(NOT_COMPILED[name])


def test_the_fault_of_a_template_is_told() -> None:
    with pytest.raises(BadTemplateError, match=r"No filter named 'wordwrap'"):
        rendered("{{ 'a' | wordwrap }}")
    with pytest.raises(BadTemplateError, match=r"unexpected 'end of template'|Unexpected end of template"):
        rendered("{% if x %}")
    with pytest.raises(Problem, match=r"'str object' has no attribute 'x'"):
        rendered("{{ messages[0].content.x.y }}")
    with pytest.raises(Problem, match=r"'helper' is undefined"):
        rendered("{{ helper(1) }}")


def test_a_template_that_is_too_long_is_not_parsed() -> None:
    with pytest.raises(BadTemplateError, match=f"2000000 characters and {MAX_TEMPLATE_CHARACTERS} are allowed"):
        ChatTemplate("{{x}}" * 400_000, bos_text="", eos_text="")


def test_compiling_is_bounded() -> None:
    with pytest.raises(BadTemplateError, match=r"takes more than 2 s|takes more than 512 MiB"):
        ChatTemplate("{{ 7 ** 99999999 }}", bos_text="", eos_text="")


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


@pytest.fixture
def processes() -> Iterator[TemplateProcesses]:
    processes = TemplateProcesses()
    yield processes
    processes.close()


def children() -> set[int]:
    """Processes that this one started and that still run."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found |= {int(pid) for pid in (task / "children").read_text().split()}
    return {pid for pid in found if "templates.worker" in Path(f"/proc/{pid}/cmdline").read_text()}


def request(source: str) -> dict[str, Any]:
    return {"want": "render", "source": source, "variables": {}, "turns": [("user", "x")]}


def test_a_child_that_dies_is_replaced(processes: TemplateProcesses) -> None:
    before = children()
    assert "stretches" in processes.submit(request(TEXT), convert=dict).result()
    (child,) = children() - before
    os.kill(child, signal.SIGKILL)
    assert "stretches" in processes.submit(request(TEXT), convert=dict).result()
    assert child not in children()


def test_a_child_gets_neither_environment_nor_descriptors(processes: TemplateProcesses) -> None:
    before = children()
    with Path(__file__).open() as held:
        os.set_inheritable(held.fileno(), True)
        processes.submit(request(TEXT), convert=dict).result()
        (child,) = children() - before
        assert {int(entry.name) for entry in Path(f"/proc/{child}/fd").iterdir()} == {0, 1, 2}
    assert b"PATH=" not in Path(f"/proc/{child}/environ").read_bytes().replace(b"LD_LIBRARY_PATH=", b"")
    limits = Path(f"/proc/{child}/limits").read_text()
    assert "Max open files            3 " in limits
    assert f"Max address space         {512 << 20} " in limits


def test_callers_take_turns(processes: TemplateProcesses) -> None:
    """Many requests of one caller, then one of another: the last one is not answered last."""
    slow = request("{% for i in range(30000) %}{{ i }}{% endfor %}")
    order: list[str] = []
    lock = threading.Lock()

    def note(name: str) -> Any:
        def convert(answer: dict[str, Any]) -> dict[str, Any]:
            with lock:
                order.append(name)
            return answer

        return convert

    many = [processes.submit(slow, convert=note("many"), caller="many") for _ in range(12)]
    one = processes.submit(slow, convert=note("one"), caller="one")
    for future in (*many, one):
        future.result()
    assert order.index("one") < 6


def test_too_many_that_wait_are_told_to_come_back(processes: TemplateProcesses) -> None:
    slow = request("{% for i in range(99999) %}{{ i }}{% endfor %}")
    futures: list[Future[Any]] = []
    with pytest.raises(Problem, match="wait for their chat template") as caught:
        futures.extend(processes.submit(slow, convert=dict) for _ in range(2 * MAX_WAITING))
    assert caught.value.kind is Kind.BUSY
    assert len(futures) >= MAX_WAITING
    for future in futures:
        future.cancel()


def test_a_request_that_is_given_up_is_not_worked_for(processes: TemplateProcesses) -> None:
    worked: list[str] = []
    slow = request("{% for i in range(30000) %}{{ i }}{% endfor %}")
    futures = [processes.submit(slow, convert=lambda answer: worked.append("x") or answer) for _ in range(10)]
    assert sum(future.cancel() for future in futures) >= 7
    processes.submit(request(TEXT), convert=dict).result()
    assert len(worked) <= 3


def test_closing_ends_the_children_in_the_middle_of_work() -> None:
    processes = TemplateProcesses()
    before = children()
    future = processes.submit(request(ENDLESS["nested loops"]), convert=dict)
    assert eventually(lambda: children() - before)
    (child,) = children() - before
    processes.close()
    with pytest.raises(Problem, match="stopping"):
        future.result()
    assert eventually(lambda: child not in children())


# What a template file can do to a server: it is harmless until a message says its word.
SLEEPERS = (
    "{%- set word = messages[-1].content %}"
    + "".join(
        f"{{% {'elif' if number else 'if'} word == {name!r} %}}{source}{TEXT}"
        for number, (name, source) in enumerate(ENDLESS.items())
    )
    + "{% else %}"
    + tiny_models.CHATML
    + "{% endif %}"
)
DECISION = {"decision": {"id": "a", "state": "s", "question": "q", "options": [{"id": "x"}, {"id": "y"}]}}


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("sleeper") / "sleeper.gguf", template=SLEEPERS)


def server_children(server: ServerProcess) -> list[int]:
    tasks = Path(f"/proc/{server.process.pid}/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def chat(server: ServerProcess, text: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": 1}
    return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=120)


def test_no_template_holds_the_server(sleeper: Path) -> None:
    """Every sleeper at once; meanwhile the server is healthy, decides, and chats with others."""
    server = ServerProcess(model=sleeper, threads=1)
    with server.running(), ThreadPoolExecutor(len(ENDLESS) + 1) as pool:
        attacks = {name: pool.submit(chat, server, name) for name in ENDLESS}
        innocent = pool.submit(chat, server, "Hi")
        pings = 0
        while not all(attack.done() for attack in attacks.values()):
            assert httpx.get(f"{server.url}/ping", timeout=20).status_code == 200
            assert httpx.post(f"{server.url}/invocations", json=DECISION, timeout=60).status_code == 200
            pings += 1
        assert pings
        assert innocent.result().status_code == 200
        for name, attack in attacks.items():
            answer = attack.result()
            assert answer.status_code == 400, (name, answer.text)
            told = answer.json()["error"]["message"]
            assert "chat template" in told, (name, told)
            assert httpx.codes.is_success(chat(server, "Hi").status_code)
            assert re.search(BOUNDED, told), (name, told)
        pool.submit(chat, server, "nested loops")
        assert eventually(lambda: len(server_children(server)) > 0)
        left = server_children(server)
        assert server.stop() == 0
    assert eventually(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in left))


def test_children_end_with_a_server_that_is_killed(sleeper: Path) -> None:
    server = ServerProcess(model=sleeper, threads=1)
    with server.running():
        assert chat(server, "Hi").status_code == 200
        left = server_children(server)
        assert left
        server.stop(signal.SIGKILL)
    assert eventually(lambda: not any(Path(f"/proc/{pid}/cmdline").exists() for pid in left))
