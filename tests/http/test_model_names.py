"""A request that names another model is refused by every contract, on its own path and at ``/invocations``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI
from typesafe_sdk import Noul, TypeSafeClient

import tiny_models
from live_server import ServerProcess
from steelyard_runtime.settings import SettingsError, load_settings

ID, ALIASES = "acme/tiny v1", ("gpt-4o", "team/chat")
PREDICATE = {"type": "predicate", "instructions": "late?"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/openai/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "Once", "max_tokens": 2},
    "/v1/embeddings": {"input": "a"},
    "/v1/decisions": {"input": "x", "questions": [PREDICATE]},
    "/v1/systemone": {"state": "x", "questions": {"q": {"type": "noul"}}},
}
PLACES = [(path, body) for own, body in BODIES.items() for path in (own, "/invocations")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama-pooling", tmp_path_factory.mktemp("names") / "tiny.gguf")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[ServerProcess]:
    settings = {"model_id": ID, "model_aliases": " , ".join(ALIASES), "threads": 1, "deadline_s": 300}
    with ServerProcess(model=model, **settings).running() as process:
        yield process


@pytest.fixture(scope="module")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.mark.parametrize(("path", "body"), PLACES)
@pytest.mark.parametrize("name", [ID, *ALIASES, "default", "", None])
def test_its_own_names_are_answered_with_the_real_one(
    http: httpx.Client, path: str, body: dict[str, Any], name: str | None
) -> None:
    response = http.post(path, json={**body, "model": name})
    assert (response.status_code, response.json().get("model")) == (200, ID), response.text


@pytest.mark.parametrize(("path", "body"), PLACES)
@pytest.mark.parametrize("name", ["gpt-5", ID.upper(), f"{ID} ", "tiny", " ", "x" * 100_000, "\x00"])
def test_another_models_name_is_refused(http: httpx.Client, path: str, body: dict[str, Any], name: str) -> None:
    response = http.post(path, json={**body, "model": name})
    assert response.status_code == 404
    assert len(response.text) < 1000
    if "questions" in body and isinstance(body["questions"], dict):
        assert response.json()["detail"]["error_type"] == "model_not_found"
        message = response.json()["detail"]["message"]
    else:
        error = response.json()["error"]
        assert (error["code"], error["type"], error["param"]) == ("model_not_found", "invalid_request_error", "model")
        message = error["message"]
    assert ID in message
    assert "model_aliases" in message


@pytest.mark.parametrize(("path", "body"), [place for place in PLACES if "systemone" not in place[0]])
def test_the_name_of_system_one_means_nothing_elsewhere(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = http.post(path, json={**body, "model": "jev-latest"})
    assert response.status_code == (200 if isinstance(body.get("questions"), dict) else 404)


def test_streams_are_refused_before_they_begin(http: httpx.Client) -> None:
    response = http.post("/v1/chat/completions", json={**BODIES["/v1/chat/completions"], "model": "x", "stream": True})
    assert (response.status_code, response.headers["content-type"]) == (404, "application/json")


def test_the_clients_raise_their_own_errors(server: ServerProcess) -> None:
    with OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as chat:
            client.chat.completions.create(model="gpt-5", messages=[{"role": "user", "content": "Hi"}])
        assert chat.value.code == "model_not_found"
        with pytest.raises(openai.NotFoundError):
            client.decisions.create(model="gpt-6-luna", input="x", questions=[PREDICATE])
    with TypeSafeClient(api_key="unused", base_url=server.url) as client:
        asked = {"state": "x", "questions": {"q": Noul(instructions="?")}}
        assert client.system_one(**asked).model == ID
        with pytest.raises(Exception, match=r"jev-1\.13\.0"):
            client.system_one(**asked, model="jev-1.13.0")


def test_models_are_listed_and_found_by_every_name(server: ServerProcess) -> None:
    with OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as client:
        assert [each.id for each in client.models.list()] == [ID, *ALIASES]
        for name in (ID, *ALIASES):
            assert client.models.retrieve(name).id == name
        for name in ("gpt-5", "acme", f"{ID}/", "a/b/c", "default"):
            with pytest.raises(openai.NotFoundError) as caught:
                client.models.retrieve(name)
            assert caught.value.code == "model_not_found"
    listed = httpx.get(server.url + "/v1/models").json()["models"]
    assert [each["name"] for each in listed] == [ID, *ALIASES]


def test_any_name_is_answered_where_the_server_says_so(model: Path) -> None:
    with ServerProcess(model=model, model_id=ID, threads=1, accept_any_model="true").running() as process:
        for path, body in PLACES:
            response = httpx.post(process.url + path, json={**body, "model": "gpt-5"}, timeout=60)
            assert (response.status_code, response.json()["model"]) == (200, ID), response.text


@pytest.mark.parametrize(
    ("value", "told"), [("a,,b", "empty"), (",", "empty"), (",".join("abc" * 30), "90 names"), ("", "blank")]
)
def test_aliases_that_are_none_are_refused(value: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        load_settings(model_aliases=value)
