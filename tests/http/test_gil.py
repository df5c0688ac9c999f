"""The engine asks Python in the middle of a chat's decode; a busy event loop must not keep it waiting for long."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from steelyard_runtime.http import serve as module
from steelyard_runtime.settings import load_settings


@pytest.fixture
def interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("interval")
def test_threads_give_way_sooner_than_pythons_default(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []

    class Stub:
        loading = False

        def __init__(self, *_: object, **__: object) -> None:
            pass

        async def run(self) -> int:
            seen.append(sys.getswitchinterval())
            return 0

    sys.setswitchinterval(0.005)
    monkeypatch.setattr(module, "_Process", Stub)
    for name in ("forward_standard_logging", "forward_python_faults"):
        monkeypatch.setattr(module, name, lambda *_: None)
    assert module.serve(load_settings(model="model.gguf")) == 0
    assert seen == [pytest.approx(module.SWITCH_S)]
    assert module.SWITCH_S < 0.005
