"""The readouts that there are. A new one is a file here and an entry in ``STRATEGIES``."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.scoring.letters import Letters
from steelyard_runtime.scoring.strategy import Strategy

Strategies = Mapping[str, Strategy]
"""By name. The first one reads what names none."""

STRATEGIES: Strategies = MappingProxyType({each.name: each for each in (Letters(),)})


def choose(name: str | None, strategies: Strategies) -> Strategy:
    """The strategy that a decision is read with.

    Args:
        name: What the decision says; None leaves it to the server.
        strategies: Those of the server.

    Raises:
        Problem: INVALID; there is none of that name.
    """
    if name is None:
        return next(iter(strategies.values()))
    if (found := strategies.get(name)) is None:
        raise Problem(Kind.INVALID, f"there is no readout {name!r}; there are: {', '.join(strategies)}")
    return found
