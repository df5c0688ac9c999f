"""Decisions, from the internal request to the internal answers: prompt, tokens, budget, engine, readout."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from steelyard_runtime.chat_template import ChatTemplate
from steelyard_runtime.decision import Answer, DecisionRequest, Layout, Question, Shadowed, Timing, TokenCounts
from steelyard_runtime.decisions.registry import Registry, RegistryError
from steelyard_runtime.engine.interface import (
    Engine,
    Piece,
    Score,
    ScoreJob,
    ScorePrompt,
    Segment,
    Tokenizing,
)
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.scoring.letters import Letters
from steelyard_runtime.scoring.prompt import NoFrameError
from steelyard_runtime.scoring.strategies import STRATEGIES, Strategies, choose, in_order
from steelyard_runtime.scoring.strategy import Position, Prompt, Reader, Strategy
from steelyard_runtime.scoring.wordings import WORDINGS, Wording
from steelyard_runtime.services.answer_cache import AnswerCache
from steelyard_runtime.services.kept_ends import KeptEnds
from steelyard_runtime.services.preparation import Preparing
from steelyard_runtime.services.prompts import check_length, longest_text, prompt_sha256
from steelyard_runtime.services.waiting import answered
from steelyard_runtime.settings import Settings

_BETWEEN = (0xFFFFFFFF,)
"""Stands between two prompts of one question in their hash; no token has this number."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """One question, ready to be scored.

    Attributes:
        question: The question.
        strategy: How it is read.
        reader: The strategy on this model.
        asked: Its prompts.
        prompts: The same in tokens.
        kept: What is known of each already.
        layout: What comes first.
        sha256: Of all tokens.
        asked_sha256: Of the state's and the options' texts.
    """

    question: Question
    strategy: Strategy
    reader: Reader
    asked: tuple[Prompt, ...]
    prompts: tuple[ScorePrompt, ...]
    kept: tuple[Score | None, ...]
    layout: Layout
    sha256: str
    asked_sha256: str


@dataclass(frozen=True, slots=True)
class _Shadow:
    """A question that is decided beside another one; ``prepared`` is None where it cannot be scored."""

    question: Question
    prepared: _Prepared | None


class DecisionService:
    """Answers decisions with one engine.

    Args:
        engine: The engine; its vocabulary decides the answer slots, once.
        settings: Limits and the deadline.
        template: The model's chat template.
        strategies: The readouts, by name; the first one that can reads what names none.
        registry: The registered decisions; their heads are readouts too.

    Attributes:
        refusal: Why a readout cannot be used with this model; empty when all can.
        strategies: All readouts.

    Raises:
        ValueError: The model's vocabulary has no usable answer slots.
        RegistryError: A head was fitted on another model, build or prompt, or a decision can never be asked.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        template: ChatTemplate,
        *,
        strategies: Strategies = STRATEGIES,
        registry: Registry = Registry(),  # noqa: B008 - it cannot change
    ) -> None:
        self._engine = engine
        registry.check(engine.identity, prompt_sha256=self._wording_sha256)
        self._settings = settings
        self._registry = registry
        self._unregistered = tuple(strategies)
        ordered = in_order(strategies, setting=settings.readout, parameters=engine.identity.model.parameters)
        self.strategies = {**ordered, **registry.strategies()}
        self._version = template.answer_position.version
        self._allowed = engine.identity.model.context_tokens
        self._cache = AnswerCache(settings.answer_cache_entries)
        self._ends = KeptEnds()
        self._begun: dict[tuple[Piece, ...], Segment] = {}
        self._readers: dict[str, Reader] = {}
        self._refusals: dict[str, str] = {}
        for name, strategy in self.strategies.items():
            try:
                self._readers[name] = strategy.on(
                    template, lambda pieces: engine.encode(pieces, start=False), max_options=settings.max_options
                )
            except NoFrameError as error:
                self._refusals[name] = (
                    f"This model serves no decisions: {error}. Set chat_template on the server to another template of "
                    "the model, to a file, or to plain."
                )
        self.refusal = next(iter(self._refusals.values()), "")
        self._check_registered()

    def _check_registered(self) -> None:
        """Refuse registered decisions that no request could ask."""
        for name, each in self._registry.decisions.items():
            if refusal := self._refusals.get(each.readout):
                raise RegistryError(f"the decision {name} cannot be served: {refusal}")
            if refusal := self.strategies[each.readout].refusal(each.question):
                raise RegistryError(f"the decision {name} cannot be read by {each.readout}: {refusal}")
            options, most = len(each.contract.options), self._readers[each.readout].most_options
            if options > most:
                raise RegistryError(
                    f"the decision {name} has {options} options, and {most} can be kept apart here: the vocabulary has "
                    "no more letters, or the setting max_options is lower. Take options out, or fit a head"
                )

    def _wording_sha256(self, wording: Wording) -> str:
        encode = self._engine.encode
        return prompt_sha256(encode(wording.before, start=True), encode(wording.after, start=False))

    def keep_warm(self) -> None:
        """Have the words before every registered head's state evaluated, and kept for good.

        Raises:
            Problem: They do not fit into ``prefix_cache_mib``, or the engine failed.
        """
        wordings = {each.head.description.bound.wording for each in self._registry.decisions.values() if each.head}
        for name in sorted(wordings):
            tokens = tuple(self._engine.encode(WORDINGS[name].before, start=True))
            self._engine.keep_warm((Segment(tokens),)).result(self._settings.decode_timeout_s)

    def contract_sha256(self, name: str) -> str:
        """Return the hash of the contract of a registered decision, ``NAME@VERSION``."""
        return self._registry.decisions[name].contract.sha256

    @property
    def most_options(self) -> int:
        """Options that a question may have with every readout of this model; 0 when one cannot be used."""
        if any(name in self._refusals for name in self._unregistered):
            return 0
        return self._readers[Letters().name].most_options

    async def decide(self, request: DecisionRequest, *, preparing: Preparing) -> list[Answer]:
        """One answer per question, in order.

        Args:
            request: The questions.
            preparing: Its admission; says who asks and until when.

        Raises:
            Problem: Over budget, more options than the model has slots, an unknown readout, busy, too late, the engine
                failed, or the model serves no decisions.
        """
        chosen = [
            choose(each.readout or request.readout, each, self.strategies, request.layout) for each in request.questions
        ]
        for strategy in chosen:
            if refusal := self._refusals.get(strategy.name):
                raise Problem(Kind.UNSUPPORTED, refusal)
        began = time.monotonic()
        caller = preparing.caller
        prepared = await preparing.tokenize(self._prepare, request, chosen, preparing)
        shadows = await preparing.tokenize(self._prepare_shadows, request, preparing) if self._registry.shadows else {}
        preparing.done()
        kept = [
            self._cache.get(each.sha256, readout=each.strategy.name, asked=each.asked_sha256, caller=caller)
            for each in prepared
        ]
        missing = [each for each, answer in zip(prepared, kept, strict=True) if answer is None]
        missing += [
            shadow.prepared for index, shadow in shadows.items() if kept[index] is None and shadow.prepared is not None
        ]
        ends = [end for each in missing for end in zip(each.prompts, each.kept, strict=True)]
        scores = {prompt: score for prompt, score in ends if score is not None}
        # What several questions share to the last token is scored once.
        wanted = tuple(dict.fromkeys(prompt for prompt, _ in ends if prompt not in scores))
        if wanted:
            job = ScoreJob(prompts=wanted, deadline=preparing.deadline, caller=caller)
            found = await answered(self._engine.submit_score(job), deadline=job.deadline)
            scores.update(zip(wanted, found, strict=True))
            self._keep(missing, dict(zip(wanted, found, strict=True)))
        elapsed_ms = (time.monotonic() - began) * 1000
        answers = []
        for each, answer in zip(prepared, kept, strict=True):
            if answer is None:
                answer = self._answer(each, [scores[prompt] for prompt in each.prompts], request.state, elapsed_ms)
                scores.update((prompt, _shared(scores[prompt])) for prompt in each.prompts)
            else:
                answer = _given_again(answer, total_ms=elapsed_ms)
            answers.append(answer)
        # Behind all answers, so that what an answer and a shadow share counts as the answer's.
        for index, each in enumerate(prepared):
            if kept[index] is not None:
                continue
            if (shadow := shadows.get(index)) is not None:
                shadowed = self._shadowed(shadow, each.question, answers[index], scores, state=request.state)
                answers[index] = replace(answers[index], shadow=shadowed)
            self._cache.put(each.sha256, answers[index], asked=each.asked_sha256, caller=caller)
        return answers

    def _prepare_shadows(self, request: DecisionRequest, preparing: Preparing) -> dict[int, _Shadow]:
        """The shadows of a request's questions, by the index of the question."""
        work = Tokenizing(allowed_bytes=self._settings.max_text_bytes, wanted=preparing.check)
        layout = request.layout or self._settings.layout
        found = {}
        for index, question in enumerate(request.questions):
            if (asked := self._registry.shadow_of(question)) is None:
                continue
            try:
                ready = self._prepared(
                    request.state, asked, choose(asked.readout, asked, self.strategies), layout, work
                )
            except Problem:  # such as a longer prompt than fits: the answer does not need it
                ready = None
            found[index] = _Shadow(asked, ready)
        return found

    def _shadowed(
        self, shadow: _Shadow, question: Question, answer: Answer, scores: dict[ScorePrompt, Score], *, state: str
    ) -> Shadowed:
        """The answer of a shadow. Whatever goes wrong with it is recorded, and never the request's failure."""
        ruling, registration = answer.ruling, shadow.question.registration
        assert ruling is not None and registration is not None  # noqa: S101, PT018 - both are registered
        failed = Shadowed(decision=ruling.decision, shadow=registration.name, outcome="failed")
        if (ready := shadow.prepared) is None:
            return failed
        try:
            other = self._answer(ready, [scores[prompt] for prompt in ready.prompts], state, 0.0)
        except Problem:
            return failed
        scores.update((prompt, _shared(scores[prompt])) for prompt in ready.prompts)
        assert other.ruling is not None  # noqa: S101 - it is registered
        return replace(
            failed,
            outcome="agrees" if _likeliest(question, answer) == _likeliest(shadow.question, other) else "differs",
            action=other.ruling.action,
            evaluated=other.tokens.evaluated,
        )

    def _keep(self, prepared: Sequence[_Prepared], scores: Mapping[ScorePrompt, Score]) -> None:
        """Keep the ends that later decisions need."""
        for each in prepared:
            for asked, prompt in zip(each.asked, each.prompts, strict=True):
                if asked.kept and (score := scores.get(prompt)) is not None:
                    self._ends.put(asked, prompt, score)

    def _prepare(self, request: DecisionRequest, chosen: Sequence[Strategy], preparing: Preparing) -> list[_Prepared]:
        for index, (question, strategy) in enumerate(zip(request.questions, chosen, strict=True)):
            if len(question.options) > (most := self._readers[strategy.name].most_options):
                raise Problem(
                    Kind.INVALID,
                    f"question {index} has {len(question.options)} options; "
                    f"this model's vocabulary has slots for {most}",
                )
        self._check_lengths(request)
        layout = request.layout or self._settings.layout
        work = Tokenizing(allowed_bytes=self._settings.max_text_bytes, wanted=preparing.check)
        return [
            self._prepared(request.state, question, strategy, layout, work)
            for question, strategy in zip(request.questions, chosen, strict=True)
        ]

    def _check_lengths(self, request: DecisionRequest) -> None:
        """Refuse prompts that cannot fit, before they are written and tokenized."""
        allowed = longest_text(self._engine.max_text_bytes, self._settings)
        check_length([request.state], allowed_bytes=allowed, what="The state")
        for index, question in enumerate(request.questions):
            texts = [question.instructions, *(option.text for option in question.options)]
            check_length(texts, allowed_bytes=allowed, what=f"Question {index}")

    def _prepared(
        self, state: str, question: Question, strategy: Strategy, layout: Layout, work: Tokenizing
    ) -> _Prepared:
        reader = self._readers[strategy.name]
        asked = reader.prompts(layout, state=state, question=question)
        ends = [self._ends.get(prompt) if prompt.kept else None for prompt in asked]
        prompts = tuple(
            end.tokens if end else self._tokenized(prompt, work, hidden=strategy.hidden)
            for prompt, end in zip(asked, ends, strict=True)
        )
        parts = [(*(segment.tokens for segment in each.shared), each.tail) for each in prompts]
        sha256 = prompt_sha256(*parts[0], *(part for each in parts[1:] for part in (_BETWEEN, *each)))
        kept = tuple(end.score if end else None for end in ends)
        texts = [state, *(option.text for option in question.options)]
        asked_sha256 = hashlib.sha256(json.dumps(texts).encode()).hexdigest()
        return _Prepared(question, strategy, reader, asked, prompts, kept, layout, sha256, asked_sha256)

    def _tokenized(self, prompt: Prompt, work: Tokenizing, *, hidden: bool) -> ScorePrompt:
        """The prompt in tokens, cut where others may continue."""
        before = self._begun.get(prompt.before)
        if before is None:  # so many as the strategies have: callers have no part in it
            before = self._begun[prompt.before] = Segment(tuple(self._engine.encode(prompt.before, start=True)))
        shared = self._engine.tokenize(prompt.shared, start=False, work=work)
        rest = self._engine.tokenize(prompt.rest, start=False, work=work)
        counted = len(before.tokens) + len(shared) + len(rest)
        if counted > self._allowed:
            raise over_budget(counted=counted, allowed=self._allowed)
        segments = [before]
        if shared:
            segments.append(Segment(tuple(shared), private=prompt.private))
        return ScorePrompt(shared=tuple(segments), tail=rest, hidden=hidden)

    def _answer(self, prepared: _Prepared, scores: Sequence[Score], state: str, total_ms: float) -> Answer:
        positions = [Position(score.logits, score.hidden) for score in scores]
        try:
            read = prepared.reader.read(positions, state=state, question=prepared.question)
        except ValueError as error:
            raise Problem(Kind.REQUEST_FAILED, f"{error}; the model file may be damaged") from error
        registration = prepared.question.registration
        return Answer(
            probabilities=read.probabilities,
            logits=read.logits,
            slot_token_ids=read.slot_token_ids,
            slot_mass=read.slot_mass,
            entropy=read.entropy,
            prompt_sha256=prepared.sha256,
            prompt_version=self._prompt_version(prepared),
            readout=prepared.strategy.name,
            probability_status="calibrated" if prepared.strategy.calibrated else "uncalibrated",
            ruling=None if registration is None else self._registry.decisions[registration.name].rule(read),
            tokens=TokenCounts(
                prompt=sum(score.tokens.prompt for score in scores),
                evaluated=sum(score.tokens.evaluated for score in scores),
                reused=sum(score.tokens.reused for score in scores),
            ),
            timing=Timing(
                queue_ms=max(score.queue_ms for score in scores),
                engine_ms=sum(score.engine_ms for score in scores),
                total_ms=total_ms,
            ),
        )

    def _prompt_version(self, prepared: _Prepared) -> str:
        version = prepared.strategy.prompt_version(prepared.layout)
        return version + self._version if prepared.strategy.in_template else version


def _likeliest(question: Question, answer: Answer) -> str:
    """The id of the likeliest option; of equals the first."""
    probabilities = answer.probabilities
    return question.options[max(range(len(probabilities)), key=probabilities.__getitem__)].id


def _shared(score: Score) -> Score:
    """A score for the next question of the request that has the same prompt: nothing was evaluated."""
    tokens = TokenCounts(prompt=score.tokens.prompt, evaluated=0, reused=score.tokens.prompt)
    return replace(score, tokens=tokens, engine_ms=0.0)


def _given_again(answer: Answer, *, total_ms: float) -> Answer:
    """A kept answer, for the next request that asks for it."""
    tokens = TokenCounts(prompt=answer.tokens.prompt, evaluated=0, reused=answer.tokens.prompt)
    shadow = None if answer.shadow is None else replace(answer.shadow, evaluated=0)
    timing = Timing(queue_ms=0.0, engine_ms=0.0, total_ms=total_ms)
    return replace(answer, cached=True, tokens=tokens, timing=timing, shadow=shadow)
