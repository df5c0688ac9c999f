"""Who asks is said in one of two headers, or not at all; a name that could mean anything is refused."""

from __future__ import annotations

import pytest

from switchyard_runtime.errors import Kind, Problem
from switchyard_runtime.http.caller import caller_of


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ({}, ""),
        ({"x-switchyard-caller": "team-a"}, "team-a"),
        ({"x-amzn-sagemaker-custom-attributes": "request_id=1;caller=team_b"}, "team_b"),
        ({"x-amzn-sagemaker-custom-attributes": "request_id=1"}, ""),
        ({"x-amzn-sagemaker-custom-attributes": "nocaller=1"}, ""),
        ({"x-switchyard-caller": "a", "x-amzn-sagemaker-custom-attributes": "caller=b"}, "a"),
    ],
)
def test_the_name_is_found(headers: dict[str, str], caller: str) -> None:
    assert caller_of(headers) == caller


@pytest.mark.parametrize("name", ["", "a b", "ä", "x" * 65, "a/b", "\x00"])
@pytest.mark.parametrize("header", ["x-switchyard-caller", "attributes"])
def test_another_name_is_refused(name: str, header: str) -> None:
    if header == "attributes":
        headers = {"x-amzn-sagemaker-custom-attributes": f"caller={name}"}
        if name == "a b":  # a space ends the attribute
            assert caller_of(headers) == "a"
            return
    else:
        headers = {header: name}
    with pytest.raises(Problem) as caught:
        caller_of(headers)
    assert caught.value.kind is Kind.INVALID
    assert "1 to 64" in caught.value.message
