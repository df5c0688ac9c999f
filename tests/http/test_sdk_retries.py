"""Which of our faults SDKs send again by themselves: what a restart mends, and never what would end the next engine."""

from __future__ import annotations

from collections.abc import Callable

import openai
import pytest
import typesafe_sdk

from live_server import ServerThread
from steelyard_runtime.errors import Kind, Problem
from stub_engine import StubEngine

FAULTS = {
    Kind.REQUEST_FAILED: Problem(Kind.REQUEST_FAILED, "the engine failed while it worked on this request"),
    Kind.ENGINE_FAILED: Problem(Kind.ENGINE_FAILED, "the engine ended", retry_after_ms=1),
}


def chat(url: str) -> object:
    with openai.OpenAI(base_url=url + "/v1", api_key="unused") as client:
        return client.chat.completions.create(model="", messages=[{"role": "user", "content": "hi"}], max_tokens=2)


def system_one(url: str) -> object:
    with typesafe_sdk.TypeSafeClient(base_url=url, api_key="unused") as client:
        return client.system_one(state="late", questions={"late": typesafe_sdk.Noul(instructions="late?")})


@pytest.mark.parametrize("ask", [chat, system_one])
@pytest.mark.parametrize("kind", FAULTS)
def test_a_request_that_failed_by_itself_is_sent_once(
    live_stub: ServerThread, stub_engine: StubEngine, ask: Callable[[str], object], kind: Kind
) -> None:
    stub_engine.refuse_with = FAULTS[kind]
    with pytest.raises(Exception, match="the engine"):
        ask(live_stub.url)
    sent = stub_engine.counters.rejected
    assert (sent == 1) if kind is Kind.REQUEST_FAILED else (sent > 1)
