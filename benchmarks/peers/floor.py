"""The floor: one bare ``llama_decode`` of as many tokens as a decision evaluated, behind as many as it reused.

A program that reads one JSON line per measurement, ``{"text", "reused", "evaluated"}``, and answers ``{"seconds"}``.
The tokens are those of ``text``, repeated as needed: a decode costs the same whatever its tokens say. What was reused
is put in place before the clock starts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmarks.peers.bare import Bare

CONTEXT_TOKENS = 8192
KEPT = 64


def main() -> None:
    """Measure until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    llama = Bare(given.model, threads=given.threads, context_tokens=CONTEXT_TOKENS)
    kept: dict[int, Any] = {}
    llama.evaluate(llama.tokenize("warm up", special=False), position=0)
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        tokens = llama.tokenize(asked["text"], special=False)
        _put_in_place(llama, kept, tokens, asked["reused"])
        new = list(islice(cycle(tokens), asked["evaluated"]))
        started = time.perf_counter()
        llama.evaluate(new, position=asked["reused"])
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


def _put_in_place(llama: Bare, kept: dict[int, Any], tokens: list[int], count: int) -> None:
    if not count:
        llama.clear()
        return
    if count not in kept:
        if len(kept) >= KEPT:
            kept.pop(next(iter(kept)))
        llama.clear()
        llama.evaluate(list(islice(cycle(tokens), count)), position=0)
        kept[count] = llama.save()
    llama.restore(kept[count])


if __name__ == "__main__":
    main()
