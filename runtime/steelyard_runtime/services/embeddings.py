"""Embeddings over an engine."""

from __future__ import annotations

import asyncio
import time

from steelyard_runtime.engine.interface import EmbeddingJob, Engine, Piece
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.generation import EmbeddingRequest, Embeddings
from steelyard_runtime.identity import Identity
from steelyard_runtime.services.prompts import prompt_sha256
from steelyard_runtime.services.waiting import answered
from steelyard_runtime.settings import Settings


class EmbeddingService:
    """Embeds texts with one engine, if its model can.

    Args:
        engine: The engine.
        settings: The deadline.
        identity: What every answer names.
    """

    def __init__(self, engine: Engine, settings: Settings, identity: Identity) -> None:
        self._engine = engine
        self._settings = settings
        self._identity = identity

    async def embed(self, request: EmbeddingRequest, *, caller: str = "") -> Embeddings:
        """One vector per input, in order. Cancelling this cancels the job.

        Raises:
            Problem: UNSUPPORTED, when the model gives no embeddings or other dimensions than asked for; OVER_BUDGET;
                whatever the engine refuses with.
        """
        deadline = time.monotonic() + self._settings.deadline_s
        self._check_model(request)
        inputs = await asyncio.to_thread(self._encode, request.inputs)
        job = EmbeddingJob(inputs=inputs, deadline=deadline, caller=caller)
        vectors = await answered(self._engine.submit_embedding(job), deadline=deadline)
        return Embeddings(
            vectors=tuple(tuple(map(float, vector)) for vector in vectors),
            prompt_sha256=tuple(map(prompt_sha256, inputs)),
            prompt_tokens=sum(map(len, inputs)),
            model=self._identity.model_id,
            identity=self._identity.summary(),
        )

    def _check_model(self, request: EmbeddingRequest) -> None:
        model = self._engine.identity.model
        if model.pooling in ("none", "rank"):
            raise Problem(
                Kind.UNSUPPORTED,
                f"The model {self._identity.model_id} gives no embeddings (its pooling is {model.pooling!r}); "
                "serve an embedding model for this.",
                param="model",
            )
        if request.dimensions not in (None, model.embedding_size):
            raise Problem(
                Kind.UNSUPPORTED,
                f"dimensions is {request.dimensions}, and this model's vectors have {model.embedding_size}; they are "
                "not shortened. Leave it out.",
                param="dimensions",
            )

    def _encode(self, texts: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
        allowed = self._engine.identity.model.context_tokens
        inputs = []
        for index, text in enumerate(texts):
            tokens = tuple(self._engine.encode([Piece(text)], start=True))
            if len(tokens) > allowed:
                raise over_budget(counted=len(tokens), allowed=allowed, what="The text", param=f"input.{index}")
            if not tokens:
                raise Problem(Kind.INVALID, f"input {index} has no tokens.", param=f"input.{index}")
            inputs.append(tokens)
        return tuple(inputs)
