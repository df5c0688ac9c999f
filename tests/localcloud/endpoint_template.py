"""CloudFormation templates of endpoints, and what they need around them, for the tests of the local cloud."""

from __future__ import annotations

import json
import time
from typing import Any

import botocore.exceptions

ACCOUNT = "000000000000"
REGION = "us-east-1"
BUCKET = "models"
REPOSITORY = "decision"
REPOSITORY_URI = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{REPOSITORY}"
CHAT_IMAGE = f"763104351884.dkr.ecr.{REGION}.amazonaws.com/llama-cpp@sha256:{'c' * 64}"


def image_uri(digest: str, repository: str = REPOSITORY) -> str:
    return f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/{repository}@{digest}"


def trust(service: str = "sagemaker.amazonaws.com") -> dict[str, Any]:
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": "sts:AssumeRole"}],
    }


def execution_policy(prefix: str, *, bucket: str = BUCKET, alarms: str = "*") -> dict[str, Any]:
    """What an execution role may do: read one prefix, pull one repository, write its log, read its alarms."""
    pull = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
    repositories = [
        f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/{REPOSITORY}",
        f"arn:aws:ecr:{REGION}:763104351884:repository/llama-cpp",
        f"arn:aws:ecr:{REGION}:763104351884:repository/llama-cpp-arm64",
    ]
    log_group = f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:/aws/sagemaker/Endpoints/*"
    statements = [
        {"Action": "s3:GetObject", "Resource": f"arn:aws:s3:::{bucket}/{prefix}*"},
        {
            "Action": "s3:ListBucket",
            "Resource": f"arn:aws:s3:::{bucket}",
            "Condition": {"StringLike": {"s3:prefix": f"{prefix}*"}},
        },
        {"Action": "ecr:GetAuthorizationToken", "Resource": "*"},
        {"Action": pull, "Resource": repositories},
        {"Action": "cloudwatch:DescribeAlarms", "Resource": f"arn:aws:cloudwatch:{REGION}:{ACCOUNT}:alarm:{alarms}"},
        {"Action": ["logs:CreateLogStream", "logs:PutLogEvents", "logs:CreateLogGroup"], "Resource": log_group},
    ]
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **statement} for statement in statements]}


def template(resources: dict[str, Any]) -> str:
    return json.dumps({"Resources": resources})


def endpoint_template(
    *,
    name: str,
    image: str,
    prefix: str = "tiny/",
    allowed_prefix: str | None = None,
    allowed_alarms: str = "*",
    environment: dict[str, str] | None = None,
    variant: dict[str, Any] | None = None,
    endpoint: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    network: dict[str, Any] | None = None,
    more: dict[str, Any] | None = None,
) -> str:
    """A stack of a role, a model, a configuration and an endpoint, none of them named but the endpoint.

    Args:
        name: The endpoint's name.
        image: The image's URI.
        prefix: Prefix of the model's files.
        allowed_prefix: Prefix that the role may read; ``prefix`` when None.
        allowed_alarms: Alarms that the role may read.
        environment: The container's variables.
        variant: Members of the production variant, over the defaults.
        endpoint: Further properties of the endpoint.
        data: Model data in place of the prefix.
        network: The model's ``VpcConfig``.
        more: Further resources.
    """
    source = data or {
        "ModelDataSource": {
            "S3DataSource": {
                "S3Uri": f"s3://{BUCKET}/{prefix}",
                "S3DataType": "S3Prefix",
                "CompressionType": "None",
            }
        }
    }
    allowed = prefix if allowed_prefix is None else allowed_prefix
    resources = {
        "Role": {
            "Type": "AWS::IAM::Role",
            "Properties": {
                "AssumeRolePolicyDocument": trust(),
                "Policies": [
                    {"PolicyName": "endpoint", "PolicyDocument": execution_policy(allowed, alarms=allowed_alarms)}
                ],
            },
        },
        "Model": {
            "Type": "AWS::SageMaker::Model",
            "Properties": {
                "ExecutionRoleArn": {"Fn::GetAtt": ["Role", "Arn"]},
                "EnableNetworkIsolation": True,
                "PrimaryContainer": {"Image": image, "Environment": environment or {}, **source},
                **({"VpcConfig": network} if network else {}),
            },
        },
        "Config": {
            "Type": "AWS::SageMaker::EndpointConfig",
            "Properties": {
                "ProductionVariants": [
                    {
                        "VariantName": "primary",
                        "ModelName": {"Fn::GetAtt": ["Model", "ModelName"]},
                        "InitialInstanceCount": 1,
                        "InstanceType": "ml.c6i.large",
                        **(variant or {}),
                    }
                ]
            },
        },
        "Endpoint": {
            "Type": "AWS::SageMaker::Endpoint",
            "Properties": {
                "EndpointName": name,
                "EndpointConfigName": {"Fn::GetAtt": ["Config", "EndpointConfigName"]},
                "RetainAllVariantProperties": True,
                **(endpoint or {}),
            },
        },
        **(more or {}),
    }
    return template(resources)


def deploy(cloudformation: Any, stack: str, template: str, **options: Any) -> str:
    """Create or update a stack, wait, and return its status; ``UNCHANGED`` when there was nothing to do."""
    given = {"StackName": stack, "TemplateBody": template, "Capabilities": ["CAPABILITY_IAM"], **options}
    try:
        cloudformation.describe_stacks(StackName=stack)
    except botocore.exceptions.ClientError:
        cloudformation.create_stack(**given)
    else:
        try:
            cloudformation.update_stack(**given)
        except botocore.exceptions.ClientError as error:
            if "No updates are to be performed" not in str(error):
                raise
            return "UNCHANGED"
    return settled(cloudformation, stack)


def delete(cloudformation: Any, stack: str) -> str:
    """Delete a stack, wait, and return its last status."""
    stack_id = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackId"]
    cloudformation.delete_stack(StackName=stack)
    return settled(cloudformation, stack_id)


def settled(cloudformation: Any, stack: str) -> str:
    """The status of a stack once nothing is in progress."""
    while True:
        status: str = cloudformation.describe_stacks(StackName=stack)["Stacks"][0]["StackStatus"]
        if not status.endswith("_IN_PROGRESS"):
            return status
        time.sleep(0.05)


def reasons(cloudformation: Any, stack: str) -> str:
    """Why the resources of a stack failed, in one text."""
    events = cloudformation.describe_stack_events(StackName=stack)["StackEvents"]
    return "\n".join(event.get("ResourceStatusReason", "") for event in events if "FAILED" in event["ResourceStatus"])
