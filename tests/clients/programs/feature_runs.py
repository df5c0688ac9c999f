"""What the programs share: each feature is tried, and its outcome is printed as one JSON object for the tests.

A program runs in an environment that holds its client and not this project. Its arguments are the URL of a server and
the URL of one whose model gives embeddings.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import inspect
import json
import re
import sys
from collections.abc import Callable
from typing import Any

CHAT, EMBEDDING = sys.argv[1], sys.argv[2]
QUESTION = "Name a colour."
# How the server refuses a field's value, whatever the client puts around it.
_REFUSAL = re.compile(r"is not supported: ([^;]+);")


def run(distribution: str, features: dict[str, Callable[[], Any]]) -> None:
    """Try each feature: it works, or the server refuses it with a reason, or it fails."""
    outcomes = {name: _outcome(feature) for name, feature in features.items()}
    print(json.dumps({"version": importlib.metadata.version(distribution), "features": outcomes}))


def _outcome(feature: Callable[[], Any]) -> str:
    try:
        result = feature()
        if inspect.isawaitable(result):
            asyncio.run(_awaited(result))
    except Exception as error:
        refusal = _REFUSAL.search(str(error))
        return f"refused: {refusal[1]}" if refusal else f"fails: {type(error).__name__}: {error}"[:1500]
    return "works"


async def _awaited(result: Any) -> Any:
    return await result
