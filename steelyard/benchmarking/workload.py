"""A model under given settings, timed in a process of its own, because llama.cpp ends the whole process on some faults.

Run as a program it is the child: it loads the model once, reads one JSON request per line and answers with one JSON
line. ``Workbench`` is the parent's side.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from steelyard.benchmarking.comparison import MeasureError, Seconds

DECISION_TOKENS = 96
CHAT_TOKENS = 8
LONG_TOKENS = 1024
PROMPTS = 6
"""Prompts whose logits are compared between two settings."""
SEQUENCE_TOKENS = LONG_TOKENS + 256
START_S = 600.0
STOP_S = 10.0

Workload = Literal["decision", "chat", "long"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """The server's settings that a measurement may vary, under their own names."""

    threads: int
    batch_tokens: int
    flash_attention: Literal["auto", "on", "off"]
    cache_type: str = "f16"

    def __str__(self) -> str:
        return ", ".join(f"{name}={value}" for name, value in _plain(self).items())

    def beside(self, other: EngineSettings) -> str:
        """Describe what differs from ``other``, such as ``threads=4``."""
        theirs = _plain(other)
        return ", ".join(f"{name}={value}" for name, value in _plain(self).items() if value != theirs[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about model and library, from the child."""

    memory: Literal["dense", "swa", "hybrid", "recurrent"]
    description: str
    trained_context: int
    llama_cpp: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitDifference:
    """Differences of two settings' logits over a few prompts: the largest difference, and changed likeliest tokens."""

    largest: float
    changed: int
    prompts: int


class Workbench:
    """The parent's side: one child, started when needed, started again when it died.

    Args:
        path: The GGUF file.
        gpu_layers: As in the server's settings.
    """

    def __init__(self, path: Path, *, gpu_layers: int = 0) -> None:
        self._command = [sys.executable, "-m", "steelyard.benchmarking.workload", str(path), str(gpu_layers)]
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def facts(self) -> Facts:
        """Loads the model, if it is not loaded yet.

        Raises:
            MeasureError: It cannot be loaded.
        """
        return Facts(**self._ask({"do": "facts"}))

    def measure(self, settings: EngineSettings, workloads: list[Workload]) -> Seconds:
        """Seconds of each workload, after a short untimed one.

        Raises:
            MeasureError: llama.cpp refuses these settings, or died of them.
        """
        answer = self._ask({"do": "measure", "settings": _plain(settings), "workloads": workloads})
        return {str(name): float(seconds) for name, seconds in answer.items()}

    def difference(self, settings: EngineSettings, reference: EngineSettings) -> LogitDifference:
        """Measure how far the logits of ``settings`` are from those of ``reference``.

        Raises:
            MeasureError: llama.cpp refuses one of them, or died of it.
        """
        return LogitDifference(
            **self._ask({"do": "difference", "settings": _plain(settings), "reference": _plain(reference)})
        )

    def exact(self, settings: EngineSettings) -> bool:
        """Return whether answers under ``settings`` are the same to the bit, recomputed or from a snapshot.

        It asks what the server asks itself at every start.

        Raises:
            MeasureError: llama.cpp died of trying.
        """
        return bool(self._ask({"do": "exact", "settings": _plain(settings)})["exact"])

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None  # noqa: S101, PT018 - both are pipes
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            code = process.wait()
            self._forget()
            raise MeasureError(f"llama.cpp ended its process with status {code}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise MeasureError(str(answer["error"]))
        return answer

    def _start(self) -> subprocess.Popen[str]:
        # In its own session, so that Ctrl-C in a terminal reaches us alone. An abort would start a debugger first.
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            env=os.environ | {"GGML_NO_BACKTRACE": "1"},
        )
        return self._process

    def _forget(self) -> None:
        if self._process is not None:
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
        self._process = None

    def close(self) -> None:
        """End the child; it needs no time for that, because it keeps nothing."""
        process = self._process
        if process is None:
            return
        self._forget()
        process.kill()
        process.wait(STOP_S)


def _plain(settings: EngineSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in fields(settings)}


# --- the child --------------------------------------------------------------------------------------------------------


def _child(path: Path, gpu_layers: int) -> None:
    # Imported here, because only the child may die of a binding that this processor cannot run.
    import numpy as np

    from steelyard_runtime.engine.interface import Piece
    from steelyard_runtime.engine.llama import (
        CACHE_TYPES,
        Context,
        ContextShape,
        LlamaError,
        Model,
        Run,
        llama_version,
    )
    from steelyard_runtime.engine.probe import examine
    from steelyard_runtime.engine.segments import evaluate

    loaded: list[Model] = []
    contexts: dict[str, Context] = {}

    def model() -> Model:
        if not loaded:
            loaded.append(Model(path, gpu_layers=gpu_layers))
        return loaded[0]

    def tokens(count: int, *, offset: int = 0) -> list[int]:
        words = "order refund parcel login error invoice tablet plan quote urgent calm late twice please never again"
        found = model().vocabulary.encode([Piece(f"{words} " * (count // 8 + 8))], start=False)
        return found[offset : offset + count]

    def context(settings: dict[str, Any]) -> Context:
        key = json.dumps(settings)
        if key not in contexts:
            if settings["cache_type"] not in CACHE_TYPES:
                raise LlamaError(f"cache_type {settings['cache_type']!r} is none of {', '.join(CACHE_TYPES)}")
            cells = min(SEQUENCE_TOKENS, model().trained_context)
            contexts[key] = Context(model(), ContextShape(sequence_tokens=cells, sequences=2, **settings))
            timed(contexts[key], "decision")
        return contexts[key]

    def timed(where: Context, workload: str) -> float:
        where.clear(0)
        if workload == "chat":
            evaluate(where, tokens(DECISION_TOKENS), sequence=0, position=0, output=False)
            following = tokens(CHAT_TOKENS, offset=5)
            began = time.perf_counter()
            for index, token in enumerate(following):
                where.decode([Run([token], 0, DECISION_TOKENS + index, True)])
            return time.perf_counter() - began
        count = DECISION_TOKENS if workload == "decision" else min(LONG_TOKENS, model().trained_context)
        prompt = tokens(count)
        began = time.perf_counter()
        evaluate(where, prompt, sequence=0, position=0, output=True)
        return time.perf_counter() - began

    def logits(where: Context) -> list[Any]:
        found = []
        for index in range(PROMPTS):
            where.clear(0)
            prefix, tail = tokens(DECISION_TOKENS, offset=index), tokens(CHAT_TOKENS, offset=3 * index)
            evaluate(where, prefix, sequence=0, position=0, output=False)
            found.append(evaluate(where, tail, sequence=0, position=len(prefix), output=True))
        return found

    def facts(_: dict[str, Any]) -> dict[str, Any]:
        return {
            "memory": model().memory,
            "description": model().description,
            "trained_context": model().trained_context,
            "llama_cpp": llama_version(),
        }

    def measure(request: dict[str, Any]) -> dict[str, Any]:
        where = context(request["settings"])
        # The first decode after another number of threads also starts or stops threads.
        where.clear(0)
        where.decode([Run(tokens(1), 0, 0, True)])
        return {name: timed(where, name) for name in request["workloads"]}

    def difference(request: dict[str, Any]) -> dict[str, Any]:
        pairs = list(zip(logits(context(request["settings"])), logits(context(request["reference"])), strict=True))
        return {
            "largest": max(float(np.abs(a.astype(np.float64) - b.astype(np.float64)).max()) for a, b in pairs),
            "changed": sum(int(a.argmax()) != int(b.argmax()) for a, b in pairs),
            "prompts": len(pairs),
        }

    def exact(request: dict[str, Any]) -> dict[str, Any]:
        finding = examine(context(request["settings"]), share=True)
        return {"exact": finding.recomputed == 0.0 and finding.shared == 0.0}

    able: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
        "facts": facts,
        "measure": measure,
        "difference": difference,
        "exact": exact,
    }
    for request in _requests():
        try:
            answer = able[request["do"]](request)
        except LlamaError as error:
            answer = {"error": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    # Freed in order: llama.cpp must not free a model that a context still uses.
    for made in contexts.values():
        made.close()
    for made_model in loaded:
        made_model.close()


def _requests() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        yield json.loads(line)


if __name__ == "__main__":
    _child(Path(sys.argv[1]), int(sys.argv[2]))
