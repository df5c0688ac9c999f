"""The engine as the rest of the runtime sees it: submission from any thread, one thread that owns the contexts.

``scheduler`` says what runs next, ``executor`` runs it, ``delivery`` hands out what became of it, and ``loop`` does one
after the other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from steelyard_runtime.engine.delivery import Delivery, engine_failed
from steelyard_runtime.engine.executor import Contexts, Execution, Executor
from steelyard_runtime.engine.generations import Generation
from steelyard_runtime.engine.interface import (
    Counters,
    EmbeddingJob,
    EngineIdentity,
    Event,
    GenerationJob,
    Grammar,
    Health,
    Logits,
    Piece,
    Score,
    ScoreJob,
    Segment,
    Tokenizing,
    Tokens,
)
from steelyard_runtime.engine.json_output import JsonOutput, JsonOutputError, problem_of
from steelyard_runtime.engine.llama import LlamaError
from steelyard_runtime.engine.loop import Loop
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.plain_text import UnwritableTextError
from steelyard_runtime.engine.scheduler import Scheduler
from steelyard_runtime.engine.scorer import ScoreRun
from steelyard_runtime.engine.tokenizer import Tokenizer
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.legible import reason_of

log = logging.getLogger(__name__)


class LlamaEngine:
    """The ``Engine`` over llama.cpp.

    Args:
        contexts: Owned from now on.
        identity: What answers say about this engine; its probe's note, if any, says why snapshots must not be tried.
        meter: Shared with the scheduler.
        scheduler: Says what runs next.
        settings: How it runs.
        probing: Let the self-test find out whether prefixes can be shared; else they are not.
        decode_timeout_s: A decode longer than this is reported by ``health``.
    """

    def __init__(
        self,
        contexts: Contexts,
        identity: EngineIdentity,
        *,
        meter: Meter,
        scheduler: Scheduler,
        settings: Execution,
        probing: bool,
        decode_timeout_s: float,
    ) -> None:
        self._vocabulary = contexts.decisions.model.vocabulary
        self._tokenizer = Tokenizer(self._vocabulary, context_tokens=identity.model.context_tokens)
        self._json_output = JsonOutput(self._vocabulary)
        self._identity = identity
        self._allowed = identity.model.context_tokens
        self._probing = probing
        self._decode_timeout_s = decode_timeout_s
        self._meter = meter
        self._scheduler = scheduler
        self._lifecycle = scheduler.lifecycle
        self._delivery = Delivery(scheduler, meter)
        self._executor = Executor(
            contexts, scheduler=scheduler, delivery=self._delivery, meter=meter, settings=settings
        )
        self._loop = Loop(scheduler, self._executor, self._delivery, meter)
        self._thread = threading.Thread(target=self._run, name="steelyard-engine", daemon=True)

    # --- its state ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread: warm-up and self-test, then work. ``health`` says when it is ready."""
        self._thread.start()

    def wait_ready(self, *, timeout_s: float) -> None:
        """Block until the self-test passed.

        Raises:
            LlamaError: The self-test failed or took too long.
        """
        if not self._lifecycle.wait_ready(timeout_s=timeout_s):
            raise LlamaError(self._lifecycle.failure or f"the self-test did not finish within {timeout_s:.0f} s")

    def started(self, stages: dict[str, float]) -> None:
        """Note how many seconds each stage of the start took."""
        self._meter.start_seconds = dict(stages)

    @property
    def start_seconds(self) -> dict[str, float]:
        """Seconds that the start took, by stage; empty before it is over."""
        return self._meter.start_seconds

    @property
    def identity(self) -> EngineIdentity:
        """The engine's part of every answer's identity."""
        return self._identity

    @property
    def counters(self) -> Counters:
        """Totals since start, as they are now."""
        arrivals, prefixes = self._scheduler.arrivals, self._executor.prefixes
        counted = self._meter.counters
        return replace(
            counted,
            rejected=counted.rejected + arrivals.refused,
            joined=arrivals.joined,
            generations=arrivals.generations,
            queue_depth=self._scheduler.depth,
            active_generations=self._executor.chats.active,
            prefix_evictions=prefixes.evictions,
            prefix_bytes=prefixes.bytes + self._executor.scorer.spare_bytes,
            prefixes=len(prefixes),
        )

    def health(self) -> Health:
        """See ``interface.Health``."""
        state = self._lifecycle
        if state.failure is not None:
            return Health(ready=False, reason=state.failure, dead=True)
        if not state.ready:
            return Health(ready=False, reason="the model is loaded and its self-test is running")
        if not self._thread.is_alive():
            return Health(ready=False, reason="the engine's thread has ended", dead=not state.draining)
        if (running_s := self._meter.running_for()) > self._decode_timeout_s:
            return Health(ready=False, reason=f"a decode has been running for {running_s:.1f} s")
        if state.draining:
            return Health(ready=False, reason="shutting down")
        return Health(ready=True)

    def start_draining(self) -> None:
        """See ``interface.Engine``."""
        self._lifecycle.drain()

    def close(self, *, timeout_s: float) -> None:
        """See ``interface.Engine``."""
        self._lifecycle.stop(within_s=timeout_s)
        if self._thread.is_alive():
            self._thread.join(timeout_s + self._decode_timeout_s)

    # --- text --------------------------------------------------------------------------------------------------------

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> list[int]:
        """See ``interface.Engine.encode``."""
        try:
            return self._vocabulary.encode(pieces, start=start)
        except UnwritableTextError as error:
            raise Problem(Kind.INVALID, f"{error}; leave it out") from error

    @property
    def max_text_bytes(self) -> int:
        """See ``interface.Engine.max_text_bytes``."""
        return self._tokenizer.max_text_bytes

    def tokenize(self, pieces: Sequence[Piece], *, start: bool, work: Tokenizing) -> Tokens:
        """See ``interface.Engine.tokenize``."""
        try:
            return self._tokenizer.encode(pieces, start=start, work=work)
        except UnwritableTextError as error:
            raise Problem(Kind.INVALID, f"{error}; leave it out") from error

    def token_bytes(self, token_id: int) -> bytes:
        """See ``interface.Engine.token_bytes``."""
        return self._vocabulary.token_bytes(token_id)

    def is_text(self, token_id: int) -> bool:
        """See ``interface.Engine.is_text``."""
        return self._vocabulary.is_text(token_id)

    def grammar(self, schema: dict[str, Any] | None) -> Grammar:
        """See ``interface.Engine.grammar``."""
        try:
            return self._json_output.grammar(schema)
        except JsonOutputError as error:
            raise problem_of(error) from error

    # --- submission --------------------------------------------------------------------------------------------------

    def submit_score(self, job: ScoreJob) -> Future[list[Score]]:
        """See ``interface.Engine``."""
        if not job.prompts or not all(p.tail and all(segment.tokens for segment in p.shared) for p in job.prompts):
            raise ValueError("a score job needs at least one prompt, a tail in each, and no empty segment")
        for prompt in job.prompts:
            if len(prompt) > self._allowed:
                raise over_budget(counted=len(prompt), allowed=self._allowed)
        return self._scheduler.submit_score(job, expected_tokens=lambda: self._expected_tokens(job))

    def _expected_tokens(self, job: ScoreJob) -> int:
        """Tokens that will have to be evaluated, as far as can be known now."""
        missing: dict[tuple[Segment, ...], int] = {}
        for prompt in job.prompts:
            missing[prompt.shared] = self._executor.scorer.missing(prompt.shared, caller=job.caller)
        return sum(missing.values()) + sum(len(prompt.tail) for prompt in job.prompts)

    def keep_warm(self, shared: tuple[Segment, ...]) -> Future[None]:
        """See ``interface.Engine``."""
        if any(segment.private for segment in shared):
            raise ValueError("a caller's text is never kept for good")
        return self._scheduler.submit_warm(shared)

    def submit_embedding(self, job: EmbeddingJob) -> Future[list[Logits]]:
        """See ``interface.Engine``."""
        if self._executor.contexts.embeddings is None:
            raise Problem(
                Kind.UNSUPPORTED, f"the model {self._identity.model.file_name} has no pooling and gives no embeddings"
            )
        for tokens in job.inputs:
            if len(tokens) > self._allowed:
                raise over_budget(counted=len(tokens), allowed=self._allowed, what="An input", param="input")
        return self._scheduler.submit_embedding(job)

    def submit_generation(self, job: GenerationJob, on_event: Callable[[Event], None]) -> Callable[[], None]:
        """See ``interface.Engine``."""
        if not job.prompt:
            raise ValueError("a generation needs a prompt")
        if len(job.prompt) + job.sampling.max_tokens > self._allowed:
            raise over_budget(
                counted=len(job.prompt) + job.sampling.max_tokens,
                allowed=self._allowed,
                what="The prompt with max_tokens",
            )
        generation = Generation(job, on_event, pending=len(job.prompt), unstarted=job.n, unfinished=job.n)
        self._scheduler.submit_chat(generation)
        return lambda: self._scheduler.cancel_chat(generation)

    # --- the engine's thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            probe = self._executor.self_test(self._identity.probe, probing=self._probing)
            self._identity = replace(self._identity, probe=probe)
            self._lifecycle.open()
            while self._loop.step():
                pass
            self._fail_all(Problem(Kind.DRAINING, "the server shut down before this request was finished"))
        except Exception as error:  # the engine is gone; /ping says so and the process ends
            known = isinstance(error, LlamaError)
            if self._lifecycle.ready or not known:  # whoever starts it says why the self-test failed
                log.exception("the engine died")
            self._lifecycle.die(reason_of(error) if known else f"{type(error).__name__}: {reason_of(error)}")
            self._fail_all(engine_failed())
        finally:
            self._executor.contexts.close()

    def _fail_all(self, problem: Problem) -> None:
        tickets, generations = self._scheduler.clear()
        for ticket in tickets:
            if isinstance(ticket.job, ScoreRun):
                self._executor.scorer.release(ticket.job)
            ticket.fail(problem)
        for generation in (*generations, *self._executor.chats.close()):
            generation.fail(problem)
