"""The pipeline's stack, and the file that it is made of."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import aws_cdk as cdk
import pytest
import yaml
from constructs import IConstruct

from environment_assemblies import of_type, only
from stacks.context import choices
from stacks.environment_app import pinned_context
from stacks.pipeline_stack import PipelineStack, pipeline_stages
from steelyard.environments.files import load_environment
from steelyard.environments.pipeline import Pipeline, Step, load_pipeline
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.refusal import Refused
from steelyard_constructs.release_pipeline import PipelineStage, _check

PIPELINES = Path(__file__).resolve().parents[2] / "pipelines"
EXAMPLE = PIPELINES / "aws" / "pipeline.toml"
TEXT = EXAMPLE.read_text()


def pipeline(*, dev: bool = True, **changes: Any) -> tuple[Pipeline, tuple[Step, ...]]:
    """The example with dev before it, and what prod decides recorded; in other accounts and regions."""
    data = {**tomllib.loads(TEXT), **changes}
    if dev:
        role = "arn:aws:iam::777788889999:role/steelyard-pipeline-dev"
        data["stages"] = [{"environment": "dev", "role_arn": role}, *data["stages"]]
    found = Pipeline.model_validate(data)
    return found, tuple(Step(stage=each, environment=load_environment(each.environment)) for each in found.stages)


@cache
def made() -> tuple[PipelineStack, dict[str, Any]]:
    """The stack of the example with a drift check, and its template."""
    app = cdk.App(context=pinned_context(), outdir=mkdtemp(), analytics_reporting=False)
    stack = PipelineStack(app, *pipeline(dev=False, drift_every_hours=24, emails=["oncall@example.com"]))
    template: dict[str, Any] = app.synth().get_stack_by_name(stack.stack_name).template
    return stack, template


def pipelines() -> dict[str, dict[str, Any]]:
    """The pipelines of the template, by the beginning of their names."""
    found = {
        name: each["Properties"]
        for name, each in made()[1]["Resources"].items()
        if each["Type"] == "AWS::CodePipeline::Pipeline"
    }
    return {name.removesuffix(name[-16:]): each for name, each in found.items()}


def statements(template: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What roles may do, with the logical id of their policy."""
    for name, resource in template["Resources"].items():
        if resource["Type"] == "AWS::IAM::Policy":
            for each in resource["Properties"]["PolicyDocument"]["Statement"]:
                yield {"Policy": name, **each}


def test_no_finding_of_cdk_nag(nag_findings: Callable[[IConstruct], list[str]]) -> None:
    assert nag_findings(made()[0]) == []


def test_no_finding_of_cfn_lint() -> None:
    from cfnlint.api import ManualArgs, lint

    found = lint(json.dumps(made()[1]), config=ManualArgs(regions=["us-east-1"], ignore_checks=["W3005"]))
    assert [f"{match.rule.id} {match.message}" for match in found] == []


def test_stages_and_what_they_hand_on() -> None:
    declared = pipelines()["Release"]
    assert (declared["PipelineType"], declared["ExecutionMode"]) == ("V2", "QUEUED")
    assert declared["ArtifactStore"]["EncryptionKey"]["Type"] == "KMS"
    assert [each["Name"] for each in declared["Stages"]] == ["Source", "Test", "staging", "prod"]
    source, _, staging, prod = declared["Stages"]
    assert source["Actions"][0]["Configuration"]["OutputArtifactFormat"] == "CODEBUILD_CLONE_REF"
    approval, run = prod["Actions"]
    assert approval["Configuration"]["ExternalEntityLink"] == "#{Found1.REPORT}"
    assert staging["Actions"][0]["Namespace"] == "Found1"
    assert (approval["RunOrder"], run["RunOrder"]) == (1, 2)
    assert [each["Name"] for each in run["InputArtifacts"]] == ["Source", "Found1"]


def test_roles_are_assumed_by_their_stage_alone_and_nothing_has_a_star() -> None:
    allowed = {each["Policy"]: each["Resource"] for each in statements(made()[1]) if each["Action"] == "sts:AssumeRole"}
    staging, prod = (
        f"arn:aws:iam::{account}:role/steelyard-pipeline-{name}"
        for account, name in (("111122223333", "staging"), ("444455556666", "prod"))
    )
    assert {
        next(name for name in ("Releasestaging", "Releaseprod", "Driftprod") if name in policy): roles
        for policy, roles in allowed.items()
    } == {"Releasestaging": staging, "Releaseprod": [staging, prod], "Driftprod": prod}
    for each in statements(made()[1]):
        actions = each["Action"] if isinstance(each["Action"], list) else [each["Action"]]
        assert not [action for action in actions if "*" in action]
        resources = each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
        for resource in resources:
            # Only objects of its own buckets are named by a prefix.
            assert "*" not in json.dumps(resource) or json.dumps(resource).endswith('"/*"]]}'), each


def test_what_it_stores_is_encrypted_and_expires() -> None:
    for bucket in of_type(made()[1], "AWS::S3::Bucket"):
        assert bucket["BucketEncryption"]
        assert [each for each in bucket["LifecycleConfiguration"]["Rules"] if "ExpirationInDays" in each]
    for group in of_type(made()[1], "AWS::Logs::LogGroup"):
        assert group["RetentionInDays"]
    for project in of_type(made()[1], "AWS::CodeBuild::Project"):
        assert project["EncryptionKey"]
        assert project["Source"]["Type"] == project["Artifacts"]["Type"] == "CODEPIPELINE"


def test_drift_is_looked_for_on_a_schedule_in_the_last_environment() -> None:
    template = made()[1]
    drift = pipelines()["Drift"]
    assert [each["Name"] for each in drift["Stages"]] == ["Source", "prod"]
    starts = {
        name: each["Stages"][0]["Actions"][0]["Configuration"]["DetectChanges"] for name, each in pipelines().items()
    }
    assert starts == {"Release": "true", "Drift": "false"}
    (target,) = only(template, "AWS::Events::Rule")["Targets"]
    assert only(template, "AWS::Events::Rule")["ScheduleExpression"] == "rate(24 hours)"
    (start,) = [each for each in statements(template) if each["Action"] == "codepipeline:StartPipelineExecution"]
    assert start["Resource"] == target["Arn"]
    alarm = only(template, "AWS::CloudWatch::Alarm")
    assert (alarm["Namespace"], alarm["MetricName"]) == ("AWS/CodeBuild", "FailedBuilds")
    assert alarm["AlarmActions"]
    assert only(template, "AWS::SNS::Subscription")["Endpoint"] == "oncall@example.com"
    app = cdk.App(context=pinned_context(), outdir=mkdtemp(), analytics_reporting=False)
    assert PipelineStack(app, *pipeline(dev=False)).drift is None


def test_several_accounts_and_regions() -> None:
    app = cdk.App(context=pinned_context(), outdir=mkdtemp(), analytics_reporting=False)
    stack = PipelineStack(app, *pipeline(account="999900001111", region="eu-central-1"))
    assert (stack.account, stack.region) == ("999900001111", "eu-central-1")
    stages = {each.name: each for each in pipeline_stages(*pipeline())}
    accounts = {name: [role.split(":")[4] for role in each.roles] for name, each in stages.items()}
    assert accounts == {
        "Test": [],
        "dev": ["777788889999"],
        "staging": ["111122223333", "777788889999"],
        "prod": ["444455556666", "111122223333"],
    }
    assert [each.reads for each in stages.values()] == [(), (), [1], [2]]


def test_the_steps_are_those_of_the_workflow() -> None:
    jobs = yaml.safe_load((PIPELINES / "github" / "release.yml").read_text())["jobs"]
    workflow = {
        name: [Path(each["run"]).stem for each in job["steps"] if each.get("run", "").startswith("pipelines/steps/")]
        for name, job in jobs.items()
    }
    steps = {each.name: each.variables["STEPS"].split() for each in pipeline_stages(*pipeline())}
    assert workflow == {"dev": steps["Test"] + steps["dev"], "staging": steps["staging"], "prod": steps["prod"]}
    spec = yaml.safe_load((PIPELINES / "aws" / "stage.buildspec.yml").read_text())
    said = " ".join(spec["phases"]["build"]["commands"])
    variables = {*pipeline_stages(*pipeline())[0].variables, *re.findall(r"([A-Z]+)=", said)}
    for script in (PIPELINES / "steps").iterdir():
        assert set(re.findall(r"\$([A-Z_]+)", script.read_text())) <= variables, script.name


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('account = "5', 'acount = "5', "acount"),
        ("codeconnections:us", "codeconections:us", "connection_arn"),
        ("watch_minutes = 15", "watch_minutes = 0", "watch_minutes"),
        ("log_retention_days = 90", "log_retention_days = 91", "cannot keep logs for 91 days"),
        ('environment = "prod"', 'environment = "staging"', "an environment twice: staging, staging"),
        ('"staging"\n', '"staging"\napproval = true\n', "the first of stages has approval"),
        ("::111122223333:", "::999922223333:", "is in account 999922223333, and its file has account 111122223333"),
        (
            '"decision-cpu"',
            '"decision"',
            "no decision endpoint 'decision' to evaluate; it has decision-cpu, decision-gpu",
        ),
        ('environment = "prod"', 'environment = "dev"', 'promotes_to of staging lacks "dev"'),
        (
            "# drift_every",
            "drift_every",
            "drift_every_hours is set, and prod does not record what decision-cpu decides",
        ),
        ('environment = "prod"', 'environment = "absent"', "there is no environment 'absent'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in TEXT
    path = tmp_path / "pipeline.toml"
    path.write_text(TEXT.replace(old, new, 1))
    with pytest.raises(CommandError) as refused:
        load_pipeline(path)
    assert said in refused.value.message
    assert refused.value.code is ExitCode.USAGE


def test_a_pipeline_is_chosen_alone() -> None:
    assert choices({"pipeline": "x.toml"}).pipeline == Path("x.toml")
    with pytest.raises(CommandError, match="'pipeline' is given with environment, release"):
        choices({"pipeline": "x.toml", "env": "prod", "release": "1"})
    with pytest.raises(CommandError, match=r"there is no pipeline's file absent\.toml"):
        load_pipeline(Path("absent.toml"))


def test_stages_that_cannot_be_are_refused() -> None:
    one = PipelineStage(name="One", variables={})
    for stages, said in (
        ([], "without stages"),
        ([one, one], "each needs a name of its own"),
        ([PipelineStage(name="Source", variables={})], "none is Source"),
        ([PipelineStage(name="Two", variables={}, reads=[0])], "which does not come before it"),
    ):
        with pytest.raises(Refused, match=said):
            _check(stages)
