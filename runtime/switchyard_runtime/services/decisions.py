"""Decisions, from the internal request to the internal answers: prompt, tokens, budget, engine, readout."""

from __future__ import annotations

import asyncio
import hashlib
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass

from switchyard_runtime.chat_template import ChatTemplate
from switchyard_runtime.decision import Answer, DecisionRequest, Timing
from switchyard_runtime.engine.interface import Engine, Score, ScoreJob
from switchyard_runtime.errors import Kind, Problem, over_budget
from switchyard_runtime.scoring import prompt, readout
from switchyard_runtime.scoring.slots import Slots, derive
from switchyard_runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class _Prepared:
    job: ScoreJob
    hashes: tuple[str, ...]


class DecisionService:
    """Answers decisions with one engine.

    Args:
        engine: The engine; its vocabulary decides the answer slots, once.
        settings: Limits and the deadline.
        template: The model's chat template.

    Raises:
        ValueError: The model's vocabulary has no usable answer slots.
    """

    def __init__(self, engine: Engine, settings: Settings, template: ChatTemplate) -> None:
        self._engine = engine
        self._settings = settings
        self._frame = prompt.frame(template)
        self._instructions = tuple(engine.encode(self._frame.before, start=True))
        self.slots: Slots = derive(
            lambda pieces: engine.encode(pieces, start=False),
            after=self._frame.after,
            prefix=self._frame.slot_prefix,
            wanted=settings.max_options,
        )

    async def decide(self, request: DecisionRequest) -> list[Answer]:
        """One answer per question, in order.

        Raises:
            Problem: Over budget, more options than the model has slots, busy, too late, or the engine failed.
        """
        began = time.monotonic()
        prepared = await asyncio.to_thread(self._prepare, request, began + self._settings.deadline_s)
        scores = await asyncio.wrap_future(self._engine.submit_score(prepared.job))
        elapsed_ms = (time.monotonic() - began) * 1000
        return [
            self._answer(score, slots=self.slots.token_ids[: len(question.options)], sha256=sha256, total_ms=elapsed_ms)
            for question, score, sha256 in zip(request.questions, scores, prepared.hashes, strict=True)
        ]

    def _prepare(self, request: DecisionRequest, deadline: float) -> _Prepared:
        for index, question in enumerate(request.questions):
            if len(question.options) > len(self.slots):
                raise Problem(
                    Kind.INVALID,
                    f"question {index} has {len(question.options)} options; "
                    f"this model's vocabulary has slots for {len(self.slots)}",
                )
        state = tuple(self._engine.encode(prompt.state_pieces(request.state), start=False))
        tails = tuple(
            tuple(
                self._engine.encode(
                    prompt.tail_pieces(question, self.slots.labels[: len(question.options)], self._frame), start=False
                )
            )
            for question in request.questions
        )
        shared = (self._instructions, state)
        allowed = self._engine.identity.model.context_tokens
        longest = len(self._instructions) + len(state) + max(map(len, tails))
        if longest > allowed:
            raise over_budget(counted=longest, allowed=allowed)
        hashes = tuple(prompt_sha256([*self._instructions, *state, *tail]) for tail in tails)
        return _Prepared(ScoreJob(shared=shared, tails=tails, deadline=deadline), hashes)

    def _answer(self, score: Score, *, slots: Sequence[int], sha256: str, total_ms: float) -> Answer:
        try:
            read = readout.read(score.logits, slots)
        except ValueError as error:
            raise Problem(Kind.ENGINE_FAILED, f"{error}; the model file may be damaged") from error
        return Answer(
            probabilities=read.probabilities,
            logits=read.logits,
            slot_token_ids=tuple(slots),
            slot_mass=read.slot_mass,
            entropy=read.entropy,
            prompt_sha256=sha256,
            prompt_version=prompt.VERSION,
            readout=readout.NAME,
            tokens=score.tokens,
            timing=Timing(queue_ms=score.queue_ms, engine_ms=score.engine_ms, total_ms=total_ms),
        )


def prompt_sha256(tokens: Sequence[int]) -> str:
    """Hash of token ids, each as a little-endian 32-bit number."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()
