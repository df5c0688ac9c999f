"""Decisions, from the internal request to the internal answers: prompt, tokens, budget, engine, readout."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from steelyard_runtime.chat_template import ChatTemplate
from steelyard_runtime.decision import Answer, DecisionRequest, Layout, Question, Timing, TokenCounts
from steelyard_runtime.engine.interface import Engine, Score, ScoreJob, ScorePrompt, Segment, Tokenizing
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.scoring import prompt, readout
from steelyard_runtime.scoring.slots import Slots, derive
from steelyard_runtime.services.answer_cache import AnswerCache
from steelyard_runtime.services.preparation import Preparing
from steelyard_runtime.services.prompts import check_length, longest_text, prompt_sha256
from steelyard_runtime.services.waiting import answered
from steelyard_runtime.settings import Settings


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One question, ready to be scored."""

    prompt: ScorePrompt
    layout: Layout
    slots: tuple[int, ...]
    sha256: str


class DecisionService:
    """Answers decisions with one engine.

    Args:
        engine: The engine; its vocabulary decides the answer slots, once.
        settings: Limits and the deadline.
        template: The model's chat template.

    Attributes:
        slots: Labels of options; none when no decision can be read.
        refusal: Why no decision can be read; empty when one can.

    Raises:
        ValueError: The model's vocabulary has no usable answer slots.
    """

    def __init__(self, engine: Engine, settings: Settings, template: ChatTemplate) -> None:
        self._engine = engine
        self._settings = settings
        self._version = template.answer_position.version
        self._allowed = engine.identity.model.context_tokens
        self._cache = AnswerCache(settings.answer_cache_entries)
        self.slots = Slots((), ())
        self.refusal = ""
        try:
            self._frame = prompt.frame(template)
        except prompt.NoFrameError as error:
            self.refusal = (
                f"This model serves no decisions: {error}. Set chat_template on the server to another template of the "
                "model, to a file, or to plain."
            )
            return
        self._instructions = Segment(tuple(engine.encode(self._frame.before, start=True)))
        self.slots = derive(
            lambda pieces: engine.encode(pieces, start=False),
            after=self._frame.after,
            prefix=self._frame.slot_prefix,
            wanted=settings.max_options,
        )

    async def decide(self, request: DecisionRequest, *, preparing: Preparing) -> list[Answer]:
        """One answer per question, in order.

        Args:
            request: The questions.
            preparing: Its admission; says who asks and until when.

        Raises:
            Problem: Over budget, more options than the model has slots, busy, too late, the engine failed, or the model
                serves no decisions.
        """
        if self.refusal:
            raise Problem(Kind.UNSUPPORTED, self.refusal)
        began = time.monotonic()
        caller = preparing.caller
        prepared = await preparing.tokenize(self._prepare, request, preparing)
        preparing.done()
        kept = [self._cache.get(each.sha256, options=len(each.slots), caller=caller) for each in prepared]
        missing = tuple(each.prompt for each, answer in zip(prepared, kept, strict=True) if answer is None)
        scores: list[Score] = []
        if missing:
            job = ScoreJob(prompts=missing, deadline=preparing.deadline, caller=caller)
            scores = await answered(self._engine.submit_score(job), deadline=job.deadline)
        elapsed_ms = (time.monotonic() - began) * 1000
        coming = iter(scores)
        answers = []
        for each, answer in zip(prepared, kept, strict=True):
            if answer is None:
                answer = self._answer(next(coming), each, total_ms=elapsed_ms)
                self._cache.put(each.sha256, answer, caller=caller)
            else:
                answer = _given_again(answer, total_ms=elapsed_ms)
            answers.append(answer)
        return answers

    def _prepare(self, request: DecisionRequest, preparing: Preparing) -> list[_Prepared]:
        for index, question in enumerate(request.questions):
            if len(question.options) > len(self.slots):
                raise Problem(
                    Kind.INVALID,
                    f"question {index} has {len(question.options)} options; "
                    f"this model's vocabulary has slots for {len(self.slots)}",
                )
        self._check_lengths(request)
        layout = request.layout or self._settings.layout
        work = Tokenizing(allowed_bytes=self._settings.max_text_bytes, wanted=preparing.check)
        return [self._prompt(request.state, question, layout, work) for question in request.questions]

    def _check_lengths(self, request: DecisionRequest) -> None:
        """Refuse prompts that cannot fit, before they are written and tokenized."""
        allowed = longest_text(self._engine.max_text_bytes, self._settings)
        check_length([request.state], allowed_bytes=allowed, what="The state")
        for index, question in enumerate(request.questions):
            texts = [question.instructions, *(option.text for option in question.options)]
            check_length(texts, allowed_bytes=allowed, what=f"Question {index}")

    def _prompt(self, state: str, question: Question, layout: Layout, work: Tokenizing) -> _Prepared:
        count = len(question.options)
        parts = prompt.parts(
            layout, state=state, question=question, labels=self.slots.labels[:count], prompt_frame=self._frame
        )
        shared = self._engine.tokenize(parts.shared, start=False, work=work)
        rest = self._engine.tokenize(parts.rest, start=False, work=work)
        counted, allowed = len(self._instructions.tokens) + len(shared) + len(rest), self._allowed
        if counted > allowed:
            raise over_budget(counted=counted, allowed=allowed)
        first = Segment(tuple(shared), private=layout == "state-first")
        return _Prepared(
            ScorePrompt(shared=(self._instructions, first), tail=rest),
            layout,
            self.slots.token_ids[:count],
            prompt_sha256(self._instructions.tokens, first.tokens, rest),
        )

    def _answer(self, score: Score, prepared: _Prepared, *, total_ms: float) -> Answer:
        try:
            read = readout.read(score.logits, prepared.slots)
        except ValueError as error:
            raise Problem(Kind.REQUEST_FAILED, f"{error}; the model file may be damaged") from error
        return Answer(
            probabilities=read.probabilities,
            logits=read.logits,
            slot_token_ids=prepared.slots,
            slot_mass=read.slot_mass,
            entropy=read.entropy,
            prompt_sha256=prepared.sha256,
            prompt_version=prompt.VERSIONS[prepared.layout] + self._version,
            readout=readout.NAME,
            tokens=score.tokens,
            timing=Timing(queue_ms=score.queue_ms, engine_ms=score.engine_ms, total_ms=total_ms),
        )


def _given_again(answer: Answer, *, total_ms: float) -> Answer:
    """A kept answer, as it is told to the next one who asks."""
    tokens = TokenCounts(prompt=answer.tokens.prompt, evaluated=0, reused=answer.tokens.prompt)
    return replace(answer, cached=True, tokens=tokens, timing=Timing(queue_ms=0.0, engine_ms=0.0, total_ms=total_ms))
