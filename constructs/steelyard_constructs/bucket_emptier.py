"""Empty buckets when their stack is deleted, so that CloudFormation can delete them."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3 as s3
from constructs import Construct

from steelyard_constructs.inline_function import inline_function
from steelyard_constructs.nag import acknowledge_wildcard
from steelyard_constructs.refusal import Refused
from steelyard_constructs.service_principal import own_account

TAG = "steelyard:empty-on-delete"
"""The tag of a bucket that may be emptied; the handler looks for it."""

HANDLER = Path(__file__).with_name("empty_bucket_handler.py")
"""The source of the function."""

INLINE_LIMIT = 4096
"""Characters of source that Lambda takes inside a template."""


class BucketEmptier(Construct):
    """A Lambda function that deletes the objects of buckets just before the buckets are deleted.

    CloudFormation refuses to delete a bucket with objects in it, and nothing but a custom resource can change that.
    CDK's own (``auto_delete_objects``) is a Node.js function that needs the AWS SDK of Lambda's image, is shared by the
    whole stack, and may rewrite every bucket's policy. This one is Python of a page, inline in the template, in which
    only boto3 is imported, so an emulator can run it too; its role reaches only the buckets given here.

    A bucket is emptied only while it carries the tag ``steelyard:empty-on-delete``, which ``watch`` adds. When a later
    deployment changes the removal policy to retain, the tag goes before the custom resource does, so nothing is lost.

    On deletion the bucket's policy goes first, which ends the delivery of access logs; then the objects; then the
    bucket.

    Args:
        log_retention: How long its log is kept while the stack exists.

    Example:
        >>> import aws_cdk as cdk
        >>> from aws_cdk import aws_s3 as s3
        >>> from steelyard_constructs.bucket_emptier import BucketEmptier
        >>> from steelyard_constructs.nag import acknowledge
        >>> stack = cdk.Stack(cdk.App(), "Scratch")
        >>> bucket = s3.Bucket(stack, "Bucket", enforce_ssl=True, removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> acknowledge(bucket, "AwsSolutions-S1", reason="Scratch space needs no access log.")
        >>> emptier = BucketEmptier(stack, "Emptier")
        >>> custom_resource = emptier.watch("Bucket", bucket)

    Attributes:
        function: The Lambda function.
        role: Its role.
        log_group: Its log group, deleted with the stack.
    """

    def __init__(
        self, scope: Construct, id: str, *, log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH
    ) -> None:
        super().__init__(scope, id)
        self.log_group = logs.LogGroup(self, "Log", retention=log_retention, removal_policy=cdk.RemovalPolicy.DESTROY)
        made = inline_function(
            self,
            description="Empties buckets of this stack that are about to be deleted",
            source=_source(),
            log_group=self.log_group,
            timeout_s=900,
        )
        self.role, self.function = made.role, made.function

    def watch(self, id: str, bucket: s3.Bucket) -> cdk.CustomResource:
        """Empty ``bucket`` when it, or the stack, is deleted.

        Args:
            id: An identifier, unique within this construct.
            bucket: A bucket of the same stack. It gets the tag, and its policy depends on the custom resource.

        Returns:
            The custom resource: what must be gone before the bucket is emptied has to depend on it.
        """
        cdk.Tags.of(bucket).add(TAG, "true", include_resource_types=["AWS::S3::Bucket"])
        objects = bucket.arn_for_objects("*")
        # A policy per bucket: in the role's own policy, every bucket would have to exist before the first is watched.
        policy = iam.Policy(
            self,
            f"{id}Policy",
            roles=[self.role],
            statements=[
                iam.PolicyStatement(
                    actions=["s3:GetBucketTagging", "s3:ListBucketVersions"],
                    resources=[bucket.bucket_arn],
                    conditions={"StringEquals": own_account(self)},
                ),
                iam.PolicyStatement(
                    actions=["s3:DeleteObject", "s3:DeleteObjectVersion"],
                    resources=[objects],
                    conditions={"StringEquals": own_account(self)},
                ),
            ],
        )
        acknowledge_wildcard(policy, objects, reason="It empties this bucket, whose keys are not known beforehand.")
        resource = cdk.CustomResource(
            self,
            id,
            resource_type="Custom::SteelyardEmptyBucket",
            service_token=self.function.attr_arn,
            properties={"BucketName": bucket.bucket_name},
            service_timeout=cdk.Duration.minutes(16),
        )
        resource.node.add_dependency(policy)
        if bucket.policy is not None:
            bucket.policy.node.add_dependency(resource)
        return resource


def _source() -> str:
    """The handler as Lambda gets it."""
    source = HANDLER.read_text(encoding="utf-8")
    if len(source) > INLINE_LIMIT:
        raise Refused(f"the handler has {len(source)} characters; Lambda takes {INLINE_LIMIT} inside a template")
    return source
