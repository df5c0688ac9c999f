"""Labelled cases from the files that people have: JSON Lines, CSV, System One requests with labels, sys1bench tasks.

System One: a request in each line, with the right answers beside it: ``{"state": ..., "questions": {ID: ...}, "labels":
{ID: ...}}``. sys1bench: a task in each line, whose questions have a ``ground_truth`` each. Both may hold several
questions; one is taken. An answer of a choice is its name; of a noul ``true`` or ``false``, which become ``yes`` and
``no``; of a score the number of its level, from 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import ValidationError

from steelyard.client.decision_file import usage
from steelyard.decisions.folder import Case
from steelyard.rows.reading import Format, fault, format_of, read_values, short
from steelyard_base.faults import first_fault
from steelyard_runtime.contracts.systemone import CHOICE_INSTRUCTIONS, NOUL_INSTRUCTIONS, SCORE_INSTRUCTIONS
from steelyard_runtime.contracts.text import render
from steelyard_runtime.decisions.contract import named

Layout = Literal["jsonl", "csv", "tsv", "json", "systemone", "sys1bench"]

MOST_CASES = 50_000
"""Cases of one file: all of them are held in memory."""
_OWN = ("kind", "note", "id", "same_as")
_INSTRUCTIONS = {"noul": NOUL_INSTRUCTIONS, "choice": CHOICE_INSTRUCTIONS, "score": SCORE_INSTRUCTIONS}
_FLAG = "--format jsonl|csv|tsv|json"
_ORIGINS = {"systemone": "System One requests", "sys1bench": "tasks of sys1bench"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """The fields of a row that make a case.

    Attributes:
        state: Fields that are the state; several make an object. None: ``state``, or ``text`` where there is none.
        label: The right option's id.
    """

    state: tuple[str, ...] = ()
    label: str = "label"


@dataclass(frozen=True, slots=True, kw_only=True)
class Labelled:
    """Cases of a file.

    Attributes:
        cases: In the file's order.
        lines: Where each begins in the file, from 1.
        unlabelled: Rows without a label for the question, which are left out.
        decision: Question and options as a decision file has them; None where the file names none.
    """

    cases: tuple[Case, ...]
    lines: tuple[int, ...]
    unlabelled: int
    decision: dict[str, Any] | None


def read_labelled(
    path: Path, *, layout: Layout | None = None, columns: Columns | None = None, question: str | None = None
) -> Labelled:
    """Read labelled cases.

    Args:
        path: The file.
        layout: Its format; None recognises it by its suffix and its first row.
        columns: The fields of a row; None for the usual ones.
        question: The question's id, where the rows of a file have several.

    Raises:
        CommandError: A row is wrong, with its line; there is none, or there are too many.
    """
    chosen = columns or Columns()
    kind: Format = "jsonl" if layout in _ORIGINS else format_of(path, _format(layout), flag=_FLAG)
    if kind == "txt":
        raise usage(f"{path} is lines of text, which have no labels", "Give JSON Lines or CSV.")
    cases: list[Case] = []
    lines: list[int] = []
    left, decision = 0, None
    found: str | None = layout
    try:
        with path.open("rb") as file:
            for line, value, _ in read_values(file, kind=kind, origin=str(path)):
                found = found or _recognised(value, kind)
                if found in _ORIGINS:
                    asked = _asked(value, question, path, line)
                    decision = _one_decision(decision, asked, path, line)
                    row = _labelled(asked, value, found, path, line)
                    if row is None:
                        left += 1
                        continue
                else:
                    if question is not None:
                        raise usage(f"--ask names a question, and the rows of {path} have none", "Leave it out.")
                    row = _row(value, chosen, path, line)
                cases.append(_case(row, path, line))
                lines.append(line)
                if len(cases) > MOST_CASES:
                    raise fault(str(path), line, f"it is case {len(cases)}, and {MOST_CASES} are allowed")
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
    if not cases:
        raise usage(f"{path} holds no labelled case" + (f"; {left} rows have no label" if left else ""))
    _check_ids(cases, lines, path)
    return Labelled(cases=tuple(cases), lines=tuple(lines), unlabelled=left, decision=decision)


def require_options(found: Labelled, options: tuple[str, ...], *, origin: Path) -> None:
    """Refuse labels that are none of a decision's options.

    Raises:
        CommandError: With the line of the first one.
    """
    for case, line in zip(found.cases, found.lines, strict=True):
        if case.label not in options:
            raise fault(str(origin), line, f"the label {short(case.label)} is none of the options {named(options)}")


def as_lines(cases: tuple[Case, ...]) -> str:
    """Return cases as the lines of ``cases.jsonl``."""
    # A state is not dumped: pydantic takes none that is as deep as JSON may be.
    said = ({"state": case.state} | case.model_dump(exclude_none=True, exclude={"state"}) for case in cases)
    return "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in said)


def _format(layout: Layout | None) -> Format | None:
    return next((each for each in get_args(Format) if each == layout), None)


def _recognised(first: Any, kind: Format) -> str:
    if kind != "jsonl" or not isinstance(first, dict) or not isinstance(questions := first.get("questions"), dict):
        return kind
    if any(isinstance(each, dict) and "ground_truth" in each for each in questions.values()):
        return "sys1bench"
    return "systemone"


def _row(value: Any, columns: Columns, path: Path, line: int) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise fault(str(path), line, f"it is {short(value)}, and must have fields for a state and a label")
    state = columns.state or (("state",) if "state" in value else ("text",))
    wanted = (*state, columns.label)
    if missing := [name for name in wanted if name not in value]:
        known = ", ".join(map(short, list(value)[:8]))
        raise usage(
            f"line {line} of {path}: the field {short(missing[0])} is missing; the fields are: {known}",
            "Name them with --state-field and --label-field.",
        )
    said = value[state[0]] if len(state) == 1 else {name: value[name] for name in state}
    label = value[columns.label]
    if isinstance(label, bool) or not isinstance(label, str | int) or label == "":
        raise fault(str(path), line, f"the label is {short(label)}; it must be the id of an option")
    # A cell of a table that holds nothing says nothing.
    return {name: value[name] for name in _OWN if value.get(name)} | {"state": said, "label": str(label)}


def _asked(value: Any, wanted: str | None, path: Path, line: int) -> dict[str, Any]:
    """The question of a row, with its id."""
    questions = value.get("questions") if isinstance(value, dict) else None
    if not isinstance(questions, dict) or not questions:
        raise fault(str(path), line, "it has no questions")
    if wanted is None and len(questions) > 1:
        raise usage(
            f"line {line} of {path}: it has the questions {', '.join(map(short, questions))}",
            "Choose one with --ask ID.",
        )
    name = wanted if wanted is not None else next(iter(questions))
    if not isinstance(question := questions.get(name), dict):
        # Tasks of one file may ask different questions.
        return {"id": name, "absent": True}
    return {"id": name, "absent": False} | question


def _one_decision(
    known: dict[str, Any] | None, asked: Mapping[str, Any], path: Path, line: int
) -> dict[str, Any] | None:
    if asked["absent"]:
        return known
    now = _decision(asked, path, line)
    if known is not None and now != known:
        raise usage(
            f"line {line} of {path}: the question {asked['id']!r} is not the one of the lines before it",
            "All cases of a decision answer one question with the same options: divide the file.",
        )
    return now


def _decision(asked: Mapping[str, Any], path: Path, line: int) -> dict[str, Any]:
    kind, criteria = asked.get("type"), asked.get("criteria")
    options: list[dict[str, Any]]
    if kind == "noul":
        said = criteria if isinstance(criteria, dict) else {}
        options = [_option("yes", said.get("true")), _option("no", said.get("false"))]
    elif kind == "choice" and isinstance(criteria, dict):
        options = [_option(str(name), text) for name, text in criteria.items()]
    elif kind in ("choice", "score") and isinstance(criteria, list):
        options = list(_listed(criteria, path, line))
    else:
        raise fault(str(path), line, f"the question {short(asked['id'])} is no noul, choice or score with criteria")
    if len(options) < 2:
        raise fault(str(path), line, f"the question {short(asked['id'])} has {len(options)} options, and needs 2")
    given = asked.get("instructions")
    return {"question": _INSTRUCTIONS[kind] if given is None or given == "" else render(given), "options": options}


def _listed(criteria: list[Any], path: Path, line: int) -> Iterator[dict[str, Any]]:
    for number, each in enumerate(criteria):
        if isinstance(each, dict):
            name = each.get("key", each.get("level"))
            if name is None:
                raise fault(str(path), line, f"the option {short(each)} has neither key nor level")
            yield _option(str(name), each.get("description"))
        else:
            yield _option(str(number), each)


def _option(name: str, description: Any) -> dict[str, Any]:
    said = "" if description is None else render(description)
    return {"id": name, "description": said} if said else {"id": name}


def _labelled(
    asked: Mapping[str, Any], value: Mapping[str, Any], layout: str, path: Path, line: int
) -> dict[str, Any] | None:
    if asked["absent"]:
        return None
    labels = value.get("labels") or {}
    if layout == "systemone" and not isinstance(labels, dict):
        raise fault(str(path), line, f"labels is {short(labels)}; it must be an object of answers by question")
    found = asked.get("ground_truth") if layout == "sys1bench" else labels.get(asked["id"])
    if found is None:
        return None
    label = ("yes" if found else "no") if isinstance(found, bool) else str(found)
    known = [option["id"] for option in _decision(asked, path, line)["options"]]
    if not isinstance(found, str | int) or label not in known:
        raise fault(
            str(path), line, f"the answer to {short(asked['id'])} is {short(found)}, and the options are {named(known)}"
        )
    if "state" not in value:
        raise fault(str(path), line, "the field 'state' is missing")
    row = {"state": value["state"], "label": label}
    if isinstance(name := value.get("task_id"), str) and name:
        row["id"] = name
    return row


def _case(row: dict[str, Any], path: Path, line: int) -> Case:
    try:
        case = Case.model_validate(row)
    except ValidationError as error:
        raise fault(str(path), line, first_fault(error, whole="the line")) from error
    if case.blank:
        raise fault(str(path), line, "the state is blank")
    return case


def _check_ids(cases: list[Case], lines: list[int], path: Path) -> None:
    places: dict[str, int] = {}
    for case, line in zip(cases, lines, strict=True):
        if case.id is not None and case.id in places:
            raise fault(str(path), line, f"the id {short(case.id)} is that of line {places[case.id]} too")
        if case.id is not None:
            places[case.id] = line
    for case, line in zip(cases, lines, strict=True):
        if case.same_as is not None and (case.same_as not in places or case.same_as == case.id):
            raise fault(str(path), line, f"same_as is {short(case.same_as)}, which is no id of another case")
