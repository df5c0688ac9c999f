"""SageMaker's one path for everything: the body's shape says which contract it speaks."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from steelyard_runtime.contracts.dispatch import Shape, shape
from steelyard_runtime.http.routes import decisions, embeddings, generation
from steelyard_runtime.http.routes.common import Handler

HANDLERS: dict[Shape, Handler] = {
    "semif": decisions.decide_semif,
    "systemone": decisions.decide_systemone,
    "openai_decisions": decisions.decide_openai,
    "chat": generation.chat,
    "completions": generation.complete,
    "embeddings": embeddings.embed,
}


async def dispatch_invocation(request: Request, body: Any) -> Response:
    """Hand ``body`` to the contract of its shape; a fault before that is told in the walkthrough's shape."""
    return await HANDLERS[shape(body)](request, body)
