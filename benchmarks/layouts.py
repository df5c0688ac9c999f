"""Compare the layouts of the prompt on labelled cases, and their costs in tokens, in one run.

The cases are the 200 packaged canary tasks of ``sys1bench`` (Apache-2.0; its pinned wheel is fetched from the package
index): 1,100 questions with known answers on 200 states, of the types yes or no, choice and score. Every layout answers
every question over HTTP, through ``/v1/systemone``, on one server. Differences are paired by question; because the
questions on one state are not independent, confidence intervals resample whole states.

    python -m benchmarks.layouts --model FILE [--layouts options-first,state-first] [--part all|selection|held-out]
        [--answers FILE.jsonl] [--json FILE] [--markdown FILE]

``--answers`` keeps every answer as it comes; run again with the same file, an interrupted run goes on where it stopped.
Ctrl-C reports on what was answered until then.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import numpy.typing as npt
from rich.progress import Progress

from benchmarks.packaged import packaged, write
from steelyard.models.catalogue import PackagePart
from steelyard.models.storage import cache_folder
from steelyard.serving.server_process import free_port, running_server
from steelyard.terminal import console

CASES = PackagePart(
    package="sys1bench",
    version="0.3.2",
    wheel="sys1bench-0.3.2-py3-none-any.whl",
    wheel_size=170_731,
    sha256="8e846d00be69fb9ba7d3b45d3643a622af714d2ec1972a5e0e0b32969bc15e05",
    member="sys1bench/data/canary/canary.jsonl",
    member_size=950_627,
)
LAYOUTS = ("options-first", "state-first")
DEFAULT = "default"
"""Sends no layout, so that a server without the field can be scored too."""
TOKEN_STATES = 6
RESAMPLES = 4000
SMALLEST = 1e-6
"""A probability below this counts as this in the log loss, so that one certain mistake does not hide all else."""

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One labelled question on one state. ``truth`` is the index of the right option."""

    state_id: str
    question_id: str
    kind: Literal["noul", "choice", "score"]
    state: Any
    question: dict[str, Any]
    truth: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One answer: probabilities in option order, and the right option."""

    model_sha256: str
    layout: str
    state_id: str
    question_id: str
    kind: str
    probabilities: list[float]
    truth: int
    prompt_version: str

    @property
    def correct(self) -> bool:
        """Tell whether the likeliest option is the right one; of equals the first counts."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__) == self.truth

    @property
    def log_loss(self) -> float:
        """Negative natural logarithm of the right option's probability, floored at ``SMALLEST``."""
        return -math.log(max(self.probabilities[self.truth], SMALLEST))

    @property
    def brier(self) -> float:
        """Squared distance between the probabilities and the truth; 0 is best, 2 is worst."""
        return sum((p - (i == self.truth)) ** 2 for i, p in enumerate(self.probabilities))


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """One layout's figures over a set of cases."""

    layout: str
    kind: str
    decisions: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    log_loss: float
    brier: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """``first`` minus ``second``, over the same cases, with 95 % intervals from resampled states."""

    first: str
    second: str
    kind: str
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    log_loss: float
    log_loss_low: float
    log_loss_high: float
    only_first_right: int
    only_second_right: int
    mcnemar_p: float


# --- cases ------------------------------------------------------------------------------------------------------------


def packaged_cases() -> str:
    """The canary tasks as JSON lines; see ``packaged``."""
    return packaged(CASES).decode()


def read_cases(lines: str) -> list[Case]:
    """The labelled questions of sys1bench tasks, in file order; questions without a label are left out."""
    cases = []
    for line in lines.splitlines():
        task = json.loads(line)
        for name, question in task["questions"].items():
            if question["ground_truth"] is not None:
                cases.append(_case(task["task_id"], name, task["state"], question))
    return cases


def _case(state_id: str, name: str, state: Any, question: dict[str, Any]) -> Case:
    kind, truth, given = question["type"], question["ground_truth"], question["criteria"] or []
    asked: dict[str, Any] = {"type": kind, "instructions": question["instructions"]}
    match kind:
        case "choice":
            asked["criteria"] = {option["key"]: option["description"] for option in given}
            index = list(asked["criteria"]).index(truth)
        case "score":
            asked["criteria"] = [level["description"] for level in given]
            index = [level["level"] for level in given].index(truth)
        case _:
            index = 0 if truth else 1
    return Case(state_id=state_id, question_id=name, kind=kind, state=state, question=asked, truth=index)


def part_of(cases: Sequence[Case], part: str) -> list[Case]:
    """All cases, or every other state: wordings are chosen on ``selection`` and reported on ``held-out``."""
    if part == "all":
        return list(cases)
    states = {state: index for index, state in enumerate(dict.fromkeys(case.state_id for case in cases))}
    return [case for case in cases if states[case.state_id] % 2 == (part == "held-out")]


def spread(cases: Sequence[Case], states: int) -> list[Case]:
    """The cases of ``states`` states, taken evenly from all, so that every kind of task is among them."""
    names = list(dict.fromkeys(case.state_id for case in cases))
    count = min(states, len(names))
    kept = {names[index * len(names) // count] for index in range(count)}
    return [case for case in cases if case.state_id in kept]


def one_question_at_a_time(cases: Sequence[Case]) -> list[list[Case]]:
    """Requests of one question each, the states of a question one after another."""
    names = dict.fromkeys(case.question_id for case in cases)
    return [[case] for name in names for case in cases if case.question_id == name]


def one_state_at_a_time(cases: Sequence[Case]) -> list[list[Case]]:
    """Requests of all questions on a state."""
    states: dict[str, list[Case]] = {}
    for case in cases:
        states.setdefault(case.state_id, []).append(case)
    return list(states.values())


# --- asking -----------------------------------------------------------------------------------------------------------


def ask(
    client: httpx.Client, cases: Sequence[Case], layout: str, *, caller: str = "scoring"
) -> list[tuple[Row, dict[str, int]]]:
    """The answers to questions on one state, with their token counts. A state is kept for the same ``caller`` only."""
    body: dict[str, Any] = {
        "state": cases[0].state,
        "questions": {case.question_id: case.question for case in cases},
        "x_readout": "letters-raw",
    }
    if layout != DEFAULT:
        body["x_layout"] = layout
    response = client.post("/v1/systemone", json=body, headers={"X-Steelyard-Caller": caller})
    if response.status_code != 200:
        raise SystemExit(f"the server answered {response.status_code}: {response.text[:500]}")
    body = response.json()
    answers, sha256 = body["answers"], body["x_identity"]["sha256"]
    return [
        (_row(case, answers[case.question_id], layout, sha256), answers[case.question_id]["x_tokens"]) for case in cases
    ]


def _row(case: Case, answer: dict[str, Any], layout: str, model_sha256: str) -> Row:
    if case.kind == "noul":
        probabilities = [answer["noul"], 1 - answer["noul"]]
    else:
        probabilities = list(answer["probabilities"].values())
    return Row(
        model_sha256=model_sha256,
        layout=layout,
        state_id=case.state_id,
        question_id=case.question_id,
        kind=case.kind,
        probabilities=probabilities,
        truth=case.truth,
        prompt_version=answer["x_prompt_version"],
    )


def tokens_per_decision(client: httpx.Client, cases: Sequence[Case], layout: str) -> dict[str, float]:
    """Mean tokens evaluated per decision in steady state, for the two shapes of traffic, over the same decisions.

    ``new_states``: each question over states that come one after another. ``many_questions``: all questions on a state
    in one request. Each measurement calls under a name of its own, so that no state was seen before; the first state
    pays for questions and instructions, and is left out.
    """
    by_kind: dict[tuple[str, ...], list[list[Case]]] = {}
    for request in one_state_at_a_time(cases):
        by_kind.setdefault(tuple(case.question_id for case in request), []).append(request)
    new_states: list[int] = []
    many: list[int] = []
    for kind, requests in enumerate(by_kind.values()):
        first, *counted = requests[: TOKEN_STATES + 1]
        for index in range(len(first)):
            caller = f"{layout}-one-{kind}-{index}"
            ask(client, [first[index]], layout, caller=caller)
            new_states += [
                ask(client, [request[index]], layout, caller=caller)[0][1]["evaluated"] for request in counted
            ]
        for request in counted:
            answers = ask(client, request, layout, caller=f"{layout}-many-{kind}")
            many += [tokens["evaluated"] for _, tokens in answers]
    return {"new_states": float(np.mean(new_states)), "many_questions": float(np.mean(many))}


def mixed(requests: Sequence[list[Case]]) -> list[list[Case]]:
    """The same requests, in an order of which every beginning is spread evenly over all of them."""
    golden = (5**0.5 - 1) / 2
    return [request for _, request in sorted(enumerate(requests), key=lambda pair: (pair[0] * golden) % 1)]


# --- figures ----------------------------------------------------------------------------------------------------------


def resampled(values: Array, groups: Sequence[str], *, seed: int = 0) -> tuple[float, float]:
    """A 95 % interval of the mean of ``values``, resampling whole groups (states)."""
    _, index = np.unique(np.array(groups), return_inverse=True)
    sums = np.bincount(index, weights=values)
    counts = np.bincount(index).astype(np.float64)
    picks = np.random.default_rng(seed).integers(0, len(sums), size=(RESAMPLES, len(sums)))
    means = sums[picks].sum(axis=1) / counts[picks].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def mcnemar(only_first: int, only_second: int) -> float:
    """Exact two-sided p-value for ``only_first`` against ``only_second`` discordant pairs; 1.0 without any."""
    n, k = only_first + only_second, min(only_first, only_second)
    return min(1.0, 2 * sum(math.comb(n, i) for i in range(k + 1)) / 2**n) if n else 1.0


def summary(rows: Sequence[Row], *, layout: str, kind: str) -> Summary:
    """Figures of one layout; ``rows`` are not empty."""
    correct = np.array([row.correct for row in rows], dtype=np.float64)
    low, high = resampled(correct, [row.state_id for row in rows])
    return Summary(
        layout=layout,
        kind=kind,
        decisions=len(rows),
        accuracy=float(correct.mean()),
        accuracy_low=low,
        accuracy_high=high,
        log_loss=float(np.mean([row.log_loss for row in rows])),
        brier=float(np.mean([row.brier for row in rows])),
    )


def difference(first: Sequence[Row], second: Sequence[Row], *, names: tuple[str, str], kind: str) -> Difference:
    """The paired difference of two layouts over the same cases in the same order.

    Raises:
        ValueError: The cases are not the same.
    """
    keys = [(row.state_id, row.question_id) for row in first]
    if keys != [(row.state_id, row.question_id) for row in second]:
        raise ValueError("the two layouts did not answer the same cases")
    states = [state for state, _ in keys]
    right = [(a.correct, b.correct) for a, b in zip(first, second, strict=True)]
    accuracy = np.array([float(a) - float(b) for a, b in right])
    loss = np.array([a.log_loss - b.log_loss for a, b in zip(first, second, strict=True)])
    accuracy_low, accuracy_high = resampled(accuracy, states)
    loss_low, loss_high = resampled(loss, states)
    only_first, only_second = right.count((True, False)), right.count((False, True))
    return Difference(
        first=names[0],
        second=names[1],
        kind=kind,
        accuracy=float(accuracy.mean()),
        accuracy_low=accuracy_low,
        accuracy_high=accuracy_high,
        log_loss=float(loss.mean()),
        log_loss_low=loss_low,
        log_loss_high=loss_high,
        only_first_right=only_first,
        only_second_right=only_second,
        mcnemar_p=mcnemar(only_first, only_second),
    )


def verdict(accuracy: Difference) -> str:
    """Name the layout to prefer, in a sentence: the better one, or the cheaper one when the difference is noise."""
    if accuracy.accuracy_low > 0:
        return f"{accuracy.first} decides better"
    if accuracy.accuracy_high < 0:
        return f"{accuracy.second} decides better"
    return "the difference is within noise"


def evaluate(rows: Sequence[Row], layouts: Sequence[str]) -> tuple[list[Summary], list[Difference]]:
    """Figures for all kinds together and for each, and every layout against the first."""
    summaries, differences = [], []
    for kind in ("all", *dict.fromkeys(row.kind for row in rows)):
        chosen = {
            layout: sorted(
                (row for row in rows if row.layout == layout and kind in ("all", row.kind)),
                key=lambda row: (row.state_id, row.question_id),
            )
            for layout in layouts
        }
        summaries += [summary(chosen[layout], layout=layout, kind=kind) for layout in layouts]
        differences += [
            difference(chosen[layouts[0]], chosen[other], names=(layouts[0], other), kind=kind) for other in layouts[1:]
        ]
    return summaries, differences


def markdown(
    model: str, summaries: Sequence[Summary], differences: Sequence[Difference], tokens: dict[str, dict[str, float]]
) -> str:
    """The tables of the report."""
    lines = [
        f"| {model} | decisions | accuracy (95 %) | log loss | Brier | tokens, new states | tokens, many questions |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for s in summaries:
        cost = tokens.get(s.layout) if s.kind == "all" else None
        counts = f"{cost['new_states']:.1f} | {cost['many_questions']:.1f}" if cost else " | "
        lines.append(
            f"| {s.layout}, {s.kind} | {s.decisions} | {s.accuracy:.3f} ({s.accuracy_low:.3f} to {s.accuracy_high:.3f})"
            f" | {s.log_loss:.3f} | {s.brier:.3f} | {counts} |"
        )
    if differences:
        lines += [
            "",
            "| difference | accuracy (95 %) | log loss (95 %) | only first right | only second right | McNemar p |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
    lines += [
        f"| {d.first} minus {d.second}, {d.kind} | {d.accuracy:+.3f} ({d.accuracy_low:+.3f} to {d.accuracy_high:+.3f})"
        f" | {d.log_loss:+.3f} ({d.log_loss_low:+.3f} to {d.log_loss_high:+.3f}) | {d.only_first_right}"
        f" | {d.only_second_right} | {d.mcnemar_p:.2g} |"
        for d in differences
    ]
    return "\n".join(lines) + "\n"


# --- the run ----------------------------------------------------------------------------------------------------------


def kept_rows(path: Path | None, cases: Iterable[Case], *, model_sha256: str) -> list[Row]:
    """The answers of an earlier, interrupted run that belong to ``cases``; a torn last line is passed over."""
    if path is None or not path.is_file():
        return []
    wanted = {(case.state_id, case.question_id) for case in cases}
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            row = Row(**json.loads(line))
        except ValueError:
            continue
        if row.model_sha256 == model_sha256 and (row.state_id, row.question_id) in wanted:
            rows.append(row)
    return rows


def _kept(rows: list[Row], answers: Path | None) -> list[Row]:
    if answers is not None:
        with answers.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(asdict(row)) + "\n" for row in rows)
    return rows


def answered_by_all(rows: Sequence[Row], layouts: Sequence[str]) -> list[Row]:
    """The rows of questions that every layout answered."""
    keys = [{(row.state_id, row.question_id) for row in rows if row.layout == layout} for layout in layouts]
    common = set.intersection(*keys)
    return [row for row in rows if (row.state_id, row.question_id) in common]


def run(
    client: httpx.Client,
    cases: Sequence[Case],
    layouts: Sequence[str],
    *,
    answers: Path | None,
    model_sha256: str,
    count_tokens: bool = True,
) -> tuple[list[Row], dict[str, dict[str, float]]]:
    """Every layout's answer to every case, and its tokens per decision.

    Raises:
        SystemExit: Two layouts used one prompt (the server does not know the field), or one layout used two.
    """
    rows = [row for row in kept_rows(answers, cases, model_sha256=model_sha256) if row.layout in layouts]
    done = {(row.layout, row.state_id, row.question_id) for row in rows}
    tokens = {}
    with Progress(console=console.err) as progress:
        task = progress.add_task("answers", total=len(cases) * len(layouts))
        try:
            # All layouts of a state before the next state, so that a run that is cut short compares equals.
            for request in mixed(one_state_at_a_time(cases)):
                for layout in layouts:
                    wanted = [case for case in request if (layout, case.state_id, case.question_id) not in done]
                    if wanted:
                        rows += _kept([row for row, _ in ask(client, wanted, layout)], answers)
                    progress.advance(task, len(request))
            if count_tokens:
                tokens = {layout: tokens_per_decision(client, cases, layout) for layout in layouts}
        except KeyboardInterrupt:
            console.note("interrupted; these figures are of the states that were answered in every layout")
    rows = answered_by_all(rows, layouts)
    if not rows:
        raise SystemExit("no state was answered in every layout")
    versions = {layout: {row.prompt_version for row in rows if row.layout == layout} for layout in layouts}
    if any(len(found) != 1 for found in versions.values()):
        raise SystemExit(f"answers with different prompts are mixed: {versions}; start with a new --answers file")
    if len({next(iter(found)) for found in versions.values()}) != len(layouts):
        raise SystemExit(f"the server used one prompt for several layouts: {versions}")
    return rows, tokens


def main() -> int:
    """Score the layouts and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="separated by commas; 'default' sends none")
    parser.add_argument("--part", choices=("all", "selection", "held-out"), default="all")
    parser.add_argument("--states", type=int, default=0, help="only N states, taken evenly from the part; 0 for all")
    parser.add_argument("--no-tokens", action="store_true", help="leave out the token counts, which cost a third more")
    parser.add_argument("--answers", type=Path, help="keep every answer here, and go on from it")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    given = parser.parse_args()
    # SIGTERM ends it like Ctrl-C does, so that no server is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    layouts = given.layouts.split(",")
    cases = part_of(read_cases(packaged_cases()), given.part)
    if given.states:
        cases = spread(cases, given.states)
    port = free_port("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    log = cache_folder() / "logs" / f"layouts-{port}.log"
    arguments = ["--model", str(given.model), "--port", str(port), "--log-level", "warning", "--deadline-s", "3600"]
    with running_server(arguments, url=url, log=log), httpx.Client(base_url=url, timeout=3600) as client:
        identity = client.get("/v1/identity").raise_for_status().json()
        rows, tokens = run(
            client,
            cases,
            layouts,
            answers=given.answers,
            model_sha256=identity["model"]["sha256"],
            count_tokens=not given.no_tokens,
        )
    summaries, differences = evaluate(rows, layouts)
    tables = markdown(given.model.name, summaries, differences, tokens)
    sys.stdout.write(tables)
    for found in differences:
        if found.kind == "all":
            console.note(f"{found.first} against {found.second}: {verdict(found)}")
    if given.markdown:
        write(given.markdown, tables.encode())
    if given.json:
        figures = {
            "model": given.model.name,
            "identity": identity,
            "cases": {"package": CASES.package, "version": CASES.version, "sha256": CASES.sha256, "part": given.part},
            "prompt_versions": {row.layout: row.prompt_version for row in rows},
            "tokens_evaluated_per_decision": tokens,
            "summaries": [asdict(found) for found in summaries],
            "differences": [asdict(found) for found in differences],
        }
        write(given.json, json.dumps(figures, indent=2).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
