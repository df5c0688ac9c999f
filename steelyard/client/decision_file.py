"""A decision from a file and from flags, as the body of one request."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard_base.exit_codes import CommandError, ExitCode

Json = dict[str, Any]
PARTS = ("state", "question", "options")


def usage(message: str, hint: str | None = None) -> CommandError:
    """A wrong command line or input file."""
    return CommandError(message, code=ExitCode.USAGE, hint=hint)


def parse_json(text: str, origin: str) -> Any:
    """A JSON value, strictly: no NaN, no duplicate keys.

    Raises:
        CommandError: With the place of the fault.
    """

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    def unique(pairs: list[tuple[str, Any]]) -> Json:
        found: Json = {}
        for key, value in pairs:
            if key in found:
                raise ValueError(f"the key {key!r} appears twice")
            found[key] = value
        return found

    try:
        return json.loads(text, parse_constant=no_constant, object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise usage(f"{origin} is not JSON: {error or 'it is nested too deeply'}") from error


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


def read_text(path: Path, stdin: str | None) -> str:
    """The text of a file; ``-`` is standard input, already read.

    Raises:
        CommandError: It cannot be read, or is not UTF-8.
    """
    if str(path) == "-":
        return stdin or ""
    try:
        return path.read_text(encoding="utf-8")
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
        layouts: Of the prompt of each; None for the server's own.
    """

    listed: bool
    decisions: list[Json]
    layouts: list[Any]


def request_body(
    document: Any,
    *,
    state: Any = None,
    question: str | None = None,
    options: list[str] | None = None,
    layout: str | None = None,
) -> Json:
    """Return the body of one request: the document, with flags in place of what it says.

    Raises:
        CommandError: As ``decisions_of``, or the decisions want different layouts.
    """
    return body_of(decisions_of(document, state=state, question=question, options=options, layout=layout))


def body_of(found: Asked) -> Json:
    """Return decisions about one state as the body of one request.

    Raises:
        CommandError: They want different layouts.
    """
    if any(each != found.layouts[0] for each in found.layouts):
        raise usage("the decisions of one request have one layout, and these have several")
    body: Json = {"decisions": found.decisions} if found.listed else {"decision": found.decisions[0]}
    return body if found.layouts[0] is None else {**body, "layout": found.layouts[0]}


def decisions_of(
    document: Any,
    *,
    state: Any = None,
    use: str | None = None,
    question: str | None = None,
    options: list[str] | None = None,
    layout: str | None = None,
) -> Asked:
    """Return the decisions of a document, with flags in place of what it says.

    Args:
        document: None; one decision; a list of them; or a whole body with ``decision`` or ``decisions``.
        state: Replaces the state of every decision.
        use: Name of a registered decision, in place of every decision's question and options.
        question: Replaces the question of every decision.
        options: ``id=description`` each; replace the options of every decision.
        layout: Replaces the layout of every decision.

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
    layouts = [decision.pop("layout", outer) if layout is None else layout for decision in filled]
    for decision in filled:
        decision.pop("layout", None)
    return Asked(listed=many, decisions=filled, layouts=layouts)


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
            "Give a file, or the flags --state (or --states for many), --question and --option (at least twice).",
        )
    if empty := [key for key in PARTS if decision[key] in ("", [], {})]:
        verb = "is" if len(empty) == 1 and empty != ["options"] else "are"
        raise usage(f"in the decision {decision['id']!r}, {' and '.join(empty)} {verb} empty")


def _decisions(document: Any) -> tuple[bool, list[Json], Any]:
    """Return whether it is a list, the decisions, and the layout beside them."""
    if document is None:
        return False, [{}], None
    found: Any = document
    layout = None
    if isinstance(document, dict) and ("decision" in document or "decisions" in document):
        layout = document.get("layout")
        inner = [name for name in document if name != "layout"]
        if len(inner) != 1:
            raise usage(
                "a body has one of 'decision' and 'decisions', and 'layout' beside it; "
                f"this one has {', '.join(document)}"
            )
        found = document[inner[0]]
    many = isinstance(found, list)
    decisions = found if isinstance(found, list) else [found]
    if not decisions or not all(isinstance(decision, dict) for decision in decisions):
        raise usage("the file must hold a decision (an object) or a list of decisions")
    return many, decisions, layout
