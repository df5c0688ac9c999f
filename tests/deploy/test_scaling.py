"""Other instance types under scaling: when two deployments are needed, and what the first one leaves out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steelyard.cdk.program import Cdk
from steelyard.deploy.scaling import must_unscale, without_scaling

TARGET = {"Type": "AWS::ApplicationAutoScaling::ScalableTarget", "Properties": {}}
POLICY = {"Type": "AWS::ApplicationAutoScaling::ScalingPolicy", "DependsOn": ["Gate"]}


def template(types: str, **resources: Any) -> dict[str, Any]:
    gate = {f"GateTypes{types}": {"Type": "Custom::SteelyardTypesGate"}}
    return {"Parameters": {"P": {"Type": "String"}}, "Resources": {**gate, "Topic": {"Type": "A::B"}, **resources}}


def test_two_deployments_for_other_types_of_a_scaled_endpoint_only() -> None:
    scaled = template("aaa", Target=TARGET, Policy=POLICY)
    assert must_unscale(scaled, template("bbb", Target=TARGET, Policy=POLICY))
    assert must_unscale(scaled, template("bbb"))  # the scaling would go after the endpoint is updated
    assert not must_unscale(scaled, template("aaa", Target=TARGET))
    assert not must_unscale(template("aaa"), template("bbb", Target=TARGET))


def test_the_first_deployment_leaves_the_scaling_out_and_what_waits_for_it_free() -> None:
    waiting = {"Type": "A::C", "DependsOn": ["Target", "Topic"], "Metadata": {"a": 1}}
    alone = {"Type": "A::D", "DependsOn": "Policy"}
    deployed = template("aaa", Target=TARGET, Policy=POLICY, Waiting=waiting, Alone=alone)
    left = without_scaling(deployed)
    assert left["Parameters"] == deployed["Parameters"]
    assert left["Resources"].keys() == {"GateTypesaaa", "Topic", "Waiting", "Alone"}
    assert left["Resources"]["Waiting"] == {**waiting, "DependsOn": ["Topic"]}
    assert left["Resources"]["Alone"] == {"Type": "A::D"}
    assert deployed["Resources"]["Waiting"] == waiting


def test_templates_are_found_by_the_name_of_their_stack(tmp_path: Path) -> None:
    artifact = {"type": "aws:cloudformation:stack", "properties": {"templateFile": "x.json", "stackName": "Mine"}}
    artifacts = {"Id": artifact, "Tree": {"type": "cdk:tree", "properties": {"file": "tree.json"}}}
    (tmp_path / "manifest.json").write_text(json.dumps({"artifacts": artifacts}))
    (tmp_path / "x.json").write_text(json.dumps(template("aaa")))
    cdk = Cdk(environment="dev", release="sample", assembly=tmp_path)
    assert cdk.declared() == {"Mine"}
    assert cdk.template("Mine") == template("aaa")
