"""The wire contracts: for each kind of contract one handler, and one that chooses the contract by the body's shape."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from steelyard_runtime.contracts.contract import (
    AnyContract,
    AskedT,
    Contract,
    DecisionContract,
    DecisionsT,
    EmbeddingContract,
    FeedbackContract,
    GenerationContract,
)
from steelyard_runtime.contracts.dispatch import contract_of
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.engine.interface import Delta, Done, Finished
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import GenerationRequest
from steelyard_runtime.http.record import RequestRecord, record_of
from steelyard_runtime.http.responses import EventStream, Json
from steelyard_runtime.http.routes.common import Handler, preparing_of, records_of, runtime_of
from steelyard_runtime.http.runtime import Services
from steelyard_runtime.http.sse import server_sent_events, sse_error
from steelyard_runtime.services.chat import ChatService, Generation
from steelyard_runtime.services.preparation import Preparing

# How much longer than the deadline a stream may take to be read.
READING_S = 30.0


def dispatching(contracts: Sequence[AnyContract]) -> Handler:
    """Return a handler that hands each body to the contract of its shape."""
    handlers = {contract: handler(contract) for contract in contracts}

    async def handle(request: Request, body: Any) -> Response:
        return await handlers[contract_of(body, contracts)](request, body)

    return handle


def handler(contract: AnyContract) -> Handler:
    """Return the handler of a contract's bodies."""
    match contract:
        case DecisionContract():
            return _deciding(contract)
        case GenerationContract():
            return _generating(contract)
        case EmbeddingContract():
            return _embedding(contract)
        case FeedbackContract():
            return _correcting(contract)
    raise TypeError(f"{type(contract).__name__} is no kind of contract that is served")


async def _decoded(contract: Contract[AskedT, Any], request: Request, body: Any) -> tuple[AskedT, Services]:
    """Return the request in a body, and the services that it is for."""
    record = record_of(request)
    record.contract, record.errors = contract.name, contract.errors
    runtime = runtime_of(request)
    limits = Limits.of(runtime.settings, registered=lambda: runtime.require().registered)
    decoded = await preparing_of(request).parse(contract.decode, body, limits)
    services = runtime.require()
    services.names.check(decoded.model, generic=contract.generic_names)
    return decoded, services


def _deciding(contract: DecisionContract[DecisionsT, Any]) -> Handler:
    async def handle(request: Request, body: Any) -> Response:
        started = time.perf_counter()
        decoded, services = await _decoded(contract, request, body)
        answers = await services.decisions.decide(decoded.request, preparing=preparing_of(request))
        record = record_of(request)
        record.add_answers(answers)
        records_of(request).decided(
            decoded.request,
            answers,
            request_id=record.request_id,
            contract=contract.name,
            identity=services.identity,
        )
        elapsed_ms = (time.perf_counter() - started) * 1000
        return Json(contract.encode(decoded, answers, services.identity, elapsed_ms))

    return handle


def _embedding(contract: EmbeddingContract[Any]) -> Handler:
    async def handle(request: Request, body: Any) -> Response:
        wanted, services = await _decoded(contract, request, body)
        result = await services.embeddings.embed(wanted, preparing=preparing_of(request))
        record = record_of(request)
        record.prompt_sha256 += result.prompt_sha256
        record.tokens_prompt = record.tokens_evaluated = result.prompt_tokens
        return Json(contract.encode(wanted, result))

    return handle


def _correcting(contract: FeedbackContract[Any]) -> Handler:
    async def handle(request: Request, body: Any) -> Response:
        correction, services = await _decoded(contract, request, body)
        record, records = record_of(request), records_of(request)
        record.corrections.append(correction)
        contract_sha256 = services.decisions.contract_sha256(correction.decision)
        state_sha256, recorded = records.corrected(
            correction, request_id=record.request_id, contract_sha256=contract_sha256
        )
        with_state = recorded and correction.state is not None and records.with_text
        return Json(contract.encode(correction, state_sha256=state_sha256, recorded=recorded, with_state=with_state))

    return handle


def _generating(contract: GenerationContract[Any]) -> Handler:
    async def handle(request: Request, body: Any) -> Response:
        wanted, services = await _decoded(contract, request, body)
        record, preparing = record_of(request), preparing_of(request)
        if not wanted.stream:
            reply, head = await services.chat.answer(wanted, preparing=preparing)
            record.prompt_sha256 += head.prompt_sha256
            record.add_generation(reply.done, submitted=head.submitted, choices=wanted.choices)
            return Json(contract.encode(reply, head))
        # Nothing is sent before the engine has begun, so that a refusal is a status and not an event.
        generation = await _begun(services.chat, wanted, preparing)
        record.prompt_sha256 += generation.head.prompt_sha256
        chunks = contract.chunks(generation.head, n=wanted.choices, include_usage=wanted.include_usage)
        settings = runtime_of(request).settings
        return EventStream(
            server_sent_events(_Noted(generation, record, choices=wanted.choices), chunks, contract.errors),
            longest_s=settings.stream_deadline_s + READING_S,
            unread_s=settings.unread_timeout_s,
            unread=sse_error(_unread(settings.unread_timeout_s), contract.errors),
        )

    return handle


def _unread(seconds: float) -> Problem:
    return Problem(
        Kind.UNREAD,
        f"The generation was stopped, because nothing of the stream was read for {seconds:g} seconds; read it as it "
        "comes, or raise unread_timeout_s on the server.",
    )


async def _begun(service: ChatService, wanted: GenerationRequest, preparing: Preparing) -> Generation:
    generation = await service.start(wanted, preparing=preparing)
    await generation.ready()
    return generation


class _Noted:
    """A ``Generation`` whose end is noted in the request's record."""

    def __init__(self, generation: Generation, record: RequestRecord, *, choices: int) -> None:
        self._generation = generation
        self._record = record
        self._choices = choices

    async def __aenter__(self) -> _Noted:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._generation.cancel()

    def __aiter__(self) -> _Noted:
        return self

    async def __anext__(self) -> Delta | Finished | Done:
        try:
            event = await anext(self._generation)
        except Problem as problem:
            self._record.outcome = problem.kind.value
            raise
        if isinstance(event, Done):
            submitted = self._generation.head.submitted
            self._record.add_generation(event, submitted=submitted, choices=self._choices)
        return event
