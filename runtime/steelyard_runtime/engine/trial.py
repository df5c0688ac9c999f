"""A model is loaded and used in a child process first, because llama.cpp ends its process on some files.

A header that can be read says little about what llama.cpp does with it: a wrong type, a count that fits no tensor or a
vocabulary of another kind stops the process in an assertion, hangs it, or takes all memory. The child does once what
the server does: load, read the vocabulary, make contexts, evaluate a prompt and a token, embed. How it ends becomes one
sentence. Then, on architectures that our tests do not run, it tries snapshots, which some cannot make.

The child's evaluation is short (``PROMPT_TOKENS``): it looks for what ends a process. What the logits are worth is
found out by the self-test, on the contexts that serve.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from steelyard_runtime.engine import llama, probe
from steelyard_runtime.legible import legible, reason_of

SAFE_ARCHITECTURES = frozenset({"gemma3", "llama", "mamba2", "qwen2", "qwen35"})
"""Architectures whose snapshots need not be tried in a child: our tests run them."""
PROMPT_TOKENS = 12
SEQUENCE_TOKENS = 256
BATCH_TOKENS = 512
LEAST_SECONDS = 120.0
BYTES_PER_SECOND = 20_000_000
"""The slowest disk that a model is waited for."""
LEAST_MEMORY = 2 << 30
MEMORY_PER_FILE_BYTE = 3
"""Weights may be copied once into another order, beside the file's own pages, which do not count."""
TEXT_SHOWN = 300
SNAPSHOTS = "going on from a snapshot"
_PR_SET_PDEATHSIG = 1
_WHAT_TO_DO = (
    "it is damaged, or not for this build of llama.cpp: fetch it again, convert it anew, or serve another model"
)


class TrialError(RuntimeError):
    """The file cannot be served; one sentence that names it, what was tried, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the child.

    Attributes:
        seconds: From its start to its end.
        memory_bytes: Of its own, without mapped files; 0 for no limit (a GPU's driver reserves far more than it uses).
    """

    seconds: float
    memory_bytes: int


def limits(file_bytes: int, *, gpu_layers: int) -> Limits:
    """The limits for a model of ``file_bytes`` in all."""
    return Limits(
        seconds=LEAST_SECONDS + file_bytes / BYTES_PER_SECOND,
        memory_bytes=0 if gpu_layers else LEAST_MEMORY + MEMORY_PER_FILE_BYTE * file_bytes,
    )


def try_out(
    path: Path, shape: llama.ContextShape, *, architecture: str, gpu_layers: int, within: Limits, snapshots: bool = True
) -> str:
    """Load and use a model in a child process.

    Args:
        path: The model, or its first shard.
        shape: The serving context's; the child uses the same threads and formats, and a small context.
        architecture: The model's ``general.architecture``.
        gpu_layers: Layers on the GPU.
        within: What the child may take.
        snapshots: Try these too, where the architecture is not known to be safe.

    Returns:
        Why snapshots must not be used on this model, or "".

    Raises:
        TrialError: The child ended, hung, or found that the model cannot be served.
    """
    asked = {
        "path": str(path),
        "shape": asdict(_small(shape)),
        "gpu_layers": gpu_layers,
        "memory_bytes": within.memory_bytes,
        "snapshots": snapshots and architecture not in SAFE_ARCHITECTURES,
    }
    command = [sys.executable, "-m", "steelyard_runtime.engine.trial", json.dumps(asked)]
    environment = os.environ | {"GGML_NO_BACKTRACE": "1"}  # an abort would start a debugger first
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            command, capture_output=True, timeout=within.seconds, check=False, env=environment
        )
        said, errors, how = done.stdout, done.stderr, _ended(done.returncode)
    except subprocess.TimeoutExpired as error:
        said, errors = error.stdout or b"", error.stderr or b""
        how = f"did not come to an end within {within.seconds:.0f} s"
    if not how:
        return ""
    *_, stage = ["starting a process", *said.decode("utf-8", "replace").splitlines()]
    if stage == SNAPSHOTS:
        return f"snapshots were tried in a child process, which {how}; prefixes are recomputed"
    if refusal := _refusal(stage):
        raise TrialError(f"{path} cannot be served: {refusal.replace(str(path), 'it')}; {_WHAT_TO_DO}")
    why = _last_words(errors)
    raise TrialError(
        f"{path} cannot be served: a process that tried it {how} while {stage}{f' ({why})' if why else ''}; "
        f"{_WHAT_TO_DO}"
    )


def _small(shape: llama.ContextShape) -> llama.ContextShape:
    batch = min(shape.batch_tokens, BATCH_TOKENS)
    return replace(shape, sequence_tokens=max(SEQUENCE_TOKENS, batch), sequences=2, batch_tokens=batch)


def _ended(status: int) -> str:
    """Say how a child ended that did not end well, as a verb; "" for one that did."""
    if status >= 0:
        return f"ended with status {status}" if status else ""
    with contextlib.suppress(ValueError):
        return f"was ended by {signal.Signals(-status).name}"
    return f"was ended by signal {-status}"


def _refusal(line: str) -> str:
    with contextlib.suppress(ValueError):
        said = json.loads(line)
        if isinstance(said, dict):
            return str(said.get("refused", ""))
    return ""


def _last_words(errors: bytes) -> str:
    """The assertion, or the exception, that ended llama.cpp; else its last line."""
    lines = [line for line in errors[-8192:].decode("utf-8", "replace").splitlines() if line.strip()]
    telling = [line for line in lines if "GGML_ASSERT" in line or "what():" in line or "error" in line.lower()]
    return legible((telling or lines or [""])[-1].rsplit("/", 1)[-1], most=TEXT_SHOWN)


# --- the child --------------------------------------------------------------------------------------------------------


def main(argument: str) -> int:
    """Do what was asked, saying each step before it is taken; returns an exit status."""
    asked: dict[str, Any] = json.loads(argument)
    _bound(asked["memory_bytes"])
    try:
        _use(asked)
    except MemoryError:
        _say(json.dumps({"refused": f"it takes more than {asked['memory_bytes'] >> 20} MiB of memory"}))
        return 1
    except Exception as error:
        _say(json.dumps({"refused": reason_of(error)}))
        return 1
    return 0


def _bound(memory_bytes: int) -> None:
    """Limit this process, and end it with the one that started it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_bytes:
        resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _use(asked: dict[str, Any]) -> None:
    shape = llama.ContextShape(**asked["shape"])
    _say("loading it")
    model = llama.Model(Path(asked["path"]), gpu_layers=asked["gpu_layers"] if llama.gpu_available() else 0)
    _say("reading what it says of itself")
    _describe(model)
    _say("reading its vocabulary")
    vocabulary = model.vocabulary
    vocabulary.check()
    if not model.generates:
        return  # the start refuses it by name
    _say("making a context")
    context = llama.Context(model, shape)
    _say("evaluating a prompt")
    tokens = probe.prompt(vocabulary, PROMPT_TOKENS + 1)
    (logits,) = context.decode([llama.Run(tokens[:-1], 0, 0, True)])
    probe.check_logits(logits)
    _say("evaluating one token")
    (logits,) = context.decode([llama.Run(tokens[-1:], 0, PROMPT_TOKENS, True)])
    probe.check_logits(logits)
    context.clear(0)
    if model.pooling not in ("none", "rank"):
        _say("embedding a text")
        embedder = llama.Context(model, replace(shape, sequences=1, cache_type="f16", pooling=model.pooling))
        embedder.embed(tokens)
        embedder.close()
    if asked["snapshots"]:
        _say(SNAPSHOTS)
        probe.examine(context, share=True)
    _say("letting it go")
    context.close()
    model.close()


def _describe(model: llama.Model) -> tuple[object, ...]:
    """Everything that the server reads of a model."""
    facts = model.architecture, model.description, model.parameters, model.trained_context, model.embedding_size
    return *facts, model.pooling, model.causal, model.memory, model.windowed, model.chat_template


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
