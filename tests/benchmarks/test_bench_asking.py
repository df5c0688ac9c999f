"""What becomes of a request: answered, refused or lost, each counted once; retries wait as they were told."""

from __future__ import annotations

import asyncio
import io
import json
import random

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from benchmarks.peers.asking import (
    ANSWERED,
    LOST,
    REFUSED,
    Log,
    Patience,
    Record,
    ask,
    backoff,
    compare,
    tally,
)
from benchmarks.peers.cases import routing, three_questions
from benchmarks.peers.servers import LLAMA, OURS, PEERS, WALKTHROUGH
from benchmarks.peers.wire import Answer, UnreadableError, retryable


def answer_to(body):
    """A System One answer: the first option of every question."""
    answers = {}
    for name, question in body["questions"].items():
        options = list(question["criteria"])
        probabilities = {option: 1.0 if option == options[0] else 0.0 for option in options}
        answers[name] = {"type": "choice", "choice": options[0], "probabilities": probabilities, "confidence": 1.0}
        answers[name]["x_tokens"] = {"evaluated": 50, "reused": 100}
    return {"model": "m", "answers": answers, "usage": {"input_tokens": 1, "output_tokens": 0}}


BUSY = {"detail": {"error_type": "busy", "message": "come back", "retry_after_ms": 700}}


def asked(*replies, case=None, patience=None):
    """The record of one request to a server that gives ``replies`` one after the other; and the pauses between them."""
    left, pauses = list(replies), []

    async def endpoint(request: Request) -> Response:
        reply = left.pop(0)
        if reply == "answer":
            return JSONResponse(answer_to(await request.json()))
        if reply == "hang":
            await asyncio.sleep(30)
        if isinstance(reply, Response):
            return reply
        return JSONResponse(reply[1], status_code=reply[0])

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def run() -> Record:
        app = Starlette(routes=[Route("/v1/systemone", endpoint, methods=["POST"])])
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://peer") as client:
            return await ask(
                client,
                PEERS[OURS],
                case or routing(0),
                cell="test",
                patience=patience or Patience(attempt_s=0.2),
                sleep=sleep,
            )

    return asyncio.run(run()), pauses


def test_an_answer():
    record, pauses = asked("answer")
    assert (record.outcome, record.attempts, record.refusals, pauses) == (ANSWERED, 1, 0, [])
    assert record.evaluated == 50


def test_the_questions_of_a_request_are_summed():
    record, _ = asked("answer", case=three_questions(1))
    assert record.evaluated == 150
    assert [answer.choice for answer in record.answers] == ["billing", "yes", "0"]


def test_a_refused_request_is_tried_again_when_the_server_said():
    record, pauses = asked((503, BUSY), (503, BUSY), "answer")
    assert (record.outcome, record.attempts, record.refusals) == (ANSWERED, 3, 2)
    assert all(0.7 <= pause <= 0.7 * 1.25 for pause in pauses)


def test_a_client_that_runs_out_of_patience_was_refused_not_lost():
    record, _ = asked(*[(503, BUSY)] * 3, patience=Patience(attempts=3))
    assert (record.outcome, record.attempts, record.refusals) == (REFUSED, 3, 3)
    record, pauses = asked((503, BUSY), patience=Patience(total_s=0.1))
    assert (record.outcome, record.attempts, pauses) == (REFUSED, 1, [])


@pytest.mark.parametrize(
    "reply",
    [
        (500, {"detail": {"message": "no"}}),
        (503, {"detail": {"message": "not a word on when to come back"}}),
        (422, {"detail": []}),
        (200, {"answers": {}}),
        (200, {"answers": {"ticket-1": {"choice": "billing", "probabilities": {"billing": 1.0}}}}),
        PlainTextResponse("not JSON"),
        "hang",
    ],
)
def test_everything_else_is_lost_and_not_retried(reply):
    record, pauses = asked(reply)
    assert (record.outcome, record.attempts, pauses) == (LOST, 1, [])
    assert record.reason


def test_a_server_that_is_gone_is_lost():
    async def run() -> Record:
        async with httpx.AsyncClient(base_url="http://127.0.0.1:9") as client:
            return await ask(client, PEERS[OURS], routing(0), cell="test", patience=Patience())

    assert asyncio.run(run()).outcome == LOST


def test_a_refusal_is_honest_when_it_says_that_it_may_be_retried():
    assert retryable(503, {"error": "busy", "retryable": True, "retry_after_ms": 250}) == (True, 0.25)
    assert retryable(503, {"error": "busy", "retryable": True}) == (True, None)
    assert retryable(503, {"error": {"message": "loading"}}) == (False, None)
    assert retryable(200, {"retryable": True}) == (False, None)


def test_without_a_hint_clients_back_off_exponentially_and_apart():
    pauses = [backoff(refusals, None, random.Random(1)) for refusals in range(1, 12)]
    assert 0.125 <= pauses[0] <= 0.375
    assert pauses[5] > pauses[0]
    assert max(pauses) <= 15
    assert backoff(3, None, random.Random(1)) != backoff(3, None, random.Random(2))


def record_of(outcome, *, attempts=1, refusals=0, answers=()):
    made = Record("p", "c", "A", 1, 0.0, attempts=attempts, refusals=refusals, outcome=outcome)
    made.answers = list(answers)
    return made


def test_every_request_is_counted_exactly_once():
    records = [
        record_of(ANSWERED, attempts=3, refusals=2, answers=[Answer("a", (1.0,))]),
        record_of(ANSWERED, answers=[Answer("a", (1.0,))]),
        record_of(REFUSED, attempts=2, refusals=2),
        record_of(LOST),
    ]
    found = tally(records)
    assert found.requests == found.answered + found.refused + found.lost == 4
    assert (found.retried, found.refusals, found.amplification) == (3, 4, 7 / 4)
    assert found.compared == 0


def test_one_bit_is_a_change_and_only_another_choice_is_a_flip():
    alone = [Answer("a", (0.5, 0.25), evaluated=200)]
    same = record_of(ANSWERED, answers=[Answer("a", (0.5, 0.25), evaluated=50)])
    nearly = record_of(ANSWERED, answers=[Answer("a", (0.5, 0.25 + 2**-54), evaluated=50)])
    flipped = record_of(ANSWERED, answers=[Answer("b", (0.25, 0.5))])
    for record in (same, nearly, flipped):
        compare(record, alone)
    assert [(r.changed, r.flipped) for r in (same, nearly, flipped)] == [(False, False), (True, False), (True, True)]
    assert (tally([same, nearly, flipped]).changed, tally([same, nearly, flipped]).flipped) == (2, 1)


def test_a_request_without_an_answer_is_not_compared():
    record = record_of(REFUSED)
    compare(record, [Answer("a", (1.0,))])
    assert record.changed is None


def test_records_are_written_as_they_come():
    sink = io.StringIO()
    log = Log(sink)
    log.add(record_of(ANSWERED, answers=[Answer("a", (0.1, 0.2))]))
    log.add(record_of(LOST))
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [line["outcome"] for line in lines] == [ANSWERED, LOST]
    assert lines[0]["answers"][0]["numbers"] == [0.1, 0.2]
    assert len(log.of("c", "p")) == 2


def test_the_peers_are_asked_the_same_in_their_own_contracts():
    case = three_questions(3)
    ours, theirs = PEERS[OURS].body(case), PEERS[LLAMA].body(case)
    assert ours == theirs
    decisions = PEERS[WALKTHROUGH].body(case)["decisions"]
    assert [d["id"] for d in decisions] == list(ours["questions"])
    assert {d["state"] for d in decisions} == {ours["state"]}
    for decision in decisions:
        criteria = ours["questions"][decision["id"]]["criteria"]
        assert {option["id"]: option["description"] for option in decision["options"]} == criteria


def test_a_walkthrough_answer_must_be_to_what_was_asked():
    peer, case = PEERS[WALKTHROUGH], routing(0)
    options = list(case.questions[0].options)
    result = {
        "id": case.questions[0].id,
        "option_ids": options,
        "probabilities": [0.1, 0.5, 0.1, 0.1, 0.1, 0.1],
        "option_logits": [0.0, 1.0, 0.0, 0.0, 0.0, 0.0],
    }
    assert peer.answers(case, {"result": result})[0].choice == options[1]
    with pytest.raises(UnreadableError):
        peer.answers(case, {"result": result | {"option_ids": options[::-1]}})
