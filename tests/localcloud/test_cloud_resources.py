"""The resources around an endpoint: buckets, repositories, builds, SageMaker's own API."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import botocore.exceptions
import pytest
from endpoint_template import delete, deploy, execution_policy, reasons, settled, template, trust

from conftest import Furnished, wait_until

CONFIGURED = {
    "VersioningConfiguration": {"Status": "Enabled"},
    "BucketEncryption": {
        "ServerSideEncryptionConfiguration": [{"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}]
    },
    "OwnershipControls": {"Rules": [{"ObjectOwnership": "BucketOwnerEnforced"}]},
    "LoggingConfiguration": {"DestinationBucketName": {"Ref": "Logs"}, "LogFilePrefix": "here/"},
    "Tags": [{"Key": "team", "Value": "a"}],
    "LifecycleConfiguration": {
        "Rules": [
            {
                "Id": "old",
                "Status": "Enabled",
                "Prefix": "tmp/",
                "ExpirationInDays": 3,
                "NoncurrentVersionExpiration": {"NoncurrentDays": 30, "NewerNoncurrentVersions": 2},
                "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7},
            },
            {"Id": "all", "Status": "Disabled", "NoncurrentVersionExpirationInDays": 5},
        ]
    },
}


@pytest.fixture
def made(furnished: Furnished) -> Iterator[Any]:
    """Deploys resources in a stack of their own."""
    name = f"made-{uuid.uuid4().hex[:8]}"

    def make(resources: dict[str, Any]) -> str:
        return deploy(furnished.cloudformation, name, template(resources))

    make.name = name  # type: ignore[attr-defined]
    yield make
    if name in {each["StackName"] for each in furnished.cloudformation.describe_stacks()["Stacks"]}:
        assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"


def bucket(**properties: Any) -> dict[str, Any]:
    return {"Type": "AWS::S3::Bucket", "Properties": properties}


def test_bucket_gets_all_of_its_configuration(furnished: Furnished, made: Any) -> None:
    name = f"configured-{uuid.uuid4().hex[:8]}"
    resources = {"Logs": bucket(), "Bucket": bucket(BucketName=name, **CONFIGURED)}
    assert made(resources) == "CREATE_COMPLETE"
    s3 = furnished.s3
    rules = {rule["ID"]: rule for rule in s3.get_bucket_lifecycle_configuration(Bucket=name)["Rules"]}
    assert rules["old"]["Filter"] == {"Prefix": "tmp/"}
    assert rules["old"]["Expiration"] == {"Days": 3}
    assert rules["old"]["NoncurrentVersionExpiration"]["NoncurrentDays"] == 30
    assert rules["old"]["AbortIncompleteMultipartUpload"] == {"DaysAfterInitiation": 7}
    assert rules["all"]["Status"] == "Disabled"
    encryption = s3.get_bucket_encryption(Bucket=name)["ServerSideEncryptionConfiguration"]["Rules"]
    assert encryption[0]["ApplyServerSideEncryptionByDefault"] == {"SSEAlgorithm": "AES256"}
    assert s3.get_bucket_logging(Bucket=name)["LoggingEnabled"]["TargetPrefix"] == "here/"
    ownership = s3.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"]["Rules"]
    assert ownership == [{"ObjectOwnership": "BucketOwnerEnforced"}]
    assert {"Key": "team", "Value": "a"} in s3.get_bucket_tagging(Bucket=name)["TagSet"]
    assert s3.get_bucket_versioning(Bucket=name)["Status"] == "Enabled"
    plainer = {key: value for key, value in CONFIGURED.items() if key != "LifecycleConfiguration"}
    assert made({"Logs": bucket(), "Bucket": bucket(BucketName=name, **plainer)}) == "UPDATE_COMPLETE"
    with pytest.raises(botocore.exceptions.ClientError, match="NoSuchLifecycleConfiguration"):
        s3.get_bucket_lifecycle_configuration(Bucket=name)


def test_bucket_property_that_would_be_ignored_is_refused(furnished: Furnished, made: Any) -> None:
    assert made({"Bucket": bucket(AccelerateConfiguration={"AccelerationStatus": "Enabled"})}) == "ROLLBACK_COMPLETE"
    assert "does not emulate AccelerateConfiguration" in reasons(furnished.cloudformation, made.name)


def test_bucket_with_objects_is_not_deleted(furnished: Furnished, made: Any) -> None:
    name = f"full-{uuid.uuid4().hex[:8]}"
    assert made({"Bucket": bucket(BucketName=name, VersioningConfiguration={"Status": "Enabled"})}) == "CREATE_COMPLETE"
    furnished.s3.put_object(Bucket=name, Key="a", Body=b"1")
    furnished.s3.delete_object(Bucket=name, Key="a")
    # Only versions are left, and they hold the bucket too.
    assert delete(furnished.cloudformation, made.name) == "DELETE_FAILED"
    assert "not empty" in reasons(furnished.cloudformation, made.name)
    versions = furnished.s3.list_object_versions(Bucket=name)
    for each in [*versions["Versions"], *versions["DeleteMarkers"]]:
        furnished.s3.delete_object(Bucket=name, Key="a", VersionId=each["VersionId"])


def test_repository_with_images_is_deleted_only_when_told(furnished: Furnished, made: Any) -> None:
    repository = {"Type": "AWS::ECR::Repository", "Properties": {"RepositoryName": made.name}}
    assert made({"Repository": repository}) == "CREATE_COMPLETE"
    furnished.cloud.register_image(made.name, tag="v1")
    assert delete(furnished.cloudformation, made.name) == "DELETE_FAILED"
    furnished.cloud.client("ecr").delete_repository(repositoryName=made.name, force=True)
    assert delete(furnished.cloudformation, made.name) == "DELETE_COMPLETE"
    repository["Properties"] = {"RepositoryName": made.name, "EmptyOnDelete": True}
    assert made({"Repository": repository}) == "CREATE_COMPLETE"
    furnished.cloud.register_image(made.name)


def test_budget_and_flow_log_come_and_go(furnished: Furnished, made: Any) -> None:
    subscriber = {"Address": "owner@example.com", "SubscriptionType": "EMAIL"}
    notification = {"ComparisonOperator": "GREATER_THAN", "NotificationType": "ACTUAL", "Threshold": 80}
    budget = {
        "Type": "AWS::Budgets::Budget",
        "Properties": {
            "Budget": {
                "BudgetType": "COST",
                "TimeUnit": "MONTHLY",
                "BudgetLimit": {"Amount": 100, "Unit": "USD"},
            },
            "NotificationsWithSubscribers": [{"Notification": notification, "Subscribers": [subscriber]}],
        },
    }
    network = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
        "Flows": {
            "Type": "AWS::EC2::FlowLog",
            "Properties": {
                "ResourceId": {"Ref": "Vpc"},
                "ResourceType": "VPC",
                "TrafficType": "ALL",
                "LogGroupName": "flows",
            },
        },
    }
    budgets, ec2 = furnished.cloud.client("budgets"), furnished.cloud.client("ec2")
    assert made({"Budget": budget, **network}) == "CREATE_COMPLETE"
    (kept,) = budgets.describe_budgets(AccountId="000000000000")["Budgets"]
    assert kept["BudgetLimit"] == {"Amount": "100", "Unit": "USD"}
    (flow,) = ec2.describe_flow_logs()["FlowLogs"]
    budget["Properties"]["Budget"]["BudgetLimit"]["Amount"] = 200
    network["Flows"]["Properties"]["TrafficType"] = "REJECT"
    assert made({"Budget": budget, **network}) == "UPDATE_COMPLETE"
    (changed,) = budgets.describe_budgets(AccountId="000000000000")["Budgets"]
    assert (changed["BudgetName"], changed["BudgetLimit"]["Amount"]) == (kept["BudgetName"], "200")
    (replaced,) = ec2.describe_flow_logs()["FlowLogs"]
    assert replaced["FlowLogId"] != flow["FlowLogId"]
    assert delete(furnished.cloudformation, made.name) == "DELETE_COMPLETE"
    assert ec2.describe_flow_logs()["FlowLogs"] == []
    assert budgets.describe_budgets(AccountId="000000000000").get("Budgets", []) == []


def test_upload_with_the_accounts_own_key(furnished: Furnished) -> None:
    """As the CDK uploads its assets."""
    answer = furnished.s3.put_object(Bucket="models", Key="kms/a", Body=b"a", ServerSideEncryption="aws:kms")
    assert answer["SSEKMSKeyId"].startswith("arn:aws:kms:us-east-1:000000000000:key/")


def test_unknown_operation_says_so(furnished: Furnished) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match="does not emulate sagemaker:ListClusters"):
        furnished.sagemaker.list_clusters()


def test_unknown_resource_type_is_refused_before_anything_is_made(furnished: Furnished, made: Any) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match="Unrecognized resource types"):
        made({"Cluster": {"Type": "AWS::SageMaker::Cluster", "Properties": {}}})


def test_life_of_an_endpoint_with_boto3_alone(furnished: Furnished, name: str) -> None:
    """As without CloudFormation: asynchronous, a failed endpoint stays until it is deleted."""
    sagemaker, iam = furnished.sagemaker, furnished.cloud.client("iam")
    role = iam.create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trust()))["Role"]["Arn"]
    policy = json.dumps(execution_policy("small/"))
    iam.put_role_policy(RoleName=name, PolicyName="it", PolicyDocument=policy)
    for version, environment in (("1", {"VERSION": "1"}), ("bad", {"EXIT_STATUS": "1"})):
        sagemaker.create_model(
            ModelName=f"{name}-{version}",
            ExecutionRoleArn=role,
            PrimaryContainer={"Image": furnished.echo, "Environment": environment},
            Tags=[{"Key": "team", "Value": "a"}],
        )
        variant = {
            "VariantName": "primary",
            "ModelName": f"{name}-{version}",
            "InitialInstanceCount": 1,
            "InstanceType": "ml.c6i.large",
        }
        sagemaker.create_endpoint_config(EndpointConfigName=f"{name}-{version}", ProductionVariants=[variant])
    model = sagemaker.describe_model(ModelName=f"{name}-1")
    assert model["PrimaryContainer"]["Environment"] == {"VERSION": "1"}
    assert sagemaker.list_tags(ResourceArn=model["ModelArn"])["Tags"] == [{"Key": "team", "Value": "a"}]
    with pytest.raises(botocore.exceptions.ClientError, match="already existing model"):
        sagemaker.create_model(ModelName=f"{name}-1", ExecutionRoleArn=role, PrimaryContainer={"Image": furnished.echo})
    waiting = {"EndpointName": name, "WaiterConfig": {"Delay": 1}}
    sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=f"{name}-bad")
    with pytest.raises(botocore.exceptions.WaiterError):
        sagemaker.get_waiter("endpoint_in_service").wait(**waiting)
    failed = sagemaker.describe_endpoint(EndpointName=name)
    assert (failed["EndpointStatus"], failed["FailureReason"][:21]) == ("Failed", "The primary container")
    sagemaker.delete_endpoint(EndpointName=name)
    sagemaker.get_waiter("endpoint_deleted").wait(**waiting)
    sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=f"{name}-1")
    sagemaker.get_waiter("endpoint_in_service").wait(**waiting)
    sagemaker.update_endpoint(EndpointName=name, EndpointConfigName=f"{name}-bad")
    sagemaker.get_waiter("endpoint_in_service").wait(**waiting)
    kept = sagemaker.describe_endpoint(EndpointName=name)
    assert (kept["EndpointConfigName"], "FailureReason" in kept) == (f"{name}-1", True)
    assert furnished.invoke(name)["version"] == "1"
    assert name in [each["EndpointName"] for each in sagemaker.list_endpoints(StatusEquals="InService")["Endpoints"]]
    sagemaker.delete_endpoint(EndpointName=name)
    sagemaker.get_waiter("endpoint_deleted").wait(**waiting)
    for version in ("1", "bad"):
        sagemaker.delete_endpoint_config(EndpointConfigName=f"{name}-{version}")
        sagemaker.delete_model(ModelName=f"{name}-{version}")
    with pytest.raises(botocore.exceptions.ClientError, match="Could not find model"):
        sagemaker.describe_model(ModelName=f"{name}-1")


def test_a_security_group_and_subnets_in_use_are_not_deleted(
    furnished: Furnished, stack: Callable[..., str], name: str
) -> None:
    """SageMaker's interfaces outlive their endpoint, and CloudFormation does not wait for that."""
    network = {"VpcId": {"Ref": "Vpc"}}
    resources = {
        "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.9.0.0/16"}},
        "Subnet": {"Type": "AWS::EC2::Subnet", "Properties": {**network, "CidrBlock": "10.9.1.0/24"}},
        "Group": {"Type": "AWS::EC2::SecurityGroup", "Properties": {**network, "GroupDescription": "endpoints"}},
    }
    where = {"SecurityGroupIds": [{"Fn::GetAtt": ["Group", "GroupId"]}], "Subnets": [{"Ref": "Subnet"}]}
    assert stack(network=where, more=resources) == "CREATE_COMPLETE"
    found = furnished.cloudformation.describe_stack_resources(StackName=name)["StackResources"]
    ids = {each["LogicalResourceId"]: each["PhysicalResourceId"] for each in found}
    ec2 = furnished.cloud.client("ec2")
    mine = [{"Name": "group-id", "Values": [ids["Group"]]}]
    (interface,) = ec2.describe_network_interfaces(Filters=mine)["NetworkInterfaces"]
    assert (interface["SubnetId"], interface["Status"]) == (ids["Subnet"], "in-use")
    with pytest.raises(botocore.exceptions.ClientError, match="has a dependent object"):
        ec2.delete_security_group(GroupId=ids["Group"])
    with pytest.raises(botocore.exceptions.ClientError, match="has dependencies and cannot be deleted"):
        ec2.delete_subnet(SubnetId=ids["Subnet"])
    with pytest.raises(botocore.exceptions.ClientError, match="does not emulate status"):
        ec2.describe_network_interfaces(Filters=[{"Name": "status", "Values": ["in-use"]}])
    assert delete(furnished.cloudformation, name) == "DELETE_FAILED"
    assert f"resource {ids['Group']} has a dependent object" in reasons(furnished.cloudformation, name)
    wait_until(lambda: not ec2.describe_network_interfaces(Filters=mine)["NetworkInterfaces"])


def test_what_exists_is_refused_or_adopted_by_a_change_set_that_imports(furnished: Furnished, name: str) -> None:
    described = {
        "Bucket": {"Type": "AWS::S3::Bucket", "Properties": {"BucketName": f"{name}-mine"}},
        "Repository": {"Type": "AWS::ECR::Repository", "Properties": {"RepositoryName": f"{name}-mine"}},
        "Group": {"Type": "AWS::Logs::LogGroup", "Properties": {"LogGroupName": f"/{name}/mine"}},
    }
    kept = {key: {**each, "DeletionPolicy": "Retain"} for key, each in described.items()}
    assert deploy(furnished.cloudformation, name, template(kept)) == "CREATE_COMPLETE"
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"
    for key in kept:
        assert deploy(furnished.cloudformation, f"{name}-{key}", template({key: kept[key]})) == "ROLLBACK_COMPLETE"
    again = f"{name}-again"
    furnished.cloudformation.create_change_set(
        StackName=again,
        ChangeSetName="adopt",
        ChangeSetType="CREATE",
        TemplateBody=template(kept),
        ImportExistingResources=True,
    )
    furnished.cloudformation.execute_change_set(StackName=again, ChangeSetName="adopt")
    assert settled(furnished.cloudformation, again) == "CREATE_COMPLETE"
    found = furnished.cloudformation.describe_stack_resources(StackName=again)["StackResources"]
    assert {each["PhysicalResourceId"] for each in found} == {f"{name}-mine", f"/{name}/mine"}


def test_an_export_that_another_stack_imports_is_neither_changed_nor_deleted(furnished: Furnished, name: str) -> None:
    """As by a bucket with another name, or without the stack that imports it being deployed first."""
    importer, export = f"{name}-importer", f"{name}-bucket"

    def exporting(bucket_name: str) -> str:
        output = {"Value": {"Ref": "Bucket"}, "Export": {"Name": export}}
        return json.dumps({"Resources": {"Bucket": bucket(BucketName=bucket_name)}, "Outputs": {"Name": output}})

    importing = {"Topic": {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Fn::ImportValue": export}}}}
    assert deploy(furnished.cloudformation, name, exporting(f"{name}-first")) == "CREATE_COMPLETE"
    assert deploy(furnished.cloudformation, importer, template(importing)) == "CREATE_COMPLETE"
    renamed, dropped = exporting(f"{name}-second"), template({"Bucket": bucket(BucketName=f"{name}-first")})
    for changed, action in ((renamed, "update"), (dropped, "delete")):
        assert deploy(furnished.cloudformation, name, changed) == "UPDATE_ROLLBACK_COMPLETE"
        said = f"Cannot {action} export {export} as it is in use by {importer}."
        assert said in reasons(furnished.cloudformation, name)
    mine = [each["Name"] for each in furnished.s3.list_buckets()["Buckets"] if each["Name"].startswith(name)]
    assert mine == [f"{name}-first"]
    assert delete(furnished.cloudformation, importer) == "DELETE_COMPLETE"
    assert deploy(furnished.cloudformation, name, renamed) == "UPDATE_COMPLETE"
    assert [each["Value"] for each in exports_of(furnished, export)] == [f"{name}-second"]
    assert deploy(furnished.cloudformation, name, dropped) == "UPDATE_COMPLETE"
    assert exports_of(furnished, export) == []
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"


def exports_of(furnished: Furnished, name: str) -> list[dict[str, Any]]:
    return [each for each in furnished.cloudformation.list_exports()["Exports"] if each["Name"] == name]
