"""OpenAI embeddings: ``POST /v1/embeddings``, for models that have a pooling layer."""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, StrictStr, TypeAdapter

from steelyard_runtime.contracts.contract import EmbeddingContract, Shape
from steelyard_runtime.contracts.error_formats import OPENAI
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.model_names import MODEL
from steelyard_runtime.contracts.neutral import IgnoredText, Neutral
from steelyard_runtime.contracts.openai_text import (
    LIST,
    MAX_INT32,
    TEXT,
    TEXT_OR_LIST,
    parse,
    unsupported,
)
from steelyard_runtime.contracts.validation import NonEmpty, Path, Strict
from steelyard_runtime.contracts.wire import Count, Open, Sha256, Wire
from steelyard_runtime.generation import EmbeddingRequest, Embeddings

MAX_INPUTS = 2048


class Request(Strict):
    """The body of an embeddings request. Null is the same as absent."""

    input: Annotated[
        Annotated[NonEmpty, TEXT]
        | Annotated[list[NonEmpty], Field(min_length=1, max_length=MAX_INPUTS, fail_fast=True), LIST],
        TEXT_OR_LIST,
    ] = Field(description=f"One text, or up to {MAX_INPUTS}.")
    model: StrictStr | None = MODEL
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers, or the base64 of little-endian float32; default float."
    )
    dimensions: Annotated[StrictInt, Field(ge=1, le=MAX_INT32)] | None = Field(
        None, description="Must be the model's own; vectors are not shortened."
    )
    user: IgnoredText = None

    # Of llama.cpp's server and vLLM.
    embd_normalize: Annotated[Any, Neutral(2, because="vectors have length 1")] = None
    normalize: Annotated[Any, Neutral(True, because="vectors have length 1")] = None
    add_special_tokens: Annotated[Any, Neutral(True, because="a text begins as the model's texts do")] = None
    truncate_prompt_tokens: Annotated[Any, Neutral(because="nothing is truncated")] = None
    priority: Annotated[Any, Neutral(0, because="callers take turns")] = None
    request_id: IgnoredText = None


_UNIONS: tuple[Path, ...] = (("input",),)


def decode(body: Any, limits: Limits) -> EmbeddingRequest:
    """The request in a body.

    Raises:
        Problem: UNSUPPORTED for what this server does not have, INVALID for wrong values.
    """
    if isinstance(body, dict):
        given = body.get("input")
        if isinstance(given, list) and any(isinstance(item, int | list) for item in given):
            raise unsupported(
                ("input",),
                "token ids are not supported, because clients make them with another model's tokenizer; send the text "
                "(OpenAIEmbeddings of LangChain: check_embedding_ctx_length=False)",
            )
    request = parse(body, Request, limits=limits, unions=_UNIONS)
    return EmbeddingRequest(
        model=request.model,
        inputs=(request.input,) if isinstance(request.input, str) else tuple(request.input),
        dimensions=request.dimensions,
        base64=request.encoding_format == "base64",
    )


class Embedding(Wire):
    """The vector of one text, as numbers or as base64."""

    object: Literal["embedding"]
    index: Count
    embedding: list[float] | str
    x_prompt_sha256: Sha256


class Usage(Wire):
    """Tokens of all texts."""

    prompt_tokens: Count
    total_tokens: Count


class Response(Wire):
    """The vectors, in the order of the texts."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage
    x_identity: Open


def encode(request: EmbeddingRequest, result: Embeddings) -> Response:
    """The body of an answer."""
    data: list[Embedding] = [
        {
            "object": "embedding",
            "index": index,
            "embedding": _base64(vector) if request.base64 else list(vector),
            "x_prompt_sha256": prompt_sha256,
        }
        for index, (vector, prompt_sha256) in enumerate(zip(result.vectors, result.prompt_sha256, strict=True))
    ]
    return {
        "object": "list",
        "data": data,
        "model": result.model,
        "usage": {"prompt_tokens": result.prompt_tokens, "total_tokens": result.prompt_tokens},
        "x_identity": result.identity,
    }


def _base64(vector: tuple[float, ...]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")


CONTRACT = EmbeddingContract(
    name="openai_embeddings",
    prefix="Embeddings",
    paths={"/v1/embeddings": "Embed texts, where the model gives embeddings"},
    shape=Shape(
        title="embeddings",
        example="{'input': ...} without questions",
        fields=("input",),
        without=("questions",),
    ),
    request=Request,
    answer=TypeAdapter(Response),
    errors=OPENAI,
    decode=decode,
    encode=encode,
)
