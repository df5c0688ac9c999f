"""Letters of a model for benchmarks, by the server's own code in this process: no server, no HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from steelyard.decisions.metrics import Array
from steelyard_runtime.chat_template import ChatTemplate, choose
from steelyard_runtime.decision import Question
from steelyard_runtime.engine.interface import Engine, Score, ScoreJob, ScorePrompt, Segment
from steelyard_runtime.scoring.letters import Letters
from steelyard_runtime.scoring.strategy import Position, Prompt
from steelyard_runtime.settings import load_settings

_DEADLINE_S = 3600.0


def template_of(engine: Engine) -> ChatTemplate:
    """Return the chat template that the server would choose."""
    model = engine.identity.model
    template, _ = choose(
        load_settings().chat_template,
        default=model.chat_template,
        named=model.named_templates,
        bos_text=model.bos_text,
        eos_text=model.eos_text,
    )
    return template


def score(engine: Engine, prompts: Sequence[ScorePrompt]) -> list[Score]:
    """Return the ends of prompts."""
    found: list[Score] = list(
        engine.submit_score(ScoreJob(prompts=tuple(prompts), deadline=time.monotonic() + _DEADLINE_S)).result()
    )
    return found


def tokens_of(engine: Engine, prompt: Prompt) -> ScorePrompt:
    """Return a prompt as tokens; what its strategy lets others share is shared."""
    shared = [Segment(tuple(engine.encode(prompt.before, start=True)))]
    if prompt.shared:
        shared.append(Segment(tuple(engine.encode(prompt.shared, start=False)), private=prompt.private))
    return ScorePrompt(shared=tuple(shared), tail=tuple(engine.encode(prompt.rest, start=False)))


def letters(
    engine: Engine, question: Question, states: Sequence[str], *, step: Callable[[int, int], None] = lambda *_: None
) -> tuple[Array, float]:
    """Ask a question about each state, the state first.

    Returns:
        The letters' logits, shape ``(states, options)``, and the tokens that a state costs behind the kept words.
    """
    reader = Letters().on(
        template_of(engine), lambda pieces: engine.encode(pieces, start=False), max_options=len(question.options)
    )
    rows, tokens = [], 0
    for done, state in enumerate(states, start=1):
        (asked,) = reader.prompts("state-first", state=state, question=question)
        prompt = tokens_of(engine, asked)
        (found,) = score(engine, [prompt])
        tokens += len(prompt) - len(prompt.shared[0].tokens)
        rows.append(reader.read([Position(found.logits)], state=state, question=question).logits)
        step(done, len(states))
    return np.array(rows, np.float64).reshape(len(states), len(question.options)), tokens / max(1, len(states))
