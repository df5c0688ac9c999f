"""``steelyard decision``: a decision's folder, from the first contract to a head that can be served."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from steelyard.client.decision_file import parse_option
from steelyard.commands import completion
from steelyard.commands.app import App
from steelyard.commands.options import DEFAULT_MODEL, ModelName
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_base.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from steelyard.decisions.evaluation import Evaluation
    from steelyard.decisions.features import EngineReader, KeptReader
    from steelyard.decisions.folder import Cases
    from steelyard.decisions.workflow import FittedDecision
    from steelyard_runtime.decisions.contract import Contract
    from steelyard_runtime.decisions.head import Measured
    from steelyard_runtime.engine.interface import Engine

app = App(help="Registered decisions: write one down, check it, fit it to labelled cases, measure it.")

Name = Annotated[
    str,
    typer.Argument(help="A folder in decisions/, or a path with a slash.", autocompletion=completion.decision_names),
]
Threads = Annotated[int, typer.Option("--threads", min=0, max=1024, help="Threads for llama.cpp; 0 chooses.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead.")]

Image = Annotated[
    str | None,
    typer.Option(
        "--image",
        help="An image of ours, run by docker: its engine evaluates the states, and the head is for its llama.cpp.",
    ),
]

_CONTEXT_TOKENS_FLAG = Annotated[
    int, typer.Option("--context-tokens", min=0, help="Longest prompt in tokens; 0 means 8192, or the model's own.")
]


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Lower-case words with hyphens; the folder decisions/NAME is made.")],
    *,
    kind: Annotated[str, typer.Option("--type", help="One of: choice, yesno, score.")] = "choice",
    question: Annotated[
        str, typer.Option("--question", help="The question that every case answers.")
    ] = "Which option describes the input best?",
    option: Annotated[
        list[str] | None,
        typer.Option("--option", help="ID=DESCRIPTION, once for each option; of a score, VALUE=DESCRIPTION."),
    ] = None,
) -> None:
    """Make the folder of a decision: a contract to fill in, and a file for labelled cases."""
    from steelyard.decisions.folder import CASES_FILE, CONTRACT_FILE, DECISIONS, write_files
    from steelyard.decisions.template import new_contract
    from steelyard_runtime.decisions.contract import write_contract

    contract = new_contract(name, kind=kind, question=question, options=[parse_option(each) for each in option or []])
    folder = DECISIONS / contract.name
    # A folder without a file is left of one that a full disk ended.
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise CommandError(f"{folder} exists already", code=ExitCode.USAGE, hint="Choose another name, or edit it.")
    write_files(folder, {CASES_FILE: b"", CONTRACT_FILE: write_contract(contract).encode()})
    line = json.dumps({"state": "...", "label": contract.option_ids[0]})
    console.note(f"Describe the options in {folder / CONTRACT_FILE}, and add lines such as {line} to {CASES_FILE}.")
    console.note(f"Then: steelyard decision lint {contract.name}")
    sys.stdout.write(f"{folder}\n")


@app.command()
def lint(name: Name, *, as_json: Json = False) -> None:
    """Check a contract and its cases without a model. Exit code 1 when there is an error; warnings are only shown."""
    from steelyard.decisions.lint import lint as findings_of

    _, contract, cases = _read(name)
    findings = findings_of(contract, cases.cases)
    if as_json:
        listed = [{"level": each.level, "code": each.code, "message": each.message} for each in findings]
        sys.stdout.write(json.dumps({"decision": contract.full_name, "findings": listed}, ensure_ascii=False) + "\n")
    else:
        console.rows([(each.level, each.code, each.message) for each in findings])
        console.note(
            f"{contract.full_name}: {len(cases)} cases, {len(contract.options)} options, {len(findings)} findings"
        )
    if any(each.level == "error" for each in findings):
        raise typer.Exit(ExitCode.FAILED)


@app.command()
def fit(
    name: Name,
    *,
    model: ModelName = DEFAULT_MODEL,
    image: Image = None,
    threads: Threads = 0,
    context_tokens: _CONTEXT_TOKENS_FLAG = 0,
    as_json: Json = False,
) -> None:
    """Fit a decision's head to its labelled cases, and write head.json and head.safetensors into its folder.

    The model runs in this process; with --image it runs in a container without a network, and the head lies in
    heads/BUILD of the folder, beside that of this checkout. Hidden states are kept in the cache, so that only new cases
    are evaluated. All figures are of cases that were held out.
    """
    from steelyard.decisions.folder import write_files

    folder, contract, cases = _read(name)
    _refuse_errors(contract, cases)
    done = _fitted(contract, cases, model=model, image=image, threads=threads, context_tokens=context_tokens)
    place = _place(folder, done, image)
    write_files(place, done.files)
    _tell(done, as_json=as_json, curve=True)
    console.note(f"written to {place}: {', '.join(done.files)}")


@app.command("test")
def measure(
    name: Name,
    *,
    model: ModelName = DEFAULT_MODEL,
    image: Image = None,
    threads: Threads = 0,
    context_tokens: _CONTEXT_TOKENS_FLAG = 0,
    accept: Annotated[bool, typer.Option("--accept", help="Write the figures as the accepted baseline.")] = False,
    as_json: Json = False,
) -> None:
    """Measure a decision by cross-validation, and compare with the accepted baseline in its folder.

    Exit code 1 when accuracy or log loss are worse than the accepted interval, or the head in the folder is not the one
    that its contract, cases and model give.
    """
    from steelyard.decisions import workflow
    from steelyard.decisions.folder import BASELINE_FILE, write_files

    folder, contract, cases = _read(name)
    done = _fitted(contract, cases, model=model, image=image, threads=threads, context_tokens=context_tokens)
    head = workflow.read_head(_place(folder, done, image))
    _tell(done, as_json=as_json)
    now = workflow.baseline_of(done)
    faults = workflow.stale(head, done)
    if accept:
        if not faults:
            write_files(folder, {BASELINE_FILE: (now.model_dump_json(indent=1) + "\n").encode()})
            console.note(f"accepted: {folder / BASELINE_FILE}")
    elif (accepted := workflow.read_baseline(folder)) is None:
        faults.append(f"no baseline was accepted; accept these figures: steelyard decision test {name} --accept")
    else:
        faults += workflow.regressions(now, accepted)
    if faults:
        raise CommandError(f"{contract.full_name}: " + "; ".join(faults))
    console.note(f"{contract.full_name}: as accepted")


@app.command()
def tune(
    name: Name,
    *,
    model: ModelName = DEFAULT_MODEL,
    tokens: Annotated[
        float, typer.Option("--tokens", min=1, help="Most tokens of a decision on average, its state included.")
    ] = 30.0,
    threads: Threads = 0,
    context_tokens: _CONTEXT_TOKENS_FLAG = 0,
    as_json: Json = False,
) -> None:
    """Try every wording on a decision's cases by cross-validation, and write the next version with one that is better.

    Better is a log loss that is lower beyond noise, paired by case. Where none is, nothing is written; else the
    contract gets its next version, and its head is fitted.
    """
    from steelyard.decisions import report, tuning
    from steelyard.decisions.folder import CONTRACT_FILE, write_files

    folder, contract, cases = _read(name)
    _refuse_errors(contract, cases)
    text = (folder / CONTRACT_FILE).read_text(encoding="utf-8")
    with (
        _engine(contract, cases=cases, model=model, threads=threads, context_tokens=context_tokens) as engine,
        _bars(contract.full_name) as bars,
    ):
        tried = tuning.tune(
            contract,
            cases,
            lambda wording: _reader_of(engine, wording),
            tokens=tokens,
            step=lambda wording: lambda stage, done, total: bars.step(f"{wording}, {stage}", done, total),
        )
        best = tuning.winner(tried)
        written: tuple[str, FittedDecision] | None = None
        if best is not None:
            text, changed = tuning.next_version(text, contract, best.wording)
            written = text, _refitted(changed, cases, _reader_of(engine, best.wording))
    if written is not None:
        write_files(folder, {**written[1].files, CONTRACT_FILE: written[0].encode()})
    if as_json:
        sys.stdout.write(json.dumps(tuning.to_json(contract, tried), ensure_ascii=False) + "\n")
    else:
        heads = ("wording", "tokens", "accuracy", "log loss", "log loss saved")
        console.rows(report.tried_rows(tried), heads=heads)
    if best is None:
        console.note(f"No wording is better than {contract.readout.wording} beyond noise; nothing is written.")
    else:
        console.note(f"written to {folder}: {contract.name}@{contract.version + 1} with {best.wording}, and its head")


@app.command()
def curve(
    name: Name,
    *,
    model: ModelName = DEFAULT_MODEL,
    figure: Annotated[Path | None, typer.Option("--svg", help="File for a figure; replaced if it is there.")] = None,
    threads: Threads = 0,
    context_tokens: _CONTEXT_TOKENS_FLAG = 0,
    as_json: Json = False,
) -> None:
    """Show how a decision's accuracy grows with its labels, and what the next 50 are worth. Nothing is fitted anew."""
    from steelyard.decisions import report
    from steelyard.decisions.curve import svg
    from steelyard.decisions.folder import write_files

    _, contract, cases = _read(name)
    _refuse_errors(contract, cases)
    found = _fitted(contract, cases, model=model, threads=threads, context_tokens=context_tokens).curve()
    if figure is not None:
        title = f"Accuracy of {contract.full_name} on held-out cases, against labels"
        write_files(figure.parent, {figure.name: svg({contract.full_name: found}, title=title).encode()})
    if as_json:
        sys.stdout.write(json.dumps({"decision": contract.full_name, **found.to_json()}) + "\n")
        return
    console.rows(report.curve_rows(found), heads=("labels", "accuracy"))
    _line(report.curve_line(found))


@app.command()
def show(name: Name, *, as_json: Json = False) -> None:
    """Print a decision: its contract, hashes, cases, and the figures of its head."""
    from steelyard.decisions import workflow
    from steelyard_runtime.decisions.head import DESCRIPTION_FILE, head_folders

    folder, contract, cases = _read(name)
    heads = [workflow.read_head(each) for each in head_folders(folder) if (each / DESCRIPTION_FILE).exists()]
    facts = workflow.facts(contract, cases, heads)
    if as_json:
        sys.stdout.write(json.dumps(facts, ensure_ascii=False) + "\n")
        return
    console.rows([(key, value if isinstance(value, str) else json.dumps(value)) for key, value in facts.items()])
    if not heads:
        console.note(f"It has no head. Fit one: steelyard decision fit {name}")
    else:
        _tell_measured(heads[0].description.measured)


def _read(name: str) -> tuple[Path, Contract, Cases]:
    from steelyard.decisions.folder import CASES_FILE, folder_of, read_cases, read_contract

    folder = folder_of(name)
    contract = read_contract(folder)
    return folder, contract, read_cases(folder / CASES_FILE, contract)


def _refuse_errors(contract: Contract, cases: Cases) -> None:
    from steelyard.decisions.lint import lint as findings_of

    errors = [each.message for each in findings_of(contract, cases.cases) if each.level == "error"]
    if errors:
        raise CommandError(
            f"{contract.full_name} has errors:\n" + "\n".join(f"- {each}" for each in errors), code=ExitCode.USAGE
        )


def _fitted(
    contract: Contract, cases: Cases, *, model: str, threads: int, context_tokens: int, image: str | None = None
) -> FittedDecision:
    reader_of: AbstractContextManager[KeptReader] = (
        _reader(contract, cases=cases, model=model, threads=threads, context_tokens=context_tokens)
        if image is None
        else _image_reader(
            contract, cases=cases, model=model, image=image, threads=threads, context_tokens=context_tokens
        )
    )
    with reader_of as reader:
        from steelyard.decisions import workflow

        with _bars(contract.full_name) as bars:
            done = workflow.fit_decision(contract, cases, reader, step=bars.step)
        console.note(f"{reader.evaluated_states} states evaluated, {reader.evaluated_tokens} tokens; the rest was kept")
        return done


def _place(folder: Path, done: FittedDecision, image: str | None) -> Path:
    """Return where a head lies: the folder itself for this checkout's llama.cpp, one for each build beside it."""
    from steelyard_runtime.decisions.head import folder_for_build

    return folder if image is None else folder_for_build(folder, done.description.bound.llama_cpp)


@contextmanager
def _engine(contract: Contract, *, cases: Cases, model: str, threads: int, context_tokens: int) -> Iterator[Engine]:
    """An engine in this process, after what needs no model was checked."""
    with _needed_packages():
        from steelyard.decisions import workflow
        from steelyard_runtime.engine.start import EngineStartError, start_engine
        from steelyard_runtime.settings import load_settings
    workflow.require_head(contract, cases)
    path, _ = storage.resolve(model)
    try:
        engine = start_engine(load_settings(model=str(path), threads=threads, context_tokens=context_tokens, chats=1))
    except EngineStartError as error:
        raise CommandError(str(error), code=ExitCode.MODEL) from error
    try:
        yield engine
    finally:
        engine.close(timeout_s=1)


def _refitted(contract: Contract, cases: Cases, reader: EngineReader) -> FittedDecision:
    from steelyard.decisions import workflow

    return workflow.fit_decision(contract, cases, reader)


def _reader_of(engine: Engine, wording: str) -> EngineReader:
    from steelyard.decisions.features import EngineReader

    return EngineReader(engine, wording=wording, cache=_kept_states())


@contextmanager
def _reader(
    contract: Contract, *, cases: Cases, model: str, threads: int, context_tokens: int
) -> Iterator[EngineReader]:
    """A reader of hidden states with an engine in this process."""
    with _engine(contract, cases=cases, model=model, threads=threads, context_tokens=context_tokens) as engine:
        yield _reader_of(engine, contract.readout.wording)


@contextmanager
def _image_reader(
    contract: Contract, *, cases: Cases, model: str, image: str, threads: int, context_tokens: int
) -> Iterator[KeptReader]:
    """A reader of hidden states with the engine of an image."""
    with _needed_packages():
        from steelyard.decisions import workflow
        from steelyard.decisions.image_reader import ImageReader
    workflow.require_head(contract, cases)
    path, _ = storage.resolve(model)
    with ImageReader.opened(
        image,
        model=path,
        wording=contract.readout.wording,
        cache=_kept_states(),
        threads=threads,
        context_tokens=context_tokens,
    ) as reader:
        yield reader


@contextmanager
def _needed_packages() -> Iterator[None]:
    """Say how to install what cannot be imported."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise CommandError(
            f"nothing can be fitted: the Python package {error.name} is not installed",
            hint="Run make setup, or install the extras: pip install 'steelyard[runtime,fit]'",
        ) from error


def _kept_states() -> Path:
    return storage.cache_folder() / "hidden-states"


class _Bars:
    """A bar for each stage."""

    def __init__(self, progress: Progress, name: str) -> None:
        self._progress = progress
        self._name = name
        self._tasks: dict[str, TaskID] = {}

    def step(self, stage: str, done: int, total: int) -> None:
        """Move the bar of a stage."""
        if stage not in self._tasks:
            self._tasks[stage] = self._progress.add_task(f"{self._name}: {stage}")
        self._progress.update(self._tasks[stage], completed=done, total=total)


@contextmanager
def _bars(name: str) -> Iterator[_Bars]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console.err, disable=not console.err.is_terminal) as progress:
        yield _Bars(progress, name)


def _tell(done: FittedDecision, *, as_json: bool, curve: bool = False) -> None:
    from steelyard.decisions import report, workflow

    learnt = done.curve() if curve else None
    if as_json:
        sys.stdout.write(workflow.to_json(done, learnt) + "\n")
        return
    _tell_measured(done.fitted.measured)
    _tell_answers(workflow.held_out(done))
    if done.operating is not None:
        _line(report.operating_line(done.operating))
    if learnt is not None:
        _line(report.curve_line(learnt))


def _tell_answers(evaluation: Evaluation) -> None:
    from steelyard.decisions import report

    console.rows(report.kind_rows(evaluation), heads=("kind of case", "right"))
    for line in report.mistake_lines(evaluation):
        _line(line)
    console.rows(report.action_rows(evaluation), heads=("action", "cases", "wrong"))


def _line(text: str) -> None:
    console.out.print(text, soft_wrap=True, highlight=False, markup=False)


def _tell_measured(measured: Measured) -> None:
    from steelyard.decisions import report

    console.rows(report.figure_rows(measured), heads=("", "accuracy", "log loss", "calibration error"))
    _line(report.verdict(measured))
    for line in report.answer_set_lines(measured):
        _line(line)
