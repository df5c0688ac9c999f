"""The published chat container's ``SM_LLAMA_CPP_*`` variables: as flags of llama-server, and as settings of our server.

The container turns ``SM_LLAMA_CPP_FOO_BAR=v`` into ``--foo-bar v``, ``true`` into a bare flag, and drops ``false``.
Where our server stands in for it, a flag without a counterpart is refused: a local run that ignored it would show
something else than AWS will.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from steelyard_localcloud.errors import ServiceError

PREFIX = "SM_LLAMA_CPP_"

_SETTINGS: Mapping[str, str] = {
    "threads": "THREADS",
    "n-gpu-layers": "GPU_LAYERS",
    "gpu-layers": "GPU_LAYERS",
    "batch-size": "BATCH_TOKENS",
    "alias": "MODEL_ID",
    "n-predict": "DEFAULT_MAX_TOKENS",
    "predict": "DEFAULT_MAX_TOKENS",
    "flash-attn": "FLASH_ATTENTION",
}
# What our server does anyway, or what makes no difference to an answer.
_WITHOUT_EFFECT = frozenset(
    {
        "cont-batching",
        "jinja",
        "metrics",
        "mlock",
        "mmap",
        "no-context-shift",
        "no-mmap",
        "no-mmproj",
        "no-slots",
        "no-ui",
        "no-warmup",
        "no-webui",
        "offline",
        "threads-batch",
        "threads-http",
        "timeout",
        "ubatch-size",
        "warmup",
    }
)
_CONTEXT, _PARALLEL = "ctx-size", "parallel"


def flags_of(environment: Mapping[str, str]) -> dict[str, str]:
    """The flags, without their dashes, that the container would pass; ``false`` ones are dropped."""
    return {
        name.removeprefix(PREFIX).lower().replace("_", "-"): value
        for name, value in sorted(environment.items())
        if name.startswith(PREFIX) and value.lower() != "false"
    }


def arguments(flags: Mapping[str, str]) -> list[str]:
    """The flags as words of llama-server's command line."""
    return [
        word
        for name, value in flags.items()
        for word in ([f"--{name}"] if value.lower() == "true" else [f"--{name}", value])
    ]


def settings(flags: Mapping[str, str], *, say: Callable[[str], None]) -> dict[str, str]:
    """The flags as ``STEELYARD_*`` variables of our server.

    Args:
        flags: What ``flags_of`` gave.
        say: Takes one line for the endpoint's log on each translation.

    Raises:
        ServiceError: A flag has no counterpart.
    """
    unknown = [name for name in flags if name not in _SETTINGS and name not in _WITHOUT_EFFECT]
    unknown = [name for name in unknown if name not in (_CONTEXT, _PARALLEL)]
    if unknown:
        names = ", ".join(PREFIX + name.upper().replace("-", "_") for name in unknown)
        raise ServiceError(
            f"The local cloud runs its own server in place of the llama.cpp container and cannot translate {names}; "
            "remove them for the local environment, or start the local cloud with --llama-server."
        )
    translated = {
        f"STEELYARD_{_SETTINGS[name]}": _value(name, value) for name, value in flags.items() if name in _SETTINGS
    }
    translated |= _capacity(flags)
    for name in flags:
        if name in _WITHOUT_EFFECT:
            say(f"--{name} has no effect here")
    for name, value in translated.items():
        say(f"container flags become {name}={value}")
    return translated


def _capacity(flags: Mapping[str, str]) -> dict[str, str]:
    """llama-server divides its context among its slots; ours takes the share of one and the number of chats."""
    result = {}
    parallel = _integer(_PARALLEL, flags[_PARALLEL]) if _PARALLEL in flags else 1
    if _PARALLEL in flags:
        result["STEELYARD_CHATS"] = str(parallel)
    if _CONTEXT in flags:
        result["STEELYARD_CONTEXT_TOKENS"] = str(_integer(_CONTEXT, flags[_CONTEXT]) // max(parallel, 1))
    return result


def _value(name: str, value: str) -> str:
    if name == "flash-attn":
        return {"true": "on", "1": "on", "0": "off"}.get(value.lower(), value.lower())
    return value


def _integer(name: str, value: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", value):
        raise ServiceError(f"--{name} of the llama.cpp container is {value!r}; it takes a whole number.")
    return int(value)
