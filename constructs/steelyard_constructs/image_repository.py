"""The ECR repository of an image."""

from __future__ import annotations

import re
from collections.abc import Sequence

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import region_info
from constructs import Construct

from steelyard_constructs.images import RELEASE_TAG_PREFIX, ImageReference, publisher_account
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused
from steelyard_constructs.removal import check_removal_policy

RELEASED_IMAGES = 10_000
"""ECR's rules need a number: how many images of releases are kept. A repository holds 20,000 by default."""

PULL_ACTIONS = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
"""The actions on a repository that pulling needs."""


class ImageRepository(Construct):
    """A private repository whose tags cannot be moved and whose images are scanned when they are pushed.

    With ``RemovalPolicy.DESTROY`` the repository is deleted with its images (ECR empties it itself).

    Args:
        removal_policy: ``DESTROY`` or ``RETAIN``.
        repository_name: Its name; without one, CloudFormation chooses it.
        pull_accounts: Identifiers of the other AWS accounts whose roles may pull.
        keep_images: How many images that no release names are kept; the oldest beyond them are deleted. Images
            with a tag of a release (``release-...``) stay.
        encryption_key: A KMS key; without one, ECR's own.

    Raises:
        Refused: Another removal policy, an account identifier that is not 12 digits, or fewer than 1 image.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.image_repository import ImageRepository
        >>> stack = cdk.Stack(cdk.App(), "Images")
        >>> images = ImageRepository(
        ...     stack, "Decision", removal_policy=cdk.RemovalPolicy.RETAIN, pull_accounts=["111122223333"]
        ... )
        >>> output = cdk.CfnOutput(stack, "RepositoryUri", value=images.repository.repository_uri)

    Attributes:
        repository: The repository.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        removal_policy: cdk.RemovalPolicy,
        repository_name: str | None = None,
        pull_accounts: Sequence[str] = (),
        keep_images: int = 50,
        encryption_key: kms.IKey | None = None,
    ) -> None:
        super().__init__(scope, id)
        check_removal_policy("a repository", removal_policy)
        check_whole("keep_images", keep_images)
        if keep_images < 1:
            raise Refused(f"keep_images is {keep_images}; at least 1 image must be kept")
        for account in pull_accounts:
            if not re.fullmatch(r"[0-9]{12}", account):
                raise Refused(f"pull_accounts has {account!r}; the identifier of an AWS account is 12 digits")

        self.repository = ecr.Repository(
            self,
            "Repository",
            repository_name=repository_name,
            removal_policy=removal_policy,
            empty_on_delete=removal_policy is cdk.RemovalPolicy.DESTROY,
            image_tag_mutability=ecr.TagMutability.IMMUTABLE,
            image_scan_on_push=True,
            encryption_key=encryption_key,
            lifecycle_rules=[
                # An image that one rule selects by its tag cannot be expired by a rule with a higher number.
                ecr.LifecycleRule(
                    rule_priority=1,
                    description="Images that a release names are kept",
                    tag_status=ecr.TagStatus.TAGGED,
                    tag_prefix_list=[RELEASE_TAG_PREFIX],
                    max_image_count=RELEASED_IMAGES,
                ),
                ecr.LifecycleRule(
                    rule_priority=2,
                    description="Images without a tag are left over from builds that failed",
                    tag_status=ecr.TagStatus.UNTAGGED,
                    max_image_age=cdk.Duration.days(7),
                ),
                ecr.LifecycleRule(
                    rule_priority=3,
                    description=f"Keep {keep_images} images that no release names",
                    max_image_count=keep_images,
                ),
            ],
        )
        for account in dict.fromkeys(pull_accounts):
            self.repository.add_to_resource_policy(
                iam.PolicyStatement(
                    sid=f"Pull{account}",
                    principals=[iam.AccountPrincipal(account)],
                    actions=list(PULL_ACTIONS),
                )
            )


def registry_of(stack: cdk.Stack, image: ImageReference) -> tuple[str, str]:
    """Account and region of the registry that holds an image, for a stack that uses it.

    Raises:
        Refused: It is a container that AWS publishes, and the CDK knows no registry of these in the stack's region.
    """
    account = image.account
    if account is None:
        account = _publisher(stack) if image.published else stack.account
    return account, image.region or stack.region


def _publisher(stack: cdk.Stack) -> str:
    if cdk.Token.is_unresolved(stack.region):
        return stack.regional_fact(region_info.FactName.DLC_REPOSITORY_ACCOUNT)
    return publisher_account(stack.region)
