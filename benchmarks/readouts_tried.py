"""Measure ways to decide without labelled cases that are not served, beside those that are.

    python -m benchmarks.readouts_tried --data FOLDER --model FILE [--sets NAME,...] [--ways NAME,...] [--cases N]
        [--threads N] [--json FILE] [--markdown FILE]

The folder is that of ``benchmarks/decisions.py``. Only fit cases are asked, the first N: what wins here is chosen here,
and judged elsewhere. Ways are groups of readouts that share their prompts:

- ``likeness``: the readout of the server that compares texts.
- ``letters``: the options' letters; less what they get on texts that say nothing (a prior), less what they get on
  reference texts; in two orders of the options, averaged; added to the likeness.
- ``names``: the options' names as what the model writes next, by their tokens' probabilities: their sum, their mean,
  and their sum less that on texts that say nothing. Once behind the question, once behind the state alone.
- ``each``: a question of yes or no about each option, with and without that prior.
- ``rounds``: letters of eight options at a time, winners against winners; and letters of the eight likeliest only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.decisions import Task, deliver, question_of, read_task
from benchmarks.letters_asked import letters, score, template_of, tokens_of
from benchmarks.zero_shot import likelihoods
from steelyard.decisions import metrics
from steelyard.decisions.features import EngineReader
from steelyard.decisions.metrics import Array
from steelyard.models import storage
from steelyard.terminal import console
from steelyard_runtime.decision import Option, Question
from steelyard_runtime.decisions.head import Interval, softmax
from steelyard_runtime.engine.interface import Engine, Piece, ScorePrompt, Segment
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.scoring import prompt as prompts
from steelyard_runtime.scoring.options_as_cases import REFERENCES, WORDING
from steelyard_runtime.scoring.strategy import Prompt
from steelyard_runtime.scoring.wordings import state_prompt
from steelyard_runtime.settings import load_settings

SAYS_NOTHING = ("N/A", "...", "Text")
"""States without content: what a model answers to them is its habit."""
GROUP = 8
"""Options that are compared at a time."""
YES_OR_NO = (Option(id="yes", text="yes", name="yes"), Option(id="no", text="no", name="no"))
_FAR = -30.0
"""Logit of an option that is out of the running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Some cases of a data set, and the model that is asked.

    Attributes:
        engine: The model.
        reader: Of hidden states.
        task: The data set.
        cases: The first so many fit cases.
    """

    engine: Engine
    reader: EngineReader
    task: Task
    cases: int

    @property
    def question(self) -> Question:
        """The question as a request without descriptions asks it."""
        return question_of(self.task)

    @property
    def states(self) -> tuple[str, ...]:
        """The cases' texts."""
        return self.task.texts["fit"][: self.cases]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One readout on one data set.

    Attributes:
        data: The data set.
        way: The readout.
        logits: Of the options, shape ``(cases, options)``.
        tokens: What a case costs, on average, beside what is evaluated once for a question.
    """

    data: str
    way: str
    logits: Array
    tokens: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Figures of a readout on the cases of a data set; ``area`` is under the curve of yes and no, None for choices."""

    data: str
    way: str
    cases: int
    right: int
    accuracy: Interval
    log_loss: float
    area: float | None
    tokens: float


def like(asked: Asked) -> list[Tried]:
    """The likeness of texts, as the server reads it."""
    found = likelihoods(asked.task, asked.reader, part="fit", count=asked.cases)
    if found is None:
        return []
    name, probabilities = found
    cost = asked.reader.tokens_of(asked.states)
    return [Tried(data=asked.task.name, way=name, logits=np.log(probabilities), tokens=cost)]


def by_letters(asked: Asked) -> list[Tried]:
    """Letters, with and without a prior, in one order and in two, and added to the likeness."""
    own, cost = letters(asked.engine, asked.question, asked.states)
    back, _ = letters(asked.engine, _reversed(asked.question), asked.states)
    found = {
        "letters": (own, cost),
        "letters, less their prior": (own - _prior(asked, SAYS_NOTHING), cost),
        "letters, less that of reference texts": (own - _prior(asked, REFERENCES), cost),
        "letters, two orders": (_normal(own) + _normal(back[:, ::-1]), 2 * cost),
    }
    for each in like(asked):
        found["letters and likeness"] = _normal(own) + each.logits, cost + each.tokens
        found["letters, less their prior, and likeness"] = (
            _normal(own - _prior(asked, SAYS_NOTHING)) + each.logits,
            cost + each.tokens,
        )
    return _tried(asked, found)


def _prior(asked: Asked, states: Sequence[str]) -> Array:
    found, _ = letters(asked.engine, asked.question, states)
    return np.asarray(_normal(found).mean(axis=0))


def _reversed(question: Question) -> Question:
    return replace(question, options=question.options[::-1])


def by_names(asked: Asked) -> list[Tried]:
    """The options' names as what is written next, behind the question and behind the state alone."""
    frame = prompts.frame(template_of(asked.engine))
    labels = ["-"] * len(asked.question.options)

    def behind_question(state: str) -> Prompt:
        parts = prompts.parts("state-first", state=state, question=asked.question, labels=labels, prompt_frame=frame)
        return Prompt(frame.before, parts.shared, parts.rest, private=True)

    def behind_state(state: str) -> Prompt:
        return state_prompt(WORDING, state)

    found: dict[str, tuple[Array, float]] = {}
    for place, build, lead in (("question", behind_question, frame.slot_prefix), ("state", behind_state, "")):
        names = [
            tuple(asked.engine.encode([Piece(lead + option.text)], start=False)) for option in asked.question.options
        ]
        sums, cost = name_logits(asked.engine, [build(state) for state in asked.states], names)
        prior, _ = name_logits(asked.engine, [build(state) for state in SAYS_NOTHING], names)
        lengths = np.array([len(name) for name in names])
        found |= {
            f"names behind the {place}": (sums, cost),
            f"names behind the {place}, per token": (sums / lengths, cost),
            f"names behind the {place}, less their prior": (sums - prior.mean(axis=0), cost),
            f"names behind the {place}, less their prior, per token": ((sums - prior.mean(axis=0)) / lengths, cost),
        }
    return _tried(asked, found)


def name_logits(engine: Engine, asked: Sequence[Prompt], names: Sequence[tuple[int, ...]]) -> tuple[Array, float]:
    """Return the logarithm of each name's probability behind each prompt, and the mean of tokens evaluated.

    A name's probability is the product of its tokens'. What names begin with in common is evaluated once.

    Args:
        engine: The model.
        asked: Prompts whose ends the names would follow.
        names: Token ids of each name, of which there is one or more.
    """
    starts = sorted({name[:length] for name in names for length in range(len(name))})
    rows, evaluated = [], 0
    for each in asked:
        whole = tokens_of(engine, each)
        *body, last = tuple(whole.tail)
        shared = (*whole.shared, *((Segment(tuple(body), private=True),) if body else ()))
        scores = score(engine, [ScorePrompt(shared=shared, tail=(last, *start)) for start in starts])
        evaluated += sum(found.tokens.evaluated for found in scores)
        known = {start: _log_probabilities(found.logits) for start, found in zip(starts, scores, strict=True)}
        rows.append([sum(known[name[:at]][token] for at, token in enumerate(name)) for name in names])
    return np.array(rows, np.float64), evaluated / len(asked)


def _log_probabilities(logits: np.ndarray) -> Array:  # type: ignore[type-arg]
    wide = logits.astype(np.float64)
    top = wide.max()
    return np.asarray(wide - top - np.log(np.exp(wide - top).sum()))


def by_each(asked: Asked) -> list[Tried]:
    """A question of yes or no about each option."""

    def margins(states: Sequence[str]) -> tuple[Array, float]:
        columns, tokens = [], 0.0
        for option in asked.question.options:
            question = Question(instructions=f'Does "{option.text}" fit the input?', options=YES_OR_NO)
            found, cost = letters(asked.engine, question, states)
            columns.append(found[:, 0] - found[:, 1])
            tokens += cost
        return np.array(columns).T, tokens

    own, cost = margins(asked.states)
    prior, _ = margins(SAYS_NOTHING)
    return _tried(
        asked,
        {
            "yes or no for each option": (own, cost),
            "yes or no for each option, less its prior": (own - prior.mean(axis=0), cost),
        },
    )


def in_rounds(asked: Asked) -> list[Tried]:
    """Letters of some options at a time: a tournament, and those that are likeliest by likeness."""
    options = len(asked.question.options)
    winners, tokens = np.full((len(asked.states), options), _FAR), 0.0
    for row, state in zip(winners, asked.states, strict=True):
        left = list(range(options))
        while len(left) > 1:
            groups = [left[start : start + GROUP] for start in range(0, len(left), GROUP)]
            left = []
            for group in groups:
                found, cost = _of_some(asked, state, group)
                left.append(group[int(found.argmax())])
                tokens += cost
        row[left[0]] = 0.0
    found = {"letters in rounds": (winners, tokens / len(asked.states))}
    for each in like(asked):
        few, both, tokens = np.full(each.logits.shape, _FAR), np.full(each.logits.shape, _FAR), 0.0
        for index, state in enumerate(asked.states):
            group = sorted(map(int, np.argsort(-each.logits[index], kind="stable")[:GROUP]))
            own, cost = _of_some(asked, state, group)
            few[index, group] = own
            both[index, group] = own + each.logits[index, group]
            tokens += cost + each.tokens
        found[f"letters of the {GROUP} likeliest"] = few, tokens / len(asked.states)
        found[f"letters of the {GROUP} likeliest, and likeness"] = both, tokens / len(asked.states)
    return _tried(asked, found)


def _of_some(asked: Asked, state: str, group: Sequence[int]) -> tuple[Array, float]:
    if len(group) == 1:
        return np.zeros(1), 0.0
    question = replace(asked.question, options=tuple(asked.question.options[index] for index in group))
    found, cost = letters(asked.engine, question, [state])
    return _normal(found)[0], cost


WAYS: Mapping[str, Callable[[Asked], list[Tried]]] = {
    "likeness": like,
    "letters": by_letters,
    "names": by_names,
    "each": by_each,
    "rounds": in_rounds,
}


def _tried(asked: Asked, found: Mapping[str, tuple[Array, float]]) -> list[Tried]:
    return [Tried(data=asked.task.name, way=way, logits=logits, tokens=cost) for way, (logits, cost) in found.items()]


def _normal(logits: Array) -> Array:
    return np.log(softmax(logits))


def row_of(tried: Tried, labels: metrics.Labels) -> Row:
    """Return the figures of a readout; the log loss is at the temperature that is best for these cases."""
    right = int((tried.logits.argmax(axis=1) == labels).sum())
    low, high = metrics.wilson(right, len(labels))
    scales = np.geomspace(0.02, 20, 40)
    loss = min(metrics.log_loss(softmax(tried.logits * scale), labels) for scale in scales)
    area = area_under_curve(tried.logits, labels) if tried.logits.shape[1] == 2 else None
    return Row(
        data=tried.data,
        way=tried.way,
        cases=len(labels),
        right=right,
        accuracy=Interval(value=right / len(labels), low=low, high=high),
        log_loss=loss,
        area=area,
        tokens=tried.tokens,
    )


def area_under_curve(logits: Array, labels: metrics.Labels) -> float:
    """Return how often a case of the first of two options has the larger margin for it; equal margins count half.

    Examples:
        >>> area_under_curve(np.array([[2.0, 0.0], [1.0, 0.0], [0.0, 0.0]]), np.array([0, 1, 1]))
        1.0
    """
    margin = logits[:, 0] - logits[:, 1]
    pairs = margin[labels == 0][:, None] - margin[labels == 1][None, :]
    return float((pairs > 0).mean() + (pairs == 0).mean() / 2) if pairs.size else float("nan")


def markdown(rows: Sequence[Row]) -> str:
    """Return a table."""
    lines = [
        "| cases from | cases | readout | accuracy | log loss, best temperature | area | tokens |",
        "| --- | ---: | --- | --- | ---: | ---: | ---: |",
    ]
    for each in rows:
        shown = f"{each.accuracy.value:.3f} ({each.accuracy.low:.3f} to {each.accuracy.high:.3f})"
        area = "" if each.area is None else f"{each.area:.2f}"
        lines.append(
            f"| {each.data} | {each.cases} | {each.way} | {shown} | {each.log_loss:.3f} | {area} | {each.tokens:.0f} |"
        )
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", required=True, help="a name of the catalogue, or a GGUF file")
    parser.add_argument("--sets", help="names, separated by commas; all of the folder unless given")
    parser.add_argument("--ways", default=",".join(WAYS), help=f"of {', '.join(WAYS)}")
    parser.add_argument("--cases", type=int, default=40, help="fit cases that are asked")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    chosen = parser.parse_args(arguments)
    names = chosen.sets.split(",") if chosen.sets else sorted(path.stem for path in chosen.data.glob("*.json"))
    rows: list[Row] = []
    engine = start_engine(
        load_settings(model=str(storage.resolve(chosen.model)[0]), threads=chosen.threads, context_tokens=2048, chats=1)
    )
    try:
        reader = EngineReader(engine, wording=WORDING.name, cache=storage.cache_folder() / "hidden-states")
        for task in (read_task(chosen.data, name) for name in names):
            asked = Asked(engine=engine, reader=reader, task=task, cases=min(chosen.cases, len(task.texts["fit"])))
            for way in chosen.ways.split(","):
                found = [row_of(tried, task.labels["fit"][: asked.cases]) for tried in WAYS[way](asked)]
                rows += found
                for each in found:
                    console.note(f"{each.data}, {each.way}: {each.right} of {each.cases} right")
    finally:
        engine.close(timeout_s=1)
    deliver(rows, markdown(rows), ("accuracy",), chosen)
    return 0


if __name__ == "__main__":
    sys.exit(main())
