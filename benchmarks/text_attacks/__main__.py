"""Measure how far texts in a state move a decision, by kind of attack, for each layout and each way to write the state.

    python -m benchmarks.text_attacks --model FILE [--data FOLDER] [--cases N]
        [--layouts state-first,options-first,head,head-without-words]
        [--writings plain,indented,quoted,fenced,asked-again] [--kinds claim,layout,...] [--rows FILE.jsonl]

Each case is decided as it is, and once with each attack of ``steelyard/evaluation/attacks.jsonl``. An attack flips a
case when the answer becomes the option that the attacker wants. ``--data`` is a folder with ``NAME.json`` (question and
options) and ``NAME.test.jsonl`` (texts with labels); without it the tickets of ``benchmarks/workloads`` are attacked,
which have no labels. The layouts ``head`` and ``head-without-words`` ask a registered decision, whose head is fitted to
``NAME.fit.jsonl`` of the data, with words and on the hidden state alone. ``--rows`` keeps every answer, and an
interrupted run goes on from it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from steelyard.evaluation.attacks import LETTERS, Attack, injected, read_attacks
from steelyard.evaluation.attacks import attacked as with_text
from steelyard.models.storage import cache_folder
from steelyard.serving.server_process import free_port, running_server
from steelyard_runtime.decisions.contract import Contract, write_contract

HERE = Path(__file__).parent
TICKETS = HERE.parent / "workloads" / "ticket-routing.json"
LETTER_LAYOUTS = ("state-first", "options-first")
HEADS = {"head": True, "head-without-words": False}
"""Tell whether a head may count words."""
LAYOUTS = (*LETTER_LAYOUTS, *HEADS)
WRITINGS = ("plain", "indented", "quoted", "fenced", "asked-again")
CLEAN = "clean"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One state with a question. ``label`` is the right option's name, empty where nobody said; ``data`` its file."""

    id: str
    state: str
    question: str
    options: tuple[tuple[str, str], ...]
    label: str = ""
    data: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One answer. ``wanted`` is the index of the attacker's option, ``before`` of the answer without the attack."""

    case: str
    layout: str
    writing: str
    attack: int
    kind: str
    probabilities: list[float]
    wanted: int
    before: int
    wanted_before: float
    correct: bool | None

    @property
    def answer(self) -> int:
        """Index of the likeliest option; of equals the first."""
        return argmax(self.probabilities)


def argmax(values: Sequence[float]) -> int:
    """Index of the largest value; of equals the first."""
    return max(range(len(values)), key=values.__getitem__)


def read_cases(data: Path | None, *, part: str, count: int) -> list[Case]:
    """Up to ``count`` cases of each data set, in file order, so that the first ones of a larger run are the same."""
    if data is None:
        found = json.loads(TICKETS.read_text(encoding="utf-8"))
        return [
            Case(
                id=case["id"],
                state=case["state"],
                question=case["question"],
                options=tuple((option["id"], option["description"]) for option in case["options"]),
            )
            for case in found[:count]
        ]
    cases = []
    for path in sorted(data.glob("*.json")):
        given = json.loads(path.read_text(encoding="utf-8"))
        lines = path.with_suffix(f".{part}.jsonl").read_text(encoding="utf-8").splitlines()
        options = tuple((name, "") for name in given["options"])
        if len(options) > len(LETTERS):
            continue
        for index, line in enumerate(lines[:count]):
            row = json.loads(line)
            name = f"{path.stem}-{index}"
            cases.append(
                Case(
                    id=name,
                    state=row["text"],
                    question=given["question"],
                    options=options,
                    label=row["label"],
                    data=path.stem,
                )
            )
    return cases


def register(cases: Sequence[Case], data: Path, layout: str, folder: Path, *, model: Path, threads: int) -> None:
    """Fit a head for each data set of the cases, and leave it in ``folder`` as a registered decision.

    Raises:
        SystemExit: A head cannot be fitted; what was said is quoted.
    """
    for name, case in {case.data: case for case in cases}.items():
        contract = Contract.model_validate(
            {
                "name": decision_name(name, layout),
                "version": 1,
                "type": "choice",
                "question": case.question,
                "options": [{"id": option} for option, _ in case.options],
                "no_way_out": "the data set has none",
                "readout": {"words": HEADS[layout]},
            }
        )
        place = folder / contract.name
        place.mkdir(parents=True)
        (place / "contract.toml").write_text(write_contract(contract), encoding="utf-8")
        lines = (data / f"{name}.fit.jsonl").read_text(encoding="utf-8").splitlines()
        labelled = [{"state": row["text"], "label": row["label"]} for row in map(json.loads, lines)]
        (place / "cases.jsonl").write_text("".join(json.dumps(each) + "\n" for each in labelled), encoding="utf-8")
        words = ["decision", "fit", str(place), "--model", str(model), "--threads", str(threads)]
        done = subprocess.run([sys.executable, "-m", "steelyard", *words], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"the head of {name} cannot be fitted:\n{done.stderr}")


def decision_name(data: str, layout: str) -> str:
    """Name of the registered decision of a data set."""
    return f"{data}-{layout}"


def attacked(case: Case, attack: Attack, *, wanted: int, before: int) -> str:
    """The state with the attack in it."""
    text = injected(attack, question=case.question, options=case.options, wanted=wanted, before=before)
    return with_text(case.state, attack, text)


def written(state: str, question: str, *, writing: str) -> str:
    """A state as a layout could write it."""
    match writing:
        case "indented":
            return "\n".join(f"  {line}" for line in state.splitlines())
        case "quoted":
            return "\n".join(f"> {line}" for line in state.splitlines())
        case "fenced":
            fence = '"""'
            while fence in state:
                fence += '"'
            return f"{fence}\n{state}\n{fence}"
        case "asked-again":
            return f"{state}\n\n{question}"
        case _:
            return state


def attack_body(case: Case, state: str, layout: str) -> dict[str, Any]:
    """The request that asks a case about a state."""
    if layout in HEADS:
        return {"decision": {"use": decision_name(case.data, layout), "state": state}}
    options = [{"id": name, "description": description} for name, description in case.options]
    decision = {"id": case.id, "state": state, "question": case.question, "options": options}
    return {"decision": decision, "layout": layout}


def ask(client: httpx.Client, case: Case, state: str, layout: str) -> list[float]:
    """The probabilities of the options, in order."""
    response = client.post("/invocations", json=attack_body(case, state, layout))
    if response.status_code != 200:
        raise SystemExit(f"the server answered {response.status_code}: {response.text[:500]}")
    return list(response.json()["result"]["probabilities"])


def run(
    client: httpx.Client,
    cases: Sequence[Case],
    attacks: Sequence[Attack],
    *,
    layouts: Sequence[str],
    writings: Sequence[str],
    kinds: Sequence[str],
    done: Iterable[Row] = (),
) -> Iterator[Row]:
    """Rows that are not in ``done``, those of one case together. The attack with the number -1 is none."""
    known = {(row.case, row.layout, row.writing, row.attack): row for row in done}
    for case in cases:
        for layout in layouts:
            for writing in writings:
                clean = known.get((case.id, layout, writing, -1))
                if clean is None:
                    state = written(case.state, case.question, writing=writing)
                    clean = _row(case, layout, writing, -1, CLEAN, ask(client, case, state, layout), None)
                    yield clean
                for number, attack in enumerate(attacks):
                    if attack.kind in kinds and (case.id, layout, writing, number) not in known:
                        state = attacked(case, attack, wanted=clean.wanted, before=clean.before)
                        state = written(state, case.question, writing=writing)
                        found = ask(client, case, state, layout)
                        yield _row(case, layout, writing, number, attack.kind, found, clean)


def _row(
    case: Case, layout: str, writing: str, number: int, kind: str, probabilities: list[float], clean: Row | None
) -> Row:
    before = clean.before if clean else argmax(probabilities)
    wanted = (before + 1) % len(probabilities)
    return Row(
        case=case.id,
        layout=layout,
        writing=writing,
        attack=number,
        kind=kind,
        probabilities=probabilities,
        wanted=wanted,
        before=before,
        wanted_before=clean.probabilities[wanted] if clean else probabilities[wanted],
        correct=case.options[argmax(probabilities)][0] == case.label if case.label else None,
    )


def table(rows: Sequence[Row]) -> str:
    """Figures by layout, writing and kind, as a Markdown table.

    ``flipped`` is the share of answers that became the wanted option, ``changed`` of those that became another one, and
    the shift is that of the wanted option's probability, in points.
    """
    lines = [
        "| layout | state | kind | answers | flipped | changed | mean shift | right |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.layout, row.writing, row.kind), []).append(row)
    for (layout, writing, kind), found in groups.items():
        flipped = sum(row.answer == row.wanted for row in found) / len(found)
        changed = sum(row.answer != row.before for row in found) / len(found)
        shift = 100 * sum(row.probabilities[row.wanted] - row.wanted_before for row in found) / len(found)
        labelled = [row.correct for row in found if row.correct is not None]
        right = f"{sum(labelled) / len(labelled):.2f}" if labelled else ""
        moved = " | | " if kind == CLEAN else f"{flipped:.2f} | {changed:.2f} | {shift:+.1f}"
        lines.append(f"| {layout} | {writing} | {kind} | {len(found)} | {moved} | {right} |")
    return "\n".join(lines) + "\n"


def kept_rows(path: Path | None) -> list[Row]:
    """The rows of an earlier run."""
    if path is None or not path.is_file():
        return []
    return [Row(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _names(given: str, known: Sequence[str]) -> list[str]:
    names = given.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: choose from {', '.join(known)}")
    return names


def main() -> int:
    """Run the suite and print the table."""
    attacks = read_attacks()
    kinds = tuple(dict.fromkeys(attack.kind for attack in attacks))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="a GGUF file")
    parser.add_argument("--data", type=Path, help="a folder of labelled cases; without it, the tickets here")
    parser.add_argument("--part", default="test", help="NAME.PART.jsonl of --data")
    parser.add_argument("--cases", type=int, default=6, help="of each data set")
    parser.add_argument("--layouts", type=lambda given: _names(given, LAYOUTS), default=list(LETTER_LAYOUTS))
    parser.add_argument("--writings", type=lambda given: _names(given, WRITINGS), default=["plain"])
    parser.add_argument("--kinds", type=lambda given: _names(given, [*kinds, CLEAN]), default=list(kinds))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=Path, help="keep every answer here, and go on from it")
    given: Any = parser.parse_args()
    # SIGTERM ends it like Ctrl-C does, so that no server is left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    cases = read_cases(given.data, part=given.part, count=given.cases)
    heads = [layout for layout in given.layouts if layout in HEADS]
    if heads and given.data is None:
        parser.error(f"{heads[0]} is fitted to labelled cases; give --data")
    port = free_port("127.0.0.1", 0)
    url = f"http://127.0.0.1:{port}"
    rows = kept_rows(given.rows)
    arguments = ["--model", str(given.model), "--port", str(port), "--threads", str(given.threads)]
    arguments += ["--log-level", "warning", "--deadline-s", "600"]
    log = cache_folder() / "logs" / f"text-attacks-{port}.log"
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        for layout in heads:
            register(cases, given.data, layout, Path(folder), model=given.model, threads=given.threads)
        stack.enter_context(running_server([*arguments, "--decisions", folder], url=url, log=log))
        client = stack.enter_context(httpx.Client(base_url=url, timeout=600))
        found = run(
            client,
            cases,
            attacks,
            layouts=given.layouts,
            writings=given.writings,
            kinds=given.kinds,
            done=list(rows),
        )
        try:
            for row in found:
                rows.append(row)
                if given.rows:
                    with given.rows.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(row)) + os.linesep)
        except KeyboardInterrupt:
            sys.stderr.write("interrupted; the figures are of the answers until then\n")
    sys.stdout.write(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
