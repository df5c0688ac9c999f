"""Measure decisions that nobody labelled a case for, on labelled cases of other people.

    python -m benchmarks.zero_shot --data FOLDER --model FILE [--sets NAME,...] [--letters N] [--part test]
        [--encoder] [--threads N] [--json FILE] [--markdown FILE]

The folder is that of ``benchmarks/decisions.py``. Likeness is read by the server's own code from hidden
states, which are kept in the cache: an interrupted run goes on where it stopped. ``--letters N`` asks letters for the
first N cases, too, and ``--encoder`` a sentence encoder. ``--part fit`` takes the cases that temperature and weights
were chosen on.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.progress import Progress

from benchmarks.decisions import Result, Task, bar, deliver, markdown, question_of, read_task
from benchmarks.letters_asked import letters
from benchmarks.sentence_encoder import SentenceEncoder, load
from steelyard.decisions import metrics
from steelyard.decisions.features import EngineReader, Step
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_runtime.chat_template import ChatTemplate
from steelyard_runtime.decisions.head import softmax
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.scoring.letters import Letters
from steelyard_runtime.scoring.options_as_cases import WORDING
from steelyard_runtime.scoring.strategies import STRATEGIES
from steelyard_runtime.scoring.strategies import choose as choose_readout
from steelyard_runtime.scoring.strategy import Position
from steelyard_runtime.settings import MAX_OPTIONS, load_settings

PLAIN = ChatTemplate(None, bos_text="", eos_text="")
ENCODER_TEMPERATURE = 0.05
"""As the encoder was trained."""
NO_LOGITS = np.empty(0, np.float32)


def likelihoods(
    task: Task, reader: EngineReader, *, part: str, count: int | None = None, step: Step = lambda *_: None
) -> tuple[str, metrics.Array] | None:
    """Read the first cases by the likeness of their hidden states.

    Returns:
        The readout's name and probabilities of shape ``(cases, options)``; None where only letters read such a
        question.
    """
    question = question_of(task)
    strategy = choose_readout(None, question, STRATEGIES)
    if strategy.name == Letters().name:
        return None
    readout = strategy.on(PLAIN, lambda _: [], max_options=MAX_OPTIONS)
    _, *others = readout.prompts("state-first", state="", question=question)
    fixed = [Position(NO_LOGITS, hidden) for hidden in reader.read([prompt.rest[0].text for prompt in others])]
    states = task.texts[part][:count]
    rows = [
        readout.read([Position(NO_LOGITS, each), *fixed], state=state, question=question).probabilities
        for state, each in zip(states, reader.read(states, step=step), strict=True)
    ]
    return strategy.name, np.array(rows)


def encoded(task: Task, encoder: SentenceEncoder, *, part: str) -> Result:
    """Read every case by a sentence encoder: the softmax of its cosines with the options' texts."""
    likeness = encoder.read(task.texts[part]) @ encoder.read(task.options).T
    return result(task, "sentence encoder", part, softmax(likeness.astype(np.float64) / ENCODER_TEMPERATURE))


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
    parser.add_argument("--encoder", action="store_true", help="compare texts by a sentence encoder, too")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args(arguments)
    names = chosen.sets.split(",") if chosen.sets else sorted(path.stem for path in chosen.data.glob("*.json"))
    results: list[Result] = []
    encoder = load() if chosen.encoder else None
    engine = start_engine(
        load_settings(model=str(storage.resolve(chosen.model)[0]), threads=chosen.threads, context_tokens=1024, chats=1)
    )
    try:
        reader = EngineReader(engine, wording=WORDING.name, cache=storage.cache_folder() / "hidden-states")
        with Progress(console=console.err) as progress:
            for task in (read_task(chosen.data, name) for name in names):
                step = bar(progress, f"{task.name}: states")
                if (found := likelihoods(task, reader, part=chosen.part, step=step)) is not None:
                    results.append(result(task, found[0], chosen.part, found[1]))
                if chosen.letters:
                    states, step = task.texts[chosen.part][: chosen.letters], bar(progress, f"{task.name}: letters")
                    logits, tokens = letters(engine, question_of(task), states, step=step)
                    results.append(result(task, Letters().name, chosen.part, softmax(logits)))
                    console.note(f"{task.name}: letters have {tokens:.1f} tokens behind the kept words")
                if encoder is not None and len(task.options) > 2:
                    results.append(encoded(task, encoder, part=chosen.part))
                if reader.evaluated_states:
                    console.note(f"{task.name}: {reader.evaluated_tokens / reader.evaluated_states:.1f} tokens a state")
    finally:
        engine.close(timeout_s=1)
    deliver(results, markdown(results), ("accuracy", "log_loss", "ece"), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
