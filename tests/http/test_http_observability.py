"""Logs and metrics: what they say, and what they never say."""

from __future__ import annotations

import io
import json
import logging
import time
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.observability.logs import ForwardToLog, LineBudget, make_log
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

SECRET = "Zebra-4711-secret"


class Observed:
    """An application whose log is kept in memory."""

    def __init__(self, **settings: Any) -> None:
        self.stream = io.StringIO()
        self.engine = StubEngine()
        wanted = Settings(**settings)
        self.runtime = Runtime(settings=wanted, services=build_services(wanted, self.engine))
        app = create_app(self.runtime, log=make_log(wanted, self.stream))
        self.client = TestClient(app, raise_server_exceptions=False)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]

    def samples(self) -> dict[tuple[str, ...], float]:
        """Metrics by name and sorted label values."""
        text = self.client.get("/metrics").text
        return {
            (sample.name, *sorted(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }


@pytest.fixture
def observed() -> Observed:
    return Observed()


def with_secret(body: Any) -> Any:
    """Every text of ``body`` replaced, where it is the caller's own."""
    text = json.dumps(body)
    for own in ("The parcel is late.", "hello", "Which team?"):
        text = text.replace(own, SECRET)
    return json.loads(text)


def secret_requests(decision: Any, systemone: Any, chat: Any) -> list[tuple[str, bytes, dict[str, str]]]:
    """Good, bad and broken requests that carry the secret in every place a caller controls."""
    bodies = [
        ("/invocations", with_secret(decision)),
        ("/v1/systemone", with_secret(systemone)),
        ("/v1/chat/completions", with_secret(chat)),
        ("/v1/chat/completions", {**with_secret(chat), "stream": True}),
        ("/v1/completions", {"prompt": SECRET, "max_tokens": 2}),
        ("/v1/embeddings", {"input": SECRET}),
        ("/invocations", {SECRET: SECRET}),
        ("/invocations", {"decision": {SECRET: 1}}),
        ("/v1/systemone", {"state": SECRET, "questions": {SECRET: {"type": SECRET}}}),
        ("/v1/chat/completions", {"messages": SECRET, SECRET: SECRET}),
        (f"/v1/{SECRET}", {}),
        (f"/ping?{SECRET}", {}),
    ]
    headers = {"content-type": "application/json", "x-request-id": SECRET, "user-agent": SECRET}
    sent = [(path, json.dumps(body).encode(), headers) for path, body in bodies]
    sent.append(("/invocations", f'{{"a": "{SECRET}'.encode(), headers))
    sent.append(("/invocations", SECRET.encode(), {**headers, "content-type": SECRET}))
    attributes = {"X-Amzn-SageMaker-Custom-Attributes": f"tenant={SECRET}"}
    sent.append(("/invocations", b"{}", {**headers, **attributes}))
    return sent


def test_no_text_of_a_caller_reaches_the_log_or_the_metrics(
    observed: Observed, decision: Any, systemone: Any, chat: Any
) -> None:
    sent = secret_requests(decision, systemone, chat)
    for path, content, headers in sent:
        observed.client.post(path, content=content, headers=headers)
    observed.client.request(SECRET.upper(), "/ping")
    assert len(observed.lines()) == len(sent) + 1
    assert SECRET.lower() not in observed.stream.getvalue().lower()
    assert SECRET.lower() not in observed.client.get("/metrics").text.lower()


def test_an_exception_is_logged_with_its_place_and_without_its_text(observed: Observed, decision: Any) -> None:
    def fail(request: object, *, preparing: object) -> None:
        raise KeyError(SECRET)

    observed.runtime.services.decisions.decide = fail  # type: ignore[union-attr,method-assign,assignment]
    assert observed.client.post("/invocations", json=decision).status_code == 500
    error, request = observed.lines()
    assert (error["level"], error["exception"]) == ("error", "KeyError")
    assert "test_http_observability.py" in error["traceback"][-1]
    assert (request["status"], request["outcome"]) == (500, "internal")
    assert error["request_id"] == request["request_id"]
    assert SECRET not in observed.stream.getvalue()


def test_raw_text_is_logged_only_when_the_settings_ask_for_it(decision: Any) -> None:
    observed = Observed(log_raw_text=True)
    observed.client.post("/invocations", json=with_secret(decision))
    assert SECRET in observed.lines()[0]["raw_body"]


def test_a_decisions_line_says_what_happened(observed: Observed, decision: Any) -> None:
    body = {"decisions": [{**decision["decision"], "id": str(number)} for number in range(3)]}
    response = observed.client.post("/invocations", json=body)
    (line,) = observed.lines()
    results = response.json()["results"]
    assert line["request_id"] == response.headers["x-request-id"]
    assert {key: line[key] for key in ("level", "route", "contract", "method", "status", "outcome")} == {
        "level": "info", "route": "/invocations", "contract": "decide", "method": "POST", "status": 200,
        "outcome": "ok",
    }  # fmt: skip
    assert line["prompt_sha256"] == [result["prompt_sha256"] for result in results]
    assert line["tokens"]["prompt"] == sum(result["tokens"]["prompt"] for result in results)
    assert line["tokens"]["evaluated"] == sum(result["tokens"]["evaluated"] for result in results)
    assert line["tokens"]["reused"] > 0
    assert line["model_sha256"] == "5" * 12
    assert line["duration_ms"] > 0
    assert "queue_ms" in line
    assert "engine_ms" in line


TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ({"traceparent": PARENT}, TRACE),
        ({"X-Amzn-SageMaker-Custom-Attributes": f"caller=a;traceparent={PARENT}"}, TRACE),
        ({"traceparent": PARENT, "X-Amzn-SageMaker-Custom-Attributes": f"traceparent={PARENT}"}, TRACE),
        ({"traceparent": PARENT, "X-Amzn-SageMaker-Custom-Attributes": f"traceparent={PARENT[:-1]}0"}, None),
        ({"traceparent": PARENT.upper()}, None),
        ({"traceparent": f"{PARENT}-{SECRET}"}, None),
        ({"traceparent": PARENT.replace(TRACE, "0" * 32)}, None),
        ({"traceparent": PARENT.replace("00f067aa0ba902b7", "0" * 16)}, None),
        ({"traceparent": PARENT.replace("00-", "ff-", 1)}, None),
        ({}, None),
    ],
)
def test_a_line_names_the_callers_trace(observed: Observed, headers: dict[str, str], found: str | None) -> None:
    observed.client.get("/ping", headers=headers)
    assert observed.lines()[0].get("trace_id") == found


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_line_counts_its_tokens(observed: Observed, chat: Any, stream: bool) -> None:
    observed.client.post("/v1/chat/completions", json={**chat, "stream": stream})
    (line,) = observed.lines()
    assert line["tokens"]["generated"] == observed.engine.counters.generated_tokens > 0
    assert len(line["prompt_sha256"]) == 1
    assert line["outcome"] == "ok"


def test_outcomes_are_the_kinds_of_problems(observed: Observed, decision: Any) -> None:
    observed.client.post("/invocations", json={})
    observed.client.get("/nowhere")
    observed.engine.refuse_with = Problem(Kind.BUSY, "busy", retry_after_ms=1)
    observed.client.post("/invocations", json=decision)
    assert [line["outcome"] for line in observed.lines()] == ["unknown_shape", "not_found", "busy"]
    assert [line["route"] for line in observed.lines()] == ["/invocations", "unmatched", "/invocations"]


def test_metrics_count_requests_and_the_engines_work(observed: Observed, decision: Any) -> None:
    observed.client.post("/invocations", json=decision)
    observed.client.post("/invocations", json={})
    samples = observed.samples()
    assert samples["steelyard_http_requests_total", "/invocations", "200", "decide", "ok"] == 1
    assert samples["steelyard_http_requests_total", "/invocations", "400", "none", "unknown_shape"] == 1
    assert samples["steelyard_http_request_duration_seconds_count", "/invocations", "decide"] == 1
    assert samples["steelyard_queue_seconds_count", "decide"] == 1
    assert samples[("steelyard_engine_decoded_tokens_total",)] == observed.engine.counters.decoded_tokens > 0
    assert samples[("steelyard_engine_queue_depth",)] == 0
    assert samples[("steelyard_ready",)] == 1
    assert any(key[0] == "steelyard_identity_info" and "5" * 64 in key for key in samples)


def test_callers_cannot_make_time_series(observed: Observed) -> None:
    observed.client.get("/nowhere")
    before = len(observed.samples())
    after_first_scrape = len(observed.samples())
    for number in range(50):
        observed.client.get(f"/nowhere/{number}")
        observed.client.request(f"METHOD{number}", f"/v1/chat/completions/{number}")
    assert len(observed.samples()) == after_first_scrape
    assert before <= after_first_scrape


def test_two_applications_share_no_metrics(observed: Observed, decision: Any) -> None:
    other = Observed()
    other.client.post("/invocations", json=decision)
    counted = ("steelyard_http_requests_total", "/invocations", "200", "decide", "ok")
    assert counted in other.samples()
    assert counted not in observed.samples()


JSON = {"content-type": "application/json"}


class Gone(io.StringIO):
    """A pipe whose reader has ended."""

    def write(self, _: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")

    def flush(self) -> None:
        raise BrokenPipeError(32, "Broken pipe")


def closed() -> io.StringIO:
    stream = io.StringIO()
    stream.close()
    return stream


@pytest.mark.parametrize("stream", [Gone(), closed()], ids=["no reader", "closed"])
def test_a_log_that_nobody_reads_costs_no_answer(stub_engine: StubEngine, decision: Any, stream: io.StringIO) -> None:
    settings = Settings()
    log = make_log(settings, stream)
    app = create_app(Runtime(settings=settings, services=build_services(settings, stub_engine)), log=log)
    with TestClient(app, raise_server_exceptions=False) as client:
        assert client.post("/invocations", json=decision).status_code == 200
        assert client.post("/invocations", content=b"{", headers=JSON).status_code == 400
    record = logging.LogRecord(
        "uvicorn.error", logging.WARNING, __file__, 1, "Invalid HTTP request received.", (), None
    )
    ForwardToLog(log, settings).emit(record)


def test_cheap_requests_fill_no_log_and_none_is_lost_from_the_counts(observed: Observed) -> None:
    for _ in range(300):
        observed.client.post("/v1/systemone", content=b"{", headers={"content-type": "application/json"})
    lines = [line for line in observed.lines() if line["event"] == "request"]
    assert 100 <= len(lines) < 300

    def accounted_for() -> int:
        told = [line for line in observed.lines() if line["event"] == "request"]
        refused = [line for line in told if line["outcome"] == "malformed_json"]
        return len(refused) + sum(line.get("left_out", 0) for line in told)

    deadline = time.monotonic() + 30
    while accounted_for() < 300 and time.monotonic() < deadline:
        time.sleep(0.05)
        observed.client.get("/health")
    assert accounted_for() >= 300
    name = "steelyard_http_requests_total"
    assert sum(value for key, value in observed.samples().items() if key[0] == name and "malformed_json" in key) == 300


def test_a_request_that_was_evaluated_always_has_its_line(observed: Observed) -> None:
    for _ in range(150):
        observed.client.get("/ping")
    body = {"state": "s", "questions": {"a": {"type": "noul"}}}
    for _ in range(20):
        assert observed.client.post("/v1/systemone", json=body).status_code == 200
    assert len([line for line in observed.lines() if line.get("route") == "/v1/systemone"]) == 20


def test_a_budget_of_lines_fills_with_time_and_says_what_it_left_out() -> None:
    now = 0.0
    budget = LineBudget(per_s=2, burst=3, clock=lambda: now)
    assert [budget.take() for _ in range(5)] == [0, 0, 0, None, None]
    now = 0.5
    assert [budget.take() for _ in range(2)] == [2, None]
    now = 100.0
    assert [budget.take() for _ in range(4)] == [1, 0, 0, None]
