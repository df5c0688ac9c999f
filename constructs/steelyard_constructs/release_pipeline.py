"""The pipeline that brings a release from a commit through environments: CodePipeline, and a project for each stage."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import aws_codepipeline as codepipeline
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from constructs import Construct

from steelyard_constructs.build_project import BuildProject, BuildProps
from steelyard_constructs.hardware import Architecture
from steelyard_constructs.nag import acknowledge_wildcard
from steelyard_constructs.refusal import Refused
from steelyard_constructs.service_principal import own_account, service_principal

SOURCE = "Source"
"""The name of the stage, the action and the artifact of the source."""

USE_CONNECTION = ("codeconnections:UseConnection", "codestar-connections:UseConnection")
"""The action on a connection, by its name and by the one that it had before 2024."""

_OBJECTS = ("s3:GetObject", "s3:GetObjectVersion", "s3:PutObject")


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The branch whose commits start the pipeline.

    Attributes:
        connection_arn: The connection to its host.
        repository: ``owner/name``.
        branch: The branch.
        starts: Whether a commit starts the pipeline.
    """

    connection_arn: str
    repository: str
    branch: str
    starts: bool = True


@dataclass(frozen=True, kw_only=True)
class PipelineStage:
    """One project, and the stage that runs it.

    Attributes:
        name: The name of the stage: letters, digits and hyphens.
        variables: The variables of its builds; plain text, so no secrets.
        roles: ARNs of the roles that its builds may assume, and no others.
        reads: The stages whose findings it gets, by the position in the list.
        approval: What people read who must approve before it runs; None where nobody is asked.
        report: The position of the stage whose builds export ``REPORT``, the address that they look at.
    """

    name: str
    variables: Mapping[str, str]
    roles: Sequence[str] = ()
    reads: Sequence[int] = ()
    approval: str | None = None
    report: int | None = None


def artifact_of(position: int) -> str:
    """Return the name of what the stage at this position finds."""
    return f"Found{position}"


class ReleasePipeline(Construct):
    """A pipeline of type V2 whose executions wait for one another: a deployment is never overtaken.

    Each stage is one build of a project of its own. Its role writes its log, reads and writes the pipeline's artifacts,
    clones the repository through the connection, and assumes the roles of its stage; nothing has ``*`` for a role.

    L1 resources are used, because what the L2 ones grant by themselves has ``*`` in its actions.

    Args:
        origin: The branch that starts it.
        stages: Its stages, in order.
        artifacts: The bucket in which a stage hands to the next what it found.
        encryption_key: The key of the bucket and of the projects.
        props: The specification of all builds, and how their logs are kept; without a source.

    Raises:
        Refused: There is no stage, two have one name, a stage reads one that comes after it, or the specification is
            unusable.

    Example:
        >>> from pathlib import Path
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.artifact_store import ArtifactStore
        >>> from steelyard_constructs.build_project import BuildProps
        >>> from steelyard_constructs.environment_key import EnvironmentKey
        >>> from steelyard_constructs.release_pipeline import Origin, PipelineStage, ReleasePipeline
        >>> stack = cdk.Stack(cdk.App(), "Pipeline")
        >>> key = EnvironmentKey(stack, "Key", removal_policy=cdk.RemovalPolicy.DESTROY).key
        >>> store = ArtifactStore(stack, "Store", removal_policy=cdk.RemovalPolicy.DESTROY, encryption_key=key)
        >>> connection = "arn:aws:codeconnections:us-east-1:555566667777:connection/00000000"
        >>> pipeline = ReleasePipeline(
        ...     stack,
        ...     "Pipeline",
        ...     origin=Origin(connection_arn=connection, repository="example/decisions", branch="main"),
        ...     stages=[PipelineStage(name="Test", variables={"STEPS": "test"})],
        ...     artifacts=store.bucket,
        ...     encryption_key=key,
        ...     props=BuildProps(
        ...         source=None, buildspec=Path("pipelines/aws/stage.buildspec.yml"), encryption_key=key
        ...     ),
        ... )

    Attributes:
        pipeline: The pipeline.
        projects: The project of each stage, by the stage's name.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        origin: Origin,
        stages: Sequence[PipelineStage],
        artifacts: s3.IBucket,
        encryption_key: kms.IKey,
        props: BuildProps,
    ) -> None:
        super().__init__(scope, id)
        _check(stages)
        if props.source is not None:
            raise Refused("a pipeline's builds get their source from it; leave out source")
        self._origin, self._artifacts, self._key = origin, artifacts, encryption_key
        self.projects = {
            each.name: BuildProject(
                self,
                each.name,
                props=props,
                description=f"Stage {each.name} of the pipeline of {origin.repository}",
                architecture=Architecture.X86_64,
                environment=each.variables,
            )
            for each in stages
        }
        for each in stages:
            self._allow(self.projects[each.name].role, each)
        role = self._role()
        self.pipeline = codepipeline.CfnPipeline(
            self,
            "Pipeline",
            role_arn=role.role_arn,
            pipeline_type="V2",
            execution_mode="QUEUED",
            artifact_store=codepipeline.CfnPipeline.ArtifactStoreProperty(
                type="S3",
                location=artifacts.bucket_name,
                encryption_key=codepipeline.CfnPipeline.EncryptionKeyProperty(type="KMS", id=encryption_key.key_arn),
            ),
            stages=[self._source(), *(self._stage(stages, each) for each in range(len(stages)))],
        )
        self.pipeline.node.add_dependency(role.node.find_child("DefaultPolicy"))

    def _source(self) -> codepipeline.CfnPipeline.StageDeclarationProperty:
        action = _action(
            SOURCE,
            category="Source",
            provider="CodeStarSourceConnection",
            configuration={
                "ConnectionArn": self._origin.connection_arn,
                "FullRepositoryId": self._origin.repository,
                "BranchName": self._origin.branch,
                # With its history: a release says of which commit it is.
                "OutputArtifactFormat": "CODEBUILD_CLONE_REF",
                "DetectChanges": str(self._origin.starts).lower(),
            },
            output=SOURCE,
            namespace=SOURCE,
        )
        return codepipeline.CfnPipeline.StageDeclarationProperty(name=SOURCE, actions=[action])

    def _stage(
        self, stages: Sequence[PipelineStage], position: int
    ) -> codepipeline.CfnPipeline.StageDeclarationProperty:
        stage = stages[position]
        commit = {"name": "COMMIT", "value": f"#{{{SOURCE}.CommitId}}", "type": "PLAINTEXT"}
        actions = []
        if stage.approval is not None:
            configuration = {"CustomData": stage.approval}
            if stage.report is not None:
                configuration["ExternalEntityLink"] = f"#{{{artifact_of(stage.report)}.REPORT}}"
            actions.append(_action("Approve", category="Approval", provider="Manual", configuration=configuration))
        actions.append(
            _action(
                "Run",
                category="Build",
                provider="CodeBuild",
                configuration={
                    "ProjectName": self.projects[stage.name].project_name,
                    "PrimarySource": SOURCE,
                    "EnvironmentVariables": json.dumps([commit]),
                },
                inputs=[SOURCE, *map(artifact_of, stage.reads)],
                output=artifact_of(position),
                namespace=artifact_of(position),
                order=len(actions) + 1,
            )
        )
        return codepipeline.CfnPipeline.StageDeclarationProperty(name=stage.name, actions=actions)

    def _role(self) -> iam.Role:
        role = iam.Role(
            self,
            "Role",
            assumed_by=service_principal(self, "codepipeline"),
            description=f"The pipeline of {self._origin.repository}",
        )
        self._use_artifacts(role)
        role.add_to_policy(self._use_connection())
        role.add_to_policy(
            iam.PolicyStatement(
                sid="RunStages",
                actions=["codebuild:BatchGetBuilds", "codebuild:StartBuild", "codebuild:StopBuild"],
                resources=[each.project.attr_arn for each in self.projects.values()],
            )
        )
        return role

    def _allow(self, role: iam.Role, stage: PipelineStage) -> None:
        self._use_artifacts(role)
        role.add_to_policy(self._use_connection())
        if stage.roles:
            role.add_to_policy(
                iam.PolicyStatement(sid="Environments", actions=["sts:AssumeRole"], resources=list(stage.roles))
            )

    def _use_artifacts(self, role: iam.Role) -> None:
        objects = self._artifacts.arn_for_objects("*")
        role.add_to_policy(
            iam.PolicyStatement(
                sid="HandOver",
                actions=list(_OBJECTS),
                resources=[objects],
                conditions={"StringEquals": own_account(self)},
            )
        )
        role.add_to_policy(
            iam.PolicyStatement(
                sid="EncryptArtifacts",
                actions=["kms:Decrypt", "kms:DescribeKey", "kms:Encrypt", "kms:GenerateDataKey"],
                resources=[self._key.key_arn],
            )
        )
        acknowledge_wildcard(role, objects, reason="CodePipeline makes up the keys below its bucket")

    def _use_connection(self) -> iam.PolicyStatement:
        return iam.PolicyStatement(
            sid="UseConnection", actions=list(USE_CONNECTION), resources=[self._origin.connection_arn]
        )


def _check(stages: Sequence[PipelineStage]) -> None:
    if not stages:
        raise Refused("a pipeline without stages does nothing; give at least one")
    names = [each.name for each in stages]
    if len({SOURCE, *names}) <= len(names):
        raise Refused(f"stages are called {', '.join(names)}; each needs a name of its own, and none is {SOURCE}")
    for position, each in enumerate(stages):
        for other in (*each.reads, *([] if each.report is None else [each.report])):
            if not 0 <= other < position:
                raise Refused(
                    f"the stage {each.name} reads the stage at position {other}, which does not come before it"
                )


def _action(
    name: str,
    *,
    category: str,
    provider: str,
    configuration: Mapping[str, Any],
    inputs: Sequence[str] = (),
    output: str | None = None,
    namespace: str | None = None,
    order: int = 1,
) -> codepipeline.CfnPipeline.ActionDeclarationProperty:
    return codepipeline.CfnPipeline.ActionDeclarationProperty(
        name=name,
        action_type_id=codepipeline.CfnPipeline.ActionTypeIdProperty(
            category=category, owner="AWS", provider=provider, version="1"
        ),
        configuration=configuration,
        input_artifacts=[codepipeline.CfnPipeline.InputArtifactProperty(name=each) for each in inputs] or None,
        output_artifacts=[codepipeline.CfnPipeline.OutputArtifactProperty(name=output)] if output else None,
        namespace=namespace,
        run_order=order,
    )
