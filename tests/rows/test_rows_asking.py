"""Rows are asked in few requests, answered in order, and fail one by one."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from steelyard.client.refusals import RequestError
from steelyard.rows.asking import BLOCK_BYTES, BLOCK_ROWS, MOST_DECISIONS, Ask, ask_all
from steelyard_base.exit_codes import CommandError, ExitCode

OPTIONS = [{"id": "a"}, {"id": "b"}]
ONE = {"id": "q", "question": "which?", "options": OPTIONS}


class Server:
    """Answers with what it was asked; fails where ``fails`` says so."""

    def __init__(self, fails=lambda _decision: None):
        self.bodies = []
        self.together = self.most = 0
        self._fails = fails
        self._lock = threading.Lock()

    def decide(self, body):
        with self._lock:
            self.bodies.append(body)
            self.together += 1
            self.most = max(self.most, self.together)
        try:
            decisions = body.get("decisions") or [body["decision"]]
            assert len({each["id"] for each in decisions}) == len(decisions)
            assert len({repr(each["state"]) for each in decisions}) == 1
            for each in decisions:
                if (error := self._fails(each)) is not None:
                    raise error
            return [{"id": each["id"], "said": (each["state"], each["question"])} for each in decisions]
        finally:
            with self._lock:
                self.together -= 1


def ask(server, states, *, decisions=(ONE,), concurrency=1, size=0):
    rows = (Ask(number, state, decisions, {}, size) for number, state in enumerate(states, 1))
    return list(ask_all(server, rows, concurrency=concurrency))


@pytest.mark.parametrize("concurrency", [1, 4])
def test_rows_come_in_order_over_so_many_connections(concurrency):
    server = Server()
    found = ask(server, [f"s{n}" for n in range(600)], concurrency=concurrency)
    assert [outcome.row.id for (outcome,) in found] == list(range(1, 601))
    assert [outcome.result["said"][0] for (outcome,) in found] == [f"s{n}" for n in range(600)]
    assert {outcome.result["id"] for (outcome,) in found} == {"q"}
    assert server.most <= concurrency


def test_equal_states_are_asked_once():
    server = Server()
    states = [{"a": 1, "b": 2}, "s", {"b": 2, "a": 1}, "s"]
    found = ask(server, states)
    assert [body["decision"]["state"] for body in server.bodies] == [states[0], "s"]
    assert [outcome.result["said"][0] for (outcome,) in found] == [states[0], "s", states[0], "s"]


def test_1_and_1_0_and_true_are_three_states():
    server = Server()
    ask(server, [{"x": 1}, {"x": 1.0}, {"x": True}])
    assert len(server.bodies) == 3


def test_different_decisions_about_one_state_are_one_request():
    server = Server()
    others = [{**ONE, "question": f"q{n}"} for n in range(MOST_DECISIONS + 1)]
    rows = [Ask(n, "s", [each]) for n, each in enumerate(others)]
    found = list(ask_all(server, rows, concurrency=1))
    assert [len(body.get("decisions", [0])) for body in server.bodies] == [MOST_DECISIONS, 1]
    assert [outcome.result["said"][1] for (outcome,) in found] == [each["question"] for each in others]


def test_layouts_and_readouts_are_kept_apart():
    server = Server()
    asked = [{"layout": "state-first"}, {"layout": "options-first"}, {"readout": "letters-raw"}, {}]
    rows = [Ask(n, "s", [ONE], beside) for n, beside in enumerate(asked)]
    list(ask_all(server, rows, concurrency=1))
    assert [{k: v for k, v in body.items() if k != "decision"} for body in server.bodies] == asked


def test_a_refusal_fails_its_row_alone():
    def fails(decision):
        if decision["question"] == "bad" or decision["state"] == "bad":
            return RequestError("refused", code=ExitCode.REFUSED)
        return None

    server = Server(fails)
    found = ask(server, ["s", "bad", "t"], decisions=[ONE, {**ONE, "id": "r", "question": "bad"}])
    assert [[outcome.error is None for outcome in row] for row in found] == [
        [True, False],
        [False, False],
        [True, False],
    ]


@pytest.mark.parametrize("error", [CommandError("no server answers", code=ExitCode.UNREACHABLE), KeyError("x")])
def test_what_holds_for_every_row_ends_the_run(error):
    server = Server(lambda decision: error if decision["state"] == "s5" else None)
    rows = (Ask(number, f"s{number}", [ONE]) for number in range(2000))
    found = []
    with pytest.raises(type(error)):
        found.extend(ask_all(server, rows, concurrency=1))
    assert len(server.bodies) == 6  # nothing is asked behind the one that failed


def test_an_answer_of_other_length_is_no_answer():
    class Short(Server):
        def decide(self, body):
            return super().decide(body)[1:]

    with pytest.raises(CommandError, match="1 decisions were asked, and 0 were answered"):
        ask(Short(), ["s"])


def test_rows_are_read_as_they_are_needed():
    read = []

    def rows(size):
        for number in range(100 * BLOCK_ROWS):
            read.append(number)
            yield Ask(number, f"s{number}", [ONE], {}, size)

    answers = ask_all(Server(), rows(1), concurrency=2)
    next(answers)
    assert len(read) <= 2 * BLOCK_ROWS
    read.clear()
    answers.close()
    next(ask_all(Server(), rows(BLOCK_BYTES // 2), concurrency=2))
    assert len(read) <= BLOCK_ROWS + 3


def test_memory_does_not_grow_with_the_rows():
    def peak(count):
        tracemalloc.start()
        try:
            server = Server()
            server.bodies = type("Nothing", (), {"append": lambda *_: None})()
            rows = (Ask(number, "x" * 200 + str(number), [ONE]) for number in range(count))
            for _ in ask_all(server, rows, concurrency=2):
                pass
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert peak(8 * BLOCK_ROWS) < 1.5 * peak(2 * BLOCK_ROWS)
