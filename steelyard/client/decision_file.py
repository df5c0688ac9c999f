"""A decision from a file and from flags, as the body of one request."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.settings import MAX_INTEGER_DIGITS, MAX_JSON_DEPTH
from steelyard_runtime.whole_files import read_whole

Json = dict[str, Any]
PARTS = ("state", "question", "options")
BESIDE = ("layout", "readout")
"""Fields of a request that hold for all of its decisions."""
MOST_BYTES = 64 << 20
"""Bytes of a file that is read as a whole."""


def usage(message: str, hint: str | None = None) -> CommandError:
    """A wrong command line or input file."""
    return CommandError(message, code=ExitCode.USAGE, hint=hint)


def parse_json(text: str, origin: str) -> Any:
    """A JSON value as servers take it: no NaN, no duplicate keys, finite numbers, nested no deeper than any allows.

    Raises:
        CommandError: With the place of the fault.
    """
    try:
        value = json.loads(
            text, parse_constant=_no_constant, object_pairs_hook=_unique, parse_float=_finite, parse_int=_whole
        )
        too_deep = _deeper(value, MAX_JSON_DEPTH) if text.count("[") + text.count("{") > MAX_JSON_DEPTH else False
    except RecursionError:
        too_deep = True
    except ValueError as error:
        raise usage(f"{origin} is not JSON: {error}") from error
    if too_deep:
        raise usage(f"{origin} has lists and objects more than {MAX_JSON_DEPTH} deep, which no server takes")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _unique(pairs: list[tuple[str, Any]]) -> Json:
    found: Json = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {_shortened(key)!r} appears twice")
        found[key] = value
    return found


def _finite(literal: str) -> float:
    if math.isinf(value := float(literal)):
        raise ValueError(f"the number {_shortened(literal)} is too large for a double")
    return value


def _whole(literal: str) -> int:
    if (digits := len(literal.lstrip("-"))) > MAX_INTEGER_DIGITS:
        raise ValueError(f"the number {_shortened(literal)} has {digits} digits; {MAX_INTEGER_DIGITS} are allowed")
    return int(literal)


def _deeper(value: Any, most: int) -> bool:
    """Tell whether lists and objects lie more than so deep in each other."""
    level = [value]
    for _ in range(most + 1):
        if not (level := [each for each in level if isinstance(each, dict | list)]):
            return False
        level = [inner for each in level for inner in (each.values() if isinstance(each, dict) else each)]
    return True


def _shortened(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:40]}..."


def encoded(body: Json) -> bytes:
    """Return a body as JSON.

    Raises:
        CommandError: It holds half of a surrogate pair, from a JSON escape or from an argument that is not UTF-8.
    """
    try:
        return json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        around = error.object[max(0, error.start - 20) : error.start].encode("ascii", "replace").decode()
        raise usage(
            f"the request holds U+{code:04X}, which is no character, behind {around!r}; give UTF-8 text"
        ) from error


def read_text(path: Path, stdin: str | None, *, most: int = MOST_BYTES) -> str:
    """The text of a file; ``-`` is standard input, already read.

    Args:
        path: The file.
        stdin: What standard input held.
        most: Bytes that the file may have.

    Raises:
        CommandError: It cannot be read, is too long, or is not UTF-8.
    """
    if str(path) == "-":
        return stdin or ""
    try:
        return read_whole(path, most=most, pipes=True).decode()
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise usage(f"{path} is not UTF-8 text") from error


def results_of(answer: Json, *, otherwise: str) -> list[Json]:
    """Return the results in an answer to a body of decisions.

    Raises:
        CommandError: There are none; ``otherwise`` says what that means.
    """
    results = [answer["result"]] if "result" in answer else answer.get("results")
    if not isinstance(results, list):
        raise CommandError(otherwise)
    return results


def parse_option(text: str) -> Json:
    """``id=description``, or ``id`` alone. The first ``=`` divides.

    Raises:
        CommandError: The id is empty.
    """
    identifier, divided, description = text.partition("=")
    if not identifier:
        raise usage(
            f"--option {text!r} has no id", "Write it as ID=DESCRIPTION, such as: --option delivery='Late parcels'"
        )
    return {"id": identifier, "description": description} if divided else {"id": identifier}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """Decisions that a file and flags ask for.

    Attributes:
        listed: Whether it is a list, of one decision too.
        decisions: Each with its id, state, question and options.
        beside: The fields of the request that each is asked in; without those that are the server's own.
    """

    listed: bool
    decisions: list[Json]
    beside: list[Json]


def request_body(
    document: Any,
    *,
    state: Any = None,
    question: str | None = None,
    options: list[str] | None = None,
    layout: str | None = None,
    readout: str | None = None,
) -> Json:
    """Return the body of one request: the document, with flags in place of what it says.

    Raises:
        CommandError: As ``decisions_of``, or the decisions want different layouts or readouts.
    """
    found = decisions_of(document, state=state, question=question, options=options, layout=layout, readout=readout)
    return body_of(found)


def body_of(found: Asked) -> Json:
    """Return decisions about one state as the body of one request.

    Raises:
        CommandError: They want different layouts or readouts.
    """
    body: Json = {"decisions": found.decisions} if found.listed else {"decision": found.decisions[0]}
    return body | common(found.beside, of="one request")


def common(beside: list[Json], *, of: str) -> Json:
    """Return the fields beside decisions that are asked together.

    Raises:
        CommandError: They want different layouts or readouts.
    """
    for name in BESIDE:
        if any(each.get(name) != beside[0].get(name) for each in beside):
            raise usage(f"the decisions of {of} have one {name}, and these have several")
    return beside[0]


def decisions_of(
    document: Any,
    *,
    state: Any = None,
    use: str | None = None,
    question: str | None = None,
    options: list[str] | None = None,
    layout: str | None = None,
    readout: str | None = None,
) -> Asked:
    """Return the decisions of a document, with flags in place of what it says.

    Args:
        document: None; one decision; a list of them; or a whole body with ``decision`` or ``decisions``.
        state: Replaces the state of every decision.
        use: Name of a registered decision, in place of every decision's question and options.
        question: Replaces the question of every decision.
        options: ``id=description`` each; replace the options of every decision.
        layout: Replaces the layout of every decision.
        readout: Replaces the readout of every decision.

    Raises:
        CommandError: Something that a decision needs is in neither, or a registered decision is given a question.
    """
    many, decisions, outer = _decisions(document)
    changes: Json = {}
    if use is not None:
        if question is not None or options:
            raise usage("a registered decision has its own question and options; leave --question and --option out")
        decisions = [{key: value for key, value in each.items() if key not in PARTS[1:]} for each in decisions]
        changes["use"] = use
    if state is not None:
        changes["state"] = state
    if question is not None:
        changes["question"] = question
    if options:
        changes["options"] = [parse_option(option) for option in options]
    name = use or "decision"
    filled = [{"id": f"{name}-{n}" if many else name} | d | changes for n, d in enumerate(decisions, 1)]
    for decision in filled:
        _check_parts(decision)
    flags = {"layout": layout, "readout": readout}
    beside = [_beside(outer, decision, flags) for decision in filled]
    return Asked(listed=many, decisions=filled, beside=beside)


def _beside(outer: Json, decision: Json, flags: Json) -> Json:
    """Take the fields out of a decision that belong beside it; a flag goes before them, they before the document's."""
    found = {}
    for name in BESIDE:
        said = decision.pop(name, outer.get(name))
        if (value := said if flags[name] is None else flags[name]) is not None:
            found[name] = value
    return found


def _check_parts(decision: Json) -> None:
    if "use" in decision:
        if decision.get("state") is None:
            raise usage(
                f"the registered decision {decision['use']!r} lacks a state",
                "Give --state or --state-file, or --states for many.",
            )
        return
    lacking = [key for key in PARTS if decision.get(key) is None]
    if lacking:
        raise usage(
            f"the decision {decision['id']!r} lacks {' and '.join(lacking)}",
            "Give a file, or the flags --state (or --states for many), --question and --option (at least twice); or "
            "--use NAME for a decision that the server has registered.",
        )
    if empty := [key for key in PARTS if decision[key] in ("", [], {})]:
        verb = "is" if len(empty) == 1 and empty != ["options"] else "are"
        raise usage(f"in the decision {decision['id']!r}, {' and '.join(empty)} {verb} empty")


def _decisions(document: Any) -> tuple[bool, list[Json], Json]:
    """Return whether it is a list, the decisions, and the fields beside them."""
    if document is None:
        return False, [{}], {}
    found: Any = document
    beside: Json = {}
    if isinstance(document, dict) and ("decision" in document or "decisions" in document):
        beside = {name: document[name] for name in BESIDE if name in document}
        inner = [name for name in document if name not in BESIDE]
        if len(inner) != 1:
            raise usage(
                "a body has one of 'decision' and 'decisions', and 'layout' and 'readout' beside it; "
                f"this one has {', '.join(document)}"
            )
        found = document[inner[0]]
    many = isinstance(found, list)
    decisions = found if isinstance(found, list) else [found]
    if not decisions or not all(isinstance(decision, dict) for decision in decisions):
        raise usage("the file must hold a decision (an object) or a list of decisions")
    return many, decisions, beside
