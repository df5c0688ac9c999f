"""The decision contracts: one codec each, one service behind them."""

from __future__ import annotations

import time
from types import ModuleType
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from steelyard_runtime.contracts import openai_decisions, semif, systemone
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.http.record import record_of
from steelyard_runtime.http.responses import Json
from steelyard_runtime.http.routes.common import Handler, preparing_of, runtime_of


def deciding(codec: ModuleType) -> Handler:
    """A handler for ``codec``, a module of ``contracts`` with a ``Decoded``, ``decode``, ``encode`` and ``error``."""

    async def handle(request: Request, body: Any) -> Response:
        started = time.perf_counter()
        record = record_of(request)
        record.contract, record.shape = codec.NAME, codec.error
        runtime = runtime_of(request)
        preparing = preparing_of(request)
        limits = Limits(max_questions=runtime.settings.max_questions, max_options=runtime.settings.max_options)
        decoded = await preparing.parse(codec.decode, body, limits=limits)
        services = runtime.require()
        services.names.check(decoded.model, generic=codec.GENERIC_NAMES)
        answers = await services.decisions.decide(decoded.request, preparing=preparing)
        record.add_answers(answers)
        elapsed_ms = (time.perf_counter() - started) * 1000
        return Json(codec.encode(decoded, answers, identity=services.identity, timing_ms=elapsed_ms))

    return handle


decide_semif = deciding(semif)
decide_systemone = deciding(systemone)
decide_openai = deciding(openai_decisions)
