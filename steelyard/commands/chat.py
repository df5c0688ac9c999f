"""``steelyard chat``: talk to a running server."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Annotated, Any, Protocol

import typer

from steelyard import console
from steelyard.client import DEFAULT_URL, Client
from steelyard.commands.decide import Timeout, Url


class Chats(Protocol):
    """Whatever answers chats: a server over HTTP, or an endpoint."""

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """A whole chat completion."""

    def stream_chat(self, messages: list[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat completion."""


System = Annotated[str | None, typer.Option("--system", help="Instructions for the model.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.")]


def command(
    message: Annotated[
        str | None, typer.Argument(help="One message; without it a conversation begins (or standard input is read).")
    ] = None,
    *,
    system: System = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    seed: Seed = None,
    url: Url = DEFAULT_URL,
    timeout: Timeout = 300.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole completion as JSON.")] = False,
) -> None:
    """Chat with the model: one message, or a conversation that ends with Ctrl-D."""
    options = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given = {name: value for name, value in options.items() if value is not None}
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if message is None and not sys.stdin.isatty():
        message = sys.stdin.read()
    with Client(url, timeout_s=timeout) as client:
        if message is None:
            _converse(client, messages, given)
        else:
            answer(client, [*messages, {"role": "user", "content": message}], given, as_json=as_json)


def answer(client: Chats, messages: list[dict[str, Any]], options: dict[str, Any], *, as_json: bool) -> None:
    """Print the answer to a conversation: as it comes, or as JSON when it is whole."""
    if as_json:
        sys.stdout.write(json.dumps(client.chat(messages, **options), ensure_ascii=False) + "\n")
    else:
        say(client, messages, options)


def say(client: Chats, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """Print an answer as it comes; returns its text."""
    parts = []
    for chunk in client.stream_chat(messages, **options):
        for choice in chunk.get("choices", ()):
            text = choice.get("delta", {}).get("content") or ""
            parts.append(text)
            sys.stdout.write(text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(parts)


def _converse(client: Client, messages: list[dict[str, Any]], options: dict[str, Any]) -> None:
    console.note("Ctrl-D ends the conversation.")
    while True:
        try:
            text = input("> ")
        except EOFError:
            sys.stdout.write("\n")
            return
        if text.strip():
            messages.append({"role": "user", "content": text})
            messages.append({"role": "assistant", "content": say(client, messages, options)})
