"""The workloads against real sockets: a server that answers at once, refuses now and then, and counts what it got."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
from collections import Counter
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.peers import workloads
from benchmarks.peers.asking import ANSWERED, Log, Patience
from benchmarks.peers.cases import registered, routing
from benchmarks.peers.servers import LLAMA, OURS, PEERS, REGISTERED, Running
from benchmarks.peers.workloads import Bench, Numbers
from live_server import ServerThread

PATIENCE = Patience(attempt_s=20, total_s=30, attempts=50)


class Stub:
    """A decision server; every ``refuse``-th attempt gets a 503."""

    def __init__(self, *, refuse: int = 0) -> None:
        self.states: list[str] = []
        self.refuse = refuse
        self.attempts = itertools.count(1)
        self.answered = self.open = self.most_open = 0
        routes = [
            Route("/v1/systemone", self.decide, methods=["POST"]),
            Route("/invocations", self.registered, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/metrics", self.metrics),
        ]
        self.app = Starlette(routes=routes)

    async def decide(self, request: Request) -> Response:
        body = await request.json()
        if self.refuse and next(self.attempts) % self.refuse == 0:
            return JSONResponse({"detail": {"message": "busy", "retry_after_ms": 1}}, status_code=503)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0.002)
        self.open -= 1
        self.answered += 1
        self.states.append(body["state"])
        answers = {}
        for name, question in body["questions"].items():
            options = list(question["criteria"])
            even = {option: 1 / len(options) for option in options}
            answers[name] = {"choice": options[0], "probabilities": even, "x_tokens": {"evaluated": 40, "reused": 9}}
        return JSONResponse({"answers": answers})

    async def registered(self, request: Request) -> Response:
        body = await request.json()
        asked = body.get("decisions") or [body["decision"]]
        self.states.append(asked[0]["state"])
        results = []
        for index, each in enumerate(asked):
            options = list(registered(0, count=3).questions[index].options)
            numbers = [1 / len(options)] * len(options)
            tokens = {"evaluated": 0 if index else 23, "reused": 29}
            result = {"id": each["use"], "option_ids": options, "option_logits": numbers, "probabilities": numbers}
            results.append(result | {"tokens": tokens})
        return JSONResponse({"results": results} if "decisions" in body else {"result": results[0]})

    async def chat(self, request: Request) -> Response:
        asked = await request.json()
        assert asked["stream"]

        async def lines():
            for word in ("some", "text"):
                yield f"data: {json.dumps({'choices': [{'delta': {'content': word}}]})}\n\n"
                await asyncio.sleep(0.002)
            yield f"data: {json.dumps({'choices': [], 'usage': {'prompt_tokens': 100, 'completion_tokens': 2}})}\n\n"
            yield "data: [DONE]\n\n"

        return StreamingResponse(lines(), media_type="text/event-stream")

    async def metrics(self, _request: Request) -> Response:
        total = 40 * self.answered
        return PlainTextResponse(
            f"steelyard_engine_decoded_tokens_total {total}\nllamacpp:prompt_tokens_total {total}\n"
        )


@pytest.fixture(autouse=True)
def no_rests(monkeypatch):
    """What the pauses are for, spinning threads, is not here."""
    monkeypatch.setattr(workloads, "REST_S", 0.0)
    monkeypatch.setattr(workloads, "PAUSE_S", 0.0)


@pytest.fixture
def stubs():
    """Two stubs that pass for us and for llama-server, and a bench that knows where they are."""
    ours, theirs = Stub(), Stub()
    with ServerThread(ours.app).running() as first, ServerThread(theirs.app).running() as second:
        peers = [
            Running(PEERS[name], server.url, os.getpgid(0), [], 0.0)
            for name, server in ((OURS, first), (LLAMA, second))
        ]
        yield ours, theirs, Bench(peers, Log(io.StringIO()), Numbers(), lambda _: None, PATIENCE)


def test_in_turn_every_peer_gets_the_same_requests_and_pairs_are_compared(stubs):
    ours, theirs, bench = stubs
    found = asyncio.run(workloads.in_turn(bench, "A", count=5, floor=None))
    assert ours.states[-5:] == theirs.states[-5:] == [routing(number).state for number in range(5)]
    assert found["ratios"][LLAMA]["paired"]["n"] == 5
    assert "floor" not in found["ratios"]
    for name in (OURS, LLAMA):
        assert found["peers"][name]["tally"]["answered"] == 5
        assert found["peers"][name]["evaluated_per_decision"] == 40
    assert found["peers"][OURS]["memory_peak"]["resident"] > 0


def test_registered_decisions_are_asked_by_name_and_three_cost_one_evaluation(stubs):
    ours, theirs, bench = stubs
    named, other = bench.peers
    bench.peers = [replace(named, peer=REGISTERED), other]
    found = asyncio.run(workloads.registered(bench, count=4))
    assert theirs.states[-4:] == [registered(number).state for number in range(4)]
    assert len(set(ours.states[-8:])) == 8
    assert found["H"]["ratios"][LLAMA]["paired"]["n"] == 4
    assert found["H-3"]["ratios"]["one"]["paired"]["n"] == 4
    for cell, decisions in (("H", 4), ("H-3", 12)):
        assert found[cell]["peers"][OURS]["decisions"] == decisions
        assert found[cell]["peers"][OURS]["evaluated_per_request_median"] == 23


def test_concurrent_clients_ask_new_things_and_no_answer_is_cut_off(stubs):
    ours, theirs, bench = stubs
    found = asyncio.run(workloads.concurrent(bench, "C", clients=4, seconds=0.3, rounds=2))
    for stub, name in ((ours, OURS), (theirs, LLAMA)):
        records = bench.log.of("D-C-4", name)
        counted = found["peers"][name]["tally"]
        assert counted["requests"] == counted["answered"] == len(records) == stub.answered - workloads.WARM_UPS
        assert len(set(stub.states)) == len(stub.states)
        assert stub.most_open <= 4
    numbers = [sorted(record.number for record in bench.log.of("D-C-4", name)) for name in (OURS, LLAMA)]
    shared = min(map(len, numbers))
    assert numbers[0][:shared] == numbers[1][:shared]
    assert found["ratios"][LLAMA]["decisions_per_s"] > 0


def test_decisions_are_offered_beside_chats_and_all_are_waited_for(stubs):
    _, _, bench = stubs
    running = bench.peers[0]
    found = asyncio.run(
        workloads.beside_chats(bench, running, tokens=[64, 128], seconds=0.2, numbers=itertools.count(1))
    )
    assert found["unloaded"]["tally"]["answered"] == found["unloaded"]["tally"]["requests"] > 0
    assert found["loaded"]["tally"]["answered"] == found["loaded"]["tally"]["requests"]
    assert [chats["failed"] for chats in [*found["chats_alone"], found["chats_beside"]]] == [0, 0, 0]
    assert found["chats_beside"]["chats"] >= 2
    assert found["chats_beside"]["prompt_tokens"] == 100 * found["chats_beside"]["chats"]


def test_a_burst_is_retried_until_everyone_has_an_answer():
    stub = Stub(refuse=3)
    with ServerThread(stub.app).running() as server:
        running = Running(PEERS[OURS], server.url, os.getpgid(0), [], 0.0)
        bench = Bench([running], Log(io.StringIO()), Numbers(), lambda _: None, PATIENCE)
        found = asyncio.run(workloads.bursts(bench, running, over=0.001, numbers=itertools.count(100), later_s=0.05))
    records = bench.log.of("F", OURS)
    assert Counter(record.outcome for record in records) == {ANSWERED: sum(found["bursts"])}
    assert found["tally"]["attempts"] == found["tally"]["requests"] + found["tally"]["refusals"]
    assert found["tally"]["retried"] > 0
    assert len({record.number for record in records}) == len(records)
