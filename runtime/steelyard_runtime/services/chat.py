"""Chat and completions over an engine: from a request to a stream of events, or to a whole reply."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from steelyard_runtime.chat_template import ChatTemplate
from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.interface import (
    Cancel,
    Delta,
    Done,
    Engine,
    Event,
    Failed,
    Finished,
    GenerationJob,
    Grammar,
    Piece,
    Sampling,
    Tokenizing,
)
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.generation import Choice, GenerationRequest, Head, Reply, TextPrompts, TokenLogprobs
from steelyard_runtime.identity import Identity
from steelyard_runtime.services.preparation import Preparing
from steelyard_runtime.services.prompts import check_length, longest_text, prompt_sha256, tokens_to_generate
from steelyard_runtime.services.waiting import answered, patience_s, too_late
from steelyard_runtime.settings import Settings


class Generation:
    """One running job: an asynchronous iterator of ``Delta``, ``Finished`` and, at the end, ``Done``.

    Not listening any more stops the job: ``cancel``, leaving ``async with``, a cancelled task, or losing the last
    reference. Iterating raises ``Problem`` when the job fails.

    Args:
        engine: To submit to.
        jobs: What to submit, one for each prompt, with the same number of choices and the same deadline. The choices
            are numbered through, those of the first job first.
        head: What the answer's bodies repeat.
        echoes: For each job the text that its choices begin with; none for no such text.

    Raises:
        Problem: The engine refuses a job; those before it are cancelled.
    """

    def __init__(
        self, engine: Engine, jobs: Sequence[GenerationJob], *, head: Head, echoes: Sequence[str] = ()
    ) -> None:
        self.head = head
        self._n = jobs[0].n * len(jobs)
        self._over = False
        self._first: Event | None = None
        self._echoes = [
            Delta(index=job * jobs[0].n + choice, text=text)
            for job, text in enumerate(echoes)
            for choice in range(jobs[0].n)
            if text
        ]
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._unfinished = len(jobs)
        self._done: Done | None = None
        loop = asyncio.get_running_loop()
        self._cancels: list[Cancel] = []
        try:
            for number, job in enumerate(jobs):
                on_event = _forwarder(loop, self._queue, first_choice=number * job.n)
                self._cancels.append(engine.submit_generation(job, on_event))
        except BaseException:
            self._over = True
            self._cancel_jobs()
            raise
        self._guard = loop.call_later(patience_s(jobs[0].deadline), self._queue.put_nowait, Failed(too_late()))

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta | Finished | Done:
        if self._over:
            raise StopAsyncIteration
        if self._echoes:
            return self._echoes.pop(0)
        event = await self._next()
        self._first = None
        if isinstance(event, Failed):
            self.cancel()
            raise _problem(event.problem)
        if isinstance(event, Done):
            self._done = event if self._done is None else _together(self._done, event)
            self._unfinished -= 1
            if self._unfinished:
                return await anext(self)
            self._over = True
            self._guard.cancel()
            return self._done
        return event

    async def __aenter__(self) -> Generation:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    async def aclose(self) -> None:
        """As ``cancel``."""
        self.cancel()

    def __del__(self) -> None:
        # A response whose client left before its first byte is never iterated.
        if not self.__dict__.get("_over", True) and "_cancels" in self.__dict__:
            self._over = True
            self._cancel_jobs()

    def _cancel_jobs(self) -> None:
        for cancel in self._cancels:
            cancel()

    def cancel(self) -> None:
        """Stop the job, if it still runs; a wait for its next event gets a ``Problem``. Event loop only."""
        self._guard.cancel()
        if not self._over:
            self._over = True
            self._cancel_jobs()
            self._queue.put_nowait(Failed(Problem(Kind.INTERNAL, "The answer was stopped before it was complete.")))

    async def ready(self) -> None:
        """Wait for the first event, so that a job that fails while waiting can still be answered with a status.

        Raises:
            Problem: The job failed before it began.
        """
        event = await self._next()
        if isinstance(event, Failed):
            self.cancel()
            raise _problem(event.problem)

    async def collect(self) -> Reply:
        """All choices, whole.

        Raises:
            Problem: The job failed.
        """
        texts: list[list[str]] = [[] for _ in range(self._n)]
        logprobs: list[list[Any]] = [[] for _ in range(self._n)]
        ends: dict[int, Finished] = {}
        async with self:
            async for event in self:
                match event:
                    case Delta():
                        texts[event.index].append(event.text)
                        logprobs[event.index].extend(event.logprobs)
                    case Finished():
                        ends[event.index] = event
                    case Done():
                        choices = tuple(
                            _choice(texts[index], tuple(logprobs[index]), ends[index]) for index in range(self._n)
                        )
                        return Reply(choices=choices, done=event)
        raise Problem(Kind.INTERNAL, "The answer was stopped before it was complete.")

    async def _next(self) -> Event:
        if self._first is None:
            try:
                self._first = await self._queue.get()
            except asyncio.CancelledError:
                self.cancel()
                raise
        return self._first


class ChatService:
    """Answers generation requests with one engine.

    Args:
        engine: The engine.
        settings: Deadlines and the default number of tokens.
        identity: What every answer names.
        template: The model's chat template.
    """

    def __init__(self, engine: Engine, settings: Settings, identity: Identity, template: ChatTemplate) -> None:
        self._engine = engine
        self._settings = settings
        self._identity = identity
        self._template = template

    async def start(self, request: GenerationRequest, *, preparing: Preparing) -> Generation:
        """Begin to answer a request that was admitted.

        Returns:
            The running job, to be iterated, collected or cancelled.

        Raises:
            Problem: The request cannot be answered: over budget, refused by the template or by the engine.
        """
        limit = self._settings.stream_deadline_s if request.stream else self._settings.deadline_s
        self._check_length(request)
        pieces: list[Piece] = []
        if not isinstance(request.prompt, TextPrompts):
            rendering = self._template.submit(request.prompt, caller=preparing.caller)
            pieces = await answered(rendering, deadline=preparing.deadline)
        jobs, echoes = await preparing.render(self._jobs, request, pieces, preparing.arrived + limit, preparing)
        preparing.done()
        head = Head(
            id=uuid.uuid4().hex,
            created=int(time.time()),
            model=self._identity.model_id,
            identity=self._identity.summary(),
            prompt_sha256=tuple(prompt_sha256(job.prompt) for job in jobs),
            submitted=time.perf_counter(),
        )
        return Generation(self._engine, jobs, head=head, echoes=echoes)

    async def answer(self, request: GenerationRequest, *, preparing: Preparing) -> tuple[Reply, Head]:
        """The whole reply and its head. Cancelling this cancels the job.

        Raises:
            Problem: As ``start``, or the job failed.
        """
        generation = await self.start(request, preparing=preparing)
        return await generation.collect(), generation.head

    def _check_length(self, request: GenerationRequest) -> None:
        """Refuse what cannot fit, before it is rendered and tokenized."""
        longest = longest_text(self._engine.max_text_bytes, self._settings)
        if not isinstance(request.prompt, TextPrompts):
            check_length([turn.content for turn in request.prompt], allowed_bytes=longest, param="messages")
            return
        several = len(request.prompt.prompts) > 1
        for index, given in enumerate(request.prompt.prompts):
            if isinstance(given, str):
                check_length([given], allowed_bytes=longest, param=f"prompt.{index}" if several else "prompt")

    def _jobs(
        self, request: GenerationRequest, pieces: list[Piece], deadline: float, preparing: Preparing
    ) -> tuple[list[GenerationJob], list[str]]:
        """One job for each prompt, and the texts that their answers begin with; ``pieces`` are a chat's prompt."""
        model = self._engine.identity.model
        for token, _ in request.logit_bias:
            if token >= model.vocabulary:
                raise Problem(
                    Kind.INVALID,
                    f"logit_bias names the token {token}; this model's tokens are 0 to {model.vocabulary - 1}.",
                    param="logit_bias",
                )
        grammar = None if request.json_output is None else self._engine.grammar(request.json_output.schema)
        work = Tokenizing(allowed_bytes=self._settings.max_text_bytes, wanted=preparing.check)
        caller = preparing.caller
        prompt: Sequence[int]
        if not isinstance(request.prompt, TextPrompts):
            prompt = self._engine.tokenize(pieces, start=True, work=work)
            stops = self._template.stop_strings
            return [
                self._job(request, prompt, deadline, preparing.caller, param="messages", grammar=grammar, stops=stops)
            ], []
        several = len(request.prompt.prompts) > 1
        jobs, echoes = [], []
        for index, given in enumerate(request.prompt.prompts):
            param = f"prompt.{index}" if several else "prompt"
            if isinstance(given, str):
                prompt = self._engine.tokenize([Piece(given)], start=True, work=work)
            else:
                prompt = self._checked_ids(given, param=param)
            jobs.append(self._job(request, prompt, deadline, caller, param=param, grammar=grammar))
            if request.prompt.echo:
                echoes.append(given if isinstance(given, str) else self._text_of(given))
        return jobs, echoes

    def _checked_ids(self, ids: tuple[int, ...], *, param: str) -> list[int]:
        """The prompt that a caller gave as token ids, behind the begin-of-text token that every prompt has."""
        model = self._engine.identity.model
        if len(ids) > model.context_tokens:
            raise over_budget(counted=len(ids), allowed=model.context_tokens - 1, param=param)
        start = self._engine.encode([], start=True)
        own = ids[len(start) :] if start and ids[: len(start)] == tuple(start) else ids
        for token in own:
            if token >= model.vocabulary:
                raise Problem(
                    Kind.INVALID,
                    f"{param} holds the token id {token}; this model's tokens are 0 to {model.vocabulary - 1}.",
                    param=param,
                )
            if not self._engine.is_text(token):
                raise Problem(
                    Kind.INVALID,
                    f"{param} holds the token id {token}, a control token of this model; callers cannot send control "
                    "tokens. Leave it out; the begin-of-text token is put at the beginning by the server.",
                    param=param,
                )
        return [*start, *own]

    def _text_of(self, ids: tuple[int, ...]) -> str:
        return b"".join(map(self._engine.token_bytes, ids)).decode("utf-8", "replace")

    def _job(
        self,
        request: GenerationRequest,
        prompt: Sequence[int],
        deadline: float,
        caller: str,
        *,
        param: str,
        grammar: Grammar | None,
        stops: tuple[str, ...] = (),
    ) -> GenerationJob:
        if not prompt:
            raise Problem(Kind.INVALID, "The prompt has no tokens; give the model some text to continue.", param=param)
        room = tokens_to_generate(
            prompt=len(prompt),
            context=self._engine.identity.model.context_tokens,
            wanted=request.max_tokens,
            default=self._settings.default_max_tokens,
            prompt_param=param,
            wanted_param=request.max_tokens_param,
        )
        return GenerationJob(
            prompt=tuple(prompt),
            sampling=Sampling(
                max_tokens=room,
                temperature=request.temperature,
                top_p=request.top_p,
                top_k=request.top_k,
                min_p=request.min_p,
                seed=request.seed,
                stop=(*request.stop, *stops),
                presence_penalty=request.presence_penalty,
                frequency_penalty=request.frequency_penalty,
                logit_bias=request.logit_bias,
                grammar=grammar,
                top_logprobs=request.top_logprobs,
            ),
            deadline=deadline,
            n=request.n,
            caller=caller,
        )


def _forwarder(
    loop: asyncio.AbstractEventLoop, queue: asyncio.Queue[Event], *, first_choice: int
) -> Callable[[Event], None]:
    """Put a job's events into ``queue``, its choices numbered from ``first_choice``.

    It refers to the queue only, so that the engine keeps no abandoned Generation alive.
    """

    def on_event(event: Event) -> None:
        # On the engine's thread, which must not be stopped by a loop that ended before the job did.
        if first_choice and isinstance(event, Delta | Finished):
            event = replace(event, index=event.index + first_choice)
        try:
            loop.call_soon_threadsafe(queue.put_nowait, event)
        except RuntimeError:
            if not loop.is_closed():
                raise

    return on_event


def _together(one: Done, other: Done) -> Done:
    """The end of two jobs: their tokens together, and the times of the slower one."""
    return Done(
        tokens=TokenCounts(
            prompt=one.tokens.prompt + other.tokens.prompt,
            evaluated=one.tokens.evaluated + other.tokens.evaluated,
            reused=one.tokens.reused + other.tokens.reused,
        ),
        generated_tokens=one.generated_tokens + other.generated_tokens,
        queue_ms=max(one.queue_ms, other.queue_ms),
        prefill_ms=max(one.prefill_ms, other.prefill_ms),
        generate_ms=max(one.generate_ms, other.generate_ms),
    )


def _choice(texts: list[str], logprobs: TokenLogprobs, end: Finished) -> Choice:
    return Choice(index=end.index, text="".join(texts), logprobs=logprobs, reason=end.reason)


def _problem(fault: Exception) -> Problem:
    if isinstance(fault, Problem):
        return fault
    problem = Problem(Kind.ENGINE_FAILED, "The engine failed while it generated this answer.", retry_after_ms=1000)
    problem.__cause__ = fault
    return problem
