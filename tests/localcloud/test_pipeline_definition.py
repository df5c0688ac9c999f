"""Pipelines that CodePipeline refuses, and those that the local cloud does not run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from steelyard_localcloud.codepipeline.definition import build_variables, from_properties, resolved
from steelyard_localcloud.errors import ServiceError


def action(name: str, category: str, provider: str, **more: Any) -> dict[str, Any]:
    kind = {"Category": category, "Owner": "AWS", "Provider": provider, "Version": "1"}
    return {"Name": name, "ActionTypeId": kind, "Configuration": {}, **more}


def artifacts(*names: str) -> list[dict[str, str]]:
    return [{"Name": name} for name in names]


def properties() -> dict[str, Any]:
    source = action("Get", "Source", "CodeStarSourceConnection", OutputArtifacts=artifacts("Source"))
    build = action("Run", "Build", "CodeBuild", InputArtifacts=artifacts("Source"), RunOrder="1")
    return {
        "RoleArn": "arn:aws:iam::000000000000:role/pipeline",
        "ArtifactStore": {"Type": "S3", "Location": "artifacts"},
        "PipelineType": "V2",
        "Stages": [{"Name": "Source", "Actions": [source]}, {"Name": "Build", "Actions": [build]}],
        "Tags": [{"Key": "a", "Value": "b"}],
    }


def test_it_is_kept_as_the_api_has_it() -> None:
    found = from_properties(properties(), name="one")
    assert (found["name"], found["pipelineType"]) == ("one", "V2")
    assert found["stages"][1]["actions"][0]["inputArtifacts"] == [{"name": "Source"}]
    assert found["stages"][1]["actions"][0]["runOrder"] == 1
    assert "tags" not in found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda it: it["Stages"].pop(), "at least 2 stages"),
        (lambda it: it["Stages"].append(it["Stages"][1]), "Duplicate stage name: Build"),
        (lambda it: it["Stages"][1]["Actions"].append(it["Stages"][1]["Actions"][0]), "Duplicate action name: Run"),
        (lambda it: it["Stages"].reverse(), "The first stage of a pipeline has source actions and no others"),
        (
            lambda it: it["Stages"][1]["Actions"][0].update(InputArtifacts=artifacts("Other")),
            "the input artifact Other, which no action before it puts out",
        ),
        (
            lambda it: it["Stages"][1]["Actions"][0].update(OutputArtifacts=artifacts("Source")),
            "The output artifact Source is put out twice",
        ),
        (
            lambda it: it["Stages"][1]["Actions"][0]["ActionTypeId"].update(Provider="Jenkins"),
            "does not emulate actions of the category Build by Jenkins",
        ),
        (
            lambda it: it["Stages"][1]["Actions"][0].update(Region="eu-west-1"),
            "does not emulate region of the action Run",
        ),
        (lambda it: it.update(Triggers=[]), "does not emulate triggers"),
        (lambda it: it.pop("RoleArn"), "roleArn"),
    ],
)
def test_a_pipeline_that_cannot_be_is_refused(change: Callable[[dict[str, Any]], Any], said: str) -> None:
    given = properties()
    change(given)
    with pytest.raises(ServiceError) as refused:
        from_properties(given, name="one")
    assert said in refused.value.message


def test_variables_are_filled_in_or_missed() -> None:
    assert resolved("a #{One.X}/#{One.Y} #{b", {"One": {"X": "1", "Y": "2"}}) == "a 1/2 #{b"
    with pytest.raises(ServiceError, match=r"The variable #\{One.Z\} has no value"):
        resolved("#{One.Z}", {"One": {"X": "1"}})
    assert build_variables({"EnvironmentVariables": '[{"name": "A", "value": "1", "type": "PLAINTEXT"}]'}) == {"A": "1"}
    with pytest.raises(ServiceError, match="PARAMETER_STORE"):
        build_variables({"EnvironmentVariables": '[{"name": "A", "value": "1", "type": "PARAMETER_STORE"}]'})
