"""What the stacks of each environment contain: our three, and variations on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_logs as logs
from aws_cdk.assertions import Annotations, Match, Template
from constructs import IConstruct

from environment_assemblies import NAMES, app_of, of_type, only, our_templates, ours, stacks_of, templates_of
from stacks.environment_stack import RETENTION
from steelyard.cdk.program import Cdk
from steelyard.environments.files import load_environment, parse_environment
from steelyard.environments.schema import Environment
from steelyard.releases.codebuild import asset_of
from steelyard.releases.manifest import Release, load_release, parse_release
from steelyard.releases.served import served_by
from steelyard.releases.source import asset_hash
from steelyard_constructs.log_retention import LOG_RETENTION_DAYS

# Where AWS has no resource to name, or names it only after it was made. Everything else is named.
STAR_RESOURCES = {
    "application-autoscaling:DescribeScalableTargets": "the list of scalable targets has no ARN",
    "cloudwatch:PutMetricData": "metrics have no ARN; a condition names the namespaces",
    "ec2:CreateNetworkInterface": "an interface's id is not known beforehand; a condition names the subnets",
    "ec2:CreateNetworkInterfacePermission": "as above",
    "ec2:DeleteNetworkInterface": "as above",
    "ec2:DeleteNetworkInterfacePermission": "permissions of interfaces have no ARN",
    "ec2:DescribeDhcpOptions": "EC2's descriptions have no ARN",
    "ec2:DescribeNetworkInterfaces": "EC2's descriptions have no ARN",
    "ec2:DescribeSecurityGroups": "EC2's descriptions have no ARN",
    "ec2:DescribeSubnets": "EC2's descriptions have no ARN",
    "ec2:DescribeVpcs": "EC2's descriptions have no ARN",
    "ecr:GetAuthorizationToken": "the login to a registry has no ARN",
    "sagemaker:CallWithBearerToken": "bearer tokens have no ARN",
}

# What may follow a named resource: the objects below a prefix, or in a bucket that is emptied before it goes.
STAR_SUFFIXES = {
    "s3:AbortMultipartUpload",
    "s3:DeleteObject",
    "s3:DeleteObjectVersion",
    "s3:GetObject",
    "s3:PutObject",
}

# Types without tags. Every other resource carries them.
WITHOUT_TAGS = {
    "AWS::ApplicationAutoScaling::ScalableTarget",
    "AWS::ApplicationAutoScaling::ScalingPolicy",
    "AWS::Budgets::Budget",
    "AWS::CloudWatch::Dashboard",
    "AWS::EC2::SubnetRouteTableAssociation",
    "AWS::EC2::VPCEndpoint",
    "AWS::IAM::Policy",
    "AWS::S3::BucketPolicy",
    "AWS::SNS::Subscription",
    "AWS::SNS::TopicPolicy",
    "Custom::SteelyardEmptyBucket",
    "Custom::SteelyardReleaseGate",
    "Custom::SteelyardTypesGate",
}

EVERY_STACK = [(name, part) for name in NAMES for part in our_templates(name)]


@pytest.fixture(params=EVERY_STACK, ids=[f"{name}-{part}" for name, part in EVERY_STACK])
def every(request: pytest.FixtureRequest) -> tuple[str, str]:
    """The name of an environment of ours, and of one of its parts."""
    pair: tuple[str, str] = request.param
    return pair


def stack_of(name: str, part: str) -> cdk.Stack:
    (found,) = [each for each in stacks_of(ours(name)) if each.stack_name == f"Steelyard-{name}-{part}"]
    return found


def manifest_of(app: cdk.App) -> dict[str, Any]:
    """What an app tells the command line: stacks, assets, and what it could not know without AWS."""
    content: dict[str, Any] = json.loads(Path(app.synth().directory, "manifest.json").read_text())
    return content


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def documents(template: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every policy in a template, with the type of the resource that has it."""
    for resource in template["Resources"].values():
        properties = resource.get("Properties", {})
        for key in ("PolicyDocument", "KeyPolicy", "RepositoryPolicyText", "AssumeRolePolicyDocument"):
            for statement in as_list(properties.get(key, {}).get("Statement", [])):
                yield resource["Type"], statement
        for policy in properties.get("Policies", []) if resource["Type"] == "AWS::IAM::Role" else []:
            for statement in as_list(policy["PolicyDocument"]["Statement"]):
                yield resource["Type"], statement


def text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def environment(name: str = "dev", **changes: Any) -> Environment:
    """One of our environments with changes at the top of its file."""
    data = load_environment(name).model_dump(exclude={"name"}) | changes
    return parse_environment(data, name=name, source=f"{name}.toml")


def with_endpoint(**changes: Any) -> Environment:
    """dev with its decision endpoint changed, and no other."""
    one = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge", **changes}
    return environment(endpoints={"decision": {key: value for key, value in one.items() if value is not None}})


def other_release(change: Callable[[dict[str, Any]], None]) -> Release:
    """The sample with a change."""
    content = load_release().model_dump(mode="json")
    change(content)
    return parse_release(content, source="other.json")


def test_no_finding_of_cdk_nag(every: tuple[str, str], nag_findings: Callable[[IConstruct], list[str]]) -> None:
    assert nag_findings(stack_of(*every)) == []


def test_no_finding_of_cfn_lint(every: tuple[str, str]) -> None:
    from cfnlint.api import ManualArgs, lint

    name, part = every
    config = ManualArgs(
        regions=[load_environment(name).region],
        # A dependency on a construct names all that is in it, also what a reference orders already.
        ignore_checks=["W3005"],
    )
    found = lint(json.dumps(our_templates(name)[part]), config=config)
    assert [f"{match.rule.id} {match.message}" for match in found] == []


@pytest.mark.parametrize("name", NAMES)
def test_no_finding_of_the_cdk(name: str) -> None:
    """Its own validation of templates, which app.py leaves out, fails the synth when it finds something."""
    app = app_of(load_environment(name), validated=True)
    report = json.loads(Path(app.synth().directory, "validation-report.json").read_text())
    assert report["pluginReports"] == []
    cdk.CfnResource(cdk.Stack(app, "Wrong"), "Model", type="AWS::SageMaker::Model", properties={"Nonsense": 1})
    with pytest.raises(RuntimeError, match="Nonsense"):
        app.synth(force=True)


def test_no_star_in_an_action(every: tuple[str, str]) -> None:
    name, part = every
    for type_, statement in documents(our_templates(name)[part]):
        for action in as_list(statement["Action"]):
            # A key's policy gives the key to the account: the CDK's default, without which nobody could manage it.
            # A bucket's denies everything that is not TLS.
            if (type_, action) == ("AWS::KMS::Key", "kms:*") or statement["Effect"] == "Deny":
                continue
            assert "*" not in action, f"{type_}: {action}"


def test_a_star_in_a_resource_is_listed(every: tuple[str, str]) -> None:
    name, part = every
    for type_, statement in documents(our_templates(name)[part]):
        if type_ == "AWS::KMS::Key" or "Resource" not in statement or statement["Effect"] == "Deny":
            continue  # In a key's own policy the star is the key.
        for action in as_list(statement["Action"]):
            for resource in as_list(statement["Resource"]):
                if "*" not in text(resource):
                    continue
                if resource == "*" or ":network-interface/" in text(resource):
                    assert action in STAR_RESOURCES, f"{action} on {text(resource)}"
                else:
                    assert action in STAR_SUFFIXES, f"{action} on {text(resource)}"
                    assert text(resource).rstrip('"]} ').endswith("/*"), f"{action} on {text(resource)}"


def test_nobody_is_everybody(every: tuple[str, str]) -> None:
    name, part = every
    for type_, statement in documents(our_templates(name)[part]):
        if statement["Effect"] == "Allow" and "Principal" in statement:
            assert statement["Principal"] not in ("*", {"AWS": "*"}), f"{type_}: {statement}"


def test_everything_is_tagged(every: tuple[str, str]) -> None:
    name, part = every
    wanted = {"steelyard:environment": name}
    if part.startswith("Endpoint-"):
        wanted |= {"steelyard:release": "sample", "steelyard:endpoint": part.removeprefix("Endpoint-")}
    for logical_id, resource in our_templates(name)[part]["Resources"].items():
        if resource["Type"] in WITHOUT_TAGS:
            continue
        tags = resource.get("Properties", {}).get("Tags", [])
        found = tags if isinstance(tags, dict) else {tag["Key"]: tag["Value"] for tag in tags}
        assert wanted.items() <= found.items(), f"{logical_id} ({resource['Type']}) has the tags {found}"


ENDPOINT_OUTPUTS = {"EndpointName", "EndpointArn", "Kind", "Release", "LogGroup", "CallerRoleArn"}
MODEL_PROJECTS = {"ModelProjectGemma3270m", "ModelProjectQwen354b"}
OUTPUTS = {
    "dev": {
        "Artifacts": {"BucketName", "FixedAtCreation"},
        "Build": {"FixedAtCreation", "RepositoryUri", "ImageProjectCpu", *MODEL_PROJECTS},
        "Observability": {"AlarmTopicArn", "DashboardName"},
        "Endpoint-decision": ENDPOINT_OUTPUTS,
        "Endpoint-chat": ENDPOINT_OUTPUTS,
    },
    "staging": {
        "Artifacts": {"BucketName", "FixedAtCreation"},
        "Network": {"FixedAtCreation", "SecurityGroupId"},
        "Build": {
            "FixedAtCreation",
            "RepositoryUri",
            "ImageProjectCpu",
            "ImageProjectGraviton",
            "ImageProjectCuda",
            *MODEL_PROJECTS,
        },
        "Observability": {"AlarmTopicArn", "DashboardName"},
        "Endpoint-decision-cpu": ENDPOINT_OUTPUTS,
        "Endpoint-decision-gpu": ENDPOINT_OUTPUTS,
        "Endpoint-chat": ENDPOINT_OUTPUTS,
    },
    "prod": {
        "Artifacts": {"BucketName", "FixedAtCreation"},
        "Network": {"FixedAtCreation", "SecurityGroupId"},
        "Build": MODEL_PROJECTS,
        "Observability": {"AlarmTopicArn", "DashboardName"},
        "Endpoint-decision-cpu": ENDPOINT_OUTPUTS,
        "Endpoint-decision-gpu": ENDPOINT_OUTPUTS,
        "Endpoint-chat": ENDPOINT_OUTPUTS,
    },
}


@pytest.mark.parametrize("name", NAMES)
def test_stacks_and_outputs_are_these(name: str) -> None:
    outputs = {
        part: {
            output
            for output, content in template.get("Outputs", {}).items()
            # What one stack exports for another is the CDK's business.
            if "Export" not in content
        }
        for part, template in our_templates(name).items()
    }
    assert outputs == OUTPUTS[name]


def test_what_callers_read() -> None:
    outputs = our_templates("dev")["Endpoint-decision"]["Outputs"]
    assert outputs["EndpointName"]["Value"] == "steelyard-dev-decision"
    assert outputs["Kind"]["Value"] == "decision"
    assert outputs["Release"]["Value"] == "sample"
    assert our_templates("dev")["Endpoint-chat"]["Outputs"]["Kind"]["Value"] == "chat"


@pytest.mark.parametrize("name", NAMES)
def test_the_command_line_knows_what_is_declared(name: str) -> None:
    assembly = ours(name).synth()
    declared = Cdk(environment=name, release="sample", assembly=Path(assembly.directory)).declared()
    assert declared == {stack.stack_name for stack in assembly.stacks}


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_looked_up(name: str) -> None:
    assert "missing" not in manifest_of(ours(name))


@pytest.mark.parametrize("name", NAMES)
def test_endpoints_come_after_what_they_need(name: str) -> None:
    for stack in stacks_of(ours(name)):
        if "-Endpoint-" in stack.stack_name:
            before = {each.stack_name.split("-", 2)[2] for each in stack.dependencies}
            assert {"Artifacts", "Build", "Observability"} <= before
            assert not any("Endpoint" in each for each in before)


@pytest.mark.parametrize("name", NAMES)
def test_accounts_and_regions(name: str) -> None:
    declared = load_environment(name)
    for stack in ours(name).synth().stacks:
        assert stack.environment.account == (declared.account or "unknown-account")
        assert stack.environment.region == declared.region


STORES = ("AWS::S3::Bucket", "AWS::ECR::Repository", "AWS::Logs::LogGroup", "AWS::KMS::Key")


def test_what_is_stored_goes_or_stays(every: tuple[str, str]) -> None:
    name, part = every
    # Retained, but not by a first deployment that fails: what it left would be in the way of the next one.
    policy = "RetainExceptOnCreate" if load_environment(name).removal_policy == "retain" else "Delete"
    stored = [each for each in our_templates(name)[part]["Resources"].values() if each["Type"] in STORES]
    assert {each["DeletionPolicy"] for each in stored} <= {policy}
    assert stored or part == "Observability"


@pytest.mark.parametrize("name", NAMES)
def test_what_is_to_stay_is_protected(name: str) -> None:
    for stack in stacks_of(ours(name)):
        assert stack.termination_protection is (load_environment(name).removal_policy == "retain")


def test_retention_is_what_the_file_says() -> None:
    template = templates_of(app_of(environment(log_retention_days=3653)))["Endpoint-decision"]
    assert {each["RetentionInDays"] for each in of_type(template, "AWS::Logs::LogGroup")} == {3653}


def test_the_cdk_has_a_name_for_every_period_that_logs_are_kept() -> None:
    stack = cdk.Stack(cdk.App(), "Stack")
    for days, retention in RETENTION.items():
        logs.LogGroup(stack, f"Of{days}", retention=retention)
    made = Template.from_stack(stack).find_resources("AWS::Logs::LogGroup")
    assert [each["Properties"]["RetentionInDays"] for each in made.values()] == list(LOG_RETENTION_DAYS)


def test_a_decision_endpoint_on_processors() -> None:
    template = our_templates("dev")["Endpoint-decision"]
    model = only(template, "AWS::SageMaker::Model")
    container = model["PrimaryContainer"]
    served = served_by(load_release(), load_environment("dev").endpoints["decision"])
    digest = load_release().images["decision"]["cpu"].digest
    assert text(container["Image"]).find(f"dkr.ecr.us-east-1.amazonaws.com/steelyard-dev@{digest}") > 0
    assert container["Environment"] == {
        **served.variables,
        "STEELYARD_ENDPOINT_NAME": "steelyard-dev-decision",
        "STEELYARD_GPU_LAYERS": "0",
        "STEELYARD_HOST": "0.0.0.0",
        "STEELYARD_MODEL": "/opt/ml/model",
        "STEELYARD_MODEL_ID": "gemma-3-270m",
    }
    assert set(served.variables) == {"STEELYARD_DECISIONS_SHA256"}
    assert model["EnableNetworkIsolation"] is True
    assert served.key in text(container["ModelDataSource"])
    gate = only(template, "Custom::SteelyardReleaseGate")["Wanted"]
    assert all(each in text(gate) for each in [served.key, *served.objects()])
    (variant,) = only(template, "AWS::SageMaker::EndpointConfig")["ProductionVariants"]
    assert variant["InstanceType"] == "ml.c7i.xlarge"
    assert variant["VariantName"] == "primary"
    endpoint = only(template, "AWS::SageMaker::Endpoint")
    assert endpoint["EndpointName"] == "steelyard-dev-decision"
    assert endpoint["RetainAllVariantProperties"] is False
    scaled = only(our_templates("prod")["Endpoint-decision-cpu"], "AWS::SageMaker::Endpoint")
    assert scaled["RetainAllVariantProperties"] is True


@pytest.mark.parametrize("name", NAMES)
def test_alarms_for_people_are_made_once_there_is_an_endpoint(name: str) -> None:
    """Before, the alarm of its health goes off while SageMaker makes the first instances."""
    for part, template in our_templates(name).items():
        for alarm in template["Resources"].values():
            if alarm["Type"] == "AWS::CloudWatch::Alarm" and "AlarmActions" in alarm["Properties"]:
                kinds = {template["Resources"][each]["Type"] for each in alarm["DependsOn"]}
                assert "AWS::SageMaker::Endpoint" in kinds, part


def test_a_decision_endpoint_on_gpus() -> None:
    template = our_templates("prod")["Endpoint-decision-gpu"]
    (variant,) = only(template, "AWS::SageMaker::EndpointConfig")["ProductionVariants"]
    assert [pool["InstanceType"] for pool in variant["InstancePools"]] == [
        "ml.g6e.xlarge",
        "ml.g6.xlarge",
        "ml.g5.xlarge",
    ]
    assert "InstanceType" not in variant
    assert variant["InferenceAmiVersion"] == "al2023-ami-sagemaker-inference-gpu-4-1"
    assert variant["RoutingConfig"] == {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"}
    environment = only(template, "AWS::SageMaker::Model")["PrimaryContainer"]["Environment"]
    assert environment["STEELYARD_GPU_LAYERS"] == "-1"


def test_production_pulls_what_staging_built() -> None:
    image = only(our_templates("prod")["Endpoint-decision-cpu"], "AWS::SageMaker::Model")["PrimaryContainer"]["Image"]
    assert image.startswith("111122223333.dkr.ecr.us-east-1.amazonaws.com/steelyard@sha256:")
    assert not of_type(our_templates("prod")["Build"], "AWS::ECR::Repository")
    repository = only(our_templates("staging")["Build"], "AWS::ECR::Repository")
    assert repository["RepositoryName"] == "steelyard"
    assert "444455556666" in text(repository["RepositoryPolicyText"])


@pytest.mark.parametrize("name", NAMES)
def test_projects_build_what_the_commands_take_this_checkout_for(name: str) -> None:
    projects = of_type(our_templates(name)["Build"], "AWS::CodeBuild::Project")
    assert projects
    for project in projects:
        location = project["Source"]["Location"]
        whole = location if isinstance(location, str) else "".join(map(str, location["Fn::Join"][1]))
        assert asset_of({"source": {"location": whole}}) == asset_hash()


def test_what_production_pulls_outlives_staging() -> None:
    templates = our_templates("staging")
    kept = (("Build", "AWS::ECR::Repository"), ("Artifacts", "AWS::KMS::Key"))
    for part, kind in kept:
        (resource,) = [each for each in templates[part]["Resources"].values() if each["Type"] == kind]
        assert (resource["DeletionPolicy"], resource["UpdateReplacePolicy"]) == ("RetainExceptOnCreate", "Retain")
        assert not resource["Properties"].get("EmptyOnDelete")
    assert all(stack.termination_protection for stack in stacks_of(ours("staging")))


def test_chat_is_the_published_container() -> None:
    container = only(our_templates("dev")["Endpoint-chat"], "AWS::SageMaker::Model")["PrimaryContainer"]
    assert container["Image"].startswith("763104351884.dkr.ecr.us-east-1.amazonaws.com/llama-cpp@sha256:")
    assert container["Environment"] == {
        "SM_LLAMA_CPP_ALIAS": "gemma-3-270m",
        "SM_LLAMA_CPP_MODEL": "/opt/ml/model/gemma-3-270m-q4_k_m.gguf",
    }


def test_a_hub_turns_isolation_off_and_says_so() -> None:
    hub = {"repository": "owner/name", "file": "model.gguf", "bytes": 10**9}
    app = app_of(with_endpoint(kind="chat", hub=hub))
    template = templates_of(app)["Endpoint-decision"]
    model = only(template, "AWS::SageMaker::Model")
    assert model["EnableNetworkIsolation"] is False
    assert "ModelDataSource" not in model["PrimaryContainer"]
    (stack,) = [each for each in stacks_of(app) if "-Endpoint-" in each.stack_name]
    Annotations.from_stack(stack).has_warning("*", Match.string_like_regexp("network isolation is off"))


def test_scaling_is_what_the_file_says() -> None:
    template = our_templates("prod")["Endpoint-decision-cpu"]
    target = only(template, "AWS::ApplicationAutoScaling::ScalableTarget")
    assert (target["MinCapacity"], target["MaxCapacity"]) == (2, 8)
    assert [each["ScheduledActionName"] for each in target["ScheduledActions"]] == ["day", "night"]
    assert not of_type(our_templates("dev")["Endpoint-decision"], "AWS::ApplicationAutoScaling::ScalableTarget")


def test_an_update_is_watched_by_alarms() -> None:
    for part, kind in (("Endpoint-decision-cpu", "CANARY"), ("Endpoint-chat", "ALL_AT_ONCE")):
        template = our_templates("prod")[part]
        deployment = only(template, "AWS::SageMaker::Endpoint")["DeploymentConfig"]
        routing = deployment["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"]
        assert routing["Type"] == kind
        names = [alarm["AlarmName"]["Ref"] for alarm in deployment["AutoRollbackConfiguration"]["Alarms"]]
        assert names
        assert {template["Resources"][name]["Type"] for name in names} == {"AWS::CloudWatch::Alarm"}


def test_an_update_of_production_on_gpus_needs_no_second_fleet() -> None:
    deployment = only(our_templates("prod")["Endpoint-decision-gpu"], "AWS::SageMaker::Endpoint")["DeploymentConfig"]
    assert deployment["RollingUpdatePolicy"]["MaximumBatchSize"] == {"Type": "CAPACITY_PERCENT", "Value": 50}
    assert deployment["AutoRollbackConfiguration"]["Alarms"]
    assert "BlueGreenUpdatePolicy" not in deployment


def test_alarms_tell_the_topic_and_the_topic_the_addresses() -> None:
    told = [
        each
        for each in of_type(our_templates("prod")["Endpoint-chat"], "AWS::CloudWatch::Alarm")
        if "AlarmActions" in each
    ]
    assert len(told) == 8  # the others undo an update
    for alarm in told:
        assert "Observability" in text(alarm["AlarmActions"])
    (subscription,) = of_type(our_templates("prod")["Observability"], "AWS::SNS::Subscription")
    assert subscription["Endpoint"] == "steelyard-oncall@example.com"
    assert not of_type(our_templates("dev")["Observability"], "AWS::SNS::Subscription")


def test_the_latency_alarm_is_what_the_file_says() -> None:
    template = templates_of(app_of(with_endpoint(latency_alarm_ms=1234)))["Endpoint-decision"]
    thresholds = {alarm["Threshold"] for alarm in of_type(template, "AWS::CloudWatch::Alarm")}
    assert 1234 * 1000 in thresholds


def test_the_budget_counts_what_is_tagged() -> None:
    budget = only(our_templates("prod")["Observability"], "AWS::Budgets::Budget")
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 8000, "Unit": "USD"}
    assert budget["Budget"]["CostFilters"] == {"TagKeyValue": ["user:steelyard:environment$prod"]}
    assert not of_type(our_templates("dev")["Observability"], "AWS::Budgets::Budget")


def test_services_act_for_this_account_and_what_is_read_is_its_own(every: tuple[str, str]) -> None:
    """A service is let in for the account's own resources, and a bucket that is read or written is the account's."""
    # Its number where the file has one.
    known = {text({"Ref": "AWS::AccountId"}), load_environment(every[0]).account}
    for type_, statement in documents(our_templates(every[0])[every[1]]):
        if statement["Effect"] != "Allow":
            continue
        equal = statement.get("Condition", {}).get("StringEquals", {})
        principal = statement.get("Principal", {})
        if isinstance(principal, dict) and "Service" in principal:
            # CloudWatch Logs says for which log group, and that name has the account in it.
            by_log_group = "kms:EncryptionContext:aws:logs:arn" in text(statement.get("Condition"))
            assert by_log_group or text(equal.get("aws:SourceAccount")) in known, (type_, statement)
        if type_ == "AWS::IAM::Policy" and any(a.startswith("s3:") for a in as_list(statement["Action"])):
            assert text(equal.get("aws:ResourceAccount")) in known, statement


def test_an_endpoint_whose_callers_are_not_named_has_no_role_for_them() -> None:
    template = templates_of(app_of(with_endpoint()))["Endpoint-decision"]
    assert "CallerRoleArn" not in template["Outputs"]
    assert not [key for key in template["Resources"] if key.startswith("CallerRole")]


def test_callers_are_who_the_file_says() -> None:
    support = "arn:aws:iam::111122223333:role/Support"
    template = templates_of(app_of(with_endpoint(caller={"principals": [support]})))["Endpoint-decision"]
    assumed = [
        statement for type_, statement in documents(template) if "sts:AssumeRole" in as_list(statement["Action"])
    ]
    assert {"AWS": support} in [statement["Principal"] for statement in assumed]
    bearer = [
        action
        for _, statement in documents(our_templates("prod")["Endpoint-chat"])
        for action in as_list(statement["Action"])
        if action.startswith("sagemaker:")
    ]
    assert sorted(bearer) == ["sagemaker:CallWithBearerToken", "sagemaker:InvokeEndpoint"]


def test_a_created_network_has_no_way_out() -> None:
    template = our_templates("staging")["Network"]
    types = {resource["Type"] for resource in template["Resources"].values()}
    assert "AWS::EC2::VPCEndpoint" in types
    assert types.isdisjoint({"AWS::EC2::InternetGateway", "AWS::EC2::NatGateway"})
    assert len(of_type(template, "AWS::EC2::Subnet")) == load_environment("staging").network.model_dump()["zones"]
    for subnet in of_type(template, "AWS::EC2::Subnet"):
        assert "Fn::GetAZs" in text(subnet["AvailabilityZone"])
    model = only(our_templates("staging")["Endpoint-chat"], "AWS::SageMaker::Model")
    assert len(model["VpcConfig"]["Subnets"]) == 2


def test_the_security_group_of_endpoints_outlives_them() -> None:
    templates = our_templates("staging")
    # SageMaker's interfaces are in it for minutes after an endpoint is gone.
    assert [part for part, template in templates.items() if of_type(template, "AWS::EC2::SecurityGroup")] == ["Network"]
    group = templates["Network"]["Outputs"]["SecurityGroupId"]["Value"]
    exported = {text(each["Value"]): each["Export"]["Name"] for each in outputs_with_export(templates["Network"])}
    model = only(templates["Endpoint-chat"], "AWS::SageMaker::Model")
    assert model["VpcConfig"]["SecurityGroupIds"] == [{"Fn::ImportValue": exported[text(group)]}]


def outputs_with_export(template: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in template["Outputs"].values() if "Export" in each]


def test_an_existing_network_is_named_not_looked_up() -> None:
    subnets = {"us-east-1a": "subnet-0123456789abcdef0", "us-east-1b": "subnet-0123456789abcdef1"}
    network = {"kind": "existing", "vpc_id": "vpc-0123456789abcdef0", "subnets": subnets}
    app = app_of(environment(network=network))
    templates = templates_of(app)
    model = only(templates["Endpoint-decision"], "AWS::SageMaker::Model")
    assert model["VpcConfig"]["Subnets"] == list(subnets.values())
    assert only(templates["Network"], "AWS::EC2::SecurityGroup")["VpcId"] == "vpc-0123456789abcdef0"
    assert not of_type(templates["Network"], "AWS::EC2::VPC")
    assert "missing" not in manifest_of(app)


def test_without_a_network_there_is_none() -> None:
    templates = our_templates("dev")
    assert "VpcConfig" not in only(templates["Endpoint-decision"], "AWS::SageMaker::Model")
    assert "Network" not in templates


def test_a_created_key_encrypts_everything() -> None:
    templates = our_templates("staging")
    assert only(templates["Artifacts"], "AWS::KMS::Key")["EnableKeyRotation"] is True
    # The one group of Artifacts is the log of the function that empties the bucket: names of deleted objects.
    for part in templates.keys() - {"Artifacts"}:
        for group in of_type(templates[part], "AWS::Logs::LogGroup"):
            assert "KmsKeyId" in group, part
    assert "KmsMasterKeyId" in only(templates["Observability"], "AWS::SNS::Topic")
    assert "KmsKeyId" in only(templates["Endpoint-decision-cpu"], "AWS::SageMaker::EndpointConfig")
    encryption = only(templates["Build"], "AWS::ECR::Repository")["EncryptionConfiguration"]
    assert encryption["EncryptionType"] == "KMS"


def test_an_existing_key_is_used() -> None:
    arn = "arn:aws:kms:us-east-1:111122223333:key/00000000-0000-0000-0000-000000000000"
    templates = templates_of(app_of(environment(encryption={"kind": "existing", "key_arn": arn})))
    assert not of_type(templates["Artifacts"], "AWS::KMS::Key")
    assert any(arn in text(bucket) for bucket in of_type(templates["Artifacts"], "AWS::S3::Bucket"))
    groups = of_type(templates["Endpoint-decision"], "AWS::Logs::LogGroup")
    assert {group["KmsKeyId"] for group in groups} == {arn}


def test_another_bootstrap_is_used_by_every_stack() -> None:
    templates = templates_of(app_of(environment(bootstrap={"qualifier": "ours", "stack": "OurToolkit"})))
    versions = {template["Parameters"]["BootstrapVersion"]["Default"] for template in templates.values()}
    assert versions == {"/cdk-bootstrap/ours/version"}


def test_a_named_bucket_has_its_name() -> None:
    artifacts = {"bucket_name": "example-steelyard-dev"}
    template = templates_of(app_of(environment(artifacts=artifacts)))["Artifacts"]
    assert "example-steelyard-dev" in [each.get("BucketName") for each in of_type(template, "AWS::S3::Bucket")]


def test_an_environment_without_endpoints() -> None:
    templates = templates_of(app_of(environment(endpoints={}, builds={})))
    assert set(templates) == {"Artifacts", "Build", "Observability"}


def test_an_environment_that_builds_and_stores_nothing_has_no_build_stack() -> None:
    """A stack without resources is one that CloudFormation refuses."""
    images = {"account": "111122223333", "repository": "steelyard"}
    assert "Build" not in templates_of(app_of(environment(images=images, builds={})))


# A change, and the types of resources whose logical ids or properties differ after it.
CHANGES: dict[str, tuple[Callable[[dict[str, Any]], None], set[str]]] = {
    "another model": (
        lambda content: content["models"]["decision"].update(
            key="models/other/" + "b" * 64 + "/", manifest_sha256="b" * 64
        ),
        {"AWS::SageMaker::Model", "AWS::IAM::Policy", "Custom::SteelyardReleaseGate"},
    ),
    "another image": (
        lambda content: content["images"]["decision"]["cpu"].update(digest="sha256:" + "c" * 64),
        {"AWS::SageMaker::Model", "AWS::IAM::Policy", "Custom::SteelyardReleaseGate"},
    ),
}


def without_order(template: dict[str, Any]) -> dict[str, Any]:
    """A template's resources without what they wait for: everything waits for the gate, and CloudFormation does not
    count that as a change."""
    return {
        name: {key: value for key, value in resource.items() if key != "DependsOn"}
        for name, resource in template["Resources"].items()
    }


@pytest.mark.parametrize(("change", "changed"), CHANGES.values(), ids=CHANGES)
def test_a_changed_release_changes_what_it_names(change: Callable[[dict[str, Any]], None], changed: set[str]) -> None:
    before = our_templates("dev")
    after = templates_of(app_of(load_environment("dev"), other_release(change)))
    # The builds are of this checkout, whatever the release.
    assert {part for part in before if before[part] != after[part]} - {"Build"} == {"Endpoint-decision"}
    old, new = without_order(before["Endpoint-decision"]), without_order(after["Endpoint-decision"])
    differ = {logical_id for logical_id in old.keys() | new.keys() if old.get(logical_id) != new.get(logical_id)}
    assert {(old.get(each) or new[each])["Type"] for each in differ} == changed
    for template in (old, new):
        for resource in template.values():
            if resource["Type"] in ("AWS::SageMaker::Model", "AWS::SageMaker::EndpointConfig"):
                assert not {"ModelName", "EndpointConfigName"} & resource["Properties"].keys()
