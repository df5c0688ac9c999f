"""Evaluates and closes segments: one rule for the engine, the probe and the tests, because bits depend on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from steelyard_runtime.engine.interface import Logits
from steelyard_runtime.engine.llama import Context, Run, Snapshot

ROWS = 4
"""llama.cpp multiplies so many tokens at a time on a CPU; two or three that are left over take longer than four."""
TILE = 64
"""Its flash attention on CPUs takes so many at a time; fewer go another way, which takes up to twice as long."""
DEEP = 1024
"""From this position on, attention takes so much of the time that 64 tokens are faster than 48."""


def evaluate(
    context: Context,
    tokens: Sequence[int],
    *,
    sequence: int,
    position: int,
    output: bool,
    decoding: Callable[[int], AbstractContextManager[object]] = lambda _: nullcontext(),
    between: Callable[[], None] = lambda: None,
) -> Logits | None:
    """Evaluate one segment alone, in decodes of ``batch_tokens`` cut from the segment's own start.

    The cuts depend on nothing but the segment, so the same segment at the same position gives the same bits whatever
    was evaluated before, beside or after it. With ``output`` the rows may be filled up behind the last token, which no
    other token sees: the sequence must be cleared then.

    Args:
        context: Where to evaluate.
        tokens: The segment; not empty.
        sequence: Sequence that holds everything before ``position``.
        position: Position of the first token.
        output: Whether the logits after the last token are wanted.
        decoding: Entered around each decode with its number of tokens.
        between: Called between decodes; may raise to stop.

    Returns:
        Logits of shape ``(vocabulary,)``, or None without ``output``.
    """
    logits: Logits | None = None
    step = context.shape.batch_tokens
    for start in range(0, len(tokens), step):
        chunk = tokens[start : start + step]
        last = output and start + step >= len(tokens)
        if start:
            between()
        runs = [Run(chunk, sequence, position + start, last)]
        if last and (fill := _filling(len(chunk), position + start, context)):
            runs.append(Run([chunk[-1]] * fill, sequence, position + start + len(chunk), False))
        with decoding(sum(len(run.tokens) for run in runs)):
            rows = context.decode(runs)
        logits = rows[0] if last else None
    return logits


def _filling(tokens: int, position: int, context: Context) -> int:
    """Return how many tokens to add to the last decode, because it is faster with them."""
    shape = context.shape
    room = min(shape.batch_tokens - tokens, shape.sequence_tokens - position - tokens)
    tile, rows = TILE - tokens, -tokens % ROWS
    if position >= DEEP and 0 <= tile <= TILE // 4 and tile <= room and _tiled(context):
        return tile
    return rows if rows <= ROWS // 2 and rows <= room else 0


def _tiled(context: Context) -> bool:
    """Tell whether all layers look at all positions, with llama.cpp's flash attention on a CPU."""
    model, shape = context.model, context.shape
    fast = shape.flash_attention != "off" and shape.cache_type == "f16" and not model.offloaded
    return fast and model.memory == "dense"


def close_segment(context: Context, sequence: int, *, save: bool) -> Snapshot | None:
    """Close a segment that more tokens will follow.

    The cells of a sliding window are used again in an order that depends on how they were filled, and sums depend on
    the order of the cells. So they are laid out anew at the end of every segment, whether or not a snapshot is wanted:
    going on and starting from the snapshot are then the same.

    Args:
        context: Where the segment was evaluated.
        sequence: The sequence that ends with it.
        save: Whether a snapshot is wanted.
    """
    windowed = context.model.windowed
    if not (save or windowed):
        return None
    snapshot = context.save(sequence)
    if windowed:
        context.clear(sequence)
        context.restore(snapshot, sequence)
    return snapshot
