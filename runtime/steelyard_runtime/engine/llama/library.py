"""The loaded libllama: its declarations, its version, its log, its errors."""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from steelyard_runtime.engine import builds
from steelyard_runtime.engine.llama.declarations import declared
from steelyard_runtime.legible import legible

FOLDER_VARIABLE = "LLAMA_CPP_LIB_PATH"
"""Set in an image, to the folder in which its base has llama.cpp's libraries."""


def _folder() -> Path:
    """Return the folder of the libraries: the one that is named, or the one into which pip built them."""
    if named := os.environ.get(FOLDER_VARIABLE):
        return Path(named)
    package = find_spec("llama_cpp")  # not imported: it declares what the library may not have
    if package is None or package.origin is None:
        raise ImportError(f"there is no libllama: llama-cpp-python is not installed, and {FOLDER_VARIABLE} is not set")
    return Path(package.origin).parent / "lib"


def _loaded(folder: Path) -> tuple[Any, Any, builds.Build]:
    """Load libggml and libllama, and declare the latter's functions as its build has them."""
    try:
        build = builds.current()
    except builds.AbiError as error:
        raise ImportError(str(error)) from error
    try:
        # In this order, so that each finds what it needs, wherever the folder is.
        ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
        ggml = ctypes.CDLL(str(folder / "libggml.so"), mode=ctypes.RTLD_GLOBAL)
        return ggml, declared(build, ctypes.CDLL(str(folder / "libllama.so"))), build
    except (AttributeError, OSError) as error:
        raise ImportError(
            f"the libllama in {folder} cannot be used: {error}. The library is missing, or is not llama.cpp "
            f"{build.llama_cpp}; put the right one there"
        ) from error


LIBRARIES = _folder()
ggml, L, BUILD = _loaded(LIBRARIES)  # L's functions are named as in llama.h
BINDING = f"llama.h of {BUILD.interface}"
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
        self._callback = L.ggml_log_callback(self._take)  # kept: C holds only a pointer
        L.llama_log_set(self._callback, None)

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
    """Bytes of the declared structs, by name."""
    return {name: ctypes.sizeof(getattr(L, name)) for name in names}


def default_values() -> dict[str, dict[str, Any]]:
    """The library's default parameters as they are declared: members that are numbers, by struct."""
    found = {
        "llama_model_params": L.llama_model_default_params(),
        "llama_context_params": L.llama_context_default_params(),
    }
    return {struct: _numbers(values) for struct, values in found.items()}


def _numbers(values: Any) -> dict[str, Any]:
    members = {name: getattr(values, name) for name, *_ in values._fields_}
    return {name: value for name, value in members.items() if isinstance(value, int | float)}
