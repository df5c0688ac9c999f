"""The cases: an endless, numbered, deterministic supply of requests that no server has seen before.

Request ``n`` of a workload is the same for every peer and on every machine. Numbers are handed out in ranges that do
not overlap, so that within a run no state is sent twice to a server.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from steelyard_runtime.decisions.contract import parse_contract

DECISIONS = Path(__file__).resolve().parents[2] / "decisions"
STORED = Path(__file__).resolve().parent.parent / "workloads"


@dataclass(frozen=True)
class Asked:
    """One question; ``options`` maps an option's id to its description."""

    id: str
    question: str
    options: dict[str, str]


@dataclass(frozen=True)
class Case:
    """One request: one or several questions on one state."""

    workload: str
    number: int
    state: str
    questions: tuple[Asked, ...]


PROBLEMS = [
    "The {thing} that I ordered on {day} arrived with a broken {part}. What now?",
    "I was charged {amount} euros twice for {month} and nobody has answered me.",
    "The reset mail for my {account} never arrives, although I asked for it {count} times.",
    "My {thing} was due {count} days ago and the tracking page has not changed since {day}.",
    "The export of the {month} report gives an empty file for more than {count} weeks.",
    "Please end my {plan} plan on the last day of {month} and confirm it in writing.",
    "What would {amount} seats of the {plan} plan cost us from {month} on?",
    "Since the update on {day} the {part} page shows error {amount} on my {thing}.",
    "The invoice of {month} has the wrong address; I need a new one before {day}.",
    "I cannot sign in to my {account} since {day}; the code on my {thing} is refused.",
    "Your driver left the {thing} with a neighbour on {day}, {count} houses away.",
    "Is the {plan} plan enough for {count} people who need the {part} page?",
]
WORDS = {
    "thing": ["tablet", "kettle", "phone", "lamp", "laptop", "printer", "camera", "watch", "router", "speaker"],
    "part": ["screen", "handle", "calendar", "battery", "search", "lid", "button", "payment", "cable", "map"],
    "day": ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"],
    "month": ["January", "February", "March", "April", "May", "June", "July", "August", "October", "November"],
    "count": ["two", "three", "four", "five", "six", "seven", "eight", "nine"],
    "account": ["account", "password", "profile", "team account", "e-mail login", "second factor"],
    "plan": ["basic", "family", "business", "starter", "premium", "yearly"],
}
REGISTERED = ("support-route", "moderation", "expense-approval")
"""Worked examples in ``decisions/`` whose heads read a state in the same wording."""
TIERS = ["free", "silver", "gold", "enterprise"]
TOPICS: dict[str, dict[str, str]] = {
    "Which queue should handle this ticket?": {},
    "What does the customer want?": {
        "information": "An answer to a question, nothing has to be changed",
        "repair": "Something that is broken should work again",
        "money": "A refund, a credit or a corrected invoice",
        "end": "To leave or to cancel",
        "other": "None of these",
    },
    "How angry is the customer?": {
        "calm": "Neutral or friendly",
        "annoyed": "Impatient, still polite",
        "angry": "Reproaches, threats or insults",
    },
    "Does the message name a date or a deadline?": {
        "yes": "A day, a month or a deadline is named",
        "no": "No point in time is named",
    },
    "Which product area does the message touch?": {
        "hardware": "A device or a part of it",
        "software": "An application, a page or a report",
        "account": "Access, passwords, profiles",
        "contract": "Plans, prices, invoices, terms",
        "delivery": "Parcels, addresses, drivers",
    },
    "How urgent is this ticket?": {"0": "Can wait", "1": "This week", "2": "Today", "3": "Right now"},
    "Who should read this first?": {
        "agent": "Any agent of the first level",
        "specialist": "Someone who knows the product in depth",
        "lead": "The team lead, because the customer may leave",
        "nobody": "A template answers it",
    },
}


def new_state(rng: random.Random, number: int) -> str:
    """A ticket like those in ``workloads/ticket-routing.json``, with the same two lines and about the same length.

    ``number`` decides the account's age and the open tickets, so that two tickets whose numbers are less than 1200
    apart always differ, whatever ``rng`` draws.
    """
    context = f"account age {number // 10 % 120 + 1} months; open tickets {number % 10}."
    return f'Customer: "{_sentence(rng)}"\nContext: customer tier {rng.choice(TIERS)}; {context}'


def routing(number: int) -> Case:
    """Workload A: the one decision of ``ticket-routing.json``; its stored states first, then new ones."""
    tickets = stored("ticket-routing.json")
    state = tickets[number]["state"] if number < len(tickets) else new_state(_rng("A", number), number)
    return Case("A", number, state, (_asked(tickets[0]),))


def three_questions(number: int) -> Case:
    """Workload B: the three questions of ``ticket-three-questions.json``, on a new state each time."""
    return Case(
        "B",
        number,
        new_state(_rng("B", number), number),
        tuple(_asked(q) for q in stored("ticket-three-questions.json")),
    )


def mixed(number: int) -> Case:
    """Workload C: unique decisions. The question's wording, its options, their order and the state are all new."""
    rng = _rng("C", number)
    topic = rng.choice(sorted(TOPICS))
    options = TOPICS[topic] or _asked(stored("ticket-routing.json")[0]).options
    kept = rng.sample(sorted(options), k=rng.randrange(2, len(options) + 1))
    state = " ".join([new_state(rng, number), *(_sentence(rng) for _ in range(rng.randrange(0, 6)))])
    question = f"{topic} (desk {rng.randrange(100, 1000)}, rule {rng.randrange(10, 100)})"
    return Case("C", number, state, (Asked("only", question, {name: options[name] for name in kept}),))


def registered(number: int, *, count: int = 1) -> Case:
    """Workload H: the first ``count`` of ``REGISTERED``, about a customer's message of one sentence.

    Two messages whose numbers differ by less than 100,000 differ.
    """
    product, seats = divmod(number // 2, 979)
    words = {name: choices[product % len(choices)] for name, choices in WORDS.items()}
    words["month"] = WORDS["month"][product // len(WORDS["plan"]) % len(WORDS["month"])]
    words["day"] = WORDS["day"][product // len(WORDS["thing"]) % len(WORDS["day"])]
    sentence = (PROBLEMS[6], PROBLEMS[7])[number % 2]
    return Case("H", number, sentence.format(**words, amount=seats + 11), tuple(map(_registered, REGISTERED[:count])))


WORKLOADS: dict[str, Callable[[int], Case]] = {"A": routing, "B": three_questions, "C": mixed, "H": registered}


def chat_prompt(number: int, words: int) -> str:
    """About ``words`` words of new text for a chat; its first words already differ from every other prompt's."""
    rng = _rng("chat", number)
    parts = [f"File {rng.randrange(10**6)}, copy {number}."]
    length = 3
    while length < words:
        sentence = _sentence(rng)
        parts.append(sentence)
        length += len(sentence.split())
    return " ".join([*parts, "Write a long report about what these customers need, one customer after the other."])


@cache
def stored(name: str) -> list[dict[str, Any]]:
    """The decisions of one file in ``workloads/``."""
    loaded: list[dict[str, Any]] = json.loads((STORED / name).read_text(encoding="utf-8"))
    return loaded


def _asked(decision: dict[str, Any]) -> Asked:
    options = {option["id"]: option["description"] for option in decision["options"]}
    return Asked(decision["id"], decision["question"], options)


@cache
def _registered(name: str) -> Asked:
    contract = parse_contract((DECISIONS / name / "contract.toml").read_text(encoding="utf-8"))
    options = {option.id: option.description or option.id for option in contract.options}
    return Asked(name, contract.question, options)


def _sentence(rng: random.Random) -> str:
    words = {name: rng.choice(choices) for name, choices in WORDS.items()}
    return rng.choice(PROBLEMS).format(**words, amount=rng.randrange(11, 990))


def _rng(workload: str, number: int) -> random.Random:
    return random.Random(f"{workload}/{number}")
