"""Other instance types for a scaled endpoint: two deployments, because AWS changes no types under a scalable target.

The first takes the deployed template and leaves the scaling out; the second is the usual one, and brings it back. The
count that scaling had reached is kept by both. CloudFormation cannot do it in one: it removes a target after it has
updated the endpoint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from steelyard.aws.cloudformation import Stack, find_stack
from steelyard.aws.session import Aws, aws_errors
from steelyard.cdk.program import Cdk
from steelyard.deploy.endpoints import Say
from steelyard.environments.schema import Environment

SCALING = "AWS::ApplicationAutoScaling::"
TYPES = "Custom::SteelyardTypesGate"
"""The resource whose logical id follows the instance types of an endpoint."""

Template = Mapping[str, Any]


def unscale(aws: Aws, environment: Environment, cdk: Cdk, say: Say) -> None:
    """Take the scaling from every endpoint whose instance types are to change. Interrupted, it is done the next time.

    Args:
        aws: Where.
        environment: The environment.
        cdk: The CDK's command line, after its synthesis.
        say: Receives each step.

    Raises:
        CommandError: AWS refuses, or the stack was taken back.
    """
    for name in environment.endpoints:
        stack = find_stack(aws, environment.stack_name(f"Endpoint-{name}"))
        if stack is None or not stack.stands:
            continue
        deployed = deployed_template(aws, stack)
        if must_unscale(deployed, cdk.template(stack.name)):
            say(f"{environment.endpoint_name(name)} gets other instance types: first a deployment without its scaling")
            cdk.deploy_template(stack.name, without_scaling(deployed))


def deployed_template(aws: Aws, stack: Stack) -> Template:
    """The template that a stack was last deployed with.

    Raises:
        CommandError: AWS cannot be asked.
    """
    with aws_errors():
        found = aws.client("cloudformation").get_template(StackName=stack.name, TemplateStage="Original")
    body = found["TemplateBody"]
    template: Template = json.loads(body) if isinstance(body, str) else body
    return template


def must_unscale(deployed: Template, wanted: Template) -> bool:
    """Return whether the gate would be asked about other instance types, and would find a scaled endpoint."""
    scaled = any(each["Type"].startswith(SCALING) for each in deployed["Resources"].values())
    return scaled and not _types(wanted) <= _types(deployed)


def without_scaling(template: Template) -> Template:
    """A template without its scalable targets and policies, and without what waits for them."""
    gone = {name for name, each in template["Resources"].items() if each["Type"].startswith(SCALING)}
    resources = {name: _free(each, gone) for name, each in template["Resources"].items() if name not in gone}
    return {**template, "Resources": resources}


def _free(resource: Mapping[str, Any], gone: set[str]) -> dict[str, Any]:
    after = resource.get("DependsOn", [])
    kept = [name for name in ([after] if isinstance(after, str) else after) if name not in gone]
    rest = {name: value for name, value in resource.items() if name != "DependsOn"}
    return {**rest, "DependsOn": kept} if kept else rest


def _types(template: Template) -> set[str]:
    return {name for name, each in template["Resources"].items() if each["Type"] == TYPES}
