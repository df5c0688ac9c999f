"""From requests to the engine and back: budgets, order, cancellation and failures, with the engine's events by hand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import struct
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from admitted import admitted
from steelyard_runtime.chat_template import PLAIN_STOP_STRINGS, ChatTemplate
from steelyard_runtime.contracts import chat
from steelyard_runtime.contracts.error_formats import OPENAI
from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.interface import Cancel, Delta, Done, Event, Failed, Finished, GenerationJob
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import EmbeddingRequest, GenerationRequest, JsonOutput, Message, TextPrompts
from steelyard_runtime.http.sse import server_sent_events
from steelyard_runtime.identity import Identity
from steelyard_runtime.prompt_identity import prompt_identities
from steelyard_runtime.services import chat as chat_service
from steelyard_runtime.services import waiting
from steelyard_runtime.services.chat import ChatService, Generation
from steelyard_runtime.services.embeddings import EmbeddingService
from steelyard_runtime.services.prompts import prompt_sha256, tokens_to_generate
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

HI = (Message("user", "Hi"),)
DONE = Done(
    tokens=TokenCounts(prompt=3, evaluated=3, reused=0), generated_tokens=2, queue_ms=0, prefill_ms=0, generate_ms=0
)


class ScriptedEngine(StubEngine):
    """A stub that accepts jobs and says nothing, until a test speaks for it from another thread."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.jobs: list[GenerationJob] = []
        self.cancels = 0
        self.speak: Callable[[Event], None] = lambda event: None

    def submit_generation(self, job: GenerationJob, on_event: Callable[[Event], None]) -> Cancel:
        self._admit(len(job.prompt), job.deadline)
        self.jobs.append(job)
        self.speak = on_event

        def cancel() -> None:
            self.cancels += 1

        return cancel

    def say(self, *events: Event) -> None:
        """Speak on a thread of its own, as an engine does."""
        thread = threading.Thread(target=lambda: [self.speak(event) for event in events])
        thread.start()
        thread.join()


def services(engine: StubEngine, settings: Settings | None = None) -> ChatService:
    template = ChatTemplate(engine.identity.model.chat_template, bos_text="<bos>", eos_text="<eos>")
    return ChatService(engine, settings or Settings(), identity(engine), template)


def identity(engine: StubEngine) -> Identity:
    return Identity(
        model_id="stub",
        engine=engine.identity,
        template=("plain", "0" * 64),
        slots=255,
        created=0,
        prompts=prompt_identities(),
    )


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(coroutine)


async def with_job(
    engine: ScriptedEngine, request: GenerationRequest | None = None, settings: Settings | None = None
) -> Generation:
    return await services(engine, settings).start(request or GenerationRequest(prompt=HI), preparing=admitted())


def test_the_job_is_what_was_asked_for() -> None:
    engine = ScriptedEngine()
    request = GenerationRequest(
        prompt=HI,
        max_tokens=5,
        temperature=0.5,
        top_p=0.9,
        top_k=3,
        min_p=0.1,
        seed=4,
        stop=("x",),
        presence_penalty=1,
        frequency_penalty=-1,
        logit_bias=((3, 1.0),),
        top_logprobs=2,
        n=2,
        json_output=JsonOutput(schema={"type": "object"}),
    )
    generation = run(with_job(engine, request))
    (job,) = engine.jobs
    expected = engine.encode(services(engine)._template.render(HI), start=True)
    assert job.prompt == tuple(expected)
    assert job.n == 2
    sampling = job.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p, sampling.top_k) == (5, 0.5, 0.9, 3)
    assert (sampling.min_p, sampling.seed, sampling.top_logprobs) == (0.1, 4, 2)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.logit_bias) == (1, -1, ((3, 1.0),))
    assert sampling.stop == ("x", *PLAIN_STOP_STRINGS)
    assert sampling.grammar == engine.grammar({"type": "object"})
    packed = b"".join(struct.pack("<I", token) for token in expected)
    assert generation.head.prompt_sha256 == (hashlib.sha256(packed).hexdigest(),) == (prompt_sha256(expected),)
    assert generation.head.model == "stub"


def test_a_completion_has_no_template_and_no_stop_strings() -> None:
    engine = ScriptedEngine()
    run(with_job(engine, GenerationRequest(prompt=TextPrompts(("Once",)))))
    assert engine.jobs[0].prompt == tuple(engine.encode([chat_service.Piece("Once")], start=True))
    assert engine.jobs[0].sampling.stop == ()
    assert engine.jobs[0].sampling.grammar is None


@pytest.mark.parametrize(("stream", "limit"), [(False, 10.0), (True, 100.0)])
def test_deadlines(stream: bool, limit: float) -> None:
    engine = ScriptedEngine()
    before = time.monotonic()
    run(with_job(engine, GenerationRequest(prompt=HI, stream=stream), Settings(deadline_s=10, stream_deadline_s=100)))
    assert before + limit <= engine.jobs[0].deadline <= time.monotonic() + limit


@pytest.mark.parametrize(
    ("prompt", "wanted", "room"), [(10, None, 5), (98, None, 2), (99, None, 1), (10, 90, 90), (99, 1, 1)]
)
def test_room_for_tokens(prompt: int, wanted: int | None, room: int) -> None:
    given = {"context": 100, "default": 5, "prompt_param": "messages", "wanted_param": "max_tokens"}
    assert tokens_to_generate(prompt=prompt, wanted=wanted, **given) == room  # type: ignore[arg-type]


def test_a_prompt_over_the_budget_names_both_numbers() -> None:
    engine = ScriptedEngine(context_tokens=50)
    request = GenerationRequest(prompt=(Message("user", "word " * 100),))
    count = len(engine.encode(services(engine)._template.render(request.prompt), start=True))
    with pytest.raises(Problem) as caught:
        run(with_job(engine, request))
    problem = caught.value
    assert (problem.kind, problem.param) == (Kind.OVER_BUDGET, "messages")
    assert problem.counts == {"counted_tokens": count, "allowed_tokens": 49}
    assert str(count) in problem.message
    assert "49" in problem.message
    assert OPENAI.render(problem)[1]["error"]["code"] == "context_length_exceeded"
    assert engine.jobs == []


def test_max_tokens_over_the_budget_names_all_three_numbers() -> None:
    engine = ScriptedEngine(context_tokens=1000)
    request = GenerationRequest(prompt=HI, max_tokens=1000, max_tokens_param="max_completion_tokens")
    count = len(engine.encode(services(engine)._template.render(request.prompt), start=True))
    with pytest.raises(Problem) as caught:
        run(with_job(engine, request))
    assert (caught.value.kind, caught.value.param) == (Kind.OVER_BUDGET, "max_completion_tokens")
    assert caught.value.counts == {
        "prompt_tokens": count,
        "max_tokens": 1000,
        "counted_tokens": count + 1000,
        "allowed_tokens": 1000,
    }
    assert f"at most {1000 - count}" in caught.value.message


def test_a_bias_for_no_token_is_refused() -> None:
    engine = ScriptedEngine()
    beyond = engine.identity.model.vocabulary
    with pytest.raises(Problem, match=f"token {beyond}; this model's tokens are 0 to {beyond - 1}") as caught:
        run(with_job(engine, GenerationRequest(prompt=HI, logit_bias=((beyond, 1.0),))))
    assert (caught.value.kind, caught.value.param) == (Kind.INVALID, "logit_bias")


def test_the_engines_refusal_is_raised_at_once() -> None:
    engine = ScriptedEngine()
    engine.refuse_with = Problem(Kind.BUSY, "full", retry_after_ms=7)
    with pytest.raises(Problem, match="full") as caught:
        run(with_job(engine))
    assert caught.value is engine.refuse_with


EVENTS: tuple[Event, ...] = (
    Delta(index=0, text="a"),
    Delta(index=1, text="b"),
    Delta(index=0, text="c"),
    Finished(index=1, reason="length", generated_tokens=1),
    Finished(index=0, reason="stop", generated_tokens=2),
    DONE,
)


def test_events_arrive_in_order() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine, GenerationRequest(prompt=HI, n=2))
        engine.say(*EVENTS)
        assert [event async for event in generation] == list(EVENTS)
        assert [event async for event in generation] == []
        generation.cancel()
        assert engine.cancels == 0

    run(scenario())


def test_a_whole_reply() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine, GenerationRequest(prompt=HI, n=2))
        engine.say(*EVENTS)
        reply = await generation.collect()
        assert [(choice.index, choice.text, choice.reason) for choice in reply.choices] == [
            (0, "ac", "stop"),
            (1, "b", "length"),
        ]
        assert reply.done == DONE
        assert engine.cancels == 0

    run(scenario())


def streamed(generation: Generation) -> AsyncGenerator[bytes, None]:
    chunks = chat.ChatChunks(generation.head, n=1, include_usage=False)
    return server_sent_events(generation, chunks, OPENAI)


async def events_of(stream: AsyncIterator[bytes]) -> list[Any]:
    lines = [line async for line in stream]
    assert all(line.startswith(b"data: ") and line.endswith(b"\n\n") for line in lines)
    return [line[6:-2].decode() if line == b"data: [DONE]\n\n" else json.loads(line[6:]) for line in lines]


def test_a_stream_ends_with_done() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine)
        engine.say(Delta(index=0, text="a"), Finished(index=0, reason="stop", generated_tokens=1), DONE)
        await generation.ready()
        events = await events_of(streamed(generation))
        assert [event["choices"][0]["delta"].get("content") for event in events[:-1]] == ["", "a", None]
        assert events[-1] == "[DONE]"
        assert (events[-2]["x_prompt_sha256"],) == generation.head.prompt_sha256
        assert engine.cancels == 0

    run(scenario())


def test_a_failure_in_mid_stream_is_the_last_event() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine)
        engine.say(Delta(index=0, text="a"), Failed(Problem(Kind.DEADLINE, "too late", retry_after_ms=1)))
        events = await events_of(streamed(generation))
        assert events[-2]["choices"][0]["delta"]["content"] == "a"
        assert events[-1]["error"]["message"] == "too late"
        assert events[-1]["error"]["type"] == "overloaded_error"

    run(scenario())


def test_a_failure_before_the_first_event_can_be_a_status() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine)
        engine.say(Failed(Problem(Kind.DEADLINE, "waited too long")))
        with pytest.raises(Problem, match="waited too long"):
            await generation.ready()

    run(scenario())


def test_ready_loses_no_event() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine, GenerationRequest(prompt=HI, n=2))
        engine.say(*EVENTS)
        await generation.ready()
        await generation.ready()
        assert [event async for event in generation] == list(EVENTS)

    run(scenario())


def test_a_fault_of_the_engine_is_a_problem() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine)
        engine.say(Failed(RuntimeError("secret")))
        with pytest.raises(Problem) as caught:
            await generation.collect()
        assert caught.value.kind is Kind.ENGINE_FAILED
        assert "secret" not in caught.value.message

    run(scenario())


def test_a_cancelled_task_cancels_the_job() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        task = asyncio.create_task(services(engine).answer(GenerationRequest(prompt=HI), preparing=admitted()))
        while not engine.jobs:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert engine.cancels == 1

    run(scenario())


def test_a_closed_stream_cancels_the_job() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine)
        stream = streamed(generation)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        assert engine.cancels == 1

    run(scenario())


def test_a_stream_that_nobody_began_to_read_cancels_the_job() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine)
        stream = streamed(generation)
        del generation, stream
        assert engine.cancels == 1

    run(scenario())


def test_cancelling_wakes_who_waits() -> None:
    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine)
        waiting = asyncio.create_task(generation.collect())
        await asyncio.sleep(0)
        generation.cancel()
        generation.cancel()
        with pytest.raises(Problem, match="stopped"):
            await waiting
        assert engine.cancels == 1

    run(scenario())


def test_a_stuck_engine_does_not_keep_its_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "GRACE_S", 0.0)

    async def scenario() -> None:
        engine = ScriptedEngine()
        generation = await with_job(engine, settings=Settings(deadline_s=0.2))
        with pytest.raises(Problem) as caught:
            await generation.collect()
        assert caught.value.kind is Kind.DEADLINE
        assert engine.cancels == 1

    run(scenario())


def test_an_engine_that_outlives_the_loop_is_not_disturbed() -> None:
    engine = ScriptedEngine()
    run(with_job(engine))
    engine.speak(DONE)


def test_many_streams_at_once_stay_apart() -> None:
    async def scenario() -> None:
        engine = StubEngine()
        service = services(engine)
        requests = [
            GenerationRequest(prompt=(Message("user", f"question {index}"),), max_tokens=20, temperature=0)
            for index in range(16)
        ]
        alone = [(await service.answer(request, preparing=admitted()))[0].choices for request in requests]
        together = await asyncio.gather(*(service.answer(request, preparing=admitted()) for request in requests))
        assert [reply.choices for reply, _ in together] == alone
        assert len({choices[0].text for choices in alone}) == 16
        engine.close(timeout_s=0)

    run(scenario())


def test_embeddings() -> None:
    engine = StubEngine()
    service = EmbeddingService(engine, Settings(), identity(engine))
    result = run(service.embed(EmbeddingRequest(inputs=("a", "bc"), dimensions=16, base64=False), preparing=admitted()))
    assert [len(vector) for vector in result.vectors] == [16, 16]
    assert result.vectors[0] != result.vectors[1]
    assert result.prompt_sha256[0] == prompt_sha256(engine.encode([chat_service.Piece("a")], start=True))
    assert result.prompt_tokens == sum(
        len(engine.encode([chat_service.Piece(text)], start=True)) for text in ("a", "bc")
    )
    engine.close(timeout_s=0)


@pytest.mark.parametrize(
    ("pooling", "dimensions", "text", "kind", "message"),
    [
        ("none", None, "a", Kind.UNSUPPORTED, "gives no embeddings"),
        ("rank", None, "a", Kind.UNSUPPORTED, "gives no embeddings"),
        ("mean", 8, "a", Kind.UNSUPPORTED, "dimensions is 8, and this model's vectors have 16"),
        ("mean", None, "word " * 100, Kind.OVER_BUDGET, "20 are allowed"),
    ],
)
def test_embeddings_that_cannot_be(pooling: Any, dimensions: int | None, text: str, kind: Kind, message: str) -> None:
    engine = StubEngine(pooling=pooling, context_tokens=20)
    service = EmbeddingService(engine, Settings(), identity(engine))
    with pytest.raises(Problem, match=message) as caught:
        run(
            service.embed(
                EmbeddingRequest(inputs=("x", text), dimensions=dimensions, base64=False), preparing=admitted()
            )
        )
    assert caught.value.kind is kind
