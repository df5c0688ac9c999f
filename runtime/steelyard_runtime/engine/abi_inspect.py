"""Asks a libllama about itself, in a process of its own, which a foreign library may bring down.

    python -I -S abi_inspect.py FOLDER

writes JSON: the versions, and the sizes of the structs that it returns by value. Only the standard library is there.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import platform
import sys
from pathlib import Path
from typing import Any

_ROOM = 4096
_CANARIES = (0xA5, 0x5A)
_ALIGNMENT = 8


class InspectionError(Exception):
    """The library cannot be asked; the message says why."""


def main(arguments: list[str]) -> int:
    """Inspect the folder's library; returns an exit code."""
    try:
        sys.stdout.write(json.dumps(inspect_here(Path(arguments[0]))) + "\n")
    except (InspectionError, OSError, AttributeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def inspect_here(libraries: Path) -> dict[str, Any]:
    """Inspect a libllama in this process.

    Raises:
        InspectionError: There is none, or how structs are returned here is not known.
    """
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise InspectionError(f"how {platform.system()} on {platform.machine()} returns structs is not known here")
    path = libraries / "libllama.so"
    if not path.exists():
        raise InspectionError(f"there is no {path.name}")
    ggml = ctypes.CDLL(str(libraries / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    if (whole := libraries / "libggml.so").exists():
        ctypes.CDLL(str(whole), mode=ctypes.RTLD_GLOBAL)  # before libllama, which then finds it wherever it lies
    llama = ctypes.CDLL(str(path))
    return {
        "llama_version": _text(llama.llama_version),
        "ggml_version": _text(ggml.ggml_version),
        "sizes": {
            "llama_model_params": _size(llama.llama_model_default_params),
            "llama_context_params": _size(llama.llama_context_default_params),
            "llama_model_quantize_params": _size(llama.llama_model_quantize_default_params),
            "llama_batch": _size(llama.llama_batch_init, 1, 0, 1),
        },
    }


def _text(function: Any) -> str:
    function.restype = ctypes.c_char_p
    return str(function().decode())


def _size(function: Any, *arguments: int) -> int:
    """Count the bytes that a function writes which returns a struct by value, in whole units of its alignment.

    Such a function writes where its caller says. Ours says: into a larger room, filled with a known byte; done with two
    different bytes, what has stayed in both was not written.
    """
    rooms = [ctypes.create_string_buffer(bytes([canary]) * _ROOM, _ROOM) for canary in _CANARIES]
    for room in rooms:
        _call_with_result_at(function, room, arguments)
    written = [
        index for index, values in enumerate(zip(*(room.raw for room in rooms), strict=True)) if values != _CANARIES
    ]
    end = written[-1] + 1 if written else 0
    return -(-end // _ALIGNMENT) * _ALIGNMENT


def _call_with_result_at(function: Any, room: Any, arguments: tuple[int, ...]) -> None:
    """Call ``function`` with the address for its result: a hidden first argument on x86-64, register x8 on arm64."""
    address = ctypes.addressof(room)
    if platform.machine() == "x86_64":
        function.restype = None
        function.argtypes = [ctypes.c_void_p, *[ctypes.c_int32] * len(arguments)]
        function(address, *arguments)
        return
    # ctypes cannot set x8. `mov x8, x3; br x4` can: the arguments come first, then the address and the function.
    code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("e80303aa80001fd6"))
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_int32] * 3, ctypes.c_void_p, ctypes.c_void_p)(start)
    given = (*arguments, *[0] * (3 - len(arguments)))
    call(*given, address, ctypes.cast(function, ctypes.c_void_p).value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
