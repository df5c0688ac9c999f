"""Token ids of a prompt: their hash, and whether they fit."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.settings import Settings

COUNTED_BYTES = 64 << 10
"""Up to here a prompt's tokens are counted even if there must be too many: the refusal has both numbers."""


def prompt_sha256(*parts: Sequence[int]) -> str:
    """Return the hash of the token ids of all parts as little-endian unsigned 32-bit integers."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.fromiter(part, dtype="<u4", count=len(part)).tobytes())
    return digest.hexdigest()


def longest_text(most_bytes: int, settings: Settings) -> int:
    """Return how many bytes of text a prompt may have, whose text certainly does not fit beyond ``most_bytes``."""
    return min(max(most_bytes, COUNTED_BYTES), settings.max_text_bytes)


def check_length(
    texts: Iterable[str], *, allowed_bytes: int, param: str | None = None, what: str = "The prompt"
) -> None:
    """Refuse a prompt by its length, before it is tokenized.

    Args:
        texts: The caller's texts in it.
        allowed_bytes: Most bytes of all of them.
        param: The field that holds them, for the message.
        what: What they are, for the message.

    Raises:
        Problem: OVER_BUDGET.
    """
    texts = list(texts)
    # A character has at least one byte, so that most texts need not be encoded to be refused.
    size = sum(map(len, texts))
    if size <= allowed_bytes:
        size = sum(len(text.encode()) for text in texts)
    if size > allowed_bytes:
        raise Problem(
            Kind.OVER_BUDGET,
            f"{what} has at least {size} bytes of text and {allowed_bytes} are allowed: more cannot fit into the "
            "model's context, or take too long to tokenize. Shorten it, or raise context_tokens or max_text_bytes on "
            "the server. Nothing is truncated.",
            param=param,
            counts={"counted_bytes": size, "allowed_bytes": allowed_bytes},
        )


def tokens_to_generate(
    *, prompt: int, context: int, wanted: int | None, default: int, prompt_param: str, wanted_param: str
) -> int:
    """The most tokens that may follow a prompt.

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
