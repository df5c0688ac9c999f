"""The pipeline that ``stacks/pipeline_stack.py`` declares runs in the local cloud, stage by stage, from a commit to the
last environment. Only building and synthesizing are the test's; the steps, the roles and the rest are as declared.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aws_cdk as cdk
import pytest
from alarms import rollback_alarm_goes_off
from by_templates import deploy_template
from test_promotion import BASE, CASES, DECISION, ENDPOINT, KEPT, Clouds
from world import PROCESSES

from environment_assemblies import app_of
from stacks.environment_app import pinned_context
from stacks.pipeline_stack import PipelineStack
from steelyard.deploy.local_cloud import reached
from steelyard.environments.files import parse_environment
from steelyard.environments.pipeline import Pipeline, Step
from steelyard.releases.manifest import parse_release
from steelyard_localcloud.cloud import LocalCloud

ROOT = Path(__file__).resolve().parents[2]
OPERATOR = "arn:aws:iam::000000000000:role/operator"
REPOSITORY = "example/decisions"
STAGED = {"environment": "dev", "role_arn": OPERATOR}
FILE = {
    "account": "000000000000",
    "region": "us-east-1",
    "connection_arn": f"arn:aws:codeconnections:us-east-1:000000000000:connection/{'0' * 8}-0000-0000-0000-{'0' * 12}",
    "repository": REPOSITORY,
    "branch": "main",
    "decision": "teams.json",
    "cases": "cases.jsonl",
    "endpoint": "decision",
    "watch_minutes": 0.01,
    "drift_every_hours": 24,
    "drift_hours": 1,
    "emails": ["oncall@example.com"],
    "stages": [STAGED, {**STAGED, "environment": "staging", "approval": True}],
}
PULLED = {"images": {"account": "000000000000", "repository": "steelyard-dev"}}
RECORDED = {"endpoints": {"decision": {**ENDPOINT, "environment": {"STEELYARD_DECISION_RECORDS": "log"}}}}
ENVIRONMENTS = {"dev": BASE, "staging": {**BASE, **PULLED, **RECORDED, "gates": KEPT}}


class Project:
    """The repository that the pipeline starts from, and the pipeline."""

    def __init__(self, cloud: LocalCloud, folder: Path, source: Path) -> None:
        self.cloud, self.folder, self.source = cloud, folder, source
        self.link = ""
        self.clouds = Clouds(cloud, folder / "releases")
        self.client = cloud.client("codepipeline")
        self._write_models()
        self._write_source()
        self.commit("first")
        self._make_operator()
        self.name, self.drift = self._deploy()

    def commit(self, release: str, **gates: Any) -> None:
        """Change what the source says: the release that it builds to, and the gates of staging."""
        staging = {**ENVIRONMENTS["staging"], "gates": {**KEPT, **gates}}
        made = {
            "release": release,
            "environments": {**ENVIRONMENTS, "staging": staging},
            "home": self.cloud.details.home,
            "releases": str(self.folder / "releases"),
            "models": str(self.folder / "models"),
            "templates": str(self.folder / "templates"),
        }
        (self.source / "made.json").write_text(json.dumps(made))

    def ensure(self) -> None:
        """Bring the first release to staging, unless something is there."""
        if not self.link:
            assert self.run() == "Succeeded", self.log("staging")

    def run(self) -> str:
        """Run it to its end, with approval."""
        execution = self.start()
        self.link = self.approve(execution)
        return self.finish(execution)

    def start(self, name: str | None = None) -> str:
        return str(self.client.start_pipeline_execution(name=name or self.name)["pipelineExecutionId"])

    def status(self, execution: str, name: str | None = None) -> str:
        found = self.client.get_pipeline_execution(pipelineName=name or self.name, pipelineExecutionId=execution)
        return str(found["pipelineExecution"]["status"])

    def action(self, stage: str, action: str) -> dict[str, Any]:
        """The latest state of an action."""
        (found,) = [
            each.get("latestExecution", {})
            for one in self.client.get_pipeline_state(name=self.name)["stageStates"]
            for each in one["actionStates"]
            if (one["stageName"], each["actionName"]) == (stage, action)
        ]
        return dict(found)

    def approve(self, execution: str, status: str = "Approved") -> str:
        """Answer the approval when it is asked for; the address that it shows."""
        wait_for(lambda: self.status(execution) != "InProgress" or "token" in self.action("staging", "Approve"))
        assert self.status(execution) == "InProgress", self.log("dev")
        found = self.action("staging", "Approve")
        self.client.put_approval_result(
            pipelineName=self.name,
            stageName="staging",
            actionName="Approve",
            result={"status": status, "summary": "it is better"},
            token=found["token"],
        )
        return str(found["summary"])

    def finish(self, execution: str, name: str | None = None) -> str:
        wait_for(lambda: self.status(execution, name) != "InProgress")
        return self.status(execution, name)

    def log(self, stage: str) -> str:
        """All that the builds of a stage have said."""
        logs = sorted((Path(self.cloud.details.home) / "logs").glob(f"codebuild-*{stage}*.log"))
        return "\n".join(each.read_text() for each in logs)

    def _write_models(self) -> None:
        for name, model in self.clouds.models.items():
            into = self.folder / "models" / f"tiny-{name}"
            into.mkdir(parents=True)
            shutil.copy(model.path, into / "weights")
            (into / "manifest").write_bytes(model.manifest)
            if name != "broken":
                manifest = json.dumps(
                    json.loads((self.folder / "releases" / f"{name}.json").read_text()), sort_keys=True
                )
                for environment in ENVIRONMENTS:
                    shutil.copytree(
                        self._assembly(environment, manifest), self.folder / "templates" / f"{environment}-{name}"
                    )

    def _assembly(self, name: str, manifest: str) -> str:
        environment = parse_environment(ENVIRONMENTS[name], name=name, source="the test")
        folder: str = app_of(environment, parse_release(json.loads(manifest), source="the test")).synth().directory
        return folder

    def _write_source(self) -> None:
        shutil.copytree(ROOT / "pipelines", self.source / "pipelines")
        (self.source / "Makefile").write_text("setup:\n\t@true\ncheck:\n\t@true\n")
        (self.source / "teams.json").write_text(json.dumps(DECISION))
        (self.source / "cases.jsonl").write_text("".join(json.dumps(each) + "\n" for each in CASES))
        program = self.source / ".venv" / "bin" / "steelyard"
        program.parent.mkdir(parents=True)
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT / "tests/deploy/stage_command.py"} "$@"\n')
        program.chmod(0o755)

    def _make_operator(self) -> None:
        """The role of both environments, which are in one account here."""
        iam = self.cloud.client("iam")
        trust = {"Effect": "Allow", "Principal": {"AWS": "arn:aws:iam::000000000000:root"}, "Action": "sts:AssumeRole"}
        everything = {"Effect": "Allow", "Action": "*", "Resource": "*"}
        iam.create_role(RoleName="operator", AssumeRolePolicyDocument=json.dumps(policy(trust)))
        iam.put_role_policy(RoleName="operator", PolicyName="it", PolicyDocument=json.dumps(policy(everything)))

    def _deploy(self) -> tuple[str, str]:
        app = cdk.App(context=pinned_context(), outdir=str(self.folder / "pipeline"), analytics_reporting=False)
        pipeline = Pipeline.model_validate(FILE)
        steps = tuple(
            Step(
                stage=each,
                environment=parse_environment(ENVIRONMENTS[each.environment], name=each.environment, source=""),
            )
            for each in pipeline.stages
        )
        stack = PipelineStack(app, pipeline, steps)
        template = app.synth().get_stack_by_name(stack.stack_name).template
        deploy_template(self.clouds.aws, stack.stack_name, template)
        (found,) = self.cloud.client("cloudformation").describe_stacks(StackName=stack.stack_name)["Stacks"]
        outputs = {each["OutputKey"]: str(each["OutputValue"]) for each in found["Outputs"]}
        return outputs["PipelineName"], outputs["DriftPipelineName"]


def policy(statement: dict[str, Any]) -> dict[str, Any]:
    return {"Version": "2012-10-17", "Statement": [statement]}


def wait_for(it: Callable[[], bool]) -> None:
    until = time.monotonic() + 300
    while not it():
        assert time.monotonic() < until, "it does not come"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("made")
    (folder / "releases").mkdir()
    with (
        LocalCloud(
            tmp_path_factory.mktemp("cloud"),
            environment=PROCESSES,
            longest_wait_s=0.2,
            repositories={REPOSITORY: str(source)},
        ) as cloud,
        reached(cloud.environment()),
    ):
        yield Project(cloud, folder, source)


@pytest.mark.timeout(600)  # beside other work; each stage is a build with processes of its own
def test_from_a_commit_to_the_last_environment(project: Project) -> None:
    project.ensure()
    assert project.clouds.serves("staging") == "first"
    assert project.clouds.told("dev")[-1] == ("deploy", "first", "done")
    assert project.clouds.told("staging")[-1] == ("promote", "first", "done")
    assert project.link.startswith("https://us-east-1.console.aws.amazon.com/codesuite/codebuild/projects/")
    assert "no alarm of staging was on" in project.log("staging")


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_in_the_middle_run_again_and_promoted_twice(project: Project) -> None:
    project.ensure()
    project.commit("second")
    killed = project.start()
    project.approve(killed)
    wait_for(lambda: project.log("staging").count("cdk deploy --all") == 2)
    project.client.stop_pipeline_execution(pipelineName=project.name, pipelineExecutionId=killed, abandon=True)
    assert project.finish(killed) == "Stopped"
    assert ("promote", "second", "done") not in project.clouds.told("staging")
    assert project.run() == "Succeeded", project.log("staging")
    assert project.clouds.serves("staging") == "second"
    events = len(project.clouds.told("staging"))
    assert project.run() == "Succeeded"
    assert "release second runs in staging already; nothing was changed" in project.log("staging")
    assert len(project.clouds.told("staging")) == events


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_what_stops_it(project: Project) -> None:
    project.ensure()
    other = "first" if project.clouds.serves("staging") == "second" else "second"
    a_missed_gate_stops_it(project, other)
    a_rejection_stops_it(project)
    an_alarm_takes_the_deployment_back(project, other)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_drift_fails_its_check_and_sets_off_its_alarm(project: Project) -> None:
    project.ensure()
    drift_fails_its_check_and_sets_off_its_alarm(project)


def a_missed_gate_stops_it(project: Project, release: str) -> None:
    project.commit(release, log_loss_at_most=0)
    execution = project.start()
    project.approve(execution)
    assert project.finish(execution) == "Failed"
    assert "exit status 8" in project.action("staging", "Run")["errorDetails"]["message"]
    assert "log loss, at most 0: it is" in project.log("staging")
    assert project.clouds.serves("dev") == release


def a_rejection_stops_it(project: Project) -> None:
    execution = project.start()
    project.approve(execution, "Rejected")
    assert project.finish(execution) == "Failed"
    assert project.action("staging", "Approve")["errorDetails"]["message"] == "Rejected: it is better"


def an_alarm_takes_the_deployment_back(project: Project, release: str) -> None:
    project.commit(release)
    execution = project.start()
    project.approve(execution)
    with rollback_alarm_goes_off(project.cloud, "Steelyard-staging-Endpoint") as names:
        assert project.finish(execution) == "Failed"
    said = project.log("staging")
    assert "exit status 1" in project.action("staging", "Run")["errorDetails"]["message"]
    assert any(f"alarms that went off: {name}" in said for name in names), said[-3000:]
    assert project.clouds.told("staging")[-1] == ("promote", release, "failed")


def answered(project: Project, option: str, *, hours_ago: float) -> None:
    """Write records of a hundred answers into the log of staging's endpoint, as its server does."""
    answer = {"option": option, "answer": 0, "probabilities": [0.9, 0.1], "action": "automate"}
    message = json.dumps({"event": "decision", "decision": "teams@1", "question_sha256": "0" * 64, **answer})
    where = {"logGroupName": "/aws/sagemaker/Endpoints/steelyard-staging-decision", "logStreamName": f"of-{option}"}
    logs, at = project.cloud.client("logs"), int((time.time() - hours_ago * 3600) * 1000)
    logs.create_log_stream(**where)
    logs.put_log_events(**where, logEvents=[{"timestamp": at + number, "message": message} for number in range(100)])


def drift_fails_its_check_and_sets_off_its_alarm(project: Project) -> None:
    cloudwatch = project.cloud.client("cloudwatch")

    def alarm() -> str:
        (found,) = cloudwatch.describe_alarms(AlarmNamePrefix="Steelyard-Pipeline-")["MetricAlarms"]
        return str(found["StateValue"])

    assert project.finish(project.start(project.drift), project.drift) == "Succeeded", project.log("Drift")
    assert "one of the two periods has no records; nothing is compared" in project.log("Drift")
    assert alarm() != "ALARM"
    answered(project, "billing", hours_ago=1.5)
    answered(project, "shipping", hours_ago=0.5)
    assert project.finish(project.start(project.drift), project.drift) == "Failed"
    assert "1 of 1 decisions moved beyond noise: teams@1: options" in project.log("Drift")
    wait_for(lambda: alarm() == "ALARM")
