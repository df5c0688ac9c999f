"""What every route answers with, as JSON Schema. The fuzz tests hold each answer against these."""

from __future__ import annotations

from steelyard_runtime.errors import Kind
from steelyard_runtime.http.schema_parts import (
    COUNT,
    FLAG,
    INTEGER,
    MILLISECONDS,
    NUMBER,
    OPEN,
    PROBABILITY,
    SHA256,
    TEXT,
    Schema,
    array,
    closed,
    constant,
    either,
    mapping,
    nullable,
    ref,
)

_KIND: Schema = {"type": "string", "enum": [kind.value for kind in Kind]}
_COUNTS: dict[str, Schema] = {
    "counted_tokens": COUNT,
    "allowed_tokens": COUNT,
    "limit": COUNT,
    "prompt_tokens": COUNT,
    "max_tokens": COUNT,
}
_FAULT = closed(loc=array(either(TEXT, INTEGER)), msg=TEXT, type=TEXT)

_TOKENS = closed(prompt=COUNT, evaluated=COUNT, reused=COUNT)
_TIMING = closed(queue_ms=MILLISECONDS, engine_ms=MILLISECONDS, total_ms=MILLISECONDS)
_TOTAL = closed(total_ms=MILLISECONDS)

ERRORS: dict[str, Schema] = {
    "SemifError": closed(
        error=TEXT,
        type={"type": "string", "enum": [*(kind.value for kind in Kind), "malformed_http"]},
        retryable=FLAG,
        optional={"retry_after_ms": COUNT, "detail": array(_FAULT), **_COUNTS},
    ),
    "SystemOneError": closed(
        detail=either(
            array(_FAULT),
            closed(
                error_type=_KIND,
                message=TEXT,
                optional={"retryable": constant(True), "retry_after_ms": COUNT, **_COUNTS},
            ),
        )
    ),
    "OpenAIError": closed(
        error=closed(
            message=TEXT,
            type=TEXT,
            param=nullable(TEXT),
            code=TEXT,
            optional={"retry_after_ms": COUNT, **_COUNTS},
        )
    ),
}

# How an answer came about, in every decision contract but the walkthrough's, which has fields of its own for it.
_EXTENSIONS: dict[str, Schema] = {
    "x_logits": array(NUMBER),
    "x_slot_token_ids": array(COUNT),
    "x_slot_mass": PROBABILITY,
    "x_entropy": NUMBER,
    "x_tokens": _TOKENS,
    "x_prompt_sha256": SHA256,
    "x_prompt_version": TEXT,
    "x_readout": TEXT,
    "x_cached": FLAG,
    "x_probability_status": TEXT,
    "x_timing": _TIMING,
}

DECISIONS: dict[str, Schema] = {
    "SemifResult": closed(
        id=TEXT,
        choice=TEXT,
        option_ids=array(TEXT),
        probabilities=array(PROBABILITY),
        option_logits=array(NUMBER),
        answer_token_ids=array(COUNT),
        input_tokens=COUNT,
        tokens=_TOKENS,
        allowed_token_mass=PROBABILITY,
        entropy=NUMBER,
        prompt_sha256=SHA256,
        prompt_version=TEXT,
        model=OPEN,
        readout=TEXT,
        cached=FLAG,
        probability_status=TEXT,
        timing=_TIMING,
    ),
    "SemifResponse": either(
        closed(result=ref("SemifResult")), closed(results=array(ref("SemifResult")), timing=_TOTAL)
    ),
    "SystemOneResponse": closed(
        model=TEXT,
        answers=mapping(
            either(
                closed(type=constant("noul"), noul=PROBABILITY, **_EXTENSIONS),
                closed(
                    type=constant("choice"),
                    choice=TEXT,
                    probabilities=mapping(PROBABILITY),
                    confidence=PROBABILITY,
                    **_EXTENSIONS,
                ),
                closed(
                    type=constant("score"),
                    score={"type": "number", "minimum": 0},
                    legend=mapping(TEXT),
                    probabilities=mapping(PROBABILITY),
                    confidence=PROBABILITY,
                    **_EXTENSIONS,
                ),
            )
        ),
        usage=closed(input_tokens=COUNT, output_tokens=constant(0)),
        x_identity=OPEN,
        x_timing=_TOTAL,
    ),
    "OpenAIDecisionsResponse": closed(
        answers=array(
            either(
                closed(type=constant("predicate"), name=nullable(TEXT), probability=PROBABILITY, **_EXTENSIONS),
                closed(
                    type=constant("choice"),
                    name=nullable(TEXT),
                    choice=either(TEXT, FLAG),
                    confidence=PROBABILITY,
                    probabilities=array(closed(value=either(TEXT, FLAG), probability=PROBABILITY)),
                    **_EXTENSIONS,
                ),
                closed(
                    type=constant("score"),
                    name=nullable(TEXT),
                    score={"type": "number", "minimum": 0},
                    confidence=PROBABILITY,
                    probabilities=array(closed(label=TEXT, value=COUNT, probability=PROBABILITY)),
                    **_EXTENSIONS,
                ),
            )
        ),
        model=TEXT,
        usage=closed(
            input_tokens=COUNT,
            input_tokens_details=closed(cached_tokens=COUNT, cache_write_tokens=constant(0)),
            output_tokens=constant(0),
            output_tokens_details=closed(reasoning_tokens=constant(0)),
            total_tokens=COUNT,
        ),
        x_identity=OPEN,
        x_timing=_TOTAL,
    ),
}

_FINISH = nullable({"type": "string", "enum": ["stop", "length"]})
_CHAT_TOKEN: dict[str, Schema] = {"token": TEXT, "logprob": NUMBER, "bytes": array(COUNT), "x_token_id": COUNT}
_CHAT_LOGPROBS = closed(
    content=array(closed(**_CHAT_TOKEN, top_logprobs=array(closed(**_CHAT_TOKEN)))), refusal={"type": "null"}
)
_USAGE = closed(
    prompt_tokens=COUNT,
    completion_tokens=COUNT,
    total_tokens=COUNT,
    prompt_tokens_details=closed(cached_tokens=COUNT),
)
_OPENING: dict[str, Schema] = {"id": TEXT, "created": INTEGER, "model": TEXT, "system_fingerprint": TEXT}
_PROVENANCE: dict[str, Schema] = {
    "x_identity": OPEN,
    "x_prompt_sha256": either(SHA256, array(SHA256)),
    "x_tokens": closed(prompt=COUNT, evaluated=COUNT, reused=COUNT, generated=COUNT),
    "x_timing": closed(queue_ms=MILLISECONDS, prefill_ms=MILLISECONDS, generate_ms=MILLISECONDS),
}

GENERATION: dict[str, Schema] = {
    "ChatResponse": closed(
        **_OPENING,
        object=constant("chat.completion"),
        choices=array(
            closed(
                index=COUNT,
                message=closed(role=constant("assistant"), content=TEXT, refusal={"type": "null"}),
                logprobs=nullable(_CHAT_LOGPROBS),
                finish_reason=_FINISH,
            )
        ),
        usage=_USAGE,
        **_PROVENANCE,
    ),
    "CompletionsResponse": closed(
        **_OPENING,
        object=constant("text_completion"),
        choices=array(
            closed(
                index=COUNT,
                text=TEXT,
                logprobs=nullable(
                    closed(
                        tokens=array(TEXT),
                        token_logprobs=array(NUMBER),
                        top_logprobs=nullable(array(nullable(mapping(NUMBER)))),
                        text_offset=array(COUNT),
                    )
                ),
                finish_reason=_FINISH,
            )
        ),
        usage=_USAGE,
        **_PROVENANCE,
    ),
    "EmbeddingsResponse": closed(
        object=constant("list"),
        data=array(
            closed(
                object=constant("embedding"),
                index=COUNT,
                embedding=either(array(NUMBER), TEXT),
                x_prompt_sha256=SHA256,
            )
        ),
        model=TEXT,
        usage=closed(prompt_tokens=COUNT, total_tokens=COUNT),
        x_identity=OPEN,
    ),
    "InvocationsResponse": either(
        ref("SemifResponse"),
        ref("SystemOneResponse"),
        ref("OpenAIDecisionsResponse"),
        ref("ChatResponse"),
        ref("CompletionsResponse"),
        ref("EmbeddingsResponse"),
    ),
}

_MODEL = closed(id=TEXT, object=constant("model"), created=INTEGER, owned_by=TEXT)

OPERATIONS: dict[str, Schema] = {
    "Ready": closed(status=constant("ready")),
    "Health": closed(status=constant("ready"), counters=mapping(either(NUMBER, mapping(NUMBER)))),
    "Identity": OPEN,
    "Models": closed(
        object=constant("list"),
        data=array(_MODEL),
        models=array(closed(name=TEXT, description=TEXT, release_date=TEXT)),
    ),
    "Model": _MODEL,
    "ExecutionParameters": closed(
        MaxConcurrentTransforms={"type": "integer", "minimum": 1},
        BatchStrategy=constant("SINGLE_RECORD"),
        MaxPayloadInMB={"type": "integer", "minimum": 1, "maximum": 100},
    ),
    "OpenAPI": {"type": "object", "required": ["openapi", "info", "paths"], "properties": {"openapi": TEXT}},
}
