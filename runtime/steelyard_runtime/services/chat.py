"""Chat and completions over an engine: from a request to a stream of events, or to a whole reply."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Protocol

from steelyard_runtime.chat_template import ChatTemplate
from steelyard_runtime.contracts.openai_text import SSE_DONE, sse, sse_error
from steelyard_runtime.engine.interface import (
    Cancel,
    Delta,
    Done,
    Engine,
    Event,
    Failed,
    Finished,
    GenerationJob,
    Piece,
    Sampling,
)
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import Choice, GenerationRequest, Head, Reply, TokenLogprobs
from steelyard_runtime.identity import Identity
from steelyard_runtime.services.prompts import prompt_sha256, tokens_to_generate
from steelyard_runtime.services.waiting import patience_s, too_late
from steelyard_runtime.settings import Settings


class Encoder(Protocol):
    """A contract's chunks of a streamed answer."""

    def start(self) -> list[dict[str, Any]]:
        """Chunks before any event."""
        ...

    def event(self, event: Event) -> list[dict[str, Any]]:
        """Chunks for one event."""
        ...


class GenerationEvents(Protocol):
    """What a stream is made from: a ``Generation``, or something around one that watches its events."""

    async def __aenter__(self) -> GenerationEvents: ...

    async def __aexit__(self, *_: object) -> None: ...

    def __aiter__(self) -> AsyncIterator[Delta | Finished | Done]: ...


class Generation:
    """One running job: an asynchronous iterator of ``Delta``, ``Finished`` and, at the end, ``Done``.

    Whoever stops listening stops the job: ``cancel``, leaving ``async with``, a cancelled task, or losing the last
    reference. Iterating raises ``Problem`` when the job fails.

    Args:
        engine: To submit to.
        job: What to submit.
        head: What the answer's bodies repeat.

    Raises:
        Problem: The engine refuses the job.
    """

    def __init__(self, engine: Engine, job: GenerationJob, *, head: Head) -> None:
        self.head = head
        self._n = job.n
        self._over = False
        self._first: Event | None = None
        queue: asyncio.Queue[Event] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def on_event(event: Event) -> None:
            # On the engine's thread, which must not be stopped by a loop that ended before the job did. It refers
            # to the queue only, so that the engine keeps no abandoned Generation alive.
            try:
                loop.call_soon_threadsafe(queue.put_nowait, event)
            except RuntimeError:
                if not loop.is_closed():
                    raise

        self._queue = queue
        self._cancel: Cancel = engine.submit_generation(job, on_event)
        self._guard = loop.call_later(patience_s(job.deadline), queue.put_nowait, Failed(too_late()))

    def __aiter__(self) -> Generation:
        return self

    async def __anext__(self) -> Delta | Finished | Done:
        if self._over:
            raise StopAsyncIteration
        event = await self._next()
        self._first = None
        if isinstance(event, Failed):
            self.cancel()
            raise _problem(event.problem)
        if isinstance(event, Done):
            self._over = True
            self._guard.cancel()
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
        if not self.__dict__.get("_over", True) and "_cancel" in self.__dict__:
            self._over = True
            self._cancel()

    def cancel(self) -> None:
        """Stop the job, if it still runs; whoever waits for its next event gets a ``Problem``. Event loop only."""
        self._guard.cancel()
        if not self._over:
            self._over = True
            self._cancel()
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

    async def start(self, request: GenerationRequest, *, caller: str = "") -> Generation:
        """Begin to answer.

        Returns:
            The running job, to be iterated, collected or cancelled.

        Raises:
            Problem: The request cannot be answered: over budget, refused by the template or by the engine.
        """
        limit = self._settings.stream_deadline_s if request.stream else self._settings.deadline_s
        deadline = time.monotonic() + limit
        if isinstance(request.prompt, str):
            pieces = [Piece(request.prompt)]
        else:
            pieces = await asyncio.wrap_future(self._template.submit(request.prompt, caller=caller))
        # Tokenizing and grammars take time in proportion to the request; the event loop stays free.
        job = await asyncio.to_thread(self._job, request, pieces, deadline, caller)
        head = Head(
            id=uuid.uuid4().hex,
            created=int(time.time()),
            model=self._identity.model_id,
            identity=self._identity.summary(),
            prompt_sha256=prompt_sha256(job.prompt),
            submitted=time.perf_counter(),
        )
        return Generation(self._engine, job, head=head)

    async def answer(self, request: GenerationRequest, *, caller: str = "") -> tuple[Reply, Head]:
        """The whole reply and its head. Cancelling this cancels the job.

        Raises:
            Problem: As ``start``, or the job failed.
        """
        generation = await self.start(request, caller=caller)
        return await generation.collect(), generation.head

    def _job(self, request: GenerationRequest, pieces: list[Piece], deadline: float, caller: str) -> GenerationJob:
        model = self._engine.identity.model
        for token, _ in request.logit_bias:
            if token >= model.vocabulary:
                raise Problem(
                    Kind.INVALID,
                    f"logit_bias names the token {token}; this model's tokens are 0 to {model.vocabulary - 1}.",
                    param="logit_bias",
                )
        chat = not isinstance(request.prompt, str)
        grammar = None if request.json_output is None else self._engine.grammar(request.json_output.schema)
        prompt = self._engine.encode(pieces, start=True)
        param = "messages" if chat else "prompt"
        if not prompt:
            raise Problem(Kind.INVALID, "The prompt has no tokens; give the model some text to continue.", param=param)
        room = tokens_to_generate(
            prompt=len(prompt),
            context=model.context_tokens,
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
                stop=(*request.stop, *(self._template.stop_strings if chat else ())),
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


async def server_sent_events(generation: GenerationEvents, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """The body of a streamed answer: the contract's chunks, then ``[DONE]``; after a failure its error, and no more."""
    async with generation:
        try:
            for chunk in encoder.start():
                yield sse(chunk)
            async for event in generation:
                for chunk in encoder.event(event):
                    yield sse(chunk)
            yield SSE_DONE
        except Problem as problem:
            yield sse_error(problem)


def _choice(texts: list[str], logprobs: TokenLogprobs, end: Finished) -> Choice:
    return Choice(index=end.index, text="".join(texts), logprobs=logprobs, reason=end.reason)


def _problem(fault: Exception) -> Problem:
    if isinstance(fault, Problem):
        return fault
    problem = Problem(Kind.ENGINE_FAILED, "The engine failed while it generated this answer.", retry_after_ms=1000)
    problem.__cause__ = fault
    return problem
