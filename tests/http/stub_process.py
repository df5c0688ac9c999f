"""A server process whose engine is the stub: for signals and deaths, without loading a model.

``STUB_FAILS=text`` makes the start fail; ``STUB_LOADS_S=1`` makes it slow.
``STUB_HOLDS=1`` keeps accepted work from being done until SIGUSR2. SIGUSR1 kills the engine, not the process.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import types
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))

from steelyard_runtime.http.serve import main
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

ENGINE: list[StubEngine] = []


class EngineStartError(Exception):
    """As the real module has it."""


def start_engine(settings: Settings) -> StubEngine:
    """In place of the real one."""
    time.sleep(float(os.environ.get("STUB_LOADS_S", "0")))
    if "STUB_FAILS" in os.environ:
        raise EngineStartError(os.environ["STUB_FAILS"])
    ENGINE.append(StubEngine(settings))
    if "STUB_HOLDS" in os.environ:
        ENGINE[0].gate.clear()
    return ENGINE[0]


stand_in: Any = types.ModuleType("steelyard_runtime.engine.start")
stand_in.start_engine, stand_in.EngineStartError = start_engine, EngineStartError
sys.modules["steelyard_runtime.engine.start"] = stand_in

if __name__ == "__main__":
    if "STUB_TAKES_NO_SIGNALS" not in os.environ:
        signal.signal(signal.SIGUSR1, lambda *_: ENGINE[0].die())
        signal.signal(signal.SIGUSR2, lambda *_: ENGINE[0].gate.set())
    sys.exit(main())
