"""The example decision and chat that ``demo`` and ``up`` ask, printed."""

from __future__ import annotations

from steelyard.client.decision_file import parse_json, read_text, request_body
from steelyard.models.catalogue import catalogue, example
from steelyard.rows.asking import Decides
from steelyard.terminal import chats, console, decisions

GREETING = "Once upon a time, a railway signal"


def ask_decision(client: Decides, *, title: str = "a decision") -> None:
    """Ask the example decision and print the answer.

    Raises:
        CommandError: There is no answer.
    """
    path = example("ticket.json")
    body = request_body(parse_json(read_text(path, None), path.name))
    results = client.decide(body)
    console.heading(title)
    console.out.print(body["decision"]["state"], highlight=False, markup=False)
    console.out.print()
    decisions.show(body["decision"], results[0])
    console.out.print()


def ask_chat(client: chats.Chats, *, title: str = "a chat") -> None:
    """Say the example greeting and print the answer as it comes.

    Raises:
        CommandError: There is no answer.
    """
    console.heading(title)
    console.out.print(f"> {GREETING}", highlight=False, markup=False)
    chats.say(client, [{"role": "user", "content": GREETING}], {"max_tokens": 48, "temperature": 0})


def notice(model: str) -> None:
    """Say what a person should know of a model of the catalogue before they judge its answers."""
    entry = catalogue().get(model)
    if entry is not None and entry.notice:
        console.out.print(f"\n{entry.notice}", style="yellow", highlight=False)
        console.out.print("For real use: steelyard model pull qwen3.5-4b", style="dim", highlight=False)
