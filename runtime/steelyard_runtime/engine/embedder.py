"""Embeds texts on the engine's thread, one at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from steelyard_runtime.engine.interface import EmbeddingJob, Logits
from steelyard_runtime.engine.llama import Context
from steelyard_runtime.engine.meter import Meter


@dataclass(slots=True, eq=False)
class EmbeddingRun:
    """A job on its way; others have their turn after each text.

    Attributes:
        job: The job.
        rows: One unit vector per text that is done.
    """

    job: EmbeddingJob
    rows: list[Logits] = field(default_factory=list)

    @property
    def left(self) -> tuple[tuple[int, ...], ...]:
        """Texts that are not done."""
        return self.job.inputs[len(self.rows) :]


def embed_next(run: EmbeddingRun, context: Context, meter: Meter, *, between: Callable[[], None]) -> None:
    """Embed the next text of ``run``, if there is one.

    Args:
        run: The job.
        context: One that pools.
        meter: Counts every decode.
        between: Called between the decodes of one text; may raise to stop.
    """
    if not run.left:
        return
    tokens, step = run.left[0], context.shape.batch_tokens
    rows: list[Logits] = []
    for start in range(0, len(tokens), step):
        if start:
            between()
        piece = tokens[start : start + step]
        with meter.decoding(len(piece)):
            rows.append(context.embed(piece, position=start))
    row = _pooled(rows, [min(step, len(tokens) - start) for start in range(0, len(tokens), step)], context)
    norm = float(np.linalg.norm(row))
    run.rows.append((row / norm).astype(np.float32) if norm else row)
    meter.counters.embeddings += 1


def _pooled(rows: list[Logits], sizes: list[int], context: Context) -> Logits:
    """The whole text's embedding from those of its pieces; of one piece it is that one's, to the bit."""
    pooling = context.shape.pooling
    if len(rows) == 1 or pooling == "cls":
        return rows[0]
    if pooling == "last":
        return rows[-1]
    return np.average(rows, axis=0, weights=sizes).astype(np.float32)
