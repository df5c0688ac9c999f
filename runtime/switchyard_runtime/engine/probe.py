"""The start-up probe: may prefixes be shared on this model, and are answers exact to the bit?

It runs in a child process, because some architectures abort the process on what they cannot do. The child prints one
JSON line after each stage; whatever it managed to print before it died counts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from switchyard_runtime.engine.interface import Logits, Memory, Piece, Probe
from switchyard_runtime.engine.llama import Context, ContextShape, Snapshot, opened
from switchyard_runtime.engine.segments import evaluate, settle

PREFIX_TOKENS = (24, 70)
TAIL_TOKENS = (5, 17)
SEQUENCE_TOKENS = 256
SEQUENCES = 4
SCRATCH = 0
WORDS = (
    *("order", "refund", "parcel", "login", "error", "invoice", "tablet", "plan"),
    *("quote", "urgent", "calm", "late", "twice", "please", "never", "again"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage's finding: ``noise`` is the largest absolute difference of any logit."""

    stage: Literal["recompute", "share"]
    memory: Memory
    noise: float
    comparisons: int


Key = tuple[int, int]


def _texts(context: Context) -> tuple[list[list[int]], list[list[int]]]:
    """Fixed, distinct token sequences that hold no control tokens."""
    text = " ".join(f"{WORDS[i % 16]} {WORDS[(i * i + 3) % 16]}" for i in range(256))
    tokens = context.model.vocabulary.encode([Piece(text)], start=False)
    cuts = iter(range(0, len(tokens), 3))
    return (
        [tokens[(start := next(cuts)) : start + n] for n in PREFIX_TOKENS],
        [tokens[(start := next(cuts)) : start + n] for n in TAIL_TOKENS],
    )


def _recompute(context: Context, prefix: Sequence[int], tail: Sequence[int]) -> Logits:
    context.clear(SCRATCH)
    evaluate(context, prefix, sequence=SCRATCH, position=0, output=False)
    settle(context, SCRATCH, save=False)
    logits = evaluate(context, tail, sequence=SCRATCH, position=len(prefix), output=True)
    assert logits is not None  # noqa: S101 - output=True
    return logits


def _share(context: Context, at: int, snapshot: Snapshot, prefix: Sequence[int], tail: Sequence[int]) -> Logits:
    context.clear(at)
    context.restore(snapshot, at)
    logits = evaluate(context, tail, sequence=at, position=len(prefix), output=True)
    context.clear(at)
    assert logits is not None  # noqa: S101 - output=True
    return logits


def _noise(a: Logits, b: Logits) -> float:
    same = bool(np.array_equal(a, b))
    return 0.0 if same else float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max())


def examine(context: Context) -> Iterator[Stage]:
    """Compare logits computed alone with those of recomputed, saved and re-made prefixes, in differing company."""
    prefixes, tails = _texts(context)
    keys = [(p, t) for p in range(len(prefixes)) for t in range(len(tails))]
    alone = {(p, t): _recompute(context, prefixes[p], tails[t]) for p, t in keys}
    again = {(p, t): _recompute(context, prefixes[p], tails[t]) for p, t in reversed(keys)}
    yield _stage("recompute", context, [_noise(alone[key], again[key]) for key in keys])
    noise = []
    for home, at in ((1, SCRATCH), (3, 2)):  # the second round saves and restores in other places, beside the old ones
        snapshots = []
        for prefix in prefixes:
            context.clear(home)
            evaluate(context, prefix, sequence=home, position=0, output=False)
            snapshot = settle(context, home, save=True)
            assert snapshot is not None  # noqa: S101 - save=True
            snapshots.append(snapshot)
        for p, t in keys:
            noise.append(_noise(alone[p, t], _share(context, at, snapshots[p], prefixes[p], tails[t])))
    yield _stage("share", context, noise)


def _stage(name: Literal["recompute", "share"], context: Context, noise: Sequence[float]) -> Stage:
    return Stage(stage=name, memory=context.model.memory, noise=max(noise), comparisons=len(noise))


def conclude(stages: dict[str, Stage], *, memory: Memory, died: str) -> Probe:
    """What the engine does with the findings: exactness is worth more than a saved prefix.

    Args:
        stages: The stages that finished, by name.
        memory: The model's kind of memory.
        died: Why the child did not finish, or "".
    """
    recompute, share = stages.get("recompute"), stages.get("share")
    if share is not None and share.noise == 0.0:
        comparisons = share.comparisons + (recompute.comparisons if recompute else 0)
        return Probe(
            memory=memory, prefix_sharing=True, exact=True, noise_floor=0.0, comparisons=comparisons, note=died
        )
    if share is not None:
        note = f"saved prefixes change logits by up to {share.noise:.3g}; prefixes are recomputed"
    else:
        note = f"the probe of saved prefixes did not finish ({died}); prefixes are recomputed"
    if recompute is None:
        return Probe(
            memory=memory, prefix_sharing=False, exact=False, noise_floor=float("nan"), comparisons=0, note=note
        )
    return Probe(
        memory=memory,
        prefix_sharing=False,
        exact=recompute.noise == 0.0,
        noise_floor=recompute.noise,
        comparisons=recompute.comparisons,
        note=note,
    )


def run(
    path: Path,
    shape: ContextShape,
    *,
    gpu_layers: int,
    memory: Memory,
    timeout_s: float = 600,
) -> Probe:
    """Run the probe on the model at ``path`` in a child process that uses the same threads, batch and offload."""
    asked = {"path": str(path), "gpu_layers": gpu_layers, "shape": asdict(shape)}
    command = [sys.executable, "-m", "switchyard_runtime.engine.probe", json.dumps(asked)]
    try:
        environment = os.environ | {"GGML_NO_BACKTRACE": "1"}  # an abort would start a debugger first
        done = subprocess.run(  # noqa: S603 - our own module
            command, capture_output=True, timeout=timeout_s, check=False, env=environment
        )
        output, died = done.stdout, "" if done.returncode == 0 else f"exit status {done.returncode}"
    except subprocess.TimeoutExpired as late:
        output, died = late.stdout or b"", f"no answer within {timeout_s:.0f} s"
    return conclude(_parse(output), memory=memory, died=died)


def _parse(output: bytes) -> dict[str, Stage]:
    found: dict[str, Stage] = {}
    for line in output.splitlines():
        if line.startswith(b'{"stage"'):
            stage = Stage(**json.loads(line))
            found[stage.stage] = stage
    return found


def main(argument: str) -> None:
    """The child: print one line per stage."""
    asked: dict[str, Any] = json.loads(argument)
    asked["shape"]["sequence_tokens"] = max(SEQUENCE_TOKENS, asked["shape"]["batch_tokens"] // SEQUENCES)
    shape = ContextShape(**(asked["shape"] | {"sequences": SEQUENCES}))
    with opened(Path(asked["path"]), shape, gpu_layers=asked["gpu_layers"]) as context:
        for stage in examine(context):
            sys.stdout.write(json.dumps(asdict(stage)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1])
