"""Proof that libllama is the build whose structs the engine declares, before any model is loaded with it.

The engine passes structs by value. Over a library of another build it reads and sets members at wrong places, and
nothing says so. So a build of llama.cpp runs only if ``abi.toml`` has the structs of its own ``llama.h``, and only if
the library that is there shows to be that build: by what it says of itself, by the sizes of its structs (measured in a
process of its own), by its default values as they are declared, by the logits of a small fixed model, and by the tokens
that its samplers choose.

``python -m steelyard_runtime.engine.abi`` does all of it, says what it found and ends with 1 if anything differs. The
image's build runs that; every start of the server does the same.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from steelyard_runtime.engine import builds
from steelyard_runtime.engine.builds import AbiError

FOLDER = Path(__file__).resolve().parent
INSPECTOR = FOLDER / "abi_inspect.py"
MODEL = FOLDER / "abi.gguf"
LOGITS = FOLDER / "abi-logits.json"

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


def prove() -> builds.Build:
    """Check the library of this process.

    Raises:
        AbiError: It is not the build that it is said to be.
    """
    from steelyard_runtime.engine import llama

    build = builds.current()
    sizes = llama.struct_sizes(build.structs)
    check_library(build, inspect(llama.LIBRARIES), sizes=sizes, libraries=llama.LIBRARIES)
    check_defaults(build, llama.default_values())
    check_sampling(llama.Sampler)
    check_logits(llama.logits_of_file)
    return build


def inspect(libraries: Path) -> Library:
    """Ask the libllama in ``libraries``, in a process of its own, which a foreign one may bring down.

    Raises:
        AbiError: There is none, or it does not answer.
    """
    command = [sys.executable, "-I", "-S", str(INSPECTOR), str(libraries)]
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


def check_library(build: builds.Build, found: Library, *, sizes: Mapping[str, int], libraries: Path) -> None:
    """Compare what the library shows of itself with the table.

    Args:
        build: The build that it should be.
        found: What was found out.
        sizes: Bytes of the structs as the engine declares them.
        libraries: Where it lies, for the message.

    Raises:
        AbiError: It is another build.
    """
    versions = {
        "libllama": (build.llama_version, found.llama_version),
        "libggml": (build.ggml_version, found.ggml_version),
    }
    for name, (known, said) in versions.items():
        if known is not None and said != known:
            raise AbiError(
                f"{name} in {libraries} is version {said}, but that of llama.cpp {build.llama_cpp} is {known}: it is "
                "another build; put the right library there"
            )
    for name, size in found.sizes.items():
        if size != sizes[name]:
            raise AbiError(
                f"{name} has {size} bytes in the libllama in {libraries} and {sizes[name]} in the llama.h of "
                f"{build.llama_cpp}: it is another build; put the right library there"
            )


def check_defaults(build: builds.Build, found: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare the library's defaults, as they are declared, with the table.

    Raises:
        AbiError: One differs, so a member lies at another place, or the library has another default.
    """
    for struct, members in build.defaults.items():
        for name, value in members.items():
            if (got := found[struct].get(name)) != value:
                raise AbiError(
                    f"the default of {struct}.{name} reads as {got} and is {value} in llama.cpp "
                    f"{build.llama_cpp}: the libllama that is there is another build"
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
                "the libllama that is there is another build"
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


def main() -> int:
    """Prove; returns an exit code."""
    try:
        build = prove()
    except (AbiError, ImportError, OSError, AttributeError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"the library is llama.cpp {build.llama_cpp}, as llama.h of {build.interface} declares it\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
