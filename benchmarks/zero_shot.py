"""Measure decisions that nobody labelled a case for, on labelled cases of other people.

    python -m benchmarks.zero_shot --data FOLDER --model FILE [--sets NAME,...] [--letters N] [--part test]
        [--threads N] [--json FILE] [--markdown FILE]

The folder is that of ``benchmarks/decisions.py``. Likeness is read by the server's own code from hidden
states, which are kept in the cache: an interrupted run goes on where it stopped. ``--letters N`` asks letters for the
first N cases, too. ``--part fit`` takes the cases that temperature and weights were chosen on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from rich.progress import Progress

from benchmarks.decisions import Result, Task, markdown, read_task
from steelyard.decisions import metrics
from steelyard.decisions.features import EngineReader
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_runtime.chat_template import ChatTemplate, choose
from steelyard_runtime.decision import Option, Question
from steelyard_runtime.engine.interface import Engine, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.scoring.letters import Letters
from steelyard_runtime.scoring.options_as_cases import WORDING
from steelyard_runtime.scoring.strategies import STRATEGIES
from steelyard_runtime.scoring.strategies import choose as choose_readout
from steelyard_runtime.scoring.strategy import Position
from steelyard_runtime.settings import MAX_OPTIONS, load_settings

PLAIN = ChatTemplate(None, bos_text="", eos_text="")
NO_LOGITS = np.empty(0, np.float32)


def question_of(task: Task) -> Question:
    """Return the question as a request without descriptions asks it."""
    return Question(
        instructions=task.question, options=tuple(Option(id=text, text=text, name=text) for text in task.options)
    )


def likeness(task: Task, reader: EngineReader, *, part: str, progress: Progress) -> Result | None:
    """Read every case by the likeness of its hidden state; None where only letters read such a question."""
    question = question_of(task)
    strategy = choose_readout(None, question, STRATEGIES)
    if strategy.name == Letters().name:
        return None
    bar = progress.add_task(f"{task.name}: states")
    readout = strategy.on(PLAIN, lambda _: [], max_options=MAX_OPTIONS)
    _, *others = readout.prompts("state-first", state="", question=question)
    fixed = [Position(NO_LOGITS, hidden) for hidden in reader.read([prompt.rest[0].text for prompt in others])]
    states = task.texts[part]
    hidden = reader.read(states, step=lambda done, total: progress.update(bar, completed=done, total=total))
    rows = [
        readout.read([Position(NO_LOGITS, each), *fixed], state=state, question=question).probabilities
        for state, each in zip(states, hidden, strict=True)
    ]
    return result(task, strategy.name, part, np.array(rows))


def letters(task: Task, engine: Engine, *, part: str, count: int, progress: Progress) -> tuple[Result, float]:
    """Ask the letters of the first cases; also the tokens of one."""
    model = engine.identity.model
    template, _ = choose(
        load_settings().chat_template,
        default=model.chat_template,
        named=model.named_templates,
        bos_text=model.bos_text,
        eos_text=model.eos_text,
    )
    question = question_of(task)
    reader = Letters().on(
        template, lambda pieces: engine.encode(pieces, start=False), max_options=len(question.options)
    )
    rows, tokens = [], 0
    for state in progress.track(task.texts[part][:count], description=f"{task.name}: letters"):
        (asked,) = reader.prompts("state-first", state=state, question=question)
        shared = Segment(tuple(engine.encode(asked.before, start=True)))
        tail = tuple(engine.encode([*asked.shared, *asked.rest], start=False))
        job = ScoreJob(prompts=(ScorePrompt(shared=(shared,), tail=tail),), deadline=time.monotonic() + 3600)
        (score,) = engine.submit_score(job).result()
        tokens += len(tail)
        rows.append(reader.read([Position(score.logits)], state=state, question=question).probabilities)
    return result(task, Letters().name, part, np.array(rows)), tokens / len(rows)


def result(task: Task, way: str, part: str, probabilities: metrics.Array) -> Result:
    """Return the figures of probabilities of the first cases."""
    figures = metrics.figures(probabilities, task.labels[part][: len(probabilities)])
    return Result(data=task.name, way=way, cases=0, judged=len(probabilities), **dict(figures))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True, help="a name of the catalogue, or a GGUF file")
    parser.add_argument("--sets", help="names, separated by commas; all of the folder unless given")
    parser.add_argument("--part", choices=("fit", "test"), default="test")
    parser.add_argument("--letters", type=int, default=0, help="cases whose letters are asked")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args(arguments)
    names = chosen.sets.split(",") if chosen.sets else sorted(path.stem for path in chosen.data.glob("*.json"))
    results: list[Result] = []
    engine = start_engine(
        load_settings(model=str(storage.resolve(chosen.model)[0]), threads=chosen.threads, context_tokens=1024, chats=1)
    )
    try:
        reader = EngineReader(engine, wording=WORDING.name, cache=storage.cache_folder() / "hidden-states")
        with Progress(console=console.err) as progress:
            for task in (read_task(chosen.data, name) for name in names):
                if (found := likeness(task, reader, part=chosen.part, progress=progress)) is not None:
                    results.append(found)
                if chosen.letters:
                    told, tokens = letters(task, engine, part=chosen.part, count=chosen.letters, progress=progress)
                    results.append(told)
                    console.note(f"{task.name}: letters have {tokens:.1f} tokens behind the kept words")
                if reader.evaluated_states:
                    console.note(f"{task.name}: {reader.evaluated_tokens / reader.evaluated_states:.1f} tokens a state")
    finally:
        engine.close(timeout_s=1)
    table = markdown(results)
    sys.stdout.write(table)
    if chosen.markdown:
        chosen.markdown.write_text(table, encoding="utf-8")
    if chosen.json:
        figures = ("accuracy", "log_loss", "ece")
        said = [asdict(each) | {name: getattr(each, name).model_dump() for name in figures} for each in results]
        chosen.json.write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
