"""A pipeline as CloudFormation declares it, and what CodePipeline refuses of one."""

from __future__ import annotations

import json
import re
from typing import Any

from steelyard_localcloud import shapes
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.wire import Parameters

KINDS = {
    ("Source", "CodeStarSourceConnection"),
    ("Build", "CodeBuild"),
    ("Test", "CodeBuild"),
    ("Approval", "Manual"),
}
"""The categories and providers of actions that run here."""

_EMULATED = {"name", "roleArn", "artifactStore", "stages", "executionMode", "pipelineType"}
_ACTION = {
    *("actionTypeId", "configuration", "inputArtifacts", "name", "namespace", "outputArtifacts", "runOrder"),
}
_VARIABLE = re.compile(r"#\{([A-Za-z0-9_@-]+)\.([A-Za-z0-9_@-]+)\}")
_INVALID = "InvalidStructureException"


def from_properties(properties: Parameters, *, name: str) -> Parameters:
    """Return the ``pipeline`` of CreatePipeline from a resource's properties.

    Raises:
        ServiceError: AWS would refuse it, or the local cloud does not do what it asks for.
    """
    given = {key: value for key, value in properties.items() if key != "Tags"}
    pipeline: Parameters = {"name": name, **_lower(given)}
    if unknown := sorted(set(pipeline) - _EMULATED):
        raise not_emulated(f"{', '.join(unknown)} of AWS::CodePipeline::Pipeline")
    shapes.validate("codepipeline", "CreatePipeline", {"pipeline": pipeline})
    check(pipeline)
    return pipeline


def check(pipeline: Parameters) -> None:
    """Refuse what CodePipeline refuses of a pipeline's structure.

    Raises:
        ServiceError: With what is wrong.
    """
    stages = pipeline["stages"]
    if len(stages) < 2:
        raise ServiceError("Pipeline should have at least 2 stages", code=_INVALID)
    _unique([each["name"] for each in stages], "stage")
    made: set[str] = set()
    for position, stage in enumerate(stages):
        _unique([each["name"] for each in stage["actions"]], "action")
        for action in sorted(stage["actions"], key=run_order):
            kind = (action["actionTypeId"]["category"], action["actionTypeId"]["provider"])
            if unknown := sorted(set(action) - _ACTION):
                raise not_emulated(f"{', '.join(unknown)} of the action {action['name']}")
            if (kind[0] == "Source") != (position == 0):
                raise ServiceError(
                    "The first stage of a pipeline has source actions and no others, and no other stage has one: "
                    f"{stage['name']} has {action['name']}",
                    code=_INVALID,
                )
            if kind not in KINDS:
                raise not_emulated(f"actions of the category {kind[0]} by {kind[1]}")
            for each in action.get("inputArtifacts", []):
                if each["name"] not in made:
                    raise ServiceError(
                        f"Action {action['name']} has the input artifact {each['name']}, which no action before it "
                        "puts out",
                        code=_INVALID,
                    )
            for each in action.get("outputArtifacts", []):
                if each["name"] in made:
                    raise ServiceError(f"The output artifact {each['name']} is put out twice", code=_INVALID)
                made.add(each["name"])


def run_order(action: Parameters) -> int:
    """Return the place of an action among those of its stage; those with the same one run side by side."""
    return int(action.get("runOrder", 1))


def resolved(text: str, variables: dict[str, dict[str, str]]) -> str:
    """Return a configuration's text with each ``#{namespace.variable}`` replaced.

    Raises:
        ServiceError: One has no value.
    """

    def value(match: re.Match[str]) -> str:
        found = variables.get(match[1], {}).get(match[2])
        if found is None:
            raise ServiceError(f"The variable {match[0]} has no value", code="ActionConfigurationError")
        return found

    return _VARIABLE.sub(value, text)


def build_variables(configuration: Parameters) -> dict[str, str]:
    """Return the variables that an action gives its build.

    Raises:
        ServiceError: One does not stand in plain text.
    """
    given = json.loads(configuration.get("EnvironmentVariables") or "[]")
    for each in given:
        if each.get("type", "PLAINTEXT") != "PLAINTEXT":
            raise not_emulated(f"environment variables of the type {each['type']}")
    return {each["name"]: each["value"] for each in given}


def _unique(names: list[str], what: str) -> None:
    for name in names:
        if names.count(name) > 1:
            raise ServiceError(f"Duplicate {what} name: {name}", code=_INVALID)


def _lower(value: Any) -> Any:
    """The names of a template's members as the API writes them; the keys of a configuration are the action's own."""
    if isinstance(value, list):
        return [_lower(each) for each in value]
    if not isinstance(value, dict):
        return value
    return {
        f"{name[:1].lower()}{name[1:]}": _texts(each) if name == "Configuration" else _number(name, _lower(each))
        for name, each in value.items()
    }


def _number(name: str, value: Any) -> Any:
    """CloudFormation lets numbers be texts."""
    return int(value) if name == "RunOrder" and str(value).isascii() and str(value).isdecimal() else value


def _texts(configuration: Any) -> Any:
    if not isinstance(configuration, dict):
        return configuration
    return {name: str(each).lower() if isinstance(each, bool) else str(each) for name, each in configuration.items()}
