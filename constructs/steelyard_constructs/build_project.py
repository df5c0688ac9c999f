"""The base of this package's CodeBuild projects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_codebuild as codebuild
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_s3_assets as s3_assets
from constructs import Construct

from steelyard_constructs.hardware import Architecture
from steelyard_constructs.refusal import Refused
from steelyard_constructs.service_principal import own_account, service_principal

BUILD_IMAGES = {
    Architecture.X86_64: "aws/codebuild/amazonlinux-x86_64-standard:5.0",
    Architecture.ARM64: "aws/codebuild/amazonlinux-aarch64-standard:3.0",
}
"""The build images of AWS (Amazon Linux 2023) by architecture, pinned to a version of their contents."""

_BUILD_TYPES = {Architecture.X86_64: "LINUX_CONTAINER", Architecture.ARM64: "ARM_CONTAINER"}


@dataclass(frozen=True, kw_only=True)
class BuildProps:
    """Properties that every project has, whatever it builds.

    Attributes:
        source: The files that a build starts with; None where a pipeline hands them over, and takes what is found.
        buildspec: The build specification; its text becomes part of the project, so a changed one is a change of the
            stack.
        project_name: The name of the project; without one, CloudFormation makes it up.
        encryption_key: A KMS key for the project and its log; its policy has to let CloudWatch Logs use it.
        log_retention: How long its log is kept.
        removal_policy: What becomes of its log when the stack is deleted.
        timeout: The longest that a build may take, 5 minutes to 36 hours; 1 hour unless set, and 2 for a model.
    """

    source: s3_assets.Asset | None
    buildspec: Path
    project_name: str | None = None
    encryption_key: kms.IKey | None = None
    log_retention: logs.RetentionDays = logs.RetentionDays.THREE_MONTHS
    removal_policy: cdk.RemovalPolicy = cdk.RemovalPolicy.DESTROY
    timeout: cdk.Duration | None = None


class BuildProject(Construct):
    """A CodeBuild project with its own role and log group; one build at a time, started by hand or by a program.

    The role may read the source and write the log. ``ModelBuild`` and ``ImageBuild`` add what they need.

    The L1 resource is used, because what the L2 one grants by itself has ``*`` in its actions.

    Args:
        props: Its source, its specification, and how it is kept.
        description: What it does, for the console.
        architecture: The architecture of the machine.
        environment: Variables of every build; plain text, so no secrets.
        docker: Whether builds run Docker, which needs privileged mode.
        compute_type: CodeBuild's size of the machine.

    Raises:
        Refused: The build specification is missing or not version 0.2.

    Example:
        >>> from pathlib import Path
        >>> import aws_cdk as cdk
        >>> from aws_cdk import aws_s3_assets as s3_assets
        >>> from steelyard_constructs.build_project import BuildProject, BuildProps
        >>> from steelyard_constructs.hardware import Architecture
        >>> stack = cdk.Stack(cdk.App(), "Build")
        >>> build = BuildProject(
        ...     stack,
        ...     "Check",
        ...     props=BuildProps(
        ...         source=s3_assets.Asset(stack, "Source", path="models"),
        ...         buildspec=Path("images/model.buildspec.yml"),
        ...     ),
        ...     description="Fetches a model",
        ...     architecture=Architecture.X86_64,
        ...     environment={"MODEL": "gemma-3-270m"},
        ... )

    Attributes:
        project: The CodeBuild project.
        project_name: Its name.
        role: Its role.
        log_group: Its log group.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        props: BuildProps,
        description: str,
        architecture: Architecture,
        environment: Mapping[str, str],
        docker: bool = False,
        compute_type: str = "BUILD_GENERAL1_MEDIUM",
    ) -> None:
        super().__init__(scope, id)
        stack = cdk.Stack.of(self)
        self.log_group = logs.LogGroup(
            self,
            "Log",
            retention=props.log_retention,
            removal_policy=props.removal_policy,
            encryption_key=props.encryption_key,
        )
        self.role = iam.Role(
            self,
            "Role",
            assumed_by=service_principal(self, "codebuild", resource=f"project/{props.project_name or '*'}"),
            description=description,
        )
        self.role.add_to_policy(
            iam.PolicyStatement(
                sid="WriteLog",
                actions=["logs:CreateLogStream", "logs:PutLogEvents"],
                resources=[self.log_group.log_group_arn],
            )
        )
        if props.source is not None:
            self.role.add_to_policy(
                iam.PolicyStatement(
                    sid="ReadSource",
                    actions=["s3:GetObject", "s3:GetObjectVersion"],
                    resources=[props.source.bucket.arn_for_objects(props.source.s3_object_key)],
                    conditions={"StringEquals": own_account(self)},
                )
            )
        if props.encryption_key is not None:
            self.role.add_to_policy(
                iam.PolicyStatement(
                    sid="UseKey",
                    actions=["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"],
                    resources=[props.encryption_key.key_arn],
                )
            )
        self.project = codebuild.CfnProject(
            self,
            "Project",
            name=props.project_name,
            description=description,
            service_role=self.role.role_arn,
            artifacts=codebuild.CfnProject.ArtifactsProperty(
                type="NO_ARTIFACTS" if props.source is not None else "CODEPIPELINE"
            ),
            source=_source(props),
            environment=codebuild.CfnProject.EnvironmentProperty(
                type=_BUILD_TYPES[architecture],
                image=BUILD_IMAGES[architecture],
                image_pull_credentials_type="CODEBUILD",
                compute_type=compute_type,
                privileged_mode=docker,
                environment_variables=[
                    codebuild.CfnProject.EnvironmentVariableProperty(name=name, type="PLAINTEXT", value=value)
                    for name, value in environment.items()
                ],
            ),
            logs_config=codebuild.CfnProject.LogsConfigProperty(
                cloud_watch_logs=codebuild.CfnProject.CloudWatchLogsConfigProperty(
                    status="ENABLED", group_name=self.log_group.log_group_name
                )
            ),
            # Without a key of one's own, the one that S3 has in every account.
            encryption_key=(
                props.encryption_key.key_arn
                if props.encryption_key is not None
                else stack.format_arn(service="kms", resource="alias", resource_name="aws/s3")
            ),
            concurrent_build_limit=1,
            timeout_in_minutes=(props.timeout or cdk.Duration.hours(1)).to_minutes(),
            queued_timeout_in_minutes=60,
            visibility="PRIVATE",
        )
        # CodeBuild tries the role when the project is made.
        self.project.node.add_dependency(self.role.node.find_child("DefaultPolicy"))
        self.project_name = self.project.ref


def _source(props: BuildProps) -> codebuild.CfnProject.SourceProperty:
    text = _text(props.buildspec)
    if props.source is None:
        return codebuild.CfnProject.SourceProperty(type="CODEPIPELINE", build_spec=text)
    location = f"{props.source.s3_bucket_name}/{props.source.s3_object_key}"
    return codebuild.CfnProject.SourceProperty(type="S3", location=location, build_spec=text)


def _text(buildspec: Path) -> str:
    """The text of a build specification."""
    try:
        text = buildspec.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise Refused(f"the build specification {buildspec} does not exist; give its path") from None
    if not any(line.split("#")[0].strip() == "version: 0.2" for line in text.splitlines()):
        raise Refused(f"the build specification {buildspec} has no line `version: 0.2`; only that version is used here")
    return text
