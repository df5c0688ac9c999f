"""Embeddings, where the model gives them."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from steelyard_runtime.contracts import embeddings as contract
from steelyard_runtime.http.record import record_of
from steelyard_runtime.http.responses import Json
from steelyard_runtime.http.routes.common import preparing_of, runtime_of


async def embed(request: Request, body: Any) -> Response:
    """One vector per text, in order."""
    record = record_of(request)
    record.contract, record.shape = contract.NAME, contract.error
    preparing = preparing_of(request)
    wanted = await preparing.parse(contract.decode, body)
    services = runtime_of(request).require()
    services.names.check(wanted.model)
    result = await services.embeddings.embed(wanted, preparing=preparing)
    record.prompt_sha256 += result.prompt_sha256
    record.tokens_prompt = record.tokens_evaluated = result.prompt_tokens
    return Json(contract.encode(wanted, result))
