"""Token ids of a prompt: their hash, and whether they fit."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

from steelyard_runtime.errors import Kind, Problem, over_budget


def prompt_sha256(tokens: Sequence[int]) -> str:
    """Hash of token ids as little-endian unsigned 32-bit integers."""
    return hashlib.sha256(struct.pack(f"<{len(tokens)}I", *tokens)).hexdigest()


def tokens_to_generate(
    *, prompt: int, context: int, wanted: int | None, default: int, prompt_param: str, wanted_param: str
) -> int:
    """How many tokens may follow a prompt.

    Args:
        prompt: Tokens of the prompt.
        context: Tokens of prompt and answer together, at most.
        wanted: The caller's limit, or None.
        default: The limit when the caller sets none; less when there is less room.
        prompt_param: The field that holds the prompt, for messages.
        wanted_param: The field that holds the caller's limit.

    Raises:
        Problem: OVER_BUDGET, when the prompt leaves no room, or less than the caller asks for.
    """
    if prompt >= context:
        # One token has to follow, so the largest prompt is one token less than the context.
        raise over_budget(counted=prompt, allowed=context - 1, param=prompt_param)
    if wanted is None:
        return min(default, context - prompt)
    if prompt + wanted > context:
        raise Problem(
            Kind.OVER_BUDGET,
            f"The prompt has {prompt} tokens and {wanted_param} is {wanted}, together {prompt + wanted}; "
            f"{context} are allowed. Shorten the prompt, or set {wanted_param} to at most {context - prompt}.",
            param=wanted_param,
            counts={
                "prompt_tokens": prompt,
                "max_tokens": wanted,
                "counted_tokens": prompt + wanted,
                "allowed_tokens": context,
            },
        )
    return wanted
