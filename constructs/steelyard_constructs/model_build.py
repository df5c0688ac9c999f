"""The CodeBuild project that fetches a pinned model and publishes it to the artifact bucket."""

from __future__ import annotations

from dataclasses import replace

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from steelyard_constructs.build_project import BuildProject, BuildProps
from steelyard_constructs.hardware import Architecture
from steelyard_constructs.nag import acknowledge_wildcard, resource_from
from steelyard_constructs.refusal import Refused
from steelyard_constructs.service_principal import own_account

PREFIX = "models/"
"""The prefix of every key of a model; the model's name and its manifest's hash follow."""


class ModelBuild(BuildProject):
    """Fetch one model of the catalogue, check every sha256, and publish it under a prefix named after its content.

    The role reads the source, lists and writes below ``models/MODEL/`` of the bucket, and nothing else. It cannot
    overwrite: a write without ``If-None-Match`` is denied, so an object, once there, stays as it is. It cannot delete
    either.

    The build exports ``MODEL_KEY`` and ``MODEL_MANIFEST_SHA256``, which a release manifest records.

    Args:
        artifacts: The bucket to publish to. If it has a KMS key, the role may use it.
        model: The model's name in the catalogue.
        props: Its source, its specification, and how it is kept.

    Raises:
        Refused: The model's name cannot be part of a key, or the build specification is unusable.

    Example:
        >>> from pathlib import Path
        >>> import aws_cdk as cdk
        >>> from aws_cdk import aws_s3_assets as s3_assets
        >>> from steelyard_constructs.artifact_store import ArtifactStore
        >>> from steelyard_constructs.build_project import BuildProps
        >>> from steelyard_constructs.model_build import ModelBuild
        >>> stack = cdk.Stack(cdk.App(), "Build")
        >>> store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> build = ModelBuild(
        ...     stack,
        ...     "Gemma",
        ...     artifacts=store.bucket,
        ...     model="gemma-3-270m",
        ...     props=BuildProps(
        ...         source=s3_assets.Asset(stack, "Source", path="models"),
        ...         buildspec=Path("images/model.buildspec.yml"),
        ...     ),
        ... )
        >>> output = cdk.CfnOutput(stack, "Project", value=build.project_name)
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        artifacts: s3.IBucket,
        model: str,
        props: BuildProps,
    ) -> None:
        if not model or "/" in model or "*" in model:
            raise Refused(f"model {model!r} cannot be part of a key; use its name in the catalogue, without / and *")
        super().__init__(
            scope,
            id,
            description=f"Fetches the model {model}, verifies it and publishes it",
            architecture=Architecture.X86_64,
            environment={"MODEL": model, "ARTIFACT_BUCKET": artifacts.bucket_name},
            docker=False,
            props=replace(props, timeout=props.timeout or cdk.Duration.hours(2)),
        )
        bucket_arn = resource_from(self, artifacts.stack, artifacts.bucket_arn)
        objects = f"{bucket_arn}/{PREFIX}{model}/*"
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="PublishModel",
                # GetObject: to see whether what is there already is the same.
                actions=["s3:AbortMultipartUpload", "s3:GetObject", "s3:PutObject"],
                resources=[objects],
                conditions={"StringEquals": own_account(self)},
            )
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="SeeWhatIsThere",
                # To refuse a prefix with other files in it: an endpoint would be given them too.
                actions=["s3:ListBucket"],
                resources=[bucket_arn],
                conditions={
                    "StringEquals": own_account(self),
                    "StringLike": {"s3:prefix": f"{PREFIX}{model}/*"},
                },
            )
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="NeverOverwrite",
                effect=iam.Effect.DENY,
                actions=["s3:PutObject"],
                resources=[objects],
                # The parts of a multipart upload cannot carry the header; they create nothing by themselves.
                conditions={"Null": {"s3:if-none-match": "true"}, "Bool": {"s3:ObjectCreationOperation": "true"}},
            )
        )
        acknowledge_wildcard(
            self.role, objects, reason="The keys below the model's prefix are named after content not yet fetched."
        )
        if artifacts.encryption_key is not None:
            self.role.add_to_policy(
                iam.PolicyStatement(
                    sid="EncryptModel",
                    actions=["kms:Decrypt", "kms:GenerateDataKey"],
                    resources=[artifacts.encryption_key.key_arn],
                )
            )
