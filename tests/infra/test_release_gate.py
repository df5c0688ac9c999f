"""The gate in a template: what it may read, when it is asked, and what waits for it."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_sns as sns
from constructs import IConstruct

from environment_assemblies import our_templates
from steelyard_constructs import release_gate
from steelyard_constructs.images import ImageReference
from steelyard_constructs.refusal import Refused
from steelyard_constructs.release_gate import GatedModel, GatedTypes, ReleaseGate

IMAGE = ImageReference(repository="mine", digest="sha256:" + "a" * 64)
FILES = {"m.gguf": (5, "c" * 64)}
MODEL = GatedModel(bucket="models", prefix="models/m/1234/", manifest_sha256="b" * 64, objects=FILES)


def stack_with(**given: Any) -> cdk.Stack:
    stack = cdk.Stack(cdk.App(), "Example", env=cdk.Environment(region="eu-west-1"))
    gate = ReleaseGate(stack, "Gate", **{"image": IMAGE, "model": MODEL, **given})
    gate.guard(sns.Topic(stack, "Topic", enforce_ssl=True))
    return stack


def resources(stack: cdk.Stack) -> dict[str, Any]:
    found: dict[str, Any] = cdk.assertions.Template.from_stack(stack).to_json()["Resources"]
    return found


def check_of(stack: cdk.Stack) -> tuple[str, dict[str, Any]]:
    (found,) = [
        (name, each) for name, each in resources(stack).items() if each["Type"] == "Custom::SteelyardReleaseGate"
    ]
    return found


def wanted(stack: cdk.Stack) -> dict[str, Any]:
    """What the function is asked; what only AWS knows has its name in brackets."""
    _, delimited = check_of(stack)[1]["Properties"]["Wanted"]["Fn::Join"]
    text = "".join(part if isinstance(part, str) else f"<{next(iter(part.values()))}>" for part in delimited)
    asked: dict[str, Any] = json.loads(text)
    return asked


def test_the_function_is_asked_for_everything_that_is_named() -> None:
    assert wanted(stack_with()) == {
        "image": ["<AWS::AccountId>", "mine", IMAGE.digest],
        "model": ["models", "models/m/1234/", "b" * 64, {"m.gguf": [5, "c" * 64]}],
    }
    assert wanted(stack_with(model=None)) == {"image": ["<AWS::AccountId>", "mine", IMAGE.digest]}
    assert wanted(stack_with(local_only=True))["account"] == "<AWS::AccountId>"


def test_a_published_container_is_looked_for_in_its_registry() -> None:
    dlc = ImageReference.dlc(digest="sha256:" + "d" * 64)
    stack = stack_with(image=dlc, model=None)
    assert check_of(stack)[1]["Properties"]["Wanted"] == json.dumps(
        {"image": ["763104351884", "llama-cpp", dlc.digest]}, separators=(",", ":")
    )


def test_other_content_is_another_resource_and_the_same_is_the_same() -> None:
    same = {check_of(stack_with())[0] for _ in range(2)}
    others = {
        check_of(stack_with(**given))[0]
        for given in (
            {"image": ImageReference(repository="mine", digest="sha256:" + "e" * 64)},
            {"model": GatedModel(bucket="models", prefix="p/", manifest_sha256="b" * 64, objects={"m.gguf": (5, "c")})},
            {"model": None},
        )
    }
    assert len(same) == 1
    assert len(others - same) == 3


def test_the_role_reads_what_is_named_and_nothing_else() -> None:
    found = resources(stack_with())
    (policy,) = [each["Properties"] for each in found.values() if each["Type"] == "AWS::IAM::Policy"]
    statements = {each["Sid"]: each for each in policy["PolicyDocument"]["Statement"]}
    assert set(statements) == {"ReadImage", "ListModel", "ReadModel"}
    assert statements["ReadImage"]["Action"] == "ecr:BatchGetImage"
    assert json.dumps(statements["ReadImage"]["Resource"]).endswith(':repository/mine"]]}')
    assert statements["ListModel"]["Condition"] == {
        "StringEquals": {"aws:ResourceAccount": {"Ref": "AWS::AccountId"}, "s3:prefix": "models/m/1234/"}
    }
    objects = [json.dumps(each) for each in statements["ReadModel"]["Resource"]]
    assert [each.rpartition(":::")[2].rstrip('"]}') for each in objects] == [
        "models/models/m/1234/model-manifest.json",
        "models/models/m/1234/m.gguf",
    ]
    assert "*" not in json.dumps(policy["PolicyDocument"])


def test_other_instance_types_are_another_question_and_the_same_are_none() -> None:
    """CloudFormation asks when the logical id is new: not when it updates, and not when it rolls back."""

    def types_check(*types: str) -> tuple[str, dict[str, Any]]:
        found = resources(stack_with(endpoint=GatedTypes(name="mine", instance_types=types)))
        (check,) = [(name, each) for name, each in found.items() if each["Type"] == "Custom::SteelyardTypesGate"]
        return check

    name, check = types_check("ml.g5.xlarge", "ml.g6.xlarge")
    assert json.loads(check["Properties"]["Wanted"]) == {"scaled": "mine"}
    assert types_check("ml.g5.xlarge", "ml.g6.xlarge")[0] == name
    assert len({name, types_check("ml.g6.xlarge", "ml.g5.xlarge")[0], types_check("ml.g5.xlarge")[0]}) == 3
    found = resources(stack_with(endpoint=GatedTypes(name="mine", instance_types=["ml.g5.xlarge"])))
    statements = [
        each
        for policy in found.values()
        if policy["Type"] == "AWS::IAM::Policy"
        for each in policy["Properties"]["PolicyDocument"]["Statement"]
    ]
    assert [each["Action"] for each in statements if each["Resource"] == "*"] == [
        "application-autoscaling:DescribeScalableTargets"
    ]


def test_everything_that_is_guarded_waits() -> None:
    stack = stack_with()
    name, check = check_of(stack)
    for each in resources(stack).values():
        if each["Type"].startswith("AWS::SNS::"):
            assert name in each["DependsOn"]
    (policy,) = [name for name, each in resources(stack).items() if each["Type"] == "AWS::IAM::Policy"]
    assert check["DependsOn"] == [policy]


@pytest.mark.parametrize("name", ["dev", "staging", "prod"])
def test_everything_of_an_endpoint_waits(name: str) -> None:
    for part, template in our_templates(name).items():
        if not part.startswith("Endpoint-"):
            continue
        checks = {name for name, each in template["Resources"].items() if each["Type"].startswith("Custom::Steelyard")}
        assert len(checks) == 2
        for logical, each in template["Resources"].items():
            if not logical.startswith("Gate"):
                assert checks <= set(each["DependsOn"]), f"{part} {logical}"


def test_no_finding_of_cdk_nag(nag_findings: Callable[[IConstruct], list[str]]) -> None:
    types = GatedTypes(name="mine", instance_types=["ml.c7i.xlarge"])
    assert nag_findings(stack_with(endpoint=types)) == []


def test_the_function_is_its_source_without_what_is_for_people(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    source = release_gate.HANDLER.read_text(encoding="utf-8")
    short = release_gate.inline_source()
    assert len(short) <= release_gate.INLINE_LIMIT
    assert ast.dump(ast.parse(short)) == ast.dump(for_the_machine(ast.parse(source)))
    (tmp_path / "long.py").write_text(source + "x = 1\n" * 400)
    monkeypatch.setattr(release_gate, "HANDLER", tmp_path / "long.py")
    with pytest.raises(Refused, match="Lambda takes 4096"):
        release_gate.inline_source()


def for_the_machine(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        if isinstance(node, ast.Module | ast.FunctionDef) and ast.get_docstring(node) is not None:
            del node.body[0]
    return tree
