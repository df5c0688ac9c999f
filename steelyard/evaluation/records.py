"""Answers of a period: decision records, lines of a server's log, rows of many states, or an evaluation's file.

A log has neither states nor labels, so nothing here says which answers were right.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from steelyard.client.decision_file import usage
from steelyard.evaluation.result import read_evaluation
from steelyard.rows.reading import fault, read_values, short

MOST_RECORDS = 5_000_000
"""Answers of one file: 32 bytes of memory each."""


@dataclass(slots=True)
class Period:
    """Answers to one decision.

    Attributes:
        options: Each likeliest option, with its place.
        actions: Each action, with its place.
        option: Place of the likeliest option of each answer.
        action: Place of the action of each answer that has one.
        probability: Of the likeliest option of each answer.
        distance: Distance rank of each answer that has one.
    """

    options: dict[str, int] = field(default_factory=dict)
    actions: dict[str, int] = field(default_factory=dict)
    option: array[int] = field(default_factory=lambda: array("i"))
    action: array[int] = field(default_factory=lambda: array("i"))
    probability: array[float] = field(default_factory=lambda: array("d"))
    distance: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        """Answers."""
        return len(self.option)

    def add(self, option: str, probability: float, action: str | None, distance: float | None) -> None:
        """Count an answer."""
        self.option.append(self.options.setdefault(option, len(self.options)))
        self.probability.append(probability)
        if action is not None:
            self.action.append(self.actions.setdefault(action, len(self.actions)))
        if distance is not None:
            self.distance.append(distance)


@dataclass(frozen=True, slots=True)
class _Record:
    decision: str
    option: str
    probability: float
    action: str | None
    distance: float | None
    of_request: bool = False


def read_periods(path: Path) -> dict[str, Period]:
    """Return the answers of a file by decision.

    Lines of a log that are about something else are passed over, and so are rows that were not answered. In a log that
    has decision records, the requests' own lines tell of the same answers and are not counted.

    Raises:
        CommandError: A line is none of these, with its number; or there is no answer at all.
    """
    recorded: dict[str, Period] = {}
    logged: dict[str, Period] = {}
    for count, (line, record) in enumerate(_records(path), start=1):
        if count > MOST_RECORDS:
            raise fault(str(path), line, f"it is answer {count}, and {MOST_RECORDS} are allowed")
        period = (logged if record.of_request else recorded).setdefault(record.decision, Period())
        period.add(record.option, record.probability, record.action, record.distance)
    found = recorded or logged
    if not found:
        raise usage(
            f"{path} has no answer to a decision",
            "Give decision records, a server's JSON log with registered decisions, rows of decide --states, or an "
            "evaluation.",
        )
    return found


def _records(path: Path) -> Iterator[tuple[int, _Record]]:
    if path.suffix == ".json":
        evaluation = read_evaluation(path)
        for each in evaluation.judged:
            if each.answer is not None:
                at = each.answer.choice
                option, probability = evaluation.option_ids[at], each.answer.probabilities[at]
                name, distance = evaluation.decision.name, each.answer.distance_rank
                yield each.case, _Record(name, option, probability, each.answer.action, distance)
        return
    try:
        with path.open("rb") as file:
            for line, value, _ in read_values(file, kind="jsonl", origin=str(path)):
                if not isinstance(value, dict):
                    raise fault(str(path), line, f"it is {short(value)}, and neither a line of a log nor a row")
                for record in _of_line(value, path, line):
                    yield line, record
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error


def _of_line(value: Mapping[str, Any], path: Path, line: int) -> Iterator[_Record]:
    try:
        if value.get("event") == "decision":
            at = value["answer"]
            # A question of a request's own has no name, and its options have no ids here.
            name = value["decision"] or f"question {value['question_sha256'][:12]}"
            option = value["option"] or f"option {at + 1}"
            yield _record(name, option, value["probabilities"][at], value["action"], value)
        elif "event" in value:
            for each in value.get("decisions") or ():
                if "option" not in each:
                    raise fault(str(path), line, "a decision has no option: the log is of an older server")
                found = _record(each["decision"], each["option"], each["probability"], each["action"], each)
                yield replace(found, of_request=True)
        elif "choice" in value:
            if value.get("error") is None:
                result = value.get("result") or {}
                name = result.get("decision") or value["decision"]
                probability = value["probabilities"][value["choice"]]
                yield _record(name, value["choice"], probability, value.get("action"), result)
        else:
            raise fault(
                str(path), line, f"it is neither a line of a log nor a row; its fields are {short(list(value))}"
            )
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise fault(str(path), line, f"it is no answer to a decision: {error}") from error


def _record(name: Any, option: Any, probability: Any, action: Any, further: Mapping[str, Any]) -> _Record:
    distance = further.get("distance_rank")
    if not isinstance(name, str) or not isinstance(option, str) or not isinstance(action, str | None):
        raise ValueError("decision, option and action are texts")
    for number in (probability, *(() if distance is None else (distance,))):
        if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number <= 1:
            raise ValueError(f"{short(number)} is no probability and no rank")
    return _Record(name, option, float(probability), action, None if distance is None else float(distance))
