"""Mutated templates: each renders, or is refused with a sentence, and no caller's character becomes control text."""

from __future__ import annotations

import itertools
import os
from collections import Counter

from steelyard_runtime.templates.process import TemplateProcesses
from template_fuzzing import examples, outcome, start

FULL = os.environ.get("STEELYARD_FUZZ") == "full"


def test_fuzzed_templates_are_rendered_or_refused() -> None:
    processes = TemplateProcesses()
    seed = int.from_bytes(os.urandom(8)) if FULL else 1
    counts = Counter[str]()
    for source, messages in itertools.islice(examples(seed), 10_000 if FULL else 300):
        counts[outcome(source, messages, processes)] += 1
    for source, messages in itertools.islice(examples(seed), 500 if FULL else 10):
        start(source, messages, processes)
    processes.close()
    assert counts["rendered"] > 20, counts
    assert counts["failed"] > 5, counts
    assert counts["compile"] > 5, counts
