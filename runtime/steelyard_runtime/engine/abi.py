"""Proof that libllama is the library whose structs the binding has, before any model is loaded with it.

The binding passes structs by value. Over a library of another build it reads and sets members at wrong places, and
nothing says so. So a pair of llama.cpp build and binding runs only if ``abi.toml`` has it, and only if the library that
is there shows to be that build: by what it says of itself, by the sizes of its structs (measured in a process of its
own), by its default values as the binding reads them, by the parameters of every function that is called, by the logits
of a small fixed model, and by the tokens that its samplers choose.

``python -m steelyard_runtime.engine.abi`` does all of it, says what it found and ends with 1 if anything differs. The
image's build runs that; every start of the server does the same.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import platform
import subprocess
import sys
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

FOLDER = Path(__file__).resolve().parent
TABLE = FOLDER / "abi.toml"
MODEL = FOLDER / "abi.gguf"
LOGITS = FOLDER / "abi-logits.json"

BUILD_VARIABLE = "LLAMA_CPP_BUILD"
"""Set in an image, to the build of llama.cpp that its base has."""
BUNDLED = "bundled"
"""The build where the variable is not set: the library that pip built with the binding."""

TOLERANCE = 0.02
"""Largest difference of a logit. The reference is exact; llama.cpp keeps keys and values in 16 bits, which moves these
logits by 0.003 with every variant of its code that was tried. A member at a wrong place moves them by about 2."""

SAMPLED_LOGITS = (4.0, 3.6, 3.1, -20.0, -20.0)
SAMPLED: tuple[tuple[Mapping[str, Any], tuple[int, ...]], ...] = (
    ({}, (0, 0)),
    ({"frequency_penalty": 1.0}, (0, 1, 2, 0, 1)),
    ({"presence_penalty": 1.0}, (0, 1, 2, 0, 0)),
    ({"logit_bias": ((2, 2.0), (0, -1.0))}, (2, 2)),
    ({"temperature": 1.0, "top_k": 1, "seed": 5}, (0,) * 8),
    ({"temperature": 1.0, "top_p": 0.3, "seed": 5}, (0,) * 8),
    ({"temperature": 1.0, "min_p": 0.9, "seed": 5}, (0,) * 8),
    ({"temperature": 0.01, "seed": 5}, (0,) * 8),
)
"""The tokens that samplers choose from these logits. No draw: which token a seed gives is the library's own."""

MEASURE_TIMEOUT_S = 60.0
_ROOM = 4096
_CANARIES = (0xA5, 0x5A)
_ALIGNMENT = 8


class AbiError(RuntimeError):
    """Binding and library do not belong together, or it is not known that they do; the message says which and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A row of the table, with what is known of its binding.

    Attributes:
        llama_cpp: Build of llama.cpp, such as ``b10433``, or ``bundled``.
        binding: Version of llama-cpp-python.
        sdist_sha256: Hash of the binding's source archive.
        llama_version: What ``llama_version()`` answers; None where that is not known.
        ggml_version: What ``ggml_version()`` answers; None where that is not known.
        sizes: Bytes of each struct that is passed by value.
        defaults: The library's default values, by struct and member.
        calls: The functions that the engine calls, with their results and parameters.
        source: How the pair was established.
    """

    llama_cpp: str
    binding: str
    sdist_sha256: str
    llama_version: str | None
    ggml_version: str | None
    sizes: Mapping[str, int]
    defaults: Mapping[str, Mapping[str, int | float | bool]]
    calls: Mapping[str, str]
    source: str

    @property
    def build(self) -> str:
        """Name of the build for people and for what depends on it; a bundled library has that of its binding."""
        return f"{BUNDLED}-{self.binding}" if self.llama_cpp == BUNDLED else self.llama_cpp


@dataclass(frozen=True, slots=True, kw_only=True)
class Library:
    """Facts that a libllama reports of itself.

    Attributes:
        llama_version: What ``llama_version()`` answers.
        ggml_version: What ``ggml_version()`` answers.
        sizes: Bytes that the library writes for each struct that it returns by value.
    """

    llama_version: str
    ggml_version: str
    sizes: Mapping[str, int]


@cache
def table() -> tuple[Pair, ...]:
    """All pairs of ``abi.toml``."""
    known = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    return tuple(_pair(row, known["binding"][row["binding"]]) for row in known["pair"])


def _pair(row: Mapping[str, str], binding: Mapping[str, Any]) -> Pair:
    return Pair(
        llama_cpp=row["llama_cpp"],
        binding=row["binding"],
        sdist_sha256=binding["sdist_sha256"],
        llama_version=row.get("llama_version"),
        ggml_version=row.get("ggml_version"),
        sizes=binding["sizes"],
        defaults={
            "llama_model_params": binding["model_defaults"],
            "llama_context_params": binding["context_defaults"],
        },
        calls=binding["calls"],
        source=row["source"],
    )


def find(llama_cpp: str, binding: str) -> Pair:
    """The row of a pair.

    Raises:
        AbiError: The table has none.
    """
    for pair in table():
        if (pair.llama_cpp, pair.binding) == (llama_cpp, binding):
            return pair
    known = ", ".join(f"{pair.llama_cpp} with {pair.binding}" for pair in table())
    raise AbiError(
        f"llama.cpp {llama_cpp} with llama-cpp-python {binding} is not a pair that is known to fit; {TABLE.name} has "
        f"{known}. Use one of these, or measure the new pair and add it there"
    )


def binding_for(llama_cpp: str) -> Pair:
    """The row of a build of llama.cpp.

    Raises:
        AbiError: The table has none.
    """
    for pair in table():
        if pair.llama_cpp == llama_cpp:
            return pair
    raise AbiError(
        f"no binding is known for llama.cpp {llama_cpp}; {TABLE.name} has "
        f"{', '.join(pair.llama_cpp for pair in table())}. Measure the new build and add it there"
    )


def prove() -> Pair:
    """Check the library and the binding of this process.

    Raises:
        AbiError: They do not belong together.
    """
    from steelyard_runtime.engine import llama

    pair = find(os.environ.get(BUILD_VARIABLE) or BUNDLED, llama.BINDING_VERSION)
    check_library(pair, inspect(llama.LIBRARIES), llama.LIBRARIES)
    check_binding(pair, llama.struct_sizes(pair.sizes))
    check_calls(pair, llama.signatures(pair.calls))
    check_defaults(pair, llama.default_values())
    check_sampling(llama.Sampler)
    check_logits(llama.logits_of_file)
    return pair


def inspect(libraries: Path) -> Library:
    """Ask the libllama in ``libraries``, in a process of its own, which a foreign one may bring down.

    Raises:
        AbiError: There is none, or it does not answer.
    """
    command = [sys.executable, "-I", "-S", __file__, "inspect", str(libraries)]
    try:
        done = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=MEASURE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise AbiError(f"libllama in {libraries} did not answer in {MEASURE_TIMEOUT_S:.0f} s") from None
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise AbiError(f"libllama in {libraries} cannot be used: {why}")
    answer = json.loads(done.stdout)
    return Library(**answer)


def check_library(pair: Pair, found: Library, libraries: Path) -> None:
    """Compare what the library shows of itself with the table.

    Raises:
        AbiError: It is another build.
    """
    versions = {
        "libllama": (pair.llama_version, found.llama_version),
        "libggml": (pair.ggml_version, found.ggml_version),
    }
    for name, (known, said) in versions.items():
        if known is not None and said != known:
            raise AbiError(
                f"{name} in {libraries} is version {said}, but that of llama.cpp {pair.llama_cpp} is {known}: it is "
                f"another build than llama-cpp-python {pair.binding} was made for; put the right library there"
            )
    for name, size in found.sizes.items():
        if size != pair.sizes[name]:
            raise AbiError(
                f"{name} has {size} bytes in the libllama in {libraries} and {pair.sizes[name]} in llama-cpp-python "
                f"{pair.binding}: it is another build than llama.cpp {pair.llama_cpp}; put the right library there"
            )


def check_binding(pair: Pair, sizes: Mapping[str, int]) -> None:
    """Compare the binding's own structs with the table.

    Raises:
        AbiError: They differ: the installed binding is not what its version says.
    """
    for name, size in sizes.items():
        if size != pair.sizes[name]:
            raise AbiError(
                f"{name} has {size} bytes in the installed llama-cpp-python and {pair.sizes[name]} in version "
                f"{pair.binding}: the package was changed; install it again"
            )


def check_defaults(pair: Pair, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the library's defaults, as the binding reads them, with the table.

    Raises:
        AbiError: One differs, so a member lies at another place, or the library has another default.
    """
    for struct, members in pair.defaults.items():
        for name, value in members.items():
            if (got := found[struct].get(name)) != value:
                raise AbiError(
                    f"the default of {struct}.{name} reads as {got} and is {value} in llama.cpp {pair.llama_cpp}: "
                    f"libllama is another build than llama-cpp-python {pair.binding} was made for"
                )


def check_calls(pair: Pair, found: Mapping[str, str]) -> None:
    """Compare how the installed binding declares the functions that the engine calls with the table.

    Raises:
        AbiError: One has other parameters, or is missing: a call of it would fail, or pass values at wrong places.
    """
    for name, known in pair.calls.items():
        if (got := found[name]) != known:
            raise AbiError(
                f"{name} is {got} in the installed llama-cpp-python and {known} in version {pair.binding}: the package "
                "was changed; install it again"
            )


class Chooser(Protocol):
    """A sampler: what ``llama.Sampler`` is."""

    def sample(self, logits: Any) -> int:
        """The next token."""
        ...

    def close(self) -> None:
        """Free it."""
        ...


def check_sampling(sampler: Callable[..., Chooser]) -> None:
    """Sample from fixed logits with every step that the engine uses, alone, and compare the tokens.

    Args:
        sampler: Makes a sampler from the size of a vocabulary and keyword arguments.

    Raises:
        AbiError: A step chooses other tokens: the library takes its parameters in another order.
    """
    import numpy as np

    logits = np.array(SAMPLED_LOGITS, np.float32)
    for step, right in SAMPLED:
        chooser = sampler(len(logits), **step)
        try:
            got = [chooser.sample(logits) for _ in right]
        finally:
            chooser.close()
        if got != list(right):
            raise AbiError(
                f"libllama samples wrongly: with {step} it chooses the tokens {got} and {list(right)} are right; "
                "it is another build than the binding was made for"
            )


def check_logits(evaluate: Callable[[Path, list[int]], Any]) -> None:
    """Evaluate the fixed model and compare its logits with the reference.

    Args:
        evaluate: Gives the logits after the last of the tokens, by a GGUF file.

    Raises:
        AbiError: One differs by more than ``TOLERANCE``, or is not a number.
    """
    reference = json.loads(LOGITS.read_text(encoding="utf-8"))
    logits = [float(value) for value in evaluate(MODEL, reference["tokens"])]
    if len(logits) != len(reference["logits"]):
        raise AbiError(
            f"libllama gives {len(logits)} logits for {MODEL.name}, which has {len(reference['logits'])} tokens"
        )
    differences = [abs(got - right) for got, right in zip(logits, reference["logits"], strict=True)]
    # Written so that a NaN fails.
    wrong = [token for token, difference in enumerate(differences) if not difference <= TOLERANCE]
    if wrong:
        token = wrong[0]
        raise AbiError(
            f"libllama computes wrongly: {len(wrong)} of {len(logits)} logits of {MODEL.name} are off by more than "
            f"{TOLERANCE}, such as {logits[token]} for {reference['logits'][token]} at token {token}"
        )


def _inspect_here(libraries: Path) -> dict[str, Any]:
    """Inspect a libllama in this process. Only the standard library is there."""
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise AbiError(f"how {platform.system()} on {platform.machine()} returns structs is not known here")
    path = libraries / "libllama.so"
    if not path.exists():
        raise AbiError(f"there is no {path.name}")
    llama = ctypes.CDLL(str(path))
    ggml = ctypes.CDLL(str(libraries / "libggml-base.so"))
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


def main(arguments: list[str]) -> int:
    """Prove, or ``inspect FOLDER``; returns an exit code."""
    try:
        if arguments[:1] == ["inspect"]:
            sys.stdout.write(json.dumps(_inspect_here(Path(arguments[1]))) + "\n")
            return 0
        pair = prove()
    except (AbiError, ImportError, OSError, AttributeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"llama.cpp {pair.llama_cpp} and llama-cpp-python {pair.binding} belong together\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
