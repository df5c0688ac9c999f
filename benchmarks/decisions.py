"""Measure heads beside a bag of words, letters and the labels' shares, on labelled cases of other people.

    python -m benchmarks.decisions --data FOLDER --model FILE [--sets NAME,...] [--wordings NAME,...]
        [--canary NAME] [--letters N] [--encoder] [--curves FOLDER] [--json FILE] [--markdown FILE]

The folder holds ``NAME.json`` (question, options), ``NAME.fit.jsonl`` (cases to fit on, in the order in which they
count) and ``NAME.test.jsonl``, each line with ``text`` and ``label``. Whatever is chosen is chosen by cross-validation
inside the first N fit cases, the wording by the rule of ``steelyard decision tune``: the first that is named, unless
another's log loss is lower beyond noise. The test file is only judged by. Hidden states are kept in the cache: an
interrupted run goes on where it stopped. ``--letters`` asks the letters of the first N test cases as well, the decision
that nobody registered, and of all fit cases, to fit a factor and a shift to each. ``--encoder`` fits a sentence
encoder's embeddings as heads are fitted (``sentence_encoder.py``).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress
from threadpoolctl import threadpool_limits

from benchmarks import layouts
from benchmarks.letters_asked import letters
from benchmarks.sentence_encoder import SentenceEncoder, load
from steelyard.decisions import fitting, metrics
from steelyard.decisions.calibrating import Chosen, Way, calibrate
from steelyard.decisions.curve import Curve, learning_curve, svg
from steelyard.decisions.features import EngineReader, Hidden, StateReader, Step
from steelyard.decisions.fitting import Examples
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_runtime.contracts.text import render
from steelyard_runtime.decision import Option, Question
from steelyard_runtime.decisions.head import Interval, softmax
from steelyard_runtime.engine.interface import Engine
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.settings import load_settings

SIZES = (40, 160, 240, 770)
NO_OPTION = "none of these"
"""An option of this name has no text of its own to learn from."""
WRONG = ALARMS = 0.02
WITH_WORDS = "sentence encoder and words"
MOST_LETTERS = 26
"""Options of a question whose letters are asked."""
VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "bag of words": fitting.OF_WORDS,
    "head, hidden state alone": fitting.OF_STATE,
    "head": fitting.OF_STATE + fitting.OF_BOTH,
}
"""Parts that each may have; a head drops the words where they do not lower the held-out log loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One data set."""

    name: str
    question: str
    options: tuple[str, ...]
    texts: dict[str, tuple[str, ...]]
    labels: dict[str, metrics.Labels]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Some of several cases."""

    some: int
    of: int

    def __str__(self) -> str:
        """Share with its 95 % interval."""
        low, high = metrics.wilson(self.some, self.of)
        return f"{self.some / max(1, self.of):.3f} ({low:.3f} to {high:.3f})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Figures of one way on the test cases of one data set; ``cases`` is how many it was fitted on.

    ``automated`` counts the wrong ones among the answers that the threshold lets through which ``steelyard decision
    fit`` would name for ``WRONG``: the held-out fit cases prove it. None pass where they prove none. ``found_out`` and
    ``false_alarms`` are of ``NO_OPTION`` where its probability is above what ``ALARMS`` of the other held-out fit cases
    reach. ``ranking`` is the share found where the threshold is set on the test cases, so that ``ALARMS`` of the others
    are false alarms: it says how well the probability separates, not what a threshold that was set before would do.
    """

    data: str
    way: str
    cases: int
    judged: int
    accuracy: Interval
    log_loss: Interval
    ece: Interval
    wording: str = ""
    automated: Share | None = None
    found_out: Share | None = None
    false_alarms: Share | None = None
    ranking: Share | None = None


def read_task(folder: Path, name: str) -> Task:
    """Read a data set."""
    said = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    options = tuple(said["options"])
    texts, labels = {}, {}
    for part in ("fit", "test"):
        rows = [json.loads(line) for line in (folder / f"{name}.{part}.jsonl").read_text(encoding="utf-8").splitlines()]
        texts[part] = tuple(row["text"] for row in rows)
        labels[part] = np.array([options.index(row["label"]) for row in rows], np.int64)
    return Task(name=name, question=said["question"], options=options, texts=texts, labels=labels)


def question_of(task: Task) -> Question:
    """Return the question as a request without descriptions asks it."""
    return Question(
        instructions=task.question, options=tuple(Option(id=text, text=text, name=text) for text in task.options)
    )


def sizes_of(task: Task) -> list[int]:
    """Return how many cases are fitted on: of each option there are two or more."""
    found = [size for size in SIZES if size <= len(task.labels["fit"])]
    return [s for s in found if np.bincount(task.labels["fit"][:s], minlength=len(task.options)).min() >= 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """The options that have a text of their own.

    Attributes:
        texts: The texts.
        labels: The option of each.
    """

    texts: tuple[str, ...]
    labels: metrics.Labels


def own_texts(task: Task) -> Own:
    """Return the options' texts that are cases too; yes and no are none."""
    found = [(text, index) for index, text in enumerate(task.options) if text != NO_OPTION and len(task.options) > 2]
    return Own(texts=tuple(text for text, _ in found), labels=np.array([index for _, index in found], np.int64))


def validate(task: Task, size: int, states: Hidden) -> fitting.Validated:
    """Cross-validate regressions of the first fit cases.

    Args:
        task: The data set.
        size: Fit cases.
        states: Of all fit cases, then of the options' own texts, shape ``(cases + texts, embedding_size)``.
    """
    own, count = own_texts(task), len(task.texts["fit"])
    return fitting.validate(
        Examples(hidden=states[:size], texts=task.texts["fit"][:size], labels=task.labels["fit"][:size]),
        anchors=Examples(hidden=states[count:], texts=own.texts, labels=own.labels),
        options=len(task.options),
    )


def judged(task: Task, way: str, validated: fitting.Validated, chosen: Chosen, tests: Hidden) -> Result:
    """Return the figures of a fitted head on the test cases."""
    head = validated.linear(chosen.calibration)
    cases = zip(tests, task.texts["test"], strict=True)
    probabilities = np.array([head.apply(state, text).probabilities for state, text in cases])
    return with_policy(
        result(task, way, len(validated.cases), probabilities), task, chosen.probabilities, probabilities
    )


def heads(
    task: Task, readers: Mapping[str, StateReader], *, progress: Progress, curves: dict[str, Curve] | None = None
) -> list[Result]:
    """Fit on each number of cases, and judge on the test cases.

    Args:
        task: The data set.
        readers: Of hidden states, by wording; the first one stands unless another is better.
        progress: Has a bar for each wording.
        curves: Gets the learning curves of head and words, from the most cases.
    """

    def read(wording: str, what: str, texts: Sequence[str]) -> Hidden:
        return readers[wording].read(texts, step=bar(progress, f"{task.name}: {what}, {wording}"))

    hidden = {name: read(name, "fit", [*task.texts["fit"], *own_texts(task).texts]) for name in readers}
    tests: dict[str, Hidden] = {}
    found = []
    for size in sizes_of(task):
        validated = {name: validate(task, size, each) for name, each in hidden.items()}
        wording = tuned(validated)
        if wording not in tests:
            tests[wording] = read(wording, "test", task.texts["test"])
        for way, parts in VARIANTS.items():
            chosen = validated[wording].choose(*parts)
            shown = "" if way == "bag of words" else wording
            found.append(replace(judged(task, way, validated[wording], chosen, tests[wording]), wording=shown))
            if curves is not None and size == sizes_of(task)[-1] and way in {"head", "bag of words"}:
                curves[way] = learning_curve(validated[wording], chosen.calibration.weights)
    return found


def encoded(task: Task, encoder: SentenceEncoder, *, curves: dict[str, Curve] | None = None) -> list[Result]:
    """Fit on each number of cases as ``heads`` does, with a sentence encoder's embeddings for hidden states."""
    states = encoder.read([*task.texts["fit"], *own_texts(task).texts])
    tests, found = encoder.read(task.texts["test"]), []
    for size in sizes_of(task):
        validated = validate(task, size, states)
        for way, parts in (("sentence encoder", VARIANTS["head, hidden state alone"]), (WITH_WORDS, VARIANTS["head"])):
            chosen = validated.choose(*parts)
            found.append(judged(task, way, validated, chosen, tests))
            if curves is not None and size == sizes_of(task)[-1] and way == WITH_WORDS:
                curves[way] = learning_curve(validated, chosen.calibration.weights)
    return found


def with_policy(figures: Result, task: Task, held_out: metrics.Array, judged: metrics.Array) -> Result:
    """Add what thresholds do on the test cases that were set on the held-out fit cases."""
    fitted, labels = task.labels["fit"][: len(held_out)], task.labels["test"]
    least = metrics.operating_point(held_out, fitted, target_wrong=WRONG).probability or 2.0
    passed = judged.max(axis=1) >= least
    wrong = Share(some=int((judged.argmax(axis=1) != labels)[passed].sum()), of=int(passed.sum()))
    if NO_OPTION not in task.options:
        return replace(figures, automated=wrong)
    out = task.options.index(NO_OPTION)
    alarms = np.sort(held_out[fitted != out, out])[::-1]
    told = judged[:, out] > alarms[int(ALARMS * len(alarms))]
    found = Share(some=int(told[labels == out].sum()), of=int((labels == out).sum()))
    false = Share(some=int(told[labels != out].sum()), of=int((labels != out).sum()))
    others = np.sort(judged[labels != out, out])[::-1]
    ranked = judged[labels == out, out] > others[int(ALARMS * len(others))]
    ranking = Share(some=int(ranked.sum()), of=len(ranked))
    return replace(figures, automated=wrong, found_out=found, false_alarms=false, ranking=ranking)


def canary(cases: Sequence[layouts.Case], reader: StateReader, *, progress: Progress) -> list[Result]:
    """Cross-validate a head for each question of ``sys1bench``'s labelled tasks, by state, and all questions together.

    There is no test file: the figures are of held-out folds, as ``fitting.fit`` reports them.
    """
    texts = {case.state_id: render(case.state) for case in cases}
    bar = progress.add_task("sys1bench: states")
    hidden = reader.read(list(texts.values()), step=lambda done, all_: progress.update(bar, completed=done, total=all_))
    rows = dict(zip(texts, hidden, strict=True))
    right: dict[str, list[float]] = defaultdict(list)
    found = []
    for name in progress.track(dict.fromkeys(case.question_id for case in cases), description="sys1bench: heads"):
        asked = [case for case in cases if case.question_id == name]
        given = asked[0].question.get("criteria") or []
        own = list(given.values() if isinstance(given, dict) else given)
        options = len(own) or 2
        anchors = reader.read(own)
        labels = np.array([case.truth for case in asked], np.int64)
        validated = fitting.validate(
            Examples(
                hidden=np.array([rows[case.state_id] for case in asked]),
                texts=tuple(texts[case.state_id] for case in asked),
                labels=labels,
            ),
            anchors=Examples(hidden=anchors, texts=tuple(own), labels=np.arange(len(own))),
            options=options,
            in_order=asked[0].kind == "score",
        )
        for way, parts in VARIANTS.items():
            probabilities = validated.choose(*parts).probabilities
            right[way] += list((probabilities.argmax(axis=1) == labels).astype(float))
            figures = metrics.figures(probabilities, labels)
            found.append(Result(data=name, way=way, cases=len(labels), judged=len(labels), **dict(figures)))
    for way, each in right.items():
        console.note(f"sys1bench, all questions, {way}: {np.mean(each):.3f} of {len(each)} right")
    return found


def tuned(validated: Mapping[str, fitting.Validated]) -> str:
    """Return the first wording, or the best of those whose held-out log loss is lower beyond noise."""
    (first, own), *others = ((name, each.choose(*VARIANTS["head"]).probabilities) for name, each in validated.items())
    labels = validated[first].cases.labels
    confidence = 1 - 0.05 / max(1, len(others))
    gains = {name: metrics.paired_loss(own, each, labels, confidence=confidence) for name, each in others}
    better = {name: gain.value for name, gain in gains.items() if gain.low > 0}
    return max(better, key=better.__getitem__) if better else first


def result(task: Task, way: str, cases: int, probabilities: metrics.Array) -> Result:
    """Return the figures of probabilities of the first test cases."""
    figures = metrics.figures(probabilities, task.labels["test"][: len(probabilities)])
    return Result(data=task.name, way=way, cases=cases, judged=len(probabilities), **dict(figures))


def majority(task: Task) -> Result:
    """Return the figures of the labels' shares among all fit cases."""
    counts = np.bincount(task.labels["fit"], minlength=len(task.options)) + 1.0
    return result(
        task, "labels' shares", len(task.labels["fit"]), np.tile(counts / counts.sum(), (len(task.labels["test"]), 1))
    )


def by_letters(task: Task, engine: Engine, *, count: int, progress: Progress) -> list[Result]:
    """Ask the letters of the first test cases: as they are, and with a factor and a shift for each, fitted to cases."""
    question, found = question_of(task), {}
    for part, texts in (("test", task.texts["test"][:count]), ("fit", task.texts["fit"])):
        logits, _ = letters(engine, question, texts, step=bar(progress, f"{task.name}: letters, {part}"))
        found[part] = np.log(softmax(logits))
    results = [result(task, "letters", 0, np.exp(found["test"]))]
    for size in sizes_of(task):
        labels = task.labels["fit"][:size]
        fitted = calibrate(Way(parts=("letters",), kind="vector"), {"letters": found["fit"][:size]}, labels)
        results.append(result(task, "letters, scale and bias", size, fitted.apply({"letters": found["test"]})))
    return results


def bar(progress: Progress, description: str) -> Step:
    """Return what moves a new bar."""
    task = progress.add_task(description)
    return lambda done, total: progress.update(task, completed=done, total=total)


def markdown(results: Sequence[Result]) -> str:
    """Return the results as a table."""
    lines = [
        "| cases from | fitted on | way | wording | judged on | accuracy | log loss | calibration error |",
        "| --- | ---: | --- | --- | ---: | --- | --- | --- |",
    ]
    for each in results:
        cells = [
            f"{shown.value:.3f} ({shown.low:.3f} to {shown.high:.3f})"
            for shown in (each.accuracy, each.log_loss, each.ece)
        ]
        named = f"{each.data} | {each.cases or ''} | {each.way} | {each.wording}"
        lines.append(f"| {named} | {each.judged} | {' | '.join(cells)} |")
    lines += [
        "",
        f"| cases from | fitted on | way | automated, {WRONG:.0%} wrong | wrong | {NO_OPTION}: found | false alarms | "
        f"found at {ALARMS:.0%} |",
        "| --- | ---: | --- | ---: | --- | --- | --- | --- |",
    ]
    for each in results:
        if each.automated is not None:
            shares = [each.automated, each.found_out or "", each.false_alarms or "", each.ranking or ""]
            share = each.automated.of / each.judged
            named = f"{each.data} | {each.cases} | {each.way} | {share:.3f}"
            lines.append(f"| {named} | {' | '.join(map(str, shares))} |")
    return "\n".join(lines) + "\n"


def deliver(results: Sequence[Any], table: str, figures: Sequence[str], chosen: argparse.Namespace) -> None:
    """Print the table, and write it and the results where ``--markdown`` and ``--json`` say.

    Args:
        results: Dataclasses.
        table: The results as a Markdown table.
        figures: Attributes that have intervals.
        chosen: What the command line gave.
    """
    sys.stdout.write(table)
    if chosen.markdown:
        chosen.markdown.write_text(table, encoding="utf-8")
    if chosen.json:
        rows = [asdict(each) | {name: getattr(each, name).model_dump() for name in figures} for each in results]
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True, help="a name of the catalogue, or a GGUF file")
    parser.add_argument("--sets", help="names, separated by commas; all of the folder unless given, none if empty")
    parser.add_argument("--wordings", default=",".join(WORDINGS), help="the first stands unless another is better")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--letters", type=int, default=0, help="test cases whose letters are asked; all fit cases too")
    parser.add_argument("--encoder", action="store_true", help="fit a sentence encoder's embeddings as well")
    parser.add_argument("--curves", type=Path, metavar="FOLDER", help="write learning curves, NAME-curve.svg")
    parser.add_argument("--canary", metavar="WORDING", help="cross-validate the questions of sys1bench as well")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args(arguments)
    there = sorted(path.stem for path in chosen.data.glob("*.json"))
    names = there if chosen.sets is None else [name for name in chosen.sets.split(",") if name]
    tasks = [read_task(chosen.data, name) for name in names]
    model = str(storage.resolve(chosen.model)[0])
    results: list[Result] = []
    encoder = load() if chosen.encoder else None
    with Progress(console=console.err) as progress:
        engine = start_engine(load_settings(model=model, threads=chosen.threads, context_tokens=1024, chats=1))
        try:
            cache = storage.cache_folder() / "hidden-states"
            readers = {name: EngineReader(engine, wording=name, cache=cache) for name in chosen.wordings.split(",")}
            for task in tasks:
                curves: dict[str, Curve] = {}
                if chosen.letters and len(task.options) <= MOST_LETTERS:
                    results += by_letters(task, engine, count=chosen.letters, progress=progress)
                with threadpool_limits(1):
                    results += [majority(task), *heads(task, readers, progress=progress, curves=curves)]
                    if encoder is not None:
                        results += encoded(task, encoder, curves=curves)
                if chosen.curves:
                    title = f"Accuracy on {task.name}, held out, against labels"
                    (chosen.curves / f"{task.name}-curve.svg").write_text(svg(curves, title=title), encoding="utf-8")
                costs = {name: reader.tokens_of(task.texts["test"]) for name, reader in readers.items()}
                console.note(
                    f"{task.name}: " + ", ".join(f"{each:.1f} tokens with {name}" for name, each in costs.items())
                )
            if chosen.canary:
                asked = layouts.read_cases(layouts.packaged_cases())
                with threadpool_limits(1):
                    found = canary(asked, readers[chosen.canary], progress=progress)
                results += [replace(each, wording=chosen.canary) for each in found]
                names += [each.data for each in found]
        finally:
            engine.close(timeout_s=1)
    results.sort(key=lambda each: names.index(each.data))
    deliver(results, markdown(results), ("accuracy", "log_loss", "ece"), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
