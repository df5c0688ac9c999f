"""Checks of this machine: what it is and what it can run. Nothing here changes anything."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from steelyard.models import storage
from steelyard.models.storage import human_size
from steelyard_base.checks import Check, Level
from steelyard_base.exit_codes import CommandError
from steelyard_runtime.engine import model_files
from steelyard_runtime.engine.cores import usable
from steelyard_runtime.engine.gguf_header import read_header

# Asked in a child process: a binding built for another CPU dies from an illegal instruction.
_ASK_BINDING = """
import json, llama_cpp
print(json.dumps({
    "version": llama_cpp.__version__,
    "gpu": bool(llama_cpp.llama_supports_gpu_offload()),
    "system_info": llama_cpp.llama_print_system_info().decode("utf-8", "replace"),
}))
"""
_CPU_FLAGS = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "amx_int8",
    "asimd",
    "asimddp",
    "i8mm",
    "sve",
)
# Weights are mapped; besides them there are the context's cells, compute buffers and Python.
MEMORY_BESIDE_WEIGHTS = 700_000_000


def check_machine(model: str) -> Iterator[Check]:
    """All checks, for a server of ``model``, in the order in which they matter."""
    yield python_check(sys.version_info[:3])
    binding = ask_binding()
    yield binding_check(binding)
    yield cpu_check(cpu_flags(), platform.machine())
    yield cores_check(usable(), os.cpu_count() or 1)
    size, checks = model_checks(model)
    yield from checks
    yield memory_check(usable_memory(), size)
    yield gpu_check(gpus(), bool(binding and binding.get("gpu")))
    yield disk_check(storage.cache_folder())


def python_check(version: tuple[int, int, int]) -> Check:
    """Python 3.11 to 3.13."""
    text = ".".join(map(str, version))
    if (3, 11) <= version[:2] <= (3, 13):
        return Check(name="Python", level=Level.OK, finding=text)
    return Check(name="Python", level=Level.FAILED, finding=text, advice="Use Python 3.11, 3.12 or 3.13.")


def ask_binding() -> dict[str, Any] | None:
    """Version, GPU support and CPU features of the llama.cpp binding; None when it cannot be loaded."""
    try:
        answer = subprocess.run(  # noqa: S603 - our own interpreter and text
            [sys.executable, "-c", _ASK_BINDING], capture_output=True, text=True, timeout=60, check=True
        )
        found: dict[str, Any] = json.loads(answer.stdout.splitlines()[-1])
    except (subprocess.SubprocessError, OSError, ValueError, IndexError):
        return None
    return found


def binding_check(binding: dict[str, Any] | None) -> Check:
    """Return whether llama.cpp can be loaded."""
    if binding is None:
        return Check(
            name="llama.cpp",
            level=Level.FAILED,
            finding="llama-cpp-python cannot be loaded",
            advice="Run make setup. If it was built on another machine: CMAKE_ARGS=-DGGML_NATIVE=ON make setup",
        )
    return Check(name="llama.cpp", level=Level.OK, finding=f"llama-cpp-python {binding['version']}")


def cpu_flags(path: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """The CPU's features that matter for llama.cpp, by Linux's names; empty where Linux does not tell."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split()) & frozenset(_CPU_FLAGS)
    return frozenset()


def cpu_check(flags: frozenset[str], architecture: str) -> Check:
    """Vector units: without AVX2 or NEON a model runs, slowly."""
    finding = f"{architecture}, {', '.join(sorted(flags)) or 'no vector features reported'}"
    if "avx2" in flags or "asimd" in flags or architecture == "arm64":
        return Check(name="CPU", level=Level.OK, finding=finding)
    return Check(name="CPU", level=Level.WARNING, finding=finding, advice="Expect it to be slow; take a CPU with AVX2.")


def cores_check(physical: int, present: int) -> Check:
    """Count the threads that the server uses when ``threads`` is 0. More make llama.cpp slower, by a lot."""
    finding = f"{physical} physical cores usable, of {present} logical ones"
    if physical < 2:
        return Check(name="cores", level=Level.WARNING, finding=finding, advice="A second core would help a lot.")
    return Check(name="cores", level=Level.OK, finding=finding)


def usable_memory(root: Path = Path("/sys/fs/cgroup"), meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes that can still be taken: what Linux calls available, within the control group's limit."""
    found: list[int] = []
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
        found.extend(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, ValueError):
        pass
    try:
        limit = (root / "memory.max").read_text(encoding="ascii").strip()
        if limit != "max":
            found.append(int(limit) - int((root / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):
        pass
    return max(0, min(found)) if found else None


def memory_check(available: int | None, model_size: int | None) -> Check:
    """Return whether the weights and a context fit."""
    if available is None:
        return Check(name="memory", level=Level.WARNING, finding="unknown", advice="See that the model fits yourself.")
    if model_size is None:
        return Check(name="memory", level=Level.OK, finding=f"{human_size(available)} available")
    needed = model_size + MEMORY_BESIDE_WEIGHTS
    finding = f"{human_size(available)} available, about {human_size(needed)} needed"
    if available < needed:
        return Check(name="memory", level=Level.FAILED, finding=finding, advice="Free memory, or take a smaller model.")
    return Check(name="memory", level=Level.OK, finding=finding)


def gpus() -> list[str]:
    """Names of the NVIDIA GPUs, as their driver reports them."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run(  # noqa: S603 - a fixed command
            [tool, "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, timeout=20, check=True
        )
    except (subprocess.SubprocessError, OSError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def gpu_check(found: list[str], supported: bool) -> Check:
    """A GPU is of use only to a build that supports it."""
    if found and supported:
        names = ", ".join(found)
        return Check(name="GPU", level=Level.OK, finding=names, advice="Use it with: steelyard serve --gpu-layers=-1")
    if found:
        return Check(
            name="GPU",
            level=Level.WARNING,
            finding=f"{', '.join(found)}, but llama.cpp was built without GPU support",
            advice="To use it, build again: CMAKE_ARGS=-DGGML_CUDA=on make setup",
        )
    return Check(name="GPU", level=Level.OK, finding="none; the CPU is used")


def disk_check(folder: Path) -> Check:
    """Room in the model cache."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    finding = f"{human_size(free)} free at {folder}"
    if not os.access(existing, os.W_OK):
        advice = "Set STEELYARD_CACHE to a folder that you may write to."
        return Check(name="disk", level=Level.FAILED, finding=f"{folder} cannot be written", advice=advice)
    if free < 1_000_000_000:
        advice = "Free some, or set STEELYARD_CACHE to a folder on a larger disk."
        return Check(name="disk", level=Level.WARNING, finding=finding, advice=advice)
    return Check(name="disk", level=Level.OK, finding=finding)


def model_checks(model: str) -> tuple[int | None, list[Check]]:
    """Return whether the model is here and is what it should be; with its size in bytes."""
    try:
        path, name = storage.resolve(model)
        files = model_files.resolve(path)
    except CommandError as error:
        return None, [Check(name="model", level=Level.FAILED, finding=error.message, advice=error.hint or "")]
    except model_files.ModelFileError as error:
        advice = "See what the catalogue has: steelyard model list"
        return None, [Check(name="model", level=Level.FAILED, finding=str(error), advice=advice)]
    standing = "verified" if name else "not in the catalogue, so not verified"
    finding = f"{path} ({human_size(files.size_bytes)}, {standing})"
    checks = [Check(name="model", level=Level.OK, finding=finding)]
    return files.size_bytes, [*checks, template_check(files.first)]


def template_check(path: Path) -> Check:
    """Return whether decisions can be read from the prompts of the model's chat template, and where."""
    try:
        # What the command line does without: numpy, and Jinja for the child process.
        import jinja2  # noqa: F401

        from steelyard_runtime.chat_template import BadTemplateError, choose
        from steelyard_runtime.scoring.prompt import NoFrameError, frame
    except ImportError as error:
        advice = "Run make setup, or install the extra: pip install 'steelyard[runtime]'."
        return Check(name="chat template", level=Level.WARNING, finding=f"not looked at: {error}", advice=advice)
    key = "tokenizer.chat_template"
    values = {name: value for name, value in read_header(path).values.items() if isinstance(value, str)}
    named = {name.removeprefix(f"{key}."): value for name, value in values.items() if name.startswith(f"{key}.")}
    try:
        template, note = choose(None, default=values.get(key), named=named, bos_text="", eos_text="")
    except BadTemplateError as error:
        return Check(name="chat template", level=Level.FAILED, finding=str(error))
    finding = f"{template.name}: {template.answer_position.sentence}"
    try:
        frame(template)
    except NoFrameError as error:
        advice = (
            "A server of this model serves chats only. Set chat_template to another template, to a file, or to plain."
        )
        return Check(name="chat template", level=Level.WARNING, finding=str(error), advice=advice)
    return Check(name="chat template", level=Level.WARNING if note else Level.OK, finding=finding, advice=note)
