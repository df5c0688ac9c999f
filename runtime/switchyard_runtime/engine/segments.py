"""How segments are evaluated and ended. One rule for the engine, the probe and the tests, because bits depend on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

from switchyard_runtime.engine.interface import Logits
from switchyard_runtime.engine.llama import Context, Run, Snapshot


def evaluate(
    context: Context,
    tokens: Sequence[int],
    *,
    sequence: int,
    position: int,
    output: bool,
    decoding: Callable[[int], AbstractContextManager[None]] = lambda _: nullcontext(),
    between: Callable[[], None] = lambda: None,
) -> Logits | None:
    """Evaluate one segment alone, in decodes of ``batch_tokens`` cut from the segment's own start.

    The cuts depend on nothing but the segment, so the same segment at the same position gives the same bits whatever
    was evaluated before, beside or after it.

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
        with decoding(len(chunk)):
            rows = context.decode([Run(chunk, sequence, position + start, last)])
        logits = rows[0] if last else None
    return logits


def settle(context: Context, sequence: int, *, save: bool) -> Snapshot | None:
    """End a segment whose tokens others follow.

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
