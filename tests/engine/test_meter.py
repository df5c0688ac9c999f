"""The clock of a decode, and what interrupts it."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from steelyard_runtime.engine import meter as module
from steelyard_runtime.engine.meter import Meter


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return now


def test_a_decode_is_charged_what_it_took_without_what_interrupted_it(clock: list[float]) -> None:
    meter = Meter()
    with meter.decoding(256, chat=True) as chat:
        clock[0] += 1
        with meter.interrupted():
            assert meter.running_for() == 0
            for _ in range(3):
                with meter.decoding(50) as decision:
                    clock[0] += 0.5
                assert decision.seconds == 0.5
            clock[0] += 30
        assert meter.running_for() == 1  # not 32.5: a chat that is interrupted for long does not hang
        clock[0] += 1
    assert chat.seconds == 2
    assert meter.running_for() == 0
    assert meter.counters.busy_seconds == 3.5
    assert meter.counters.decodes == 4
    assert meter.counters.decoded_tokens == 256 + 150
    assert meter.rate == 100


def test_a_decode_that_fails_in_an_interruption_stops_the_clock(clock: list[float]) -> None:
    meter = Meter()
    with pytest.raises(RuntimeError), meter.decoding(256, chat=True), meter.interrupted(), meter.decoding(50):
        raise RuntimeError
    assert meter.running_for() == 0
