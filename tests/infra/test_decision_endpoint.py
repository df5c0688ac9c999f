"""DecisionEndpoint, and with it what both kinds of endpoint share: resources, roles, updates and every refusal."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import aws_cdk as cdk
import pytest
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk.assertions import Match, Template
from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER

from steelyard_constructs.decision_endpoint import DecisionEndpoint
from steelyard_constructs.declared_endpoint import Canary, Rolling, Scaling
from steelyard_constructs.endpoint import EndpointProps
from steelyard_constructs.endpoint_security_group import EndpointSecurityGroup
from steelyard_constructs.hardware import Architecture, Hardware, PooledInstance
from steelyard_constructs.images import ImageReference
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_constructs.refusal import Refused

DIGEST = "sha256:" + "a1" * 32
OWN = {"StringEquals": {"aws:ResourceAccount": "111122223333"}}
MODEL = ModelArtifact("models", "qwen/0123abcd/", 2_700_000_000)
X86 = ImageReference("steelyard", DIGEST)
ARM = ImageReference("steelyard", DIGEST, architecture=Architecture.ARM64)
CUDA = ImageReference("steelyard", DIGEST, cuda="13.0")

ON_CPU: dict[str, Any] = {"image": X86, "hardware": Hardware.CPU, "instance_type": "ml.c7i.2xlarge"}
ON_GRAVITON: dict[str, Any] = {"image": ARM, "hardware": Hardware.GRAVITON, "instance_type": "ml.c8g.2xlarge"}
ON_GPU: dict[str, Any] = {
    "image": CUDA,
    "hardware": Hardware.CUDA,
    "instance_pool": (
        PooledInstance("ml.g6.xlarge", 2),
        PooledInstance("ml.g6e.xlarge", 1),
    ),
    "gpu_layers": -1,
}

NOTHING: dict[str, Any] = {"instance_type": None}
"""Taken from ``ON_CPU``, for what has a pool."""


def new_stack(region: str | None = "eu-west-1") -> cdk.Stack:
    env = cdk.Environment(region=region, account="111122223333") if region else None
    return cdk.Stack(cdk.App(), "Stack", env=env)


def endpoint(stack: cdk.Stack, **changes: Any) -> DecisionEndpoint:
    """A decision endpoint on x86 processors, with changes."""
    props = {"endpoint_name": "decisions", "model": MODEL, **ON_CPU, **changes}
    return DecisionEndpoint(stack, "Decisions", model=props.pop("model"), props=EndpointProps(**props))


def template(**changes: Any) -> Template:
    stack = new_stack()
    endpoint(stack, **changes)
    return Template.from_stack(stack)


def only(template: Template, kind: str) -> tuple[str, Mapping[str, Any]]:
    """Logical id and properties of the only resource of a SageMaker type."""
    ((logical_id, resource),) = template.find_resources(f"AWS::SageMaker::{kind}").items()
    return logical_id, resource["Properties"]


def variant(template: Template) -> Mapping[str, Any]:
    (found,) = only(template, "EndpointConfig")[1]["ProductionVariants"]
    return found


def alarm(stack: cdk.Stack, name: str = "errors") -> cloudwatch.IAlarm:
    return cloudwatch.Alarm.from_alarm_arn(
        stack, f"Alarm-{name}", f"arn:aws:cloudwatch:eu-west-1:111122223333:alarm:{name}"
    )


# What it is.


@pytest.mark.parametrize("on", [ON_CPU, ON_GRAVITON, ON_GPU], ids=["cpu", "graviton", "cuda"])
def test_no_finding_of_cdk_nag_or_cfn_lint(on, nag_findings, lint_findings):
    stack = new_stack()
    endpoint(stack, **{**NOTHING, **on})
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


def test_no_finding_with_a_vpc_a_key_alarms_and_a_canary(nag_findings, lint_findings):
    stack = new_stack()
    vpc = ec2.Vpc.from_vpc_attributes(
        stack,
        "Vpc",
        vpc_id="vpc-01234567",
        availability_zones=["eu-west-1a", "eu-west-1b"],
        private_subnet_ids=["subnet-0123456a", "subnet-0123456b"],
    )
    key = kms.Key(stack, "Key", enable_key_rotation=True)
    endpoint(
        stack,
        vpc=vpc,
        security_group=EndpointSecurityGroup(stack, "Endpoints", vpc=vpc).group,
        encryption_key=key,
        rollback_alarms=lambda _: [alarm(stack)],
        canary=Canary(percent=25, wait_s=120),
        instances=4,
    )
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


def test_model_and_configuration_have_no_names_and_the_endpoint_has_one():
    made = template()
    assert "ModelName" not in only(made, "Model")[1]
    assert "EndpointConfigName" not in only(made, "EndpointConfig")[1]
    model_id, _ = only(made, "Model")
    config_id, _ = only(made, "EndpointConfig")
    _, properties = only(made, "Endpoint")
    assert variant(made)["ModelName"] == {"Fn::GetAtt": [model_id, "ModelName"]}
    assert properties["EndpointConfigName"] == {"Fn::GetAtt": [config_id, "EndpointConfigName"]}
    assert properties["EndpointName"] == "decisions"
    assert properties["RetainAllVariantProperties"] is False


def test_a_count_that_scaling_has_reached_is_kept_and_another_one_is_set():
    """With it, SageMaker keeps the count of before, whatever the new configuration says."""
    assert (
        only(template(scaling=Scaling(min_instances=1, max_instances=2, target_concurrency=1)), "Endpoint")[1][
            "RetainAllVariantProperties"
        ]
        is True
    )
    made = template(instances=3)
    assert only(made, "Endpoint")[1]["RetainAllVariantProperties"] is False
    assert variant(made)["InitialInstanceCount"] == 3


def test_the_role_may_read_the_alarms_that_undo_an_update_and_no_others_and_may_before_the_endpoint_names_them():
    stack = new_stack()
    endpoint(stack, rollback_alarms=lambda _: [alarm(stack, "errors"), alarm(stack, "latency")])
    made = Template.from_stack(stack)
    policies = {
        name: policy["Properties"]["PolicyDocument"]["Statement"]
        for name, policy in made.find_resources("AWS::IAM::Policy").items()
    }
    (policy,) = [name for name, statements in policies.items() if "cloudwatch:DescribeAlarms" in json.dumps(statements)]
    (statement,) = policies[policy]
    assert [json.dumps(each).count(":alarm:") for each in statement["Resource"]] == [1, 1]
    (declared,) = made.find_resources("AWS::SageMaker::Endpoint").values()
    assert policy in declared["DependsOn"]


def test_the_container_is_isolated_pinned_and_told_where_its_model_is():
    _, model = only(template(threads=4), "Model")
    assert model["EnableNetworkIsolation"] is True
    assert "VpcConfig" not in model
    assert model["PrimaryContainer"] == {
        "Image": f"111122223333.dkr.ecr.eu-west-1.amazonaws.com/steelyard@{DIGEST}",
        "Environment": {
            "STEELYARD_ENDPOINT_NAME": "decisions",
            "STEELYARD_GPU_LAYERS": "0",
            "STEELYARD_HOST": "0.0.0.0",
            "STEELYARD_MODEL": "/opt/ml/model",
            "STEELYARD_THREADS": "4",
        },
        "ModelDataSource": {
            "S3DataSource": {
                "S3Uri": "s3://models/qwen/0123abcd/",
                "S3DataType": "S3Prefix",
                "CompressionType": "None",
            }
        },
    }


def test_an_archive_is_unpacked_by_sagemaker():
    _, model = only(template(model=ModelArtifact("models", "qwen/model.tar.gz", 10)), "Model")
    assert model["PrimaryContainer"]["ModelDataSource"]["S3DataSource"] == {
        "S3Uri": "s3://models/qwen/model.tar.gz",
        "S3DataType": "S3Object",
        "CompressionType": "Gzip",
    }


def test_one_instance_type():
    made = variant(template(**ON_CPU))
    assert made == {
        "VariantName": "primary",
        "ModelName": made["ModelName"],
        "InitialInstanceCount": 1,
        "InitialVariantWeight": 1,
        "InstanceType": "ml.c7i.2xlarge",
        "RoutingConfig": {"RoutingStrategy": "LEAST_OUTSTANDING_REQUESTS"},
        "VolumeSizeInGB": 30,
        # 120 s + 2.7 GB at 50 MB/s, and 180 s + 2 * 2.7 GB at 80 MB/s, in whole minutes
        "ModelDataDownloadTimeoutInSeconds": 300,
        "ContainerStartupHealthCheckTimeoutInSeconds": 600,
    }


def test_an_ordered_pool_of_gpus_on_the_ami_of_cuda_13():
    stack = new_stack()
    endpoint(stack, **{**NOTHING, **ON_GPU})
    made = variant(Template.from_stack(stack))
    assert "InstanceType" not in made
    assert made["InstancePools"] == [
        {"InstanceType": "ml.g6e.xlarge", "Priority": 1},
        {"InstanceType": "ml.g6.xlarge", "Priority": 2},
    ]
    assert made["VariantInstanceProvisionTimeoutInSeconds"] == 1200
    assert made["InferenceAmiVersion"] == "al2023-ami-sagemaker-inference-gpu-4-1"
    # Their own disks hold the model; SageMaker takes no size for these.
    assert "VolumeSizeInGB" not in made


def test_timeouts_can_be_set():
    made = variant(template(startup_timeout_s=600, download_timeout_s=60))
    assert made["ContainerStartupHealthCheckTimeoutInSeconds"] == 600
    assert made["ModelDataDownloadTimeoutInSeconds"] == 60


def test_the_stack_owns_the_log_group_and_the_endpoint_waits_for_it():
    made = template(log_retention=cdk.aws_logs.RetentionDays.ONE_WEEK, removal_policy=cdk.RemovalPolicy.RETAIN)
    ((log_group, resource),) = made.find_resources("AWS::Logs::LogGroup").items()
    assert resource["Properties"] == {"LogGroupName": "/aws/sagemaker/Endpoints/decisions", "RetentionInDays": 7}
    assert resource["DeletionPolicy"] == "Retain"
    made.has_resource("AWS::SageMaker::Endpoint", {"DependsOn": Match.array_with([log_group])})


def test_the_image_of_another_account_and_of_a_stack_without_region():
    stack = new_stack(region=None)
    endpoint(stack, image=ImageReference("steelyard", DIGEST, account="999988887777"))
    _, model = only(Template.from_stack(stack), "Model")
    assert json.dumps(model["PrimaryContainer"]["Image"]) == json.dumps(
        {
            "Fn::Join": [
                "",
                [
                    "999988887777.dkr.ecr.",
                    {"Ref": "AWS::Region"},
                    ".",
                    {"Ref": "AWS::URLSuffix"},
                    f"/steelyard@{DIGEST}",
                ],
            ]
        }
    )


def test_china_has_its_own_domain():
    stack = new_stack(region="cn-north-1")
    endpoint(stack)
    _, model = only(Template.from_stack(stack), "Model")
    assert model["PrimaryContainer"]["Image"].startswith("111122223333.dkr.ecr.cn-north-1.amazonaws.com.cn/")


def test_a_repository_that_another_stack_names_later():
    stack = new_stack()
    name = cdk.CfnParameter(stack, "Repository").value_as_string
    endpoint(stack, image=ImageReference(name, DIGEST))
    _, model = only(Template.from_stack(stack), "Model")
    assert {"Ref": "Repository"} in model["PrimaryContainer"]["Image"]["Fn::Join"][1]


# The role: exactly its work.

REPOSITORY = "arn:<AWS::Partition>:ecr:eu-west-1:111122223333:repository/steelyard"
LOGS = "<DecisionsLogs.Arn>"
WITHOUT_ARN = {
    ("ecr:GetAuthorizationToken", "*"),
    ("cloudwatch:PutMetricData", "*"),
}
ALWAYS = WITHOUT_ARN | {
    ("ecr:BatchCheckLayerAvailability", REPOSITORY),
    ("ecr:BatchGetImage", REPOSITORY),
    ("ecr:GetDownloadUrlForLayer", REPOSITORY),
    ("logs:CreateLogStream", LOGS),
    ("logs:DescribeLogStreams", LOGS),
    ("logs:PutLogEvents", LOGS),
}
BUCKET = "arn:<AWS::Partition>:s3:::models"


def flat(value: Any) -> str:
    """A resource of a policy in one line, logical ids without their hashes."""
    match value:
        case {"Fn::Join": ["", parts]}:
            return "".join(flat(part) for part in parts)
        case {"Fn::GetAtt": [name, attribute]}:
            return f"<{name[:-8]}.{attribute}>"
        case {"Ref": name}:
            return f"<{name}>"
    return str(value)


def permissions(made: Template) -> set[tuple[str, str]]:
    """Pairs of action and resource."""
    found = set()
    for policy in made.find_resources("AWS::IAM::Policy").values():
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            assert statement["Effect"] == "Allow"
            actions, resources = statement["Action"], statement["Resource"]
            for action in actions if isinstance(actions, list) else [actions]:
                for resource in resources if isinstance(resources, list) else [resources]:
                    found.add((action, flat(resource)))
    return found


def statement(made: Template, sid: str) -> Mapping[str, Any]:
    (found,) = [
        statement
        for policy in made.find_resources("AWS::IAM::Policy").values()
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]
        if statement["Sid"] == sid
    ]
    return found


def test_the_role_reads_its_prefix_pulls_its_image_and_writes_its_log_and_nothing_else():
    made = template()
    assert permissions(made) == ALWAYS | {
        ("s3:GetObject", f"{BUCKET}/qwen/0123abcd/*"),
        ("s3:ListBucket", BUCKET),
    }
    assert statement(made, "ListModel")["Condition"] == {**OWN, "StringLike": {"s3:prefix": "qwen/0123abcd/*"}}
    assert statement(made, "ReadModel")["Condition"] == OWN
    assert statement(made, "WriteMetrics")["Condition"] == {
        "StringEquals": {"cloudwatch:namespace": ["/aws/sagemaker/Endpoints", "AWS/SageMaker"]}
    }


def test_the_role_of_an_archive_reads_that_object_only():
    made = template(model=ModelArtifact("models", "qwen/model.tar.gz", 10))
    assert permissions(made) == ALWAYS | {
        ("s3:GetObject", f"{BUCKET}/qwen/model.tar.gz"),
        ("s3:ListBucket", BUCKET),
    }
    assert statement(made, "ListModel")["Condition"] == {**OWN, "StringLike": {"s3:prefix": "qwen/model.tar.gz"}}


def test_only_sagemaker_assumes_the_role_and_for_this_account_only():
    template().has_resource_properties(
        "AWS::IAM::Role",
        {
            "AssumeRolePolicyDocument": {
                "Statement": [
                    {
                        "Action": "sts:AssumeRole",
                        "Effect": "Allow",
                        "Principal": {"Service": "sagemaker.amazonaws.com"},
                        "Condition": {
                            "StringEquals": {"aws:SourceAccount": "111122223333"},
                            "ArnLike": {
                                "aws:SourceArn": {
                                    "Fn::Join": [
                                        "",
                                        [
                                            "arn:",
                                            {"Ref": "AWS::Partition"},
                                            ":sagemaker:eu-west-1:111122223333:*",
                                        ],
                                    ]
                                }
                            },
                        },
                    }
                ],
                "Version": "2012-10-17",
            }
        },
    )


def test_the_model_waits_for_every_policy_of_its_role():
    made = template()
    made.has_resource(
        "AWS::SageMaker::Model",
        {"DependsOn": Match.array_with(sorted(made.find_resources("AWS::IAM::Policy")))},
    )


def test_in_a_vpc_the_role_makes_interfaces_in_its_subnets_and_the_group_lets_nothing_in():
    stack = new_stack()
    vpc = ec2.Vpc(stack, "Vpc", max_azs=2, nat_gateways=0, subnet_configuration=[ISOLATED])
    endpoint(
        stack,
        vpc=vpc,
        subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, one_per_az=True),
        security_group=EndpointSecurityGroup(stack, "Endpoints", vpc=vpc).group,
    )
    made = Template.from_stack(stack)
    subnets = sorted(made.find_resources("AWS::EC2::Subnet"))
    ((group, _),) = made.find_resources("AWS::EC2::SecurityGroup").items()
    _, model = only(made, "Model")
    assert model["VpcConfig"] == {
        "SecurityGroupIds": [{"Fn::GetAtt": [group, "GroupId"]}],
        "Subnets": [{"Ref": subnet} for subnet in subnets],
    }
    assert model["EnableNetworkIsolation"] is True
    made.has_resource_properties(
        "AWS::EC2::SecurityGroup",
        {
            "SecurityGroupIngress": Match.absent(),
            "SecurityGroupEgress": [Match.object_like({"IpProtocol": "tcp", "FromPort": 443, "ToPort": 443})],
        },
    )
    ec2_arn = "arn:<AWS::Partition>:ec2:eu-west-1:111122223333"
    on_network = {pair for pair in permissions(made) if pair[0].startswith("ec2:")}
    assert on_network == {
        *(("ec2:CreateNetworkInterface", f"{ec2_arn}:subnet/<{subnet}>") for subnet in subnets),
        ("ec2:CreateNetworkInterface", f"{ec2_arn}:security-group/<{group[:-8]}.GroupId>"),
        ("ec2:CreateNetworkInterface", f"{ec2_arn}:network-interface/*"),
        ("ec2:CreateNetworkInterfacePermission", f"{ec2_arn}:network-interface/*"),
        ("ec2:DeleteNetworkInterface", f"{ec2_arn}:network-interface/*"),
        ("ec2:DeleteNetworkInterfacePermission", "*"),
        ("ec2:DescribeDhcpOptions", "*"),
        ("ec2:DescribeNetworkInterfaces", "*"),
        ("ec2:DescribeSecurityGroups", "*"),
        ("ec2:DescribeSubnets", "*"),
        ("ec2:DescribeVpcs", "*"),
    }
    limited_to = statement(made, "UseInterfaces")["Condition"]["ArnEquals"]["ec2:Subnet"]
    assert [flat(arn) for arn in limited_to] == [f"{ec2_arn}:subnet/<{subnet}>" for subnet in subnets]


def test_a_security_group_must_be_given_because_the_endpoints_own_stack_could_not_delete_it():
    stack = new_stack()
    vpc = ec2.Vpc(stack, "Vpc", max_azs=2, nat_gateways=0, subnet_configuration=[ISOLATED])
    with pytest.raises(Refused, match="has a vpc but no security_group; take an EndpointSecurityGroup of another"):
        endpoint(stack, vpc=vpc, subnets=ec2.SubnetSelection(subnet_type=ec2.SubnetType.PRIVATE_ISOLATED))


ISOLATED = ec2.SubnetConfiguration(name="isolated", subnet_type=ec2.SubnetType.PRIVATE_ISOLATED, cidr_mask=24)


def test_a_key_encrypts_volumes_and_logs_and_the_role_may_use_it():
    stack = new_stack()
    key = kms.Key(stack, "Key")
    endpoint(stack, encryption_key=key)
    made = Template.from_stack(stack)
    arn = stack.resolve(key.key_arn)
    made.has_resource_properties("AWS::SageMaker::EndpointConfig", {"KmsKeyId": arn})
    made.has_resource_properties("AWS::Logs::LogGroup", {"KmsKeyId": arn})
    assert statement(made, "DecryptModel")["Resource"] == arn
    assert statement(made, "EncryptVolumes")["Condition"] == {"Bool": {"kms:GrantIsForAWSResource": "true"}}
    made.has_resource_properties(
        "AWS::KMS::Key",
        {
            "KeyPolicy": {
                "Statement": Match.array_with(
                    [
                        Match.object_like(
                            {
                                "Principal": {"Service": "logs.eu-west-1.amazonaws.com"},
                                "Condition": Match.object_like(
                                    {"ArnEquals": {"kms:EncryptionContext:aws:logs:arn": Match.any_value()}}
                                ),
                            }
                        )
                    ]
                )
            }
        },
    )


def test_no_key_is_given_for_disks_that_encrypt_themselves():
    stack = new_stack()
    endpoint(stack, **{**NOTHING, **ON_GPU}, encryption_key=kms.Key(stack, "Key"))
    made = Template.from_stack(stack)
    assert "KmsKeyId" not in only(made, "EndpointConfig")[1]
    made.has_resource_properties("AWS::Logs::LogGroup", {"KmsKeyId": Match.any_value()})


def test_a_caller_may_invoke_this_endpoint_and_stream_from_it_and_no_more():
    stack = new_stack()
    made_endpoint = endpoint(stack)
    role = iam.Role(stack, "Caller", assumed_by=iam.AccountRootPrincipal())
    made_endpoint.grant_invoke(role)
    made = Template.from_stack(stack)
    logical_id, _ = only(made, "Endpoint")
    made.has_resource_properties(
        "AWS::IAM::Policy",
        {
            "Roles": [stack.resolve(role.role_name)],
            "PolicyDocument": {
                "Statement": [
                    {
                        "Action": ["sagemaker:InvokeEndpoint", "sagemaker:InvokeEndpointWithResponseStream"],
                        "Effect": "Allow",
                        "Resource": {"Ref": logical_id},
                    }
                ]
            },
        },
    )


# How it is updated.


def test_updates_are_all_at_once_and_streams_are_finished():
    _, made = only(template(), "Endpoint")
    assert made["DeploymentConfig"] == {
        "BlueGreenUpdatePolicy": {
            "TerminationWaitInSeconds": 480,
            "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 0},
        }
    }


def test_alarms_undo_an_update_that_is_all_at_once():
    stack = new_stack()
    endpoint(stack, rollback_alarms=lambda _: [alarm(stack, "errors"), alarm(stack, "latency")], drain_s=60)
    _, made = only(Template.from_stack(stack), "Endpoint")
    assert made["DeploymentConfig"] == {
        "AutoRollbackConfiguration": {"Alarms": [{"AlarmName": "errors"}, {"AlarmName": "latency"}]},
        "BlueGreenUpdatePolicy": {
            "TerminationWaitInSeconds": 60,
            "TrafficRoutingConfiguration": {"Type": "ALL_AT_ONCE", "WaitIntervalInSeconds": 300},
        },
    }


def test_a_canary_goes_first_and_alarms_bring_it_back():
    stack = new_stack()
    endpoint(
        stack,
        rollback_alarms=lambda _: [alarm(stack)],
        canary=Canary(percent=25, wait_s=120),
        instances=4,
    )
    _, made = only(Template.from_stack(stack), "Endpoint")
    assert made["DeploymentConfig"]["BlueGreenUpdatePolicy"]["TrafficRoutingConfiguration"] == {
        "Type": "CANARY",
        "CanarySize": {"Type": "CAPACITY_PERCENT", "Value": 25},
        "WaitIntervalInSeconds": 120,
    }


def test_a_rolling_update_needs_no_second_fleet():
    stack = new_stack()
    endpoint(stack, rollback_alarms=lambda _: [alarm(stack)], rolling=Rolling(percent=20, wait_s=90), instances=5)
    _, made = only(Template.from_stack(stack), "Endpoint")
    assert "BlueGreenUpdatePolicy" not in made["DeploymentConfig"]
    assert made["DeploymentConfig"]["RollingUpdatePolicy"] == {
        "MaximumBatchSize": {"Type": "CAPACITY_PERCENT", "Value": 20},
        "WaitIntervalInSeconds": 90,
    }
    assert made["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]


def replaced(before: Template, after: Template) -> set[str]:
    """SageMaker resources that CloudFormation replaces: one of their changed properties cannot be changed in place.

    A resource that refers to a replaced one gets another value there, which is followed.
    """
    changed: set[str] = set()
    while True:
        found = {kind for kind in ("Model", "EndpointConfig", "Endpoint") if _is_replaced(kind, before, after, changed)}
        if found == changed:
            return changed
        changed = found


def _is_replaced(kind: str, before: Template, after: Template, replaced: set[str]) -> bool:
    old_id, old = only(before, kind)
    new_id, new = only(after, kind)
    assert old_id == new_id, "a renamed logical id would delete the endpoint"
    schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("eu-west-1", f"AWS::SageMaker::{kind}").schema
    ids_of_replaced = [only(after, other)[0] for other in replaced]
    return any(
        old.get(name) != new.get(name) or any(f'["{each}", ' in json.dumps(new.get(name)) for each in ids_of_replaced)
        for name in (path.removeprefix("/properties/") for path in schema["createOnlyProperties"])
    )


CHANGES: dict[str, tuple[dict[str, Any], set[str]]] = {
    "nothing": ({}, set()),
    "another model": ({"model": ModelArtifact("models", "qwen/4567cdef/", 2_700_000_000)}, {"Model", "EndpointConfig"}),
    "another image": ({"image": ImageReference("steelyard", "sha256:" + "b2" * 32)}, {"Model", "EndpointConfig"}),
    "another variable": ({"environment": {"STEELYARD_LOG_LEVEL": "debug"}}, {"Model", "EndpointConfig"}),
    "more threads": ({"threads": 2}, {"Model", "EndpointConfig"}),
    "another instance type": ({"instance_type": "ml.c6i.xlarge"}, {"EndpointConfig"}),
    "a pool": (
        {"instance_type": None, "instance_pool": (PooledInstance("ml.c6i.xlarge", 1),)},
        {"EndpointConfig"},
    ),
    "another timeout": ({"startup_timeout_s": 900}, {"EndpointConfig"}),
    "another way to roll out": ({"drain_s": 30}, set()),
    "another name": ({"endpoint_name": "others"}, {"Model", "EndpointConfig", "Endpoint"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_change_replaces(change):
    changes, expected = CHANGES[change]
    assert replaced(template(), template(**changes)) == expected


def test_the_same_input_gives_the_same_template():
    assert template().to_json() == template().to_json()


def test_with_another_release_the_running_one_keeps_its_permissions_until_it_is_gone():
    """CloudFormation creates what is new before, and deletes what is gone after, the endpoint has moved."""
    before = template().find_resources("AWS::IAM::Policy")
    after = template(model=ModelArtifact("models", "qwen/4567cdef/", 10)).find_resources("AWS::IAM::Policy")
    assert len(before) == len(after) == 2
    (lasting,) = before.keys() & after.keys()
    assert before[lasting] == after[lasting]
    assert template(environment={"A": "b"}).find_resources("AWS::IAM::Policy") == before


# What is refused.

REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a name that SageMaker refuses": (
        {"endpoint_name": "support_decisions"},
        ["endpoint name 'support_decisions' (17 characters)", "letters, digits and hyphens"],
    ),
    "a name of 64": ({"endpoint_name": "a" * 64}, ["(64 characters)", "at most 63"]),
    "a name of 91, hyphens among them": ({"endpoint_name": "a" + "--b" * 30}, ["(91 characters)", "at most 63"]),
    "a name that ends in a hyphen": ({"endpoint_name": "a-"}, ["'a-'", "at both ends"]),
    "no name": ({"endpoint_name": ""}, ["endpoint name '' (0 characters)"]),
    "a CUDA image on an AMI with an older driver": (
        {**ON_GPU, "instance_type": None, "inference_ami": "al2-ami-sagemaker-inference-gpu-3-1"},
        ["CUDA 13.0, which needs NVIDIA driver 580", "driver 550", "use 'al2023-ami-sagemaker-inference-gpu-4-1'"],
    ),
    "a family that the AMI does not support": (
        {**ON_GPU, "instance_type": "ml.p3.2xlarge", "instance_pool": ()},
        ["'ml.p3.2xlarge' is not supported by inference AMI"],
    ),
    "an image of another architecture": (
        {"image": ARM},
        ["'steelyard' is built for arm64", "'cpu' instances are x86_64"],
    ),
    "a setting that has a place of its own": (
        {"environment": {"STEELYARD_GPU_LAYERS": "9"}},
        ["the environment sets STEELYARD_GPU_LAYERS", "use the endpoint's own setting"],
    ),
    "a variable that cannot be named so": ({"environment": {"MY-VAR": "1"}}, ["'MY-VAR' is not a name"]),
    "a value that is too long": (
        {"environment": {"LONG": "x" * 1025}},
        ["LONG has 1025 characters", "at most 1024"],
    ),
    **{
        f"the server's port as {name}": (
            {"environment": {name: "9"}},
            [f"the environment sets {name}", "on port 8080 only", "remove it"],
        )
        for name in ("PORT", "port", "STEELYARD_PORT", "Steelyard_Port", "SAGEMAKER_BIND_TO_PORT")
    },
    "a value that no process can have": (
        {"environment": {"MINE": "a\0b"}},
        ["environment variable MINE has the character U+0000 at position 1", "remove it"],
    ),
    "too many variables": (
        {"environment": {f"V{number}": "1" for number in range(98)}},
        ["102 environment variables", "SageMaker takes 100"],
    ),
    "an image of another region": (
        {"image": ImageReference("steelyard", DIGEST, region="us-east-1")},
        ["'steelyard' is in us-east-1, but the endpoint is in eu-west-1", "copy the image there"],
    ),
    "subnets of no vpc": ({"subnets": ec2.SubnetSelection()}, ["but no vpc", "set vpc too, or none of them"]),
    "a provisioning timeout that is too short": (
        {"provision_timeout_s": 299},
        ["provision_timeout_s is 299 s", "300 to 3600"],
    ),
    "a drain that is too long": ({"drain_s": 3601}, ["drain_s is 3601", "0 to 3600 s"]),
    "a model too large to start in time": (
        {"model": ModelArtifact("models", "large/", 160 * 10**9)},
        ["startup_timeout_s of 4200 s, derived from the model's size,"],
    ),
    "a rolling update without alarms": (
        {"rolling": Rolling(), "instances": 2},
        ["a rolling update without rollback_alarms", "give the alarms"],
    ),
    "a canary without alarms": (
        {"canary": Canary(), "instances": 2},
        ["a canary without rollback_alarms proves nothing", "give the alarms"],
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_work_is_refused_with_the_value_and_what_to_do(case):
    changes, sentence = REFUSED[case]
    with pytest.raises(Refused) as refusal:
        endpoint(new_stack(), **changes)
    for part in sentence:
        assert part in str(refusal.value)


@pytest.mark.parametrize("name", ["a", "A1", "a--b", "a" * 63])
def test_names_that_sagemaker_takes_are_taken(name):
    assert endpoint(new_stack(), endpoint_name=name).endpoint_name == name


def test_a_pool_that_mixes_disks_is_refused_with_a_key():
    stack = new_stack()
    pool = (PooledInstance("ml.m5d.xlarge", 1), PooledInstance("ml.m5.xlarge", 2))
    with pytest.raises(Refused, match=r"types without \(ml.m5.xlarge\).* pool one sort, or leave out the key"):
        endpoint(stack, instance_type=None, instance_pool=pool, encryption_key=kms.Key(stack, "Key"))


def test_eleven_alarms_are_refused():
    stack = new_stack()
    with pytest.raises(Refused, match="11 rollback_alarms are given; SageMaker watches at most 10"):
        endpoint(stack, rollback_alarms=lambda _: [alarm(stack, f"alarm-{number}") for number in range(11)])
