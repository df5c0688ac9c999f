"""Embeddings over an engine."""

from __future__ import annotations

from steelyard_runtime.engine.interface import EmbeddingJob, Engine, Piece, Tokenizing
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.generation import EmbeddingRequest, Embeddings
from steelyard_runtime.identity import Identity
from steelyard_runtime.services.preparation import Preparing
from steelyard_runtime.services.prompts import check_length, longest_text, prompt_sha256
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

    async def embed(self, request: EmbeddingRequest, *, preparing: Preparing) -> Embeddings:
        """One vector per input, in order. Cancelling this cancels the job.

        Raises:
            Problem: UNSUPPORTED, when the model gives no embeddings or other dimensions than asked for; OVER_BUDGET;
                whatever the engine refuses with.
        """
        self._check_model(request)
        inputs = await preparing.tokenize(self._encode, request.inputs, preparing)
        preparing.done()
        job = EmbeddingJob(inputs=inputs, deadline=preparing.deadline, caller=preparing.caller)
        vectors = await answered(self._engine.submit_embedding(job), deadline=preparing.deadline)
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

    def _encode(self, texts: tuple[str, ...], preparing: Preparing) -> tuple[tuple[int, ...], ...]:
        allowed = self._engine.identity.model.context_tokens
        longest = longest_text(self._engine.max_text_bytes, self._settings)
        for index, text in enumerate(texts):
            check_length([text], allowed_bytes=longest, what="The text", param=f"input.{index}")
        work = Tokenizing(allowed_bytes=self._settings.max_text_bytes, wanted=preparing.check)
        inputs = []
        for index, text in enumerate(texts):
            tokens = self._engine.tokenize([Piece(text)], start=True, work=work)
            if len(tokens) > allowed:
                raise over_budget(counted=len(tokens), allowed=allowed, what="The text", param=f"input.{index}")
            if not tokens:
                raise Problem(Kind.INVALID, f"input {index} has no tokens.", param=f"input.{index}")
            inputs.append(tuple(tokens))
        return tuple(inputs)
