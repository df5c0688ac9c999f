"""The example decision and chat that ``demo`` and ``up`` ask, printed."""

from __future__ import annotations

from steelyard.client.decision_file import parse_json, read_text, request_body
from steelyard.models.catalogue import catalogue, example
from steelyard.rows.asking import Decides
from steelyard.terminal import chats, console, decisions

GREETING = "Once upon a time, a railway signal"


REGISTERED = "support-route"
"""The worked example of a registered decision that is about the same message."""


def ask_decision(client: Decides, *, title: str = "a decision", registered: str | None = None) -> None:
    """Ask the example decision and print the answer; beside it that of a registered one about the same message.

    Args:
        client: Where to.
        title: The heading.
        registered: Name of a registered decision that is served there; None for none.

    Raises:
        CommandError: There is no answer.
    """
    path = example("ticket.json")
    asked = request_body(parse_json(read_text(path, None), path.name))["decision"]
    ask = [asked] if registered is None else [asked, {"use": registered, "state": asked["state"]}]
    results = client.decide({"decisions": ask})
    console.heading(title)
    console.out.print(asked["state"], highlight=False, markup=False)
    for each, result in zip(ask, results, strict=True):
        console.out.print()
        if "use" in each:
            console.out.print(f"The same message by the registered decision {result['decision']}:", highlight=False)
        decisions.show(each, result)
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
