"""The flags of llama-server that came or went, by build of llama.cpp: a container stops at one that it does not know.

Read from ``common/arg.cpp`` of b10435, b10883, b10894, b10950, b10970 and b11434.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from steelyard_constructs.refusal import Refused

PREFIX = "SM_LLAMA_CPP_"


@dataclass(frozen=True, kw_only=True)
class Change:
    """A flag that came or went, and between which builds.

    Attributes:
        before: The last build that was read before the change.
        after: The first build that was read after it.
        came: Whether it came; else it went.
        instead: What to write where there is no such flag; "" where nothing takes its place.
    """

    before: int
    after: int
    came: bool
    instead: str = ""


_LOADING = 'set load-mode, such as "none", "mmap", "mlock" or "dio", instead'
CHANGES: Mapping[str, Change] = {
    **{
        name: Change(before=10435, after=10883, came=False, instead=_LOADING)
        for name in ("direct-io", "mlock", "mmap", "no-direct-io", "no-mmap")
    },
    **{
        name: Change(before=10435, after=10883, came=True)
        for name in (
            *("kv-unified-per-slot", "lazy-mode", "log-jsonl", "mmproj-device", "n-cpu-ffn", "no-log-jsonl"),
            *("spec-synth-len", "spec-synth-rates", "video-ffmpeg-dir", "video-fps", "video-timestamp-interval"),
        )
    },
    **{name: Change(before=10970, after=11434, came=True) for name in ("nextn", "spec-draft-sampling")},
}


def flag_of(variable: str) -> str:
    """The flag that the container makes of a variable.

    >>> flag_of("SM_LLAMA_CPP_NO_MMAP")
    'no-mmap'
    """
    return variable.removeprefix(PREFIX).lower().replace("_", "-")


def check_flags_of_build(variables: Iterable[str], llama_cpp: str | None) -> None:
    """Refuse flags that the build's llama-server does not have, or of which that is not known.

    Args:
        variables: Names of the container's variables; those of other things are passed over.
        llama_cpp: The build of llama.cpp in the container, such as ``b10964``; None where that is not known.

    Raises:
        Refused: With the flag, the build and what to write instead.
    """
    if llama_cpp is None:
        return
    build = int(llama_cpp.removeprefix("b"))
    for flag in sorted(flag_of(each) for each in variables if each.startswith(PREFIX)):
        change = CHANGES.get(flag)
        if change is None or (build >= change.after if change.came else build <= change.before):
            continue
        if change.before < build < change.after:
            how = "came" if change.came else "went"
            why = f"it {how} after b{change.before} and not after b{change.after}, so {llama_cpp} may have it or not"
        elif change.came:
            why = f"b{change.before} does not have it yet"
        else:
            why = f"b{change.after} does not have it any more"
        raise Refused(
            f"the flag {flag!r} would stop the container of llama.cpp {llama_cpp}: {why}; "
            f"{change.instead or 'leave it out'}"
        )
