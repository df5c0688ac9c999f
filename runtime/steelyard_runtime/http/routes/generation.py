"""Chats and completions: whole, or as a stream of events."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from steelyard_runtime.contracts import chat as chat_contract
from steelyard_runtime.contracts import completions as completions_contract
from steelyard_runtime.contracts.openai_text import sse_error
from steelyard_runtime.engine.interface import Delta, Done, Finished
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.generation import GenerationRequest
from steelyard_runtime.http.record import RequestRecord, record_of
from steelyard_runtime.http.responses import EventStream, Json
from steelyard_runtime.http.routes.common import Handler, preparing_of, runtime_of
from steelyard_runtime.services.chat import ChatService, Generation, server_sent_events
from steelyard_runtime.services.preparation import Preparing

# How much longer than the deadline a stream may take to be read.
READING_S = 30.0


def generating(codec: ModuleType) -> Handler:
    """A handler for ``codec``, a module of ``contracts`` that has ``Chunks`` for streams."""

    async def handle(request: Request, body: Any) -> Response:
        record = record_of(request)
        record.contract, record.shape = codec.NAME, codec.error
        preparing = preparing_of(request)
        settings = runtime_of(request).settings
        wanted: GenerationRequest = await preparing.parse(codec.decode, body, max_choices=settings.max_choices)
        services = runtime_of(request).require()
        services.names.check(wanted.model)
        service = services.chat
        if not wanted.stream:
            reply, head = await service.answer(wanted, preparing=preparing)
            record.prompt_sha256 += head.prompt_sha256
            record.add_generation(reply.done, submitted=head.submitted, choices=wanted.choices)
            return Json(codec.encode(reply, head=head))
        # Nothing is sent before the engine has begun, so that a refusal is a status and not an event.
        generation = await _begun(service, wanted, preparing)
        record.prompt_sha256 += generation.head.prompt_sha256
        chunks = codec.Chunks(generation.head, n=wanted.choices, include_usage=wanted.include_usage)
        events = server_sent_events(_Noted(generation, record, choices=wanted.choices), chunks)
        return EventStream(
            events,
            longest_s=settings.stream_deadline_s + READING_S,
            unread_s=settings.unread_timeout_s,
            unread=sse_error(_unread(settings.unread_timeout_s)),
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


chat = generating(chat_contract)
complete = generating(completions_contract)
