"""The bucket of model artifacts, with the bucket of its access logs."""

from __future__ import annotations

from typing import cast

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from steelyard_constructs.bucket_emptier import BucketEmptier
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused
from steelyard_constructs.removal import check_removal_policy


class ArtifactStore(Construct):
    """A private, versioned, encrypted bucket for model artifacts, reached over TLS only, with access logs.

    With ``RemovalPolicy.DESTROY`` both buckets are emptied (by ``BucketEmptier``) and deleted with the stack; with
    ``RETAIN`` there is no such function, and both stay.

    The bucket of access logs is encrypted with S3's own key whatever ``encryption_key`` is, because S3 does not deliver
    access logs to a bucket whose default is a KMS key.

    Args:
        removal_policy: ``DESTROY`` or ``RETAIN``, for both buckets.
        bucket_name: The name of the bucket of artifacts; without one, CloudFormation makes it up.
        encryption_key: A KMS key for the artifacts; without one, S3's own key.
        noncurrent_days: How long overwritten and deleted objects can be brought back, in days.
        access_log_days: How long access logs are kept, in days.

    Raises:
        Refused: Another removal policy, or a number of days below 1.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.artifact_store import ArtifactStore
        >>> stack = cdk.Stack(cdk.App(), "Artifacts")
        >>> store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> output = cdk.CfnOutput(stack, "BucketName", value=store.bucket.bucket_name)

    Attributes:
        bucket: The bucket of artifacts.
        access_logs: The bucket that its access logs go to.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        removal_policy: cdk.RemovalPolicy,
        bucket_name: str | None = None,
        encryption_key: kms.IKey | None = None,
        noncurrent_days: int = 30,
        access_log_days: int = 90,
    ) -> None:
        super().__init__(scope, id)
        check_removal_policy("a bucket", removal_policy)
        for name, days in (("noncurrent_days", noncurrent_days), ("access_log_days", access_log_days)):
            check_whole(name, days)
            if days < 1:
                raise Refused(f"{name} is {days}; S3 takes 1 or more days")

        self.access_logs = s3.Bucket(
            self,
            "AccessLogs",
            removal_policy=removal_policy,
            encryption=s3.BucketEncryption.S3_MANAGED,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="expire",
                    expiration=cdk.Duration.days(access_log_days),
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(7),
                )
            ],
        )
        self.bucket = s3.Bucket(
            self,
            "Bucket",
            bucket_name=bucket_name,
            removal_policy=removal_policy,
            versioned=True,
            encryption=s3.BucketEncryption.S3_MANAGED if encryption_key is None else s3.BucketEncryption.KMS,
            encryption_key=encryption_key,
            bucket_key_enabled=None if encryption_key is None else True,
            enforce_ssl=True,
            minimum_tls_version=1.2,
            block_public_access=s3.BlockPublicAccess.BLOCK_ALL,
            object_ownership=s3.ObjectOwnership.BUCKET_OWNER_ENFORCED,
            lifecycle_rules=[
                s3.LifecycleRule(
                    id="noncurrent",
                    noncurrent_version_expiration=cdk.Duration.days(noncurrent_days),
                    expired_object_delete_marker=True,
                    abort_incomplete_multipart_upload_after=cdk.Duration.days(7),
                )
            ],
        )
        if removal_policy is cdk.RemovalPolicy.DESTROY:
            emptier = BucketEmptier(self, "Emptier")
            emptier.watch("AccessLogs", self.access_logs)
            emptier.watch("Bucket", self.bucket)
        self._deliver_access_logs()

    def _deliver_access_logs(self) -> None:
        """Log the requests of the bucket; through a bucket policy, because access lists are off."""
        prefix = "artifacts/"
        self.access_logs.add_to_resource_policy(
            iam.PolicyStatement(
                sid="AccessLogDelivery",
                principals=[iam.ServicePrincipal("logging.s3.amazonaws.com")],
                actions=["s3:PutObject"],
                resources=[self.access_logs.arn_for_objects(f"{prefix}*")],
                conditions={"StringEquals": {"aws:SourceAccount": cdk.Stack.of(self).account}},
            )
        )
        # On the L1 resource: the L2 property sets an access list, or a policy, as a feature flag of the app says.
        bucket = cast(s3.CfnBucket, self.bucket.node.default_child)
        bucket.logging_configuration = s3.CfnBucket.LoggingConfigurationProperty(
            destination_bucket_name=self.access_logs.bucket_name, log_file_prefix=prefix
        )
        # S3 refuses to turn logging on before it may write there.
        bucket.node.add_dependency(cast(s3.BucketPolicy, self.access_logs.policy))
