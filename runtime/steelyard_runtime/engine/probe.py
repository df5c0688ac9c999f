"""The probe at the start: may snapshots be shared on this model, and are answers exact to the bit?

The serving context itself proves it, at every start, as part of the self-test. Whether trying it is safe at all is a
property of the architecture: llama.cpp aborts the process where an architecture cannot do something. See ``trial``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np

from steelyard_runtime.engine.interface import Logits, Memory, Piece, Probe
from steelyard_runtime.engine.llama import Context, LlamaError, Run, Snapshot, Vocabulary
from steelyard_runtime.engine.segments import close_segment, evaluate

Decoding = Callable[[int], AbstractContextManager[object]]
PREFIX_TOKENS = 48
TAIL_TOKENS = (8, 3)
TAIL_SKIPS = (0, 20)
SCRATCH = 0
WORDS = (
    *("order", "refund", "parcel", "login", "error", "invoice", "tablet", "plan"),
    *("quote", "urgent", "calm", "late", "twice", "please", "never", "again"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Largest absolute differences of any logit between vectors that ought to be equal.

    Attributes:
        recomputed: Between a prompt and the same prompt evaluated again.
        shared: Between it and what continues from a snapshot, also in the middle of a chat's decode; None when it was
            not tried.
        together: Between it and what shares a decode with another prompt; None when decisions do not.
        comparisons: How many pairs of vectors were compared.
    """

    recomputed: float
    shared: float | None
    together: float | None = None
    comparisons: int


def examine(
    context: Context,
    *,
    share: bool,
    chats: Context | None = None,
    together: bool = False,
    decoding: Decoding = lambda _: nullcontext(),
) -> Finding:
    """Evaluate one prompt in every way in which the engine may come to it. Leaves the sequences empty.

    Args:
        context: The decisions' context; nothing else uses it meanwhile.
        share: Try snapshots too.
        chats: The chats' context; there, that a sequence continues in another one, and that its decodes can be stopped.
        together: Try two prompts in one decode too.
        decoding: Entered around each decode with its number of tokens.

    Raises:
        LlamaError: The logits are no numbers, or all equal, so that nothing can be served.
    """
    prefix, tails = _texts(context)
    alone = [_from_nothing(context, prefix, tail, decoding) for tail in tails]
    for logits in alone:
        check_logits(logits)
    again = [_from_nothing(context, prefix, tail, decoding) for tail in tails]
    recomputed = [_noise(a, b) for a, b in zip(alone, again, strict=True)]
    batched = _noise_together(context, prefix, tails, alone) if together else None
    if not share:
        return Finding(recomputed=max(recomputed), shared=None, together=batched, comparisons=len(recomputed))
    places = sorted({SCRATCH, context.shape.sequences - 1})
    snapshot = _snapshot(context, prefix, at=places[-1])
    shared = [
        _noise(logits, _from_snapshot(context, snapshot, prefix, tail, at=at))
        for at in places
        for tail, logits in zip(tails, alone, strict=True)
    ]
    if chats is not None:
        shared.append(_noise_of_moving(chats, prefix, tails[0]))
        shared += _noise_inside(chats, context, snapshot, prefix, tails[0], alone[0])
    return Finding(
        recomputed=max(recomputed),
        shared=max(shared),
        together=batched,
        comparisons=len(recomputed) + len(shared),
    )


def prompt(vocabulary: Vocabulary, tokens: int) -> list[int]:
    """So many tokens of a fixed text without control tokens.

    Raises:
        LlamaError: The vocabulary has fewer for it, so it is not one for text.
    """
    text = " ".join(f"{WORDS[i % 16]} {WORDS[(i * i + 3) % 16]}" for i in range(128))
    found = vocabulary.encode([Piece(text)], start=True)
    if len(found) < tokens:
        raise LlamaError(
            f"the vocabulary makes {len(found)} tokens of a text of 256 words, and {tokens} are needed for the "
            "self-test: it is not one for text"
        )
    return found[:tokens]


def _texts(context: Context) -> tuple[list[int], list[list[int]]]:
    """A fixed beginning and two continuations; no control tokens, and no more than the context holds."""
    at = min(PREFIX_TOKENS, context.shape.sequence_tokens - max(TAIL_TOKENS))
    tokens = prompt(context.model.vocabulary, at + TAIL_SKIPS[-1] + TAIL_TOKENS[-1])
    prefix = tokens[:at]
    return prefix, [tokens[at + skip : at + skip + count] for skip, count in zip(TAIL_SKIPS, TAIL_TOKENS, strict=True)]


def _from_nothing(context: Context, prefix: Sequence[int], tail: Sequence[int], decoding: Decoding) -> Logits:
    context.clear(SCRATCH)
    evaluate(context, prefix, sequence=SCRATCH, position=0, output=False, decoding=decoding)
    close_segment(context, SCRATCH, save=False)
    return _end(context, prefix, tail, at=SCRATCH)


def _noise_of_moving(context: Context, prefix: Sequence[int], tail: Sequence[int]) -> float:
    """Between going on in the sequence where the prefix was evaluated, and in the last one."""
    evaluate(context, prefix, sequence=SCRATCH, position=0, output=False)
    snapshot = close_segment(context, SCRATCH, save=True)
    assert snapshot is not None  # noqa: S101 - save=True
    stayed = _end(context, prefix, tail, at=SCRATCH)
    return _noise(stayed, _from_snapshot(context, snapshot, prefix, tail, at=context.shape.sequences - 1))


def _noise_inside(
    chats: Context, context: Context, snapshot: Snapshot, prefix: Sequence[int], tail: Sequence[int], alone: Logits
) -> list[float]:
    """Between a prompt alone and the same in the middle of a chat's decode; empty where none can be stopped."""
    noises: list[float] = []

    def once() -> None:
        if not noises:
            noises.append(_noise(alone, _from_snapshot(context, snapshot, prefix, tail, at=SCRATCH)))

    chats.decode([Run(tail, SCRATCH, 0, False)], between=once)
    chats.clear(SCRATCH)
    return noises


def _snapshot(context: Context, prefix: Sequence[int], *, at: int) -> Snapshot:
    evaluate(context, prefix, sequence=at, position=0, output=False)
    snapshot = close_segment(context, at, save=True)
    context.clear(at)
    assert snapshot is not None  # noqa: S101 - save=True
    return snapshot


def _from_snapshot(
    context: Context, snapshot: Snapshot, prefix: Sequence[int], tail: Sequence[int], *, at: int
) -> Logits:
    context.restore(snapshot, at)
    return _end(context, prefix, tail, at=at)


def _noise_together(
    context: Context, prefix: Sequence[int], tails: Sequence[Sequence[int]], alone: Sequence[Logits]
) -> float:
    places = range(len(tails))
    for at in places:
        evaluate(context, prefix, sequence=at, position=0, output=False)
        close_segment(context, at, save=False)
    rows = context.decode([Run(tail, at, len(prefix), True) for at, tail in zip(places, tails, strict=True)])
    for at in places:
        context.clear(at)
    return max(_noise(a, b) for a, b in zip(alone, rows, strict=True))


def _end(context: Context, prefix: Sequence[int], tail: Sequence[int], *, at: int) -> Logits:
    logits = evaluate(context, tail, sequence=at, position=len(prefix), output=True)
    context.clear(at)
    assert logits is not None  # noqa: S101 - output=True
    return logits


def check_logits(logits: Logits) -> None:
    """Refuse logits that choose nothing.

    Raises:
        LlamaError: Some are no numbers, or all are equal.
    """
    if not np.isfinite(logits).all():
        raise LlamaError("some of the self-test's logits are no finite numbers")
    if logits.min() == logits.max():
        raise LlamaError(
            "the self-test's logits are all equal: the model gives embeddings, not next tokens, or has no weights"
        )


def _noise(a: Logits, b: Logits) -> float:
    same = bool(np.array_equal(a, b))
    return 0.0 if same else float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


def conclude(finding: Finding, *, memory: Memory, note: str = "") -> Probe:
    """Conclude from a finding: exactness is worth more than a saved prefix.

    Args:
        finding: What ``examine`` found.
        memory: The model's kind of memory.
        note: Why snapshots were not tried, or "".
    """
    sharing = finding.shared == 0.0
    if finding.shared:
        note = f"going on from a snapshot changes logits by up to {finding.shared:.3g}; prefixes are recomputed"
    noise = max(finding.recomputed, finding.together or 0.0)
    if finding.together is not None:
        note = " ".join([note, "decisions share decodes, so their company shows in the last bits"]).strip()
    return Probe(
        memory=memory,
        prefix_sharing=sharing,
        exact=finding.recomputed == 0.0 and finding.together is None,
        noise_floor=noise,
        comparisons=finding.comparisons,
        note=note,
    )
