"""Fields of llama.cpp's server and of vLLM that their clients send with values which change nothing."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, StrictInt, StrictStr

from steelyard_runtime.contracts.neutral import IgnoredFlag, IgnoredInteger, IgnoredNumber, IgnoredText, Neutral
from steelyard_runtime.contracts.validation import Strict

_NO_STEP = "there is no such sampling step here"
_NO_CHECK = "answers are held to JSON by response_format alone"
_NO_REPORT = "answers report no such thing"
_ALL_TOKENS = "special tokens never become text, and end an answer"


class ServerFields(Strict):
    """Fields that other servers add to OpenAI's generation contracts."""

    # Sampling steps, switched off.
    repeat_penalty: Annotated[Any, Neutral(1, because="use presence_penalty or frequency_penalty")] = None
    repetition_penalty: Annotated[Any, Neutral(1, because="use presence_penalty or frequency_penalty")] = None
    repeat_last_n: Annotated[StrictInt, Field(ge=-1)] | None = Field(
        None, description="Only with penalties of 0: these count the whole answer, which is -1."
    )
    length_penalty: Annotated[Any, Neutral(1, because=_NO_STEP)] = None
    typical_p: Annotated[Any, Neutral(1, because=_NO_STEP)] = None
    top_n_sigma: Annotated[Any, Neutral(-1, because=_NO_STEP)] = None
    dynatemp_range: Annotated[Any, Neutral(0, because=_NO_STEP)] = None
    dynatemp_exponent: IgnoredNumber = None
    mirostat: Annotated[Any, Neutral(0, because=_NO_STEP)] = None
    mirostat_tau: IgnoredNumber = None
    mirostat_eta: IgnoredNumber = None
    xtc_probability: Annotated[Any, Neutral(0, because=_NO_STEP)] = None
    xtc_threshold: IgnoredNumber = None
    dry_multiplier: Annotated[Any, Neutral(0, because=_NO_STEP)] = None
    dry_base: IgnoredNumber = None
    dry_allowed_length: IgnoredInteger = None
    dry_penalty_last_n: IgnoredInteger = None
    dry_sequence_breakers: Annotated[list[StrictStr], Field(fail_fast=True)] | None = Field(
        None, description="Accepted; what it belongs to is off."
    )
    adaptive_target: Annotated[Any, Neutral(-1, because=_NO_STEP)] = None
    adaptive_decay: IgnoredNumber = None
    use_beam_search: Annotated[Any, Neutral(False, because=_NO_STEP)] = None
    min_keep: Annotated[Any, Neutral(0, because=_NO_STEP)] = None
    allowed_token_ids: Annotated[Any, Neutral([], because="use logit_bias")] = None
    bad_words: Annotated[Any, Neutral([], because="use logit_bias")] = None
    logits_processors: Annotated[Any, Neutral([], because=_NO_STEP)] = None

    # The end of an answer.
    min_tokens: Annotated[Any, Neutral(0, because="an answer ends where the model ends it")] = None
    ignore_eos: Annotated[Any, Neutral(False, because="an answer ends where the model ends it")] = None
    stop_token_ids: Annotated[Any, Neutral([], because="use stop")] = None
    include_stop_str_in_output: Annotated[Any, Neutral(False, because="the text of stop is not in an answer")] = None
    skip_special_tokens: Annotated[Any, Neutral(True, because=_ALL_TOKENS)] = None
    spaces_between_special_tokens: IgnoredFlag = None

    # Constraints.
    grammar: Annotated[Any, Neutral("", because=_NO_CHECK)] = None
    grammar_lazy: Annotated[Any, Neutral(False, because=_NO_CHECK)] = None
    json_schema: Annotated[Any, Neutral(because=_NO_CHECK)] = None
    structured_outputs: Annotated[Any, Neutral(because=_NO_CHECK)] = None
    guided_json: Annotated[Any, Neutral(because=_NO_CHECK)] = None
    guided_regex: Annotated[Any, Neutral("", because=_NO_CHECK)] = None
    guided_choice: Annotated[Any, Neutral([], because=_NO_CHECK)] = None
    guided_grammar: Annotated[Any, Neutral("", because=_NO_CHECK)] = None

    # How the answer is computed, which never changes it.
    cache_prompt: IgnoredFlag = None
    n_cache_reuse: IgnoredInteger = None
    cache_salt: IgnoredText = None
    id_slot: Annotated[Any, Neutral(-1, because="the server chooses where a request is evaluated")] = None
    n_keep: IgnoredInteger = None
    n_discard: Annotated[Any, Neutral(0, because="nothing is truncated")] = None
    truncate_prompt_tokens: Annotated[Any, Neutral(because="nothing is truncated")] = None
    priority: Annotated[Any, Neutral(0, because="callers take turns")] = None
    request_id: IgnoredText = None
    lora: Annotated[Any, Neutral([], because="the model is served without adapters")] = None

    # What is reported beside the answer.
    n_probs: Annotated[Any, Neutral(0, because="use logprobs")] = None
    post_sampling_probs: Annotated[Any, Neutral(False, because="logprobs are those of the model")] = None
    prompt_logprobs: Annotated[Any, Neutral(because="log probabilities are of generated tokens")] = None
    return_tokens: Annotated[Any, Neutral(False, because="logprobs have x_token_id")] = None
    return_token_ids: Annotated[Any, Neutral(False, because="logprobs have x_token_id")] = None
    return_tokens_as_token_ids: Annotated[Any, Neutral(False, because="logprobs have x_token_id")] = None
    return_progress: Annotated[Any, Neutral(False, because=_NO_REPORT)] = None
    timings_per_token: Annotated[Any, Neutral(False, because="x_timing has the times")] = None
    kv_transfer_params: Annotated[Any, Neutral({}, because=_NO_REPORT)] = None
