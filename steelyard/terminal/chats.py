"""Answers of chats, printed as they come."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any, Protocol

from steelyard.terminal import console


class Chats(Protocol):
    """Answers chats: a server over HTTP, or an endpoint."""

    def chat(self, messages: list[dict[str, Any]], **options: Any) -> dict[str, Any]:
        """A whole chat completion."""

    def stream_chat(self, messages: list[dict[str, Any]], **options: Any) -> Iterator[dict[str, Any]]:
        """The chunks of a streamed chat completion."""


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
            sys.stdout.write(console.spelled(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()
    sys.stdout.write("\n")
    return "".join(parts)
