"""Enforced IAM: a caller may do what its policy allows, and no more."""

from __future__ import annotations

import json
import ssl
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import botocore.exceptions
import pytest
from botocore import UNSIGNED
from botocore.config import Config
from endpoint_template import ACCOUNT, BUCKET, REGION, endpoint_template, reasons, settled, trust

from conftest import Furnished
from steelyard_localcloud.iam import sagemaker_resource, scaling_resource


@pytest.fixture
def caller(furnished: Furnished) -> Iterator[Callable[..., Callable[[str], Any]]]:
    """Makes users with a policy, and clients with their keys."""
    iam = furnished.cloud.client("iam")
    made = []

    def make(*statements: dict[str, Any]) -> Callable[[str], Any]:
        user = f"caller-{uuid.uuid4().hex[:8]}"
        iam.create_user(UserName=user)
        made.append(user)
        policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **each} for each in statements]}
        if statements:
            iam.put_user_policy(UserName=user, PolicyName="it", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=user)["AccessKey"]
        keys = {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}
        return lambda service: furnished.cloud.client(service, **keys)

    yield make
    for user in made:
        for key in iam.list_access_keys(UserName=user)["AccessKeyMetadata"]:
            iam.delete_access_key(UserName=user, AccessKeyId=key["AccessKeyId"])
        for policy in iam.list_user_policies(UserName=user)["PolicyNames"]:
            iam.delete_user_policy(UserName=user, PolicyName=policy)
        iam.delete_user(UserName=user)


def endpoint_arn(name: str) -> str:
    return f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:endpoint/{name}"


def denied(call: Callable[[], Any]) -> bool:
    try:
        call()
    except botocore.exceptions.ClientError as error:
        return error.response["Error"]["Code"] in ("AccessDenied", "AccessDeniedException")
    return False


def test_invoking_needs_the_action_on_that_endpoint(
    furnished: Furnished, echo: str, caller: Callable[..., Callable[[str], Any]]
) -> None:
    whole = caller({"Action": "sagemaker:InvokeEndpoint", "Resource": endpoint_arn(echo)})("sagemaker-runtime")
    streams = caller({"Action": "sagemaker:InvokeEndpointWithResponseStream", "Resource": endpoint_arn(echo)})(
        "sagemaker-runtime"
    )
    other = caller({"Action": "sagemaker:Invoke*", "Resource": endpoint_arn("another")})("sagemaker-runtime")
    given = {"EndpointName": echo, "Body": json.dumps({"chunks": ["a"]})}
    assert whole.invoke_endpoint(**given)["Body"].read() == b"a"
    assert denied(lambda: whole.invoke_endpoint_with_response_stream(**given))
    assert list(streams.invoke_endpoint_with_response_stream(**given)["Body"])
    assert denied(lambda: streams.invoke_endpoint(**given))
    assert denied(lambda: other.invoke_endpoint(**given))


def test_form_body_cannot_pass_for_another_action(echo: str, caller: Callable[..., Callable[[str], Any]]) -> None:
    client = caller({"Action": "sagemaker:ListEndpoints", "Resource": "*"})("sagemaker-runtime")
    form = {"Body": b"Action=ListEndpoints", "ContentType": "application/x-www-form-urlencoded"}
    assert denied(lambda: client.invoke_endpoint(EndpointName=echo, **form))


def test_control_plane_is_checked_by_action_and_resource(
    echo: str, caller: Callable[..., Callable[[str], Any]]
) -> None:
    client = caller({"Action": "sagemaker:DescribeEndpoint", "Resource": endpoint_arn(echo)})("sagemaker")
    assert client.describe_endpoint(EndpointName=echo)["EndpointStatus"] == "InService"
    assert denied(lambda: client.describe_endpoint(EndpointName="another"))
    assert denied(lambda: client.delete_endpoint(EndpointName=echo))
    assert denied(client.list_endpoints)
    assert denied(lambda: client.create_model(ModelName="a", ExecutionRoleArn="arn:aws:iam::000000000000:role/a"))


def test_scaling_is_checked(echo: str, caller: Callable[..., Callable[[str], Any]]) -> None:
    allowed = {"Action": "application-autoscaling:DescribeScalableTargets", "Resource": "*"}
    client = caller(allowed)("application-autoscaling")
    assert client.describe_scalable_targets(ServiceNamespace="sagemaker")["ScalableTargets"] == []
    where = {
        "ServiceNamespace": "sagemaker",
        "ResourceId": f"endpoint/{echo}/variant/primary",
        "ScalableDimension": "sagemaker:variant:DesiredInstanceCount",
    }
    assert denied(lambda: client.register_scalable_target(**where, MinCapacity=1, MaxCapacity=2))


def test_a_model_is_made_by_who_may_pass_its_role(
    furnished: Furnished, name: str, caller: Callable[..., Callable[[str], Any]]
) -> None:
    iam = furnished.cloud.client("iam")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust()))["Role"]["Arn"]
    make = {"Action": "sagemaker:CreateModel", "Resource": "*"}
    passed = {"StringEquals": {"iam:PassedToService": "sagemaker.amazonaws.com"}}
    others = {"StringEquals": {"iam:PassedToService": "lambda.amazonaws.com"}}

    def create(*statements: dict[str, Any]) -> None:
        caller(make, *statements)("sagemaker").create_model(
            ModelName=name, ExecutionRoleArn=role, PrimaryContainer={"Image": furnished.echo}
        )

    assert denied(create)
    assert denied(lambda: create({"Action": "iam:PassRole", "Resource": role, "Condition": others}))
    create({"Action": "iam:PassRole", "Resource": role, "Condition": passed})
    furnished.sagemaker.delete_model(ModelName=name)
    iam.delete_role(RoleName=name)


def test_caller_without_a_policy_is_denied_everything(echo: str, caller: Callable[..., Callable[[str], Any]]) -> None:
    nobody = caller()
    assert denied(lambda: nobody("sagemaker-runtime").invoke_endpoint(EndpointName=echo, Body=b"{}"))
    assert denied(lambda: nobody("s3").get_object(Bucket=BUCKET, Key="small/a.txt"))
    assert denied(lambda: nobody("ecr").describe_repositories())
    assert denied(lambda: nobody("iam").list_roles())


@pytest.mark.parametrize(
    "keys",
    [
        {"aws_access_key_id": "test", "aws_secret_access_key": "test"},
        {"aws_access_key_id": ACCOUNT, "aws_secret_access_key": "test"},
        {"aws_secret_access_key": "wrong"},
    ],
    ids=["test", "account number", "wrong secret"],
)
def test_no_key_is_root_and_every_signature_is_checked(furnished: Furnished, keys: dict[str, str]) -> None:
    for service, operation in (("s3", "list_buckets"), ("sagemaker", "list_models"), ("iam", "list_roles")):
        with pytest.raises(botocore.exceptions.ClientError) as caught:
            getattr(furnished.cloud.client(service, **keys), operation)()
        assert caught.value.response["ResponseMetadata"]["HTTPStatusCode"] in (400, 403)


def test_objects_are_not_public_and_presigned_urls_work(furnished: Furnished) -> None:
    anonymous = furnished.cloud.client("s3", config=Config(signature_version=UNSIGNED))
    with pytest.raises(botocore.exceptions.ClientError):
        anonymous.get_object(Bucket=BUCKET, Key="small/a.txt")
    url = furnished.s3.generate_presigned_url("get_object", Params={"Bucket": BUCKET, "Key": "small/a.txt"})
    trusted = ssl.create_default_context(cafile=furnished.cloud.details.ca_bundle)
    with urllib.request.urlopen(url, context=trusted) as answer:
        assert answer.read() == b"a"


def test_role_that_does_not_trust_sagemaker_is_refused(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    described = json.loads(endpoint_template(name=name, image=furnished.echo, prefix="small/"))
    role = described["Resources"]["Role"]["Properties"]
    role["AssumeRolePolicyDocument"] = trust("lambda.amazonaws.com")
    furnished.cloudformation.create_stack(
        StackName=name, TemplateBody=json.dumps(described), Capabilities=["CAPABILITY_IAM"]
    )
    assert settled(furnished.cloudformation, name) == "ROLLBACK_COMPLETE"
    assert "Could not assume role" in reasons(furnished.cloudformation, name)


@pytest.mark.parametrize(
    ("operation", "members", "resource"),
    [
        ("CreateModel", {"ModelName": "Model-A"}, "model/model-a"),
        ("DeleteModel", {"ModelName": "a"}, "model/a"),
        ("CreateEndpointConfig", {"EndpointConfigName": "A"}, "endpoint-config/a"),
        ("DescribeEndpointConfig", {"EndpointConfigName": "A"}, "endpoint-config/a"),
        ("UpdateEndpoint", {"EndpointName": "A", "EndpointConfigName": "B"}, "endpoint/a"),
        ("UpdateEndpointWeightsAndCapacities", {"EndpointName": "A"}, "endpoint/a"),
    ],
)
def test_resource_of_an_operation(operation: str, members: dict[str, str], resource: str) -> None:
    assert sagemaker_resource(operation, members) == f"arn:aws:sagemaker:{REGION}:{ACCOUNT}:{resource}"


def test_resources_of_lists_and_tags() -> None:
    assert sagemaker_resource("ListModels", {"NameContains": "a"}) == "*"
    assert sagemaker_resource("AddTags", {"ResourceArn": "arn:x"}) == "arn:x"
    assert sagemaker_resource("CreateModel", {}) == "*"
    assert scaling_resource({"ServiceNamespace": "sagemaker"}) == "*"
