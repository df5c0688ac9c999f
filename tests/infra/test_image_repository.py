"""ImageRepository: images that cannot be swapped, and that the right accounts can pull."""

from __future__ import annotations

import json

import aws_cdk as cdk
import pytest
from aws_cdk import aws_kms as kms
from aws_cdk.assertions import Template

from steelyard_constructs.image_repository import ImageRepository
from steelyard_constructs.refusal import Refused

DESTROY, RETAIN = cdk.RemovalPolicy.DESTROY, cdk.RemovalPolicy.RETAIN


def properties(stack: cdk.Stack) -> dict:
    (repository,) = Template.from_stack(stack).find_resources("AWS::ECR::Repository").values()
    return repository["Properties"]


def test_no_finding_of_cdk_nag_or_cfn_lint(stack, nag_findings, lint_findings):
    ImageRepository(stack, "Images", removal_policy=DESTROY, pull_accounts=["111122223333"])
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


def test_tags_are_immutable_and_pushed_images_are_scanned(stack):
    ImageRepository(stack, "Images", removal_policy=DESTROY, repository_name="steelyard/decision")
    found = properties(stack)
    assert found["RepositoryName"] == "steelyard/decision"
    assert found["ImageTagMutability"] == "IMMUTABLE"
    assert found["ImageScanningConfiguration"] == {"ScanOnPush": True}
    assert "EncryptionConfiguration" not in found  # ECR then encrypts with its own key


def test_old_and_untagged_images_go(stack):
    ImageRepository(stack, "Images", removal_policy=DESTROY, keep_images=3)
    released, untagged, all_ = json.loads(properties(stack)["LifecyclePolicy"]["LifecyclePolicyText"])["rules"]
    # ECR: an image that a rule selects by tag is out of reach of the rules with higher numbers.
    assert [rule["rulePriority"] for rule in (released, untagged, all_)] == [1, 2, 3]
    assert released["selection"] == {
        "tagStatus": "tagged",
        "tagPrefixList": ["release-"],
        "countType": "imageCountMoreThan",
        "countNumber": 10_000,
    }
    assert untagged["selection"] == {
        "tagStatus": "untagged",
        "countType": "sinceImagePushed",
        "countNumber": 7,
        "countUnit": "days",
    }
    assert all_["selection"] == {"tagStatus": "any", "countType": "imageCountMoreThan", "countNumber": 3}


def test_destroy_empties_and_retain_keeps(stack):
    ImageRepository(stack, "Gone", removal_policy=DESTROY)
    ImageRepository(stack, "Kept", removal_policy=RETAIN)
    found = Template.from_stack(stack).find_resources("AWS::ECR::Repository")
    gone, kept = (next(r for name, r in found.items() if name.startswith(word)) for word in ("Gone", "Kept"))
    assert (gone["DeletionPolicy"], gone["Properties"]["EmptyOnDelete"]) == ("Delete", True)
    assert (kept["DeletionPolicy"], kept["Properties"]["EmptyOnDelete"]) == ("Retain", False)
    Template.from_stack(stack).resource_count_is("AWS::Lambda::Function", 0)


def test_named_accounts_pull_and_do_nothing_else(stack):
    ImageRepository(
        stack, "Images", removal_policy=RETAIN, pull_accounts=["111122223333", "444455556666", "111122223333"]
    )
    statements = properties(stack)["RepositoryPolicyText"]["Statement"]
    assert [statement["Sid"] for statement in statements] == ["Pull111122223333", "Pull444455556666"]
    for statement in statements:
        assert statement["Effect"] == "Allow"
        assert set(statement["Action"]) == {
            "ecr:BatchCheckLayerAvailability",
            "ecr:BatchGetImage",
            "ecr:GetDownloadUrlForLayer",
        }
        assert f"::{statement['Sid'].removeprefix('Pull')}:root" in json.dumps(statement["Principal"])


def test_nobody_else_pulls_unless_named(stack):
    ImageRepository(stack, "Images", removal_policy=RETAIN)
    assert "RepositoryPolicyText" not in properties(stack)


def test_a_key_encrypts_the_images(stack):
    ImageRepository(stack, "Images", removal_policy=RETAIN, encryption_key=kms.Key(stack, "Key"))
    assert properties(stack)["EncryptionConfiguration"]["EncryptionType"] == "KMS"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"removal_policy": cdk.RemovalPolicy.SNAPSHOT}, "SNAPSHOT; a repository is kept or not"),
        ({"removal_policy": DESTROY, "keep_images": 0}, "keep_images is 0"),
        ({"removal_policy": DESTROY, "pull_accounts": ["1234"]}, "'1234'; the identifier of an AWS account"),
    ],
)
def test_refused(stack, arguments, message):
    with pytest.raises(Refused, match=message):
        ImageRepository(stack, "Images", **arguments)
