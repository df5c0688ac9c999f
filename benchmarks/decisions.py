"""Measure heads beside a bag of words, letters and the labels' shares, on labelled cases of other people.

    python -m benchmarks.decisions --data FOLDER --model FILE [--sets NAME,...] [--wordings NAME,...]
        [--canary NAME] [--letters N] [--json FILE] [--markdown FILE]

The folder holds ``NAME.json`` (question, options), ``NAME.fit.jsonl`` (cases to fit on, in the order in which they
count) and ``NAME.test.jsonl``, each line with ``text`` and ``label``. Whatever is chosen is chosen by cross-validation
inside the first N fit cases, the wording by the rule of ``steelyard decision tune``: the first that is named, unless
another's log loss is lower beyond noise. The test file is only judged by. Hidden states are kept in the cache: an
interrupted run goes on where it stopped. ``--letters`` asks the letters of the first N test cases over HTTP as
well: the decision that nobody registered.
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

import httpx
import numpy as np
from rich.progress import Progress
from threadpoolctl import threadpool_limits

from benchmarks import layouts
from steelyard.decisions import fitting, metrics
from steelyard.decisions.features import EngineReader, Hidden, StateReader
from steelyard.decisions.fitting import Examples
from steelyard.models import storage
from steelyard.serving.server_process import free_port, running_server
from steelyard.terminal import console
from steelyard_runtime.contracts.text import render
from steelyard_runtime.decisions.head import Interval
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.settings import load_settings

SIZES = (40, 160, 240, 770)
NO_OPTION = "none of these"
"""An option of this name has no text of its own to learn from."""
WRONG = ALARMS = 0.02
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
    reach.
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


def sizes_of(task: Task) -> list[int]:
    """Return how many cases are fitted on: of each option there are two or more."""
    found = [size for size in SIZES if size <= len(task.labels["fit"])]
    return [s for s in found if np.bincount(task.labels["fit"][:s], minlength=len(task.options)).min() >= 2]


def heads(task: Task, readers: Mapping[str, StateReader], *, progress: Progress) -> list[Result]:
    """Fit on each number of cases, and judge on the test cases.

    Args:
        task: The data set.
        readers: Of hidden states, by wording; the first one stands unless another is better.
        progress: Has a bar for each wording.
    """
    own = [(text, index) for index, text in enumerate(task.options) if text != NO_OPTION and len(task.options) > 2]
    count = len(task.texts["fit"])

    def read(wording: str, what: str, texts: Sequence[str]) -> Hidden:
        bar = progress.add_task(f"{task.name}: {what}, {wording}")
        return readers[wording].read(texts, step=lambda done, all_: progress.update(bar, completed=done, total=all_))

    hidden = {name: read(name, "fit", [*task.texts["fit"], *(text for text, _ in own)]) for name in readers}
    tests: dict[str, Hidden] = {}
    found = []
    for size in sizes_of(task):
        validated = {
            name: fitting.validate(
                Examples(hidden=each[:size], texts=task.texts["fit"][:size], labels=task.labels["fit"][:size]),
                anchors=Examples(
                    hidden=each[count:],
                    texts=tuple(text for text, _ in own),
                    labels=np.array([index for _, index in own], np.int64),
                ),
                options=len(task.options),
            )
            for name, each in hidden.items()
        }
        wording = tuned(validated)
        if wording not in tests:
            tests[wording] = read(wording, "test", task.texts["test"])
        for way, parts in VARIANTS.items():
            chosen = validated[wording].choose(*parts)
            head = validated[wording].linear(chosen.calibration)
            judged = zip(tests[wording], task.texts["test"], strict=True)
            probabilities = np.array([head.apply(state, text).probabilities for state, text in judged])
            shown = "" if way == "bag of words" else wording
            figures = replace(result(task, way, size, probabilities), wording=shown)
            found.append(with_policy(figures, task, chosen.probabilities, probabilities))
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
    return replace(figures, automated=wrong, found_out=found, false_alarms=false)


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


def letters(task: Task, base_url: str, *, count: int, progress: Progress) -> Result:
    """Ask the options' letters of the first test cases."""
    options = [{"id": option} for option in task.options]
    rows = []
    with httpx.Client(base_url=base_url, timeout=600) as client:
        for text in progress.track(task.texts["test"][:count], description=f"{task.name}: letters"):
            decision = {"id": "1", "state": text, "question": task.question, "options": options}
            answer = client.post("/invocations", json={"decision": decision})
            answer.raise_for_status()
            rows.append(answer.json()["result"]["probabilities"])
    return result(task, "letters", 0, np.array(rows))


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
        f"| cases from | fitted on | way | automated, {WRONG:.0%} wrong | wrong | {NO_OPTION}: found | false alarms |",
        "| --- | ---: | --- | ---: | --- | --- | --- |",
    ]
    for each in results:
        if each.automated is not None:
            shares = [each.automated, each.found_out or "", each.false_alarms or ""]
            share = each.automated.of / each.judged
            named = f"{each.data} | {each.cases} | {each.way} | {share:.3f}"
            lines.append(f"| {named} | {' | '.join(map(str, shares))} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True, help="a name of the catalogue, or a GGUF file")
    parser.add_argument("--sets", help="names, separated by commas; all of the folder unless given, none if empty")
    parser.add_argument("--wordings", default=",".join(WORDINGS), help="the first stands unless another is better")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--letters", type=int, default=0, help="test cases whose letters are asked")
    parser.add_argument("--canary", metavar="WORDING", help="cross-validate the questions of sys1bench as well")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args(arguments)
    there = sorted(path.stem for path in chosen.data.glob("*.json"))
    names = there if chosen.sets is None else [name for name in chosen.sets.split(",") if name]
    tasks = [read_task(chosen.data, name) for name in names]
    model = str(storage.resolve(chosen.model)[0])
    results: list[Result] = []
    with Progress(console=console.err) as progress:
        if chosen.letters:
            port = free_port("127.0.0.1", 0)
            url, log = f"http://127.0.0.1:{port}", storage.cache_folder() / "logs" / f"decisions-{port}.log"
            arguments = ["--model", model, "--threads", str(chosen.threads), "--port", str(port)]
            with running_server(arguments, url=url, log=log):
                results += [
                    letters(t, url, count=chosen.letters, progress=progress) for t in tasks if len(t.options) <= 26
                ]
        engine = start_engine(load_settings(model=model, threads=chosen.threads, context_tokens=1024, chats=1))
        try:
            cache = storage.cache_folder() / "hidden-states"
            readers = {name: EngineReader(engine, wording=name, cache=cache) for name in chosen.wordings.split(",")}
            for task in tasks:
                with threadpool_limits(1):
                    results += [majority(task), *heads(task, readers, progress=progress)]
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
    table = markdown(results)
    sys.stdout.write(table)
    if chosen.markdown:
        chosen.markdown.write_text(table, encoding="utf-8")
    if chosen.json:
        said: list[dict[str, Any]] = [
            asdict(each) | {name: getattr(each, name).model_dump() for name in ("accuracy", "log_loss", "ece")}
            for each in results
        ]
        chosen.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
