"""Answers of a period: decision records, lines of a server's log, rows of many states, or an evaluation's file.

A log has neither states nor labels, so nothing here says which answers were right.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steelyard.client.decision_file import usage
from steelyard.evaluation.result import read_evaluation
from steelyard.rows.reading import fault, read_values, short
from steelyard_base.faults import first_fault
from steelyard_runtime.decision import Action
from steelyard_runtime.decisions.contract import MAX_OPTIONS

MOST_RECORDS = 5_000_000
"""Answers of one file: 32 bytes of memory each."""
MOST_DECISIONS = 1000
"""Decisions of one file: comparing one takes some hundredths of a second."""

Share = Annotated[float, Field(ge=0, le=1)]


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


class _Said(BaseModel):
    """A line of others, of which some fields are looked at."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class _Recorded(_Said):
    decision: str | None
    question_sha256: str
    answer: Annotated[int, Field(ge=0)]
    option: str | None
    probabilities: Annotated[list[Share], Field(max_length=MAX_OPTIONS)]
    action: Action | None
    distance_rank: Share | None = None


class _Decided(_Said):
    decision: str
    option: str
    probability: Share
    action: Action | None
    distance_rank: Share | None = None


class _Logged(_Said):
    decisions: list[_Decided] | None = None


class _Result(_Said):
    decision: str | None = None
    distance_rank: Share | None = None


class _Row(_Said):
    decision: str
    choice: str | None
    probabilities: dict[str, Share] | None
    action: Action | None = None
    result: _Result | None = None
    error: str | None = None


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
        periods = logged if record.of_request else recorded
        period = periods.setdefault(record.decision, Period())
        if len(periods) > MOST_DECISIONS:
            raise usage(
                f"line {line} of {path}: it is about decision {len(periods)}, and {MOST_DECISIONS} are allowed",
                "Questions that change from request to request have no drift: leave out the records whose decision is "
                "null.",
            )
        period.add(record.option, record.probability, record.action, record.distance)
        if len(period.options) > MAX_OPTIONS:
            raise fault(
                str(path),
                line,
                f"it names option {len(period.options)} of {short(record.decision)}, and "
                f"a decision has {MAX_OPTIONS} at most",
            )
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
            yield _of_record(_Recorded.model_validate(value))
        elif "event" in value:
            listed = value.get("decisions")
            if isinstance(listed, list) and any(isinstance(each, dict) and "option" not in each for each in listed):
                raise fault(str(path), line, "a decision has no option: the log is of an older server")
            for each in _Logged.model_validate(value).decisions or ():
                yield _Record(
                    each.decision, each.option, each.probability, each.action, each.distance_rank, of_request=True
                )
        elif "choice" in value:
            row = _Row.model_validate(value)
            if row.error is None:
                yield _of_row(row)
        else:
            raise fault(
                str(path), line, f"it is neither a line of a log nor a row; its fields are {short(list(value))}"
            )
    except ValidationError as error:
        why = first_fault(error, whole="the line")
        raise fault(str(path), line, f"it is no answer to a decision: {why}") from error
    except ValueError as error:
        raise fault(str(path), line, f"it is no answer to a decision: {error}") from error


def _of_record(said: _Recorded) -> _Record:
    if said.answer >= len(said.probabilities):
        raise ValueError(f"answer is {said.answer}, and there are {len(said.probabilities)} probabilities")
    # A question of a request's own has no name, and its options have no ids here.
    name = said.decision or f"question {said.question_sha256[:12]}"
    option = said.option or f"option {said.answer + 1}"
    return _Record(name, option, said.probabilities[said.answer], said.action, said.distance_rank)


def _of_row(said: _Row) -> _Record:
    result = said.result or _Result()
    if said.choice is None or said.choice not in (probabilities := said.probabilities or {}):
        raise ValueError(f"choice is {short(said.choice)}, which has no probability")
    return _Record(
        result.decision or said.decision, said.choice, probabilities[said.choice], said.action, result.distance_rank
    )
