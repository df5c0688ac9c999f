"""The OpenAPI document: it names every route and nothing else, and it is well-formed."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from steelyard_runtime.http.openapi import document
from steelyard_runtime.settings import Settings


def test_every_route_is_described_and_nothing_else(stub_app: Starlette) -> None:
    described = {(path, method.upper()) for path, item in document(Settings())["paths"].items() for method in item}
    served = {
        (route.path_format, method)
        for route in stub_app.routes
        if isinstance(route, Route)
        for method in route.methods or ()
        if method != "HEAD"
    }
    assert described == served


def test_every_reference_leads_somewhere() -> None:
    found = document(Settings())

    def references(value: Any) -> list[str]:
        if isinstance(value, dict):
            own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
            return own + [inner for item in value.values() for inner in references(item)]
        return [inner for item in value for inner in references(item)] if isinstance(value, list) else []

    assert references(found)
    for reference in references(found):
        target: Any = found
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]


def test_every_schema_is_a_schema() -> None:
    for schema in document(Settings())["components"]["schemas"].values():
        jsonschema_rs.meta.validate({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"})


def test_limits_are_the_servers() -> None:
    schemas = document(Settings(max_questions=7, max_options=9, max_choices=2))["components"]["schemas"]
    assert schemas["DecideSeveral"]["properties"]["decisions"]["maxItems"] == 7
    assert schemas["DecideDecisionModel"]["properties"]["options"]["maxItems"] == 9
    assert schemas["SystemOneChoice"]["properties"]["criteria"]["maxProperties"] == 9
    assert "'maximum': 2" in str(schemas["ChatRequest"]["properties"]["n"])


@pytest.mark.parametrize("path", ["/v1/systemone", "/v1/chat/completions", "/invocations"])
def test_every_post_says_what_can_go_wrong(stub_client: TestClient, path: str) -> None:
    responses = stub_client.get("/openapi.json").json()["paths"][path]["post"]["responses"]
    assert {"200", "408", "413", "415", "422" if path != "/v1/chat/completions" else "400", "500", "503"} <= set(
        responses
    )
    assert "Retry-After" in responses["503"]["headers"]
