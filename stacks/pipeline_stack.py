"""The pipeline of an account: its bucket and key, and CodePipeline with a project for each stage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import aws_cdk as cdk

from stacks.environment_stack import RETENTION
from steelyard.environments.pipeline import Pipeline, Step
from steelyard_constructs.alarm_topic import AlarmTopic
from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.build_project import BuildProps
from steelyard_constructs.environment_key import EnvironmentKey
from steelyard_constructs.release_pipeline import Origin, PipelineStage, ReleasePipeline, artifact_of
from steelyard_constructs.scheduled_check import ScheduledCheck

BUILDSPEC = Path(__file__).resolve().parent.parent / "pipelines" / "aws" / "stage.buildspec.yml"

_NOTHING = {"TO": "", "FROM": "", "TO_ROLE": "", "FROM_ROLE": "", "EVIDENCE_SOURCE": "NONE"}
_STAGE_HOURS = 4
_DRIFTED = (
    "what is decided there has drifted, or could not be looked at; the build's log says which. What to do: "
    "docs/how-to/watch-for-drift.md"
)


class PipelineStack(cdk.Stack):
    """Everything of the pipeline. What it deploys is in the accounts of its environments.

    Args:
        pipeline: The pipeline's file.
        steps: Its environments.

    Attributes:
        release: The pipeline.
        drift: The pipeline that looks for drift on a schedule; None where the file has none.
    """

    def __init__(self, scope: cdk.App, pipeline: Pipeline, steps: tuple[Step, ...]) -> None:
        names = ", ".join(each.environment.name for each in steps)
        super().__init__(
            scope,
            "Steelyard-Pipeline",
            env=cdk.Environment(account=pipeline.account, region=pipeline.region),
            synthesizer=cdk.DefaultStackSynthesizer(qualifier=pipeline.qualifier),
            description=f"Steelyard: from {pipeline.repository} to {names}",
        )
        cdk.Tags.of(self).add("steelyard:pipeline", pipeline.repository)
        removal = cdk.RemovalPolicy.DESTROY
        description = "Everything that Steelyard's pipeline stores"
        key = EnvironmentKey(self, "Key", removal_policy=removal, description=description).key
        store = ArtifactStore(self, "Store", removal_policy=removal, encryption_key=key)
        store.bucket.add_lifecycle_rule(id="expire", expiration=cdk.Duration.days(pipeline.artifact_days))
        props = BuildProps(
            source=None,
            buildspec=BUILDSPEC,
            encryption_key=key,
            log_retention=RETENTION[pipeline.log_retention_days],
            removal_policy=removal,
            timeout=cdk.Duration.hours(_STAGE_HOURS),
        )
        origin = Origin(connection_arn=pipeline.connection_arn, repository=pipeline.repository, branch=pipeline.branch)
        self.release = ReleasePipeline(
            self,
            "Release",
            origin=origin,
            stages=pipeline_stages(pipeline, steps),
            artifacts=store.bucket,
            encryption_key=key,
            props=props,
        )
        cdk.CfnOutput(self, "PipelineName", value=self.release.pipeline.ref, description="Name of the pipeline")
        self.drift: ReleasePipeline | None = None
        if pipeline.drift_every_hours is None:
            return
        self.drift = ReleasePipeline(
            self,
            "Drift",
            origin=replace(origin, starts=False),
            stages=[drift_stage(pipeline, steps[-1])],
            artifacts=store.bucket,
            encryption_key=key,
            props=props,
        )
        alarms = AlarmTopic(self, "Alarms", emails=pipeline.emails, encryption_key=key)
        ScheduledCheck(
            self,
            "DriftCheck",
            pipeline=self.drift,
            every_hours=pipeline.drift_every_hours,
            meaning=_DRIFTED,
            topic=alarms.topic,
        )
        cdk.CfnOutput(
            self, "DriftPipelineName", value=self.drift.pipeline.ref, description="Pipeline of the drift check"
        )


def pipeline_stages(pipeline: Pipeline, steps: tuple[Step, ...]) -> list[PipelineStage]:
    """Return the stages of a release: the tests, then each environment with the steps that ``pipelines/steps`` has."""
    every = _variables(pipeline)
    stages = [PipelineStage(name="Test", variables={**every, "STEPS": "test"})]
    for position, step in enumerate(steps):
        first, last = position == 0, position == len(steps) - 1
        variables = {
            **every,
            "STEPS": f"{'build' if first else 'promote'} {'watch' if last else 'evaluate'}",
            "TO": step.stage.environment,
            "TO_ROLE": step.stage.role_arn,
        }
        if first:
            stages.append(PipelineStage(name=step.environment.name, variables=variables, roles=[step.stage.role_arn]))
            continue
        origin = steps[position - 1].stage
        stages.append(
            PipelineStage(
                name=step.environment.name,
                variables={
                    **variables,
                    "FROM": origin.environment,
                    "FROM_ROLE": origin.role_arn,
                    "EVIDENCE_SOURCE": f"CODEBUILD_SRC_DIR_{artifact_of(position)}",
                },
                roles=[step.stage.role_arn, origin.role_arn],
                reads=[position],
                approval=f"Deploy to {step.environment.name} what {origin.environment} runs?"
                if step.stage.approval
                else None,
                report=position if step.stage.approval else None,
            )
        )
    return stages


def drift_stage(pipeline: Pipeline, step: Step) -> PipelineStage:
    """Return the stage that looks for drift in an environment."""
    role = step.stage.role_arn
    variables = {**_variables(pipeline), "STEPS": "drift", "TO": step.stage.environment, "TO_ROLE": role}
    return PipelineStage(name=step.environment.name, variables=variables, roles=[role])


def _variables(pipeline: Pipeline) -> dict[str, str]:
    """Return the variables that each stage has, whatever it does."""
    return {
        **_NOTHING,
        "STEPS": "",
        "DECISION": pipeline.decision,
        "CASES": pipeline.cases,
        "ENDPOINT": pipeline.endpoint,
        "WATCH_MINUTES": f"{pipeline.watch_minutes:g}",
        "DRIFT_HOURS": str(pipeline.drift_hours),
    }
