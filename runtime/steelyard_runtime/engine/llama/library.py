"""The loaded libllama: its version, its log, its errors, and how the binding declares its functions."""

from __future__ import annotations

import ctypes
import inspect
import re
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

try:
    import llama_cpp
    import llama_cpp.llama_cpp as binding
    from llama_cpp._ggml import libggml as ggml
except (AttributeError, OSError, RuntimeError) as error:
    raise ImportError(
        f"llama-cpp-python cannot use its libllama: {error}. The library is missing, or of another build than the "
        "binding was made for; install both from one release"
    ) from error

from steelyard_runtime.legible import legible

L: Any = llama_cpp  # its functions are named as in llama.h
BINDING_VERSION = str(L.__version__)
BINDING = f"llama-cpp-python {BINDING_VERSION}"
LIBRARIES = Path(binding._base_path)  # the folder that the binding took libllama from
ggml.ggml_backend_dev_count.restype = ctypes.c_size_t
ggml.ggml_backend_load_all_from_path.argtypes = [ctypes.c_char_p]
ggml.ggml_backend_load_all_from_path.restype = None
GGML_LOG_ERROR = 4
GGML_LOG_CONTINUE = 5


class LlamaError(RuntimeError):
    """llama.cpp refused or failed; the message carries its own last words.

    Attributes:
        unchanged: Every sequence holds what it held before the call.
    """

    def __init__(self, message: str, *, unchanged: bool = False) -> None:
        super().__init__(message)
        self.unchanged = unchanged


class Log:
    """Keeps llama.cpp's recent lines, so that an error can say why, and nothing is written to the caller's terminal."""

    def __init__(self) -> None:
        self.lines: deque[tuple[int, str]] = deque(maxlen=400)
        self._level = 0
        self._callback = L.llama_log_callback(self._take)  # kept: C holds only a pointer
        L.llama_log_set(self._callback, ctypes.c_void_p(0))

    def _take(self, level: int, text: bytes, _: object) -> None:
        line = text.decode("utf-8", "replace").rstrip("\n")
        if level == GGML_LOG_CONTINUE and self.lines:
            previous_level, previous = self.lines.pop()
            self.lines.append((previous_level, previous + line))
        elif line.strip():
            self.lines.append((level, line))

    def why(self) -> str:
        """The most recent error lines, shortened."""
        errors = [line.strip() for level, line in self.lines if level == GGML_LOG_ERROR]
        return legible("; ".join(errors[-3:])) or "llama.cpp gave no reason"

    def search(self, pattern: str) -> re.Match[str] | None:
        """The latest match of ``pattern`` in the kept lines."""
        for _, line in reversed(self.lines):
            if match := re.search(pattern, line):
                return match
        return None


def _load_backends() -> None:
    """Load the CPU's and the GPU's code where it lies in files of its own (a library built with ``GGML_BACKEND_DL``).

    llama.cpp's programs do that themselves; a library that has its backends inside has devices from the start.
    """
    if not ggml.ggml_backend_dev_count():
        ggml.ggml_backend_load_all_from_path(str(LIBRARIES).encode())


LOG = Log()
_load_backends()
L.llama_backend_init()


def llama_version() -> str:
    """The version that libllama reports of itself."""
    return str(L.llama_version().decode())


def system_info() -> str:
    """llama.cpp's CPU features and backends, on one line."""
    return " ".join(L.llama_print_system_info().decode().split())


def gpu_available() -> bool:
    """Tell whether this build of llama.cpp has a GPU backend and finds a device for it."""
    return bool(L.llama_supports_gpu_offload())


def struct_sizes(names: Iterable[str]) -> dict[str, int]:
    """Bytes of the binding's structs, by name."""
    return {name: ctypes.sizeof(getattr(binding, name)) for name in names}


def default_values() -> dict[str, dict[str, Any]]:
    """The library's default parameters as the binding reads them: members that are numbers, by struct."""
    found = {
        "llama_model_params": L.llama_model_default_params(),
        "llama_context_params": L.llama_context_default_params(),
    }
    return {struct: _numbers(values) for struct, values in found.items()}


def _numbers(values: Any) -> dict[str, Any]:
    members = {name: getattr(values, name) for name, *_ in values._fields_}
    return {name: value for name, value in members.items() if isinstance(value, int | float)}


_NUMBERS = {"?": "bool", "f": "float32", "d": "float64"}
_SIGNED = "bhilq"


def signatures(names: Iterable[str]) -> dict[str, str]:
    """Return the binding's declarations by function: result and parameters; "missing" where it has none.

    >>> signatures(["llama_sampler_init_min_p"])
    {'llama_sampler_init_min_p': 'pointer(p: float32, min_keep: uint64)'}
    """
    return {name: _signature(getattr(L, name, None)) for name in names}


def _signature(function: Any) -> str:
    if not hasattr(function, "argtypes"):
        return "missing"
    names = list(inspect.signature(function.__wrapped__).parameters)
    kinds = [_kind(declared) for declared in function.argtypes]
    parameters = ", ".join(f"{name}: {kind}" for name, kind in zip(names, kinds, strict=False))
    if len(names) != len(kinds):
        parameters = f"{len(names)} names for {len(kinds)} parameters"
    return f"{_kind(function.restype)}({parameters})"


def _kind(declared: Any) -> str:
    """A C type as it is passed: numbers by their size, structs by their name, everything else an address."""
    if declared is None:
        return "void"
    if issubclass(declared, ctypes.Structure):
        return str(declared.__name__)
    code = getattr(declared, "_type_", None)
    if not isinstance(code, str) or code in "zZP":
        return "pointer"
    if code in _NUMBERS:
        return _NUMBERS[code]
    return f"{'' if code in _SIGNED else 'u'}int{8 * ctypes.sizeof(declared)}"
