"""From what people found right to labelled cases: the records of feedback, and the states that they are about."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steelyard.client.decision_file import usage
from steelyard.decisions.folder import Case
from steelyard.rows.reading import fault, read_values
from steelyard_base.faults import first_fault
from steelyard_runtime.contracts.text import render
from steelyard_runtime.decisions.contract import Contract
from steelyard_runtime.decisions.record import FeedbackRecord, sha256_of_state

MOST_RECORDS = 100_000
"""Records of one file: all of them are held in memory."""
_STATES = ("state", "input")


@dataclass(frozen=True, slots=True, kw_only=True)
class Corrections:
    """Cases from feedback, and what became none.

    Attributes:
        cases: One for each state; what was said last counts.
        known: States that are cases already, with the same label.
        contradicting: States that are cases with another label: each with that and what people said.
        without_state: Records whose state is not known.
        foreign: Records of options that the contract does not have.
    """

    cases: tuple[Case, ...]
    known: int
    contradicting: tuple[tuple[str, str, str], ...]
    without_state: int
    foreign: int


def read_feedback(path: Path, name: str) -> list[FeedbackRecord]:
    """Return the feedback about a decision in a file, which may be a server's whole log.

    Args:
        path: The file.
        name: Of the decision, without its version.

    Raises:
        CommandError: It cannot be read, a record is damaged, or there is none or too many.
    """
    found: list[FeedbackRecord] = []
    for line, value in _values(path):
        if not isinstance(value, dict) or value.get("event") != "feedback":
            continue
        try:
            record = FeedbackRecord.model_validate(value)
        except ValidationError as error:
            raise fault(
                str(path), line, f"it is no record of feedback: {first_fault(error, whole='the line')}"
            ) from error
        if record.decision.partition("@")[0] == name:
            found.append(record)
        if len(found) > MOST_RECORDS:
            raise fault(str(path), line, f"it is record {len(found)}, and {MOST_RECORDS} are allowed")
    if not found:
        raise usage(
            f"{path} has no feedback about {name}",
            "Give the file of the setting decision_records, or the log of a server with decision_records = log.",
        )
    return found


def read_states(path: Path, wanted: Collection[str]) -> dict[str, Any]:
    """Return states of a file of JSON lines, by the hash of their text: requests, or cases with a ``state``.

    Args:
        path: The file.
        wanted: Hashes of the states that are kept in memory.

    Raises:
        CommandError: It cannot be read, or a line has no state.
    """
    found: dict[str, Any] = {}
    for line, value in _values(path):
        states = list(_states_in(value))
        if not states:
            raise fault(str(path), line, "it has no state")
        hashed = ((sha256_of_state(render(state)), state) for state in states)
        found |= {sha256: state for sha256, state in hashed if sha256 in wanted}
    return found


def corrections(
    records: Sequence[FeedbackRecord], contract: Contract, *, cases: Sequence[Case], states: Mapping[str, Any]
) -> Corrections:
    """Turn feedback into cases.

    Args:
        records: Feedback about the contract's decision, in time's order.
        contract: The contract.
        cases: The cases that there are.
        states: States that the records have only hashes of, by these.
    """
    labels = {sha256_of_state(case.text): case.label for case in cases}
    made: dict[str, Case] = {}
    known: set[str] = set()
    contradicting: dict[str, tuple[str, str, str]] = {}
    without_state = foreign = 0
    for record in records:
        state = record.state if record.state is not None else states.get(record.state_sha256 or "")
        if record.right not in contract.option_ids:
            foreign += 1
        elif (case := Case(state=state, label=record.right, note=f"feedback {record.id}")).blank:
            without_state += 1
        elif (label := labels.get(key := sha256_of_state(case.text))) is None:
            made[key] = case
        elif label == record.right:
            known.add(key)
            contradicting.pop(key, None)
        else:
            known.discard(key)
            contradicting[key] = (case.text, label, record.right)
    return Corrections(
        cases=tuple(made.values()),
        known=len(known),
        contradicting=tuple(contradicting.values()),
        without_state=without_state,
        foreign=foreign,
    )


def _states_in(value: Any) -> Iterator[Any]:
    if not isinstance(value, dict):
        return
    inner = [value, value.get("decision"), *_listed(value.get("decisions"))]
    for each in inner:
        if isinstance(each, dict):
            yield from (each[name] for name in _STATES if each.get(name) is not None)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as file:
            for line, value, _ in read_values(file, kind="jsonl", origin=str(path)):
                yield line, value
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
