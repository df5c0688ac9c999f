"""The CodeBuild project that builds a container image on a pinned base and pushes it to a repository."""

from __future__ import annotations

import hashlib
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_ecr as ecr
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from steelyard_constructs.build_project import BuildProject, BuildProps
from steelyard_constructs.image_repository import PULL_ACTIONS, registry_of
from steelyard_constructs.images import ImageReference
from steelyard_constructs.nag import acknowledge, acknowledge_wildcard, resource_from
from steelyard_constructs.refusal import Refused
from steelyard_constructs.service_principal import own_account

PUSH_ACTIONS = (
    "ecr:CompleteLayerUpload",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
)
"""The actions on a repository, beside pulling, that pushing needs."""

INSPECT_ACTIONS = ("ecr:DescribeImageScanFindings", "ecr:DescribeRepositories")
"""The questions of a build to a repository: whether its tags can be moved, and what its scan found."""

PREFIX = "images/"
"""The prefix of every list's key; the image's digest follows."""


class ImageBuild(BuildProject):
    """Build an image with Docker and push it, under a tag that is a hash of what it is made of.

    Tags of the repository cannot be moved, so the same source, Dockerfile and base give the same tag, and a second
    build of them pushes nothing and exports what the first one did.

    The role pulls the base, pushes to the repository, reads what its scan found, writes the list of what is in an image
    below ``images/`` of the bucket, and nothing else. It cannot overwrite or delete there. The build exports
    ``IMAGE_DIGEST`` and what else a release manifest records.

    Args:
        repository: The repository to push to; its tags have to be immutable, and it has to scan what is pushed.
        artifacts: The bucket for the list of what is in an image. If it has a KMS key, the role may use it.
        base: The image that the Dockerfile starts from (its ``BASE_IMAGE`` argument); the build runs on a machine
            of its architecture.
        llama_cpp: The build of llama.cpp in the base, such as ``b10433``. The build fails if the base has another.
        dockerfile: The Dockerfile, relative to the source, which has all that it copies.
        props: Its source, its specification, and how it is kept.

    Raises:
        Refused: The Dockerfile is not a relative path, there is no source, or the build specification is unusable.

    Example:
        >>> from pathlib import Path
        >>> import aws_cdk as cdk
        >>> from aws_cdk import aws_s3_assets as s3_assets
        >>> from steelyard_constructs.artifact_store import ArtifactStore
        >>> from steelyard_constructs.build_project import BuildProps
        >>> from steelyard_constructs.image_build import ImageBuild
        >>> from steelyard_constructs.image_repository import ImageRepository
        >>> from steelyard_constructs.images import ImageReference
        >>> stack = cdk.Stack(cdk.App(), "Build")
        >>> images = ImageRepository(stack, "Decision", removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY)
        >>> build = ImageBuild(
        ...     stack,
        ...     "Cpu",
        ...     repository=images.repository,
        ...     artifacts=store.bucket,
        ...     base=ImageReference.dlc(digest="sha256:" + "0" * 64),
        ...     llama_cpp="b10433",
        ...     dockerfile="images/cpu.Dockerfile",
        ...     props=BuildProps(
        ...         source=s3_assets.Asset(stack, "Source", path="runtime"),
        ...         buildspec=Path("images/image.buildspec.yml"),
        ...     ),
        ... )
        >>> output = cdk.CfnOutput(stack, "Project", value=build.project_name)

    Attributes:
        tag: The tag that it pushes.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        repository: ecr.IRepository,
        artifacts: s3.IBucket,
        base: ImageReference,
        llama_cpp: str,
        dockerfile: str,
        props: BuildProps,
    ) -> None:
        if props.source is None:
            raise Refused("an image's tag follows from its source; give source")
        if not dockerfile or dockerfile.startswith("/") or ".." in Path(dockerfile).parts:
            raise Refused(f"dockerfile {dockerfile!r} is not inside the source; write its path from the source's root")
        made_of = f"{props.source.asset_hash}\n{dockerfile}\n{base.repository}\n{base.digest}\n{llama_cpp}"
        tag = f"{Path(dockerfile).stem.lower()}-{hashlib.sha256(made_of.encode()).hexdigest()[:32]}"
        stack = cdk.Stack.of(scope)
        base_account, base_region = registry_of(stack, base)
        base_registry = f"{base_account}.dkr.ecr.{base_region}.{stack.url_suffix}"
        super().__init__(
            scope,
            id,
            description=f"Builds {dockerfile} for {base.architecture.value} and pushes it",
            architecture=base.architecture,
            environment={
                "REPOSITORY": repository.repository_name,
                "REPOSITORY_URI": repository.repository_uri,
                "IMAGE_TAG": tag,
                "DOCKERFILE": dockerfile,
                "BASE_REGISTRY": base_registry,
                "BASE_REGION": base_region,
                "BASE_IMAGE": f"{base_registry}/{base.repository}@{base.digest}",
                "LLAMA_CPP_BUILD": llama_cpp,
                "SOURCE_REVISION": props.source.asset_hash,
                "ARTIFACT_BUCKET": artifacts.bucket_name,
            },
            docker=True,
            props=props,
        )
        self.tag = tag
        acknowledge(
            self.project,
            "AwsSolutions-CB3",
            reason="Docker builds need privileged mode; the project has no other trigger than its own account.",
        )

        self.role.add_to_policy(
            iam.PolicyStatement(sid="LogIn", actions=["ecr:GetAuthorizationToken"], resources=["*"])
        )
        acknowledge_wildcard(
            self.role, "*", reason="ecr:GetAuthorizationToken has no resource; what it opens is granted below."
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="PullBase",
                actions=list(PULL_ACTIONS),
                resources=[
                    stack.format_arn(
                        service="ecr",
                        account=base_account,
                        region=base_region,
                        resource="repository",
                        resource_name=base.repository,
                    )
                ],
            )
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="PushImage",
                actions=[*PULL_ACTIONS, *PUSH_ACTIONS, *INSPECT_ACTIONS],
                resources=[resource_from(self, repository.stack, repository.repository_arn)],
            )
        )
        self._let_write_lists(artifacts)

    def _let_write_lists(self, artifacts: s3.IBucket) -> None:
        objects = f"{resource_from(self, artifacts.stack, artifacts.bucket_arn)}/{PREFIX}*"
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteList",
                # GetObject: to see whether the list is there already, and to say its hash.
                actions=["s3:GetObject", "s3:PutObject"],
                resources=[objects],
                conditions={"StringEquals": own_account(self)},
            )
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="NeverOverwrite",
                effect=iam.Effect.DENY,
                actions=["s3:PutObject"],
                resources=[objects],
                conditions={"Null": {"s3:if-none-match": "true"}},
            )
        )
        acknowledge_wildcard(
            self.role, objects, reason="The keys below images/ are named after the digests of images not yet built."
        )
        if artifacts.encryption_key is not None:
            self.role.add_to_policy(
                iam.PolicyStatement(
                    sid="EncryptList",
                    actions=["kms:Decrypt", "kms:GenerateDataKey"],
                    resources=[artifacts.encryption_key.key_arn],
                )
            )
