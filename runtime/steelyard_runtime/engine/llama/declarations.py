"""Declares a build's structs and functions to ctypes, as its own ``llama.h`` has them."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from steelyard_runtime.engine import builds

_KINDS: Mapping[str, Any] = {
    "bool": ctypes.c_bool,
    "float32": ctypes.c_float,
    "float64": ctypes.c_double,
    "string": ctypes.c_char_p,
    "void": None,
    "void*": ctypes.c_void_p,
    **{f"int{bits}": getattr(ctypes, f"c_int{bits}") for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": getattr(ctypes, f"c_uint{bits}") for bits in (8, 16, 32, 64)},
    "ggml_abort_callback": ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p),
    "ggml_backend_sched_eval_callback": ctypes.CFUNCTYPE(
        ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p
    ),
    "ggml_log_callback": ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p),
}


def declared(build: builds.Build, library: Any) -> SimpleNamespace:
    """The functions and types of a library, named as in ``llama.h``.

    Args:
        build: The build that the library is.
        library: A ``ctypes.CDLL``.

    Raises:
        AttributeError: The library lacks a function.
    """
    kinds = dict(_KINDS)
    for name, text in build.structs.items():
        fields = [(member, _kind(each, kinds)) for member, each in builds.members(text)]
        kinds[name] = type(name, (ctypes.Structure,), {"_fields_": fields})
    found = {name: kinds[name] for name in kinds if "_" in name}
    for name, text in build.calls.items():
        result, parameters = builds.signature(text)
        function = getattr(library, name)
        function.restype = _kind(result, kinds)
        function.argtypes = [_kind(each, kinds) for each in parameters]
        found[name] = function
    return SimpleNamespace(**found, llama_token=ctypes.c_int32)


def _kind(name: str, kinds: Mapping[str, Any]) -> Any:
    if name in kinds:
        return kinds[name]
    if name.endswith("*"):
        return ctypes.POINTER(_kind(name[:-1], kinds))
    raise builds.AbiError(f"{name!r} of {builds.TABLE.name} is no type")
