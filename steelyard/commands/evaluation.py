"""``steelyard decision evaluate``, ``report``, ``import``, ``drift``: a decision on labelled cases, and in use."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from steelyard.client.decision_file import usage
from steelyard.commands import completion, options
from steelyard.environments.files import DEFAULT
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from steelyard.evaluation.labelled import Labelled
    from steelyard.evaluation.result import Evaluation
    from steelyard.evaluation.subject import Subject
    from steelyard.rows.asking import Decides
    from steelyard_base.gates import Gates


Format = Annotated[
    Literal["jsonl", "csv", "tsv", "json", "systemone", "sys1bench"] | None,
    typer.Option("--format", help="Of the cases; unless given, by the suffix and the first row."),
]
Ask = Annotated[
    str | None, typer.Option("--ask", help="Id of the question, where the rows of a file have several questions.")
]
CaseState = Annotated[
    list[str] | None,
    typer.Option(
        "--state-field", help="Field of a row that is its state; several make an object. Unless given: state, or text."
    ),
]
LabelField = Annotated[str, typer.Option("--label-field", help="Field of a row that is the id of its right option.")]
Against = Annotated[
    Path | None, typer.Option("--against", help="Another evaluation of these cases: says which answers moved.")
]
Html = Annotated[Path | None, typer.Option("--html", help="Write the report as one HTML file that needs no network.")]
Gate = Annotated[
    Path | None,
    typer.Option("--gate", help="A TOML file with a table [gates] of limits; exit code 8 where a figure misses one."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as one JSON object instead.")]


def evaluate(
    name: Annotated[
        str,
        typer.Argument(
            help="A folder in decisions/, a path with a slash, or a decision file that ends in .json.",
            autocompletion=completion.decision_names,
        ),
    ],
    *,
    cases_file: Annotated[
        Path, typer.Option("--cases", help="Labelled cases: JSON Lines, CSV, System One requests or sys1bench tasks.")
    ],
    form: Format = None,
    ask: Ask = None,
    state_field: CaseState = None,
    label_field: LabelField = "label",
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help=f"Serve this here: a name of the catalogue, or a GGUF file. The default, {options.DEFAULT_MODEL}.",
            autocompletion=completion.models,
        ),
    ] = None,
    url: Annotated[str | None, typer.Option("--url", help="Ask the server at this address.")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option("--endpoint", help="Ask this endpoint of --env.", autocompletion=completion.endpoints),
    ] = None,
    env: options.EnvironmentName = DEFAULT,
    zero_shot: Annotated[
        bool, typer.Option("--zero-shot", help="Ask question and options as if they were not registered.")
    ] = False,
    layout: options.ChosenLayout = None,
    readout: options.ChosenReadout = None,
    reversed_cases: Annotated[
        int,
        typer.Option("--reversed", min=0, help="Cases asked with the options reversed; none of a registered decision."),
    ] = 50,
    again: Annotated[int, typer.Option("--again", min=0, help="Cases asked twice, to measure noise.")] = 10,
    attacks: Annotated[
        int, typer.Option("--attacks", min=0, help="Cases into whose state each known attack is written.")
    ] = 5,
    price_per_hour: Annotated[
        float | None, typer.Option("--price-per-hour", min=0, max=1e9, help="Of the machine, in any currency.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Write the evaluation to this JSON file. An interrupted run continues from the answers beside it.",
        ),
    ] = None,
    html: Html = None,
    against: Against = None,
    gate: Gate = None,
    threads: Annotated[int, typer.Option("--threads", min=0, max=1024, help="With --model; 0 chooses.")] = 0,
    context_tokens: Annotated[
        int, typer.Option("--context-tokens", min=0, help="With --model: longest prompt; 0 for the default.")
    ] = 0,
    concurrency: options.Concurrency = 1,
    timeout: options.Timeout = 600.0,
    as_json: AsJson = False,
) -> None:
    """Ask a decision about labelled cases, and say how good the answers are.

    A model is served here for the time of it; a server or an endpoint is asked as it is. Accuracy, macro F1, log loss,
    Brier score and calibration error with intervals, what the policy does, flips by order, paraphrase and injected
    text, time, tokens and cost. States that a head was fitted on are refused: they would look better than they are.
    """
    from steelyard.decisions.folder import cases_sha256
    from steelyard.evaluation import asking, labelled
    from steelyard.evaluation.figures import measure
    from steelyard.evaluation.journal import forget, journal
    from steelyard.evaluation.result import Evaluation, Target, write_evaluation
    from steelyard.evaluation.subject import subject_of

    kind, target = _target(model, url, endpoint)
    _require_places(out, html, read=(cases_file, against, gate))
    subject = subject_of(name, zero_shot=zero_shot)
    columns = labelled.Columns(state=tuple(state_field or ()), label=label_field)
    found = labelled.read_labelled(cases_file, layout=form, columns=columns, question=ask)
    labelled.require_options(found, subject.option_ids, origin=cases_file)
    _refuse_seen(subject, found)
    other, gates = _read_further(against, gate)
    beside = {name: value for name, value in (("layout", layout), ("readout", readout)) if value is not None}
    extent = asking.Extent(
        reversed=reversed_cases, again=again, attacked=attacks, beside=beside, concurrency=concurrency
    )
    sha256 = asking.asked_sha256(subject, found.cases, f"{kind} {target}", beside)
    with (
        journal(out, asked_sha256=sha256) as kept,
        _client(kind, target, subject, env=env, threads=threads, context_tokens=context_tokens, timeout=timeout,
                concurrency=concurrency) as client,
    ):  # fmt: skip
        from steelyard.terminal import evaluations

        try:
            with evaluations.bars() as step:
                asked = asking.ask_cases(client, subject, found.cases, extent, kept, step=step)
        except (KeyboardInterrupt, CommandError):
            if out is not None and kept.lines:
                console.note(f"{len(kept.lines)} answers are kept; the same command continues behind them")
            raise
    made = Evaluation(
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        steelyard=version("steelyard"),
        decision=subject.described(),
        target=Target(
            kind=kind,
            name=target,
            model=asked.about.model,
            readout=asked.about.readout,
            prompt_version=asked.about.prompt_version,
            head_sha256=asked.about.head_sha256,
        ),
        cases_file=cases_file.name,
        cases_sha256=cases_sha256(list(found.cases)),
        price_per_hour=price_per_hour,
        figures=measure(
            asked.judged,
            subject.option_ids,
            reordered=asked.reordered,
            repeated=asked.repeated,
            attacked=asked.attacked,
            price_per_hour=price_per_hour,
        ),
        judged=asked.judged,
        reordered=asked.reordered,
        repeated=asked.repeated,
        attacked=asked.attacked,
    )
    if out is not None:
        write_evaluation(out, made)
        if not made.figures.unanswered:
            forget(out)
        console.note(f"written to {out}")
    _tell(made, other, gates, html=html, as_json=as_json)
    if made.figures.unanswered:
        raise CommandError(
            f"{made.figures.unanswered} of {len(made.judged)} cases were not answered, the first because: "
            f"{next(each.error for each in made.judged if each.error)}",
            code=ExitCode.PARTIAL,
            hint="The same command asks them again.",
        )


def report(
    evaluation_file: Annotated[Path, typer.Argument(help="An evaluation that --out of decision evaluate wrote.")],
    *,
    html: Html = None,
    against: Against = None,
    gate: Gate = None,
    as_json: AsJson = False,
) -> None:
    """Show an evaluation again, compare it, judge it by gates, or write its report. Nothing is asked."""
    from steelyard.evaluation.result import read_evaluation

    _require_places(html, read=(evaluation_file, against, gate))
    found = read_evaluation(evaluation_file)
    other, gates = _read_further(against, gate)
    _tell(found, other, gates, html=html, as_json=as_json)


def import_cases(
    file: Annotated[Path, typer.Argument(help="JSON Lines, CSV, System One requests with labels, or sys1bench tasks.")],
    *,
    form: Format = None,
    ask: Ask = None,
    state_field: CaseState = None,
    label_field: LabelField = "label",
    into: Annotated[
        str | None,
        typer.Option(
            "--into",
            help="A folder in decisions/, or a path with a slash: labels must be its options, and its cases.jsonl is "
            "written where it is empty.",
            autocompletion=completion.decision_names,
        ),
    ] = None,
    decision_out: Annotated[
        Path | None,
        typer.Option("--decision", help="Write the question and options of System One or sys1bench rows to this file."),
    ] = None,
) -> None:
    """Turn labelled cases of other forms into lines of cases.jsonl, on standard output or into a decision's folder."""
    import json

    from steelyard.decisions.folder import CASES_FILE, folder_of, read_contract, write_cases
    from steelyard.evaluation import labelled

    columns = labelled.Columns(state=tuple(state_field or ()), label=label_field)
    found = labelled.read_labelled(file, layout=form, columns=columns, question=ask)
    lines = labelled.as_lines(found.cases)
    if decision_out is not None:
        if found.decision is None:
            raise usage(f"the rows of {file} have no question, so --decision has nothing to write")
        _require_places(decision_out, read=(file,))
        storage.write_atomically(decision_out, json.dumps(found.decision, ensure_ascii=False, indent=1) + "\n")
    if into is None:
        sys.stdout.write(lines)
    else:
        folder = folder_of(into)
        labelled.require_options(found, read_contract(folder).option_ids, origin=file)
        path = folder / CASES_FILE
        if path.exists() and path.read_bytes().strip():
            raise usage(f"{path} has cases already", "Without --into the lines go to standard output: append them.")
        write_cases(folder, lines)
        console.note(f"written to {path}")
    left = f"; {found.unlabelled} rows without a label were left out" if found.unlabelled else ""
    console.note(f"{len(found.cases)} cases{left}")


def drift(
    before: Annotated[
        Path,
        typer.Argument(
            help="Answers of one period: decision records, a server's JSON log, rows of decide --states, an evaluation."
        ),
    ],
    now: Annotated[Path, typer.Argument(help="Answers of another one.")],
    *,
    fail: Annotated[bool, typer.Option("--fail", help="Exit code 8 when something moved beyond noise.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare the answers of two periods, decision by decision, and say what moved and what is noise.

    Shares of options and actions, probabilities, and how unlike the fitted cases the states were. A log has no labels:
    drift is a reason to label new cases, and no proof that answers became wrong.
    """
    import json

    from steelyard.evaluation.drift import compare_periods
    from steelyard.evaluation.records import read_periods
    from steelyard.terminal import evaluations

    periods = read_periods(before), read_periods(now)
    found = compare_periods(*periods)
    if not found:
        raise usage(
            f"no decision is in both: {before} has {', '.join(sorted(periods[0]))}, and {now} has "
            f"{', '.join(sorted(periods[1]))}"
        )
    for name in sorted(set(periods[0]) ^ set(periods[1])):
        console.note(f"{name} is in one of the two files only")
    if as_json:
        sys.stdout.write(json.dumps({"decisions": [each.to_json() for each in found]}, ensure_ascii=False) + "\n")
    else:
        for each in found:
            evaluations.show_drift(each)
    moved = [f"{each.decision}: {', '.join(each.moved)}" for each in found if each.moved]
    if fail and moved:
        raise CommandError(
            f"{len(moved)} of {len(found)} decisions moved beyond noise: {'; '.join(moved)}",
            code=ExitCode.GATE,
            hint="Label some of the new states, and evaluate the decision on them: docs/how-to/watch-for-drift.md",
        )


def _target(
    model: str | None, url: str | None, endpoint: str | None
) -> tuple[Literal["model", "url", "endpoint"], str]:
    given = [name for name, value in (("--model", model), ("--url", url), ("--endpoint", endpoint)) if value]
    if len(given) > 1:
        raise usage(f"{' and '.join(given)} are given; one target answers")
    if url:
        return "url", _plain(url)
    if endpoint:
        return "endpoint", endpoint
    return "model", model or options.DEFAULT_MODEL


def _plain(url: str) -> str:
    """Refuse an address with a password: it would stand in every report."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise usage("the address of --url holds credentials, which this server does not take", "Leave them out.")
    return url


@contextmanager
def _client(
    kind: str, target: str, subject: Subject, *, env: str, threads: int, context_tokens: int, timeout: float,
    concurrency: int,
) -> Iterator[Decides]:  # fmt: skip
    if kind == "url":
        from steelyard.client.http import Client

        with Client(target, timeout_s=timeout) as client:
            yield client
    elif kind == "endpoint":
        from steelyard.aws.session import Aws
        from steelyard.client.sagemaker import EndpointClient
        from steelyard.environments.files import load_environment

        environment = load_environment(env)
        runtime = Aws(environment.region).runtime(timeout, connections=concurrency)
        yield EndpointClient(environment.endpoint_name(target), runtime=runtime, timeout_s=timeout)
    else:
        from steelyard.evaluation.local_target import local_server

        path, _ = storage.resolve(target)
        with local_server(path, subject, threads=threads, context_tokens=context_tokens, timeout_s=timeout) as client:
            yield client


def _refuse_seen(subject: Subject, found: Labelled) -> None:
    """Refuse states that the head was fitted on: their answers say nothing about new ones."""
    from steelyard.decisions.folder import CASES_FILE, read_cases

    contract, folder = subject.contract, subject.folder
    if not subject.registered or contract is None or folder is None or contract.readout.strategy != "head":
        return
    if not (path := folder / CASES_FILE).exists():
        return
    known = {case.text for case in read_cases(path, contract).cases}
    seen = [line for case, line in zip(found.cases, found.lines, strict=True) if case.text in known]
    if seen:
        raise usage(
            f"the head was fitted on the states of {len(seen)} of these {len(found.cases)} cases, among them line "
            f"{seen[0]}",
            f"Remove them from one of the two files; those that it was fitted on are in {path}.",
        )


def _read_further(against: Path | None, gate: Path | None) -> tuple[Evaluation | None, Gates | None]:
    """Read what an evaluation is held against, before anything is asked."""
    from steelyard.evaluation.gating import read_gates
    from steelyard.evaluation.result import read_evaluation

    other = None if against is None else read_evaluation(against)
    return other, None if gate is None else read_gates(gate)


def _require_places(*written: Path | None, read: Sequence[Path | None]) -> None:
    """Refuse files that could not be written, or would be written over, before hours are spent on what they hold."""
    taken = {os.path.realpath(path) for path in read if path is not None}
    for path in written:
        if path is None:
            continue
        if not path.parent.is_dir():
            raise usage(f"cannot write {path}: there is no folder {path.parent}")
        if (place := os.path.realpath(path)) in taken:
            raise usage(f"{path} is named twice, and would be written over", "Give each file a name of its own.")
        taken.add(place)


def _tell(
    found: Evaluation, other: Evaluation | None, gates: Gates | None, *, html: Path | None, as_json: bool
) -> None:
    """Print figures, comparison and gates, and write the report.

    Raises:
        CommandError: A gate is missed.
    """
    from steelyard.evaluation.comparison import compare
    from steelyard.evaluation.gating import judged_by
    from steelyard.evaluation.page import page
    from steelyard.terminal import evaluations

    comparison = None if other is None else compare(found, other)
    results = [] if gates is None else judged_by(gates, found, comparison)
    if html is not None:
        try:
            storage.write_atomically(html, page(found, gates=results, comparison=comparison))
        except OSError as error:
            raise usage(f"cannot write {html}: {error.strerror}") from error
        console.note(f"written to {html}")
    if as_json:
        sys.stdout.write(found.figures.model_dump_json() + "\n")
    else:
        evaluations.show(found)
        if comparison is not None:
            evaluations.show_comparison(comparison)
    for result in results:
        console.note(f"{'kept' if result.kept else 'MISSED'}: {result.sentence}")
    if missed := [result.sentence for result in results if not result.kept]:
        raise CommandError(f"{len(missed)} of {len(results)} gates are missed: {'; '.join(missed)}", code=ExitCode.GATE)
