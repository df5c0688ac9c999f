"""Attacks on a server's start and end: a model file from a stranger, and signals."""

from __future__ import annotations

import json
import math
import os
import signal
import struct
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.attack import gguf_edits, innocent, target
from benchmarks.attack.gguf_edits import Head
from benchmarks.attack.innocent import Asked
from benchmarks.attack.target import Plan, Server

START_S = 60.0
RENDER_S = 8.0
MESSAGES = 12

# Each template writes an ordinary prompt for the messages that a start tries, and works for ever on twelve messages.
_ORDINARY = "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}{{ 'assistant: ' }}"


def _when_long(hostile: str) -> str:
    return _ORDINARY + "{% if messages|length >= 12 %}" + hostile + "{% endif %}"


TEMPLATES = {
    "template-rounding": _when_long("{{ (messages|length)|round(1000000000, 'ceil') }}"),
    "template-shared-tuples": _when_long(
        "{% set n = namespace(x=(1, 2)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}{% endfor %}"
        "{{ n.x == (n.x[0], n.x[1]) }}{{ {n.x: 1}|length }}"
    ),
    "template-membership-in-ranges": _when_long(
        "{% for i in range(100000) %}{% if 'x' in range(100000) %}{% endif %}{% endfor %}"
    ),
    "template-big-integers": _when_long(
        "{% set n = namespace(x=7) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}{% endfor %}{{ n.x % 10 }}"
    ),
    "template-replace": _when_long(
        "{% set n = namespace(x='aa') %}"
        "{% for i in range(40) %}{% set n.x = n.x.replace(old='a', new='aa') %}{% endfor %}"
    ),
    "template-joined-range": _when_long("{{ range(100000)|map('string')|join('x' * 100000)|length }}"),
    "template-of-2-mb": _ORDINARY + "{{x}}" * 400_000,
}


def _template(source: str) -> Callable[[Head], None]:
    def edit(head: Head) -> None:
        found = [entry for entry in head.entries if entry.key == "tokenizer.chat_template"]
        if found:
            found[0].value = gguf_edits.text(source)
        else:
            head.entries.append(gguf_edits.Entry("tokenizer.chat_template", gguf_edits.STRING, gguf_edits.text(source)))

    return edit


def _not_a_number(head: Head) -> None:
    head.find("layer_norm_rms_epsilon").value = struct.pack("<f", math.nan)


def _million_blocks(head: Head) -> None:
    head.find(".block_count").value = struct.pack("<I", 1_000_000)


def _no_heads(head: Head) -> None:
    head.find(".attention.head_count").value = struct.pack("<I", 0)


def _other_tokenizer(head: Head) -> None:
    entry = head.find("tokenizer.ggml.model")
    entry.value = gguf_edits.text("bert" if b"bert" not in entry.value else "gpt2")


def _integer_norms(head: Head) -> None:
    for info in head.tensors:
        if info.name.endswith("norm.weight"):
            info.type = gguf_edits.INT32_TENSOR


def _equal_tokens(head: Head) -> None:
    entry = head.find("tokenizer.ggml.tokens")
    part, count = struct.unpack_from("<IQ", entry.value)
    entry.value = struct.pack("<IQ", part, count) + gguf_edits.text("a") * count


FILES: dict[str, Callable[[Head], None]] = {
    **{name: _template(source) for name, source in TEMPLATES.items()},
    "gguf-epsilon-not-a-number": _not_a_number,
    "gguf-million-blocks": _million_blocks,
    "gguf-no-heads": _no_heads,
    "gguf-other-tokenizer": _other_tokenizer,
    "gguf-integer-norms": _integer_norms,
    "gguf-equal-tokens": _equal_tokens,
}
SIGNALS = {
    f"signal-{number.name.lower()}": number
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
}
STARTS = [*FILES, *SIGNALS]


def start(plan: Plan, name: str) -> dict[str, Any]:
    """Start a server with what ``name`` says; what happened, as JSON."""
    if name in SIGNALS:
        with target.serving(plan, name) as server:
            return _signalled(server, name)
    with tempfile.TemporaryDirectory() as folder:
        edited = Path(folder) / "edited.gguf"
        gguf_edits.write_edited(plan.model, edited, FILES[name])
        with target.serving(plan, name, model=edited) as server:
            return _started(server, name)


def _started(server: Server, name: str) -> dict[str, Any]:
    began = time.monotonic()
    ready = target.wait_ready(server, START_S)
    seconds = time.monotonic() - began
    if not server.alive:
        status = server.process.returncode
        how = f"refused at the start, status {status}" if status >= 0 else f"**aborted by signal {-status}**"
        return _cell(server, name, how, seconds)
    if not ready:
        _, stop_s = server.stop()
        return _cell(server, name, f"**not ready after {START_S:.0f} s**", seconds, stop_s=stop_s)
    messages = [{"role": ("user", "assistant")[n % 2], "content": "hello"} for n in range(MESSAGES - 1)]
    body = json.dumps({"model": "default", "max_tokens": 1, "messages": [*messages, {"role": "user", "content": "x"}]})
    began = time.monotonic()
    with innocent.pinging(server.port) as pings:
        status, answer = target.ask(server.port, "POST", "/v1/chat/completions", body.encode(), patience_s=RENDER_S)
        seconds = time.monotonic() - began
    told = f"chat of {MESSAGES} messages: " + (f"status {status}" if status else f"**{answer.decode()[:60]}**")
    _, stop_s = server.stop()
    return _cell(server, name, told, seconds, worst_ping_s=pings.worst, stop_s=stop_s)


def _signalled(server: Server, name: str) -> dict[str, Any]:
    if not target.wait_ready(server):
        return _cell(server, name, "the server did not start", 0.0)
    asked: dict[int, Any] = {}
    outcome = Asked()

    def work() -> Asked:
        innocent.ask_until(server.port, LONG_STREAM, 0, outcome, asked, headers={})
        return outcome

    def send() -> Asked:
        time.sleep(0.5)
        os.kill(server.process.pid, SIGNALS[name])
        return Asked()

    began = time.monotonic()
    innocent.beside([work, send])
    seconds = time.monotonic() - began
    told = "the stream in progress was complete" if outcome.seconds and not outcome.lost else "**the stream was lost**"
    time.sleep(0.5)
    told += ", the server continues" if server.alive else f", the server ended with {server.process.returncode}"
    _, stop_s = server.stop()
    return _cell(server, name, told, seconds, stop_s=stop_s)


def _long_stream(_: int) -> bytes:
    messages = [{"role": "user", "content": "Write a long story about a courier."}]
    return json.dumps({"model": "default", "messages": messages, "max_tokens": 150, "stream": True, "seed": 1}).encode()


LONG_STREAM = innocent.Kind("/v1/chat/completions", _long_stream, innocent.chatted)


def _cell(
    server: Server,
    name: str,
    outcome: str,
    seconds: float,
    *,
    worst_ping_s: float | None = None,
    stop_s: float | None = None,
) -> dict[str, Any]:
    printed = server.log.read_bytes()
    return {
        "name": name,
        "outcome": outcome,
        "seconds": seconds,
        "lines": printed.count(b"\n"),
        "worst_ping_s": worst_ping_s,
        "stop_s": stop_s,
        "last_line": printed.decode("utf-8", "replace").strip().rpartition("\n")[2][:400],
    }
