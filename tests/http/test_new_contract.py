"""A contract is one file, and one entry in what the application is given: everything else follows from it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import pytest
from starlette.testclient import TestClient

from ranking_contract import CONTRACT
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.errors import TABLE, Kind, Problem
from steelyard_runtime.http.app import create_app
from steelyard_runtime.http.openapi import document
from steelyard_runtime.http.runtime import Runtime, build_services
from steelyard_runtime.settings import Settings
from stub_engine import StubEngine

SETTINGS = Settings(max_options=9)
BODY = {"place": "the left wing", "candidates": ["Ada", "Bo", "Cy"]}
PATHS = ("/v2/rank", "/invocations")


SERVED = (*CONTRACTS, CONTRACT)
DOCUMENT = document(SETTINGS, SERVED)


@pytest.fixture
def engine() -> Iterator[StubEngine]:
    engine = StubEngine(SETTINGS)
    yield engine
    engine.close(timeout_s=0)


@pytest.fixture
def client(engine: StubEngine) -> Iterator[TestClient]:
    runtime = Runtime(settings=SETTINGS, services=build_services(SETTINGS, engine))
    with TestClient(create_app(runtime, contracts=SERVED), raise_server_exceptions=False) as client:
        yield client


def check(body: Any, *, path: str, status: int) -> None:
    """Hold a body against what the document says of it."""
    schema = DOCUMENT["paths"][path]["post"]["responses"][str(status)]["content"]["application/json"]["schema"]
    jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]}).validate(body)


@pytest.mark.parametrize("path", PATHS)
def test_it_has_a_route_and_is_known_by_its_shape(client: TestClient, path: str) -> None:
    response = client.post(path, json=BODY)
    assert response.status_code == 200, response.text
    assert {each["candidate"] for each in response.json()["ranked"]} == set(BODY["candidates"])
    check(response.json(), path=path, status=200)


def test_its_shape_is_listed(client: TestClient) -> None:
    assert CONTRACT.shape.example in client.post("/invocations", json={"hello": 1}).json()["error"]
    both = client.post("/invocations", json={**BODY, "messages": []})
    assert "'messages', 'candidates' belong to different shapes" in both.json()["error"]


@pytest.mark.parametrize("kind", Kind)
def test_every_kind_of_problem_has_its_body(client: TestClient, engine: StubEngine, kind: Kind) -> None:
    engine.refuse_with = Problem(kind, "Words of the engine.", counts={"limit": 7})
    for path in PATHS:
        response = client.post(path, json=BODY)
        assert response.status_code == (400 if kind is Kind.INVALID else TABLE[kind].status)
        assert response.json() == {"failed": True, "why": "Words of the engine.", "kind": kind.value, "limit": 7}
        documented = DOCUMENT["paths"][path]["post"]["responses"]
        if str(response.status_code) in documented:
            check(response.json(), path=path, status=response.status_code)


def test_what_goes_wrong_before_it_is_asked_has_its_body_too(client: TestClient) -> None:
    for method, path, kind in (
        ("POST", "/v2/rank/x", Kind.NOT_FOUND),
        ("GET", "/v2/rank", Kind.METHOD_NOT_ALLOWED),
        ("POST", "/v2/rank", Kind.MEDIA_TYPE),
    ):
        response = client.request(method, path, content=b"text")
        assert (response.status_code, response.json()["kind"]) == (TABLE[kind].status, kind.value)
    unknown = client.post("/v2/rank", json={**BODY, "model": "another"})
    assert (unknown.status_code, unknown.json()["kind"]) == (404, "model_not_found")


def test_its_operation_is_described_with_the_servers_limits(client: TestClient) -> None:
    described = client.get("/openapi.json").json()
    assert described == DOCUMENT
    operation = described["paths"]["/v2/rank"]["post"]
    assert (operation["summary"], operation["tags"]) == ("Rank candidates", ["Decisions"])
    assert operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/RankingRequest")
    candidates = described["components"]["schemas"]["RankingRequest"]["properties"]["candidates"]
    assert (candidates["minItems"], candidates["maxItems"]) == (2, SETTINGS.max_options)
    names = [f"n{index}" for index in range(SETTINGS.max_options + 1)]
    assert client.post("/v2/rank", json={**BODY, "candidates": names[:-1]}).status_code == 200
    refused = client.post("/v2/rank", json={**BODY, "candidates": names})
    assert (refused.status_code, refused.json()["kind"]) == (400, "invalid")
    assert "the limit is 9 (the server's setting max_options)" in refused.json()["why"]


def test_its_requests_are_counted_under_its_name(client: TestClient) -> None:
    client.post("/v2/rank", json=BODY)
    client.post("/invocations", json=BODY)
    counted = client.get("/metrics").text
    for path in PATHS:
        labels = f'contract="ranking",outcome="ok",route="{path}",status="200"'
        assert f"steelyard_http_requests_total{{{labels}}} 1.0" in counted


def test_without_it_nothing_of_it_is_there(stub_client: TestClient) -> None:
    assert stub_client.post("/v2/rank", json=BODY).status_code == 404
    assert stub_client.post("/invocations", json=BODY).json()["type"] == "unknown_shape"


def test_what_would_hide_a_contract_is_refused() -> None:
    for change, message in (
        ({"name": "decide"}, "two contracts have the name decide"),
        ({"paths": {"/v1/systemone": "Rank"}}, "two routes have the path /v1/systemone"),
        ({"prefix": "Decide"}, "two types have the schema name"),
    ):
        with pytest.raises(ValueError, match=message):
            document(SETTINGS, (*CONTRACTS, dataclasses.replace(CONTRACT, **change)))
