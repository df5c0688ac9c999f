"""``steelyard chat``: talk to a running server."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from steelyard.client.http import DEFAULT_URL, Client
from steelyard.commands.options import MaxTokens, Seed, System, Temperature, Timeout, Url
from steelyard.terminal import chats, console


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
            chats.answer(client, [*messages, {"role": "user", "content": message}], given, as_json=as_json)


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
            messages.append({"role": "assistant", "content": chats.say(client, messages, options)})
