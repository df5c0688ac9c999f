"""The whole life of an environment, each step asserted, with what AWS answered where only AWS could tell.

It runs on a trial copy of an environment, under a name of its own, and removes the copy at the end whatever happens.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from steelyard.aws.session import Aws, aws_errors
from steelyard.cdk.program import Cdk
from steelyard.deploy import deployment, kept, removal
from steelyard.deploy.endpoints import Say, stacks_of
from steelyard.deploy.leftovers import ENDPOINTS
from steelyard.deploy.preflight import read_quotas, type_names
from steelyard.environments.schema import CreatedNetwork, Endpoint, Environment, NoNetwork
from steelyard.releases.manifest import Release
from steelyard_base.exit_codes import CommandError

State = Literal["passed", "failed", "skipped"]

BREAKS = {"STEELYARD_DECISIONS": "/opt/ml/model/there-is-no-such-folder"}
"""A setting with which a decision server ends before it is healthy."""


class Skipped(Exception):  # noqa: N818 - nothing is wrong
    """A step does not apply; the message says why."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Outcome of one step.

    Attributes:
        step: Its name.
        question: What it asks.
        state: Whether what must hold held.
        seconds: How long it took.
        answered: What AWS answered; for a step that failed or was skipped, why.
        differs: Whether the local cloud would have answered otherwise, as far as its words are known; true of every
            step that failed, because there all of them pass.
    """

    step: str
    question: str
    state: State
    seconds: float
    answered: str
    differs: bool


@dataclass(frozen=True, kw_only=True)
class Trial:
    """The things that the steps work on.

    Attributes:
        aws: Where.
        environment: The trial copy.
        release: What it serves.
        cdk: Makes the CDK's command line for an environment.
        supplies: Provides models and images that are missing.
        say: Receives each step.
        other_type: Another instance type for the endpoints; None leaves that step out.
    """

    aws: Aws
    environment: Environment
    release: Release
    cdk: Callable[[Environment], Cdk]
    supplies: deployment.Supplies
    say: Say
    other_type: str | None = None

    def deploy(self, environment: Environment) -> None:
        """Deploy a version of the trial copy, and look that it is in service."""
        deployment.deploy(
            self.aws,
            environment,
            self.release,
            self.cdk(environment),
            self.say,
            note=self.say,
            supplies=self.supplies,
        )

    def described(self, name: str) -> dict[str, Any]:
        """SageMaker's description of an endpoint."""
        with aws_errors():
            found: dict[str, Any] = self.aws.client("sagemaker").describe_endpoint(
                EndpointName=self.environment.endpoint_name(name)
            )
        return found

    def decision(self) -> str:
        """The first decision endpoint.

        Raises:
            Skipped: There is none.
        """
        for name, endpoint in self.environment.endpoints.items():
            if endpoint.kind == "decision":
                return name
        raise Skipped("the environment has no decision endpoint")


@dataclass(frozen=True, kw_only=True)
class Step:
    """One question to AWS.

    Attributes:
        name: Its name.
        question: What is asked.
        work: Asks it, and gives the answer; an exception other than ``Skipped`` means that what must hold does not.
        rehearsed: Pattern of what the local cloud answers; None where it has no words of its own.
    """

    name: str
    question: str
    work: Callable[[Trial], str]
    rehearsed: str | None = field(default=None)


def trial_of(environment: Environment, *, account: str, sample: bool) -> Environment:
    """The copy of an environment that is deployed and removed: with names of its own, and nothing that outlives it.

    Args:
        environment: The environment.
        account: Its account, whose registry has the images.
        sample: Whether the release is a sample, whose images are made in the copy's own registry.
    """
    images = environment.images
    if sample:
        images = type(images)()
    elif images.account is None:
        images = type(images)(account=account, repository=environment.repository_name)
    builds = type(environment.builds)(models=environment.builds.models, roles=environment.builds.roles)
    return Environment.model_validate(
        {
            **environment.model_dump(mode="json"),
            "name": f"{environment.name}-trial",
            "removal_policy": "destroy",
            "promotes_to": [],
            "artifacts": {},
            "images": images.model_dump(mode="json"),
            "builds": builds.model_dump(mode="json"),
            "alarms": {},
            "budget": None,
        }
    )


def changed(environment: Environment, name: str, change: Callable[[Endpoint], Endpoint]) -> Environment:
    """An environment with one endpoint changed."""
    return environment.model_copy(
        update={"endpoints": {**environment.endpoints, name: change(environment.endpoints[name])}}
    )


def with_variables(variables: dict[str, str]) -> Callable[[Endpoint], Endpoint]:
    """Return a change that adds variables of the container."""
    return lambda endpoint: replace(endpoint, environment={**endpoint.environment, **variables})


def run(trial: Trial, steps: Sequence[Step]) -> list[Result]:
    """Take the steps in their order, and remove the trial copy at the end whatever happens.

    A step that fails does not end the run, unless it is the first deployment, without which there is nothing to ask.
    """
    results: list[Result] = []
    try:
        for step in steps:
            trial.say(f"{step.name}: {step.question}")
            results.append(_taken(trial, step))
            if step.name == "deploy" and results[-1].state == "failed":
                break
    finally:
        clean = Step(name="remove", question="Is nothing of the trial left?", work=remove)
        trial.say(f"{clean.name}: {clean.question}")
        results.append(_taken(trial, clean))
    return results


def _taken(trial: Trial, step: Step) -> Result:
    began = time.monotonic()
    state: State = "passed"
    try:
        answered = step.work(trial)
    except Skipped as reason:
        state, answered = "skipped", str(reason)
    except CommandError as error:
        state, answered = "failed", " ".join(part for part in (error.message, error.hint) if part)
    # Nobody has tried these steps there: whatever breaks is an answer, and what was asked before it is reported.
    except Exception as error:
        state, answered = "failed", f"{type(error).__name__}: {error}"
    unlike = state == "passed" and step.rehearsed is not None and not re.search(step.rehearsed, answered)
    return Result(
        step=step.name,
        question=step.question,
        state=state,
        seconds=round(time.monotonic() - began, 1),
        answered=answered,
        differs=unlike or state == "failed",
    )


def remove(trial: Trial) -> str:
    """Destroy the trial copy with all that is in it, and look that nothing carries its name or tag.

    Raises:
        CommandError: Something is left; the message names it.
    """
    removal.destroy(trial.aws, trial.environment, trial.cdk(trial.environment), trial.say, note=trial.say)
    for each in kept.kept_resources(trial.aws, trial.environment):
        if each.service in ("s3", "ecr", "logs"):
            trial.say(kept.delete(trial.aws, each))
    left = [each.arn for each in kept.kept_resources(trial.aws, trial.environment) if each.service != "kms"]
    if left:
        raise CommandError(f"these are left: {', '.join(left)}")
    return "nothing is left"


def _deploy(trial: Trial) -> str:
    trial.deploy(trial.environment)
    return "; ".join(
        f"{name} is {found['EndpointStatus']} with {found['EndpointConfigName']}"
        for name, found in ((name, trial.described(name)) for name in trial.environment.endpoints)
    )


def _policies(trial: Trial) -> str:
    found = {name: trial.described(name).get("LastDeploymentConfig", {}) for name in trial.environment.endpoints}
    for name, endpoint in trial.environment.endpoints.items():
        if (kept_policy := _policy(found[name])) != (wanted := _declared_policy(endpoint)):
            raise CommandError(f"{name} is declared with {wanted}, and SageMaker keeps {kept_policy}: {found[name]}")
    return json.dumps(found, sort_keys=True)


def _declared_policy(endpoint: Endpoint) -> str:
    if endpoint.rolling is not None:
        return f"ROLLING {endpoint.rolling.percent}"
    return "ALL_AT_ONCE" if endpoint.canary is None else f"CANARY {endpoint.canary.percent}"


def _policy(config: dict[str, Any]) -> str:
    """A ``DeploymentConfig`` in the words of ``_declared_policy``."""
    if (rolling := config.get("RollingUpdatePolicy")) is not None:
        return f"ROLLING {rolling['MaximumBatchSize']['Value']}"
    routing = config.get("BlueGreenUpdatePolicy", {}).get("TrafficRoutingConfiguration", {})
    size = routing.get("CanarySize", {}).get("Value")
    return f"{routing.get('Type', 'no policy')}{'' if size is None else f' {size}'}"


def _again(trial: Trial) -> str:
    before = {name: trial.described(name) for name in trial.environment.endpoints}
    trial.deploy(trial.environment)
    for name, old in before.items():
        new = trial.described(name)
        if new["EndpointConfigName"] != old["EndpointConfigName"]:
            raise CommandError(f"{name} got another configuration: {new['EndpointConfigName']}")
    moved = [
        name for name, old in before.items() if trial.described(name)["LastModifiedTime"] != old["LastModifiedTime"]
    ]
    return f"touched: {', '.join(moved)}" if moved else "untouched"


def _logs(trial: Trial) -> str:
    counts = {}
    for name in trial.environment.endpoints:
        group = ENDPOINTS + trial.environment.endpoint_name(name)
        with aws_errors():
            counts[name] = len(trial.aws.client("logs").describe_log_streams(logGroupName=group)["logStreams"])
        if not counts[name]:
            raise CommandError(f"the log group {group} has no stream: the container wrote nothing")
    return json.dumps(counts)


def _update(trial: Trial) -> str:
    name = trial.decision()
    old = trial.described(name)["EndpointConfigName"]
    trial.deploy(changed(trial.environment, name, with_variables({"STEELYARD_LOG_LEVEL": "debug"})))
    new = trial.described(name)["EndpointConfigName"]
    if new == old:
        raise CommandError(f"{name} still has the configuration {old}")
    return f"{old} became {new}"


def _broken_update(trial: Trial) -> str:
    name = trial.decision()
    old = trial.described(name)["EndpointConfigName"]
    try:
        trial.deploy(changed(trial.environment, name, with_variables(BREAKS)))
    except CommandError:
        found = trial.described(name)
    else:
        raise CommandError(f"{name} took an update whose container cannot start")
    if (found["EndpointStatus"], found["EndpointConfigName"]) != ("InService", old):
        raise CommandError(
            f"{name} is {found['EndpointStatus']} with {found['EndpointConfigName']}, and not with {old}"
        )
    return str(found.get("FailureReason", "no FailureReason"))


def _rollback(trial: Trial) -> str:
    trial.deploy(trial.environment)
    return "the version of before is in service"


def _other_types(trial: Trial) -> str:
    scaled = [name for name, each in trial.environment.endpoints.items() if each.scaling is not None]
    if trial.other_type is None or not scaled:
        raise Skipped("no endpoint is scaled" if not scaled else "no --other-type is given")
    other = trial.other_type
    name = scaled[0]
    answered = _refused_types(trial, name, other)
    trial.deploy(changed(trial.environment, name, lambda each: replace(each, instance_type=other, instance_pool=())))
    return answered


def _refused_types(trial: Trial, name: str, other: str) -> str:
    """Ask for another type under a scalable target, past our own gate."""
    sagemaker, config = trial.aws.client("sagemaker"), f"{trial.environment.endpoint_name(name)}-types"
    with aws_errors():
        standing = sagemaker.describe_endpoint_config(EndpointConfigName=trial.described(name)["EndpointConfigName"])
    variant = {key: value for key, value in standing["ProductionVariants"][0].items() if key != "InstancePools"}
    with _config(trial, config, {**variant, "InstanceType": other}):
        return _refusal(
            lambda: sagemaker.update_endpoint(
                EndpointName=trial.described(name)["EndpointName"], EndpointConfigName=config
            )
        )


def _quota(trial: Trial) -> str:
    name, endpoint = next(iter(trial.environment.endpoints.items()))
    kind = type_names(endpoint)[0]
    quota = read_quotas(trial.aws).get(kind)
    if quota is None:
        raise Skipped(f"Service Quotas tells none for {kind}")
    sagemaker, made = trial.aws.client("sagemaker"), f"{trial.environment.endpoint_name(name)}-quota"
    with aws_errors():
        standing = sagemaker.describe_endpoint_config(EndpointConfigName=trial.described(name)["EndpointConfigName"])
    variant = {key: value for key, value in standing["ProductionVariants"][0].items() if key != "InstancePools"}
    with _config(trial, made, {**variant, "InstanceType": kind, "InitialInstanceCount": quota.value + 1}):
        try:
            return _refusal(lambda: sagemaker.create_endpoint(EndpointName=made, EndpointConfigName=made))
        except CommandError:
            with aws_errors():
                sagemaker.delete_endpoint(EndpointName=made)
            raise


def _other_network(trial: Trial) -> str:
    """Deploy another copy in a VPC, or without one if the trial copy is in one, and remove it."""
    outside = isinstance(trial.environment.network, NoNetwork)
    change = {"name": f"{trial.environment.name}-vpc", "network": CreatedNetwork(kind="created")}
    if not outside:
        change = {"name": f"{trial.environment.name}-open", "network": NoNetwork()}
    copy = replace(trial, environment=trial.environment.model_copy(update=change))
    try:
        copy.deploy(copy.environment)
    finally:
        remove(copy)
    where = "in" if outside else "without"
    return f"deployed {where} a VPC and removed; {len(stacks_of(trial.aws, copy.environment))} stacks are left"


def _refusal(call: Callable[[], object]) -> str:
    """AWS's words for a call that it must refuse.

    Raises:
        CommandError: It did not.
    """
    from botocore.exceptions import ClientError

    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Message"])
    raise CommandError("AWS did not refuse it")


class _config:  # noqa: N801 - used as a function
    """An endpoint configuration for the length of a block."""

    def __init__(self, trial: Trial, name: str, variant: dict[str, Any]) -> None:
        self._client, self._name, self._variant = trial.aws.client("sagemaker"), name, variant

    def __enter__(self) -> None:
        with aws_errors():
            self._client.create_endpoint_config(EndpointConfigName=self._name, ProductionVariants=[self._variant])

    def __exit__(self, *_: object) -> None:
        with aws_errors():
            self._client.delete_endpoint_config(EndpointConfigName=self._name)


STEPS: tuple[Step, ...] = (
    Step(name="deploy", question="Does a first deployment come into service?", work=_deploy),
    Step(name="policies", question="Does SageMaker keep the update policies that are declared?", work=_policies),
    Step(
        name="again",
        question="Does a deployment without a change leave the endpoints alone?",
        work=_again,
        rehearsed=r"^untouched$",
    ),
    Step(name="logs", question="Does a role that may not make the log group write into it?", work=_logs),
    Step(
        name="quota",
        question="In which words is more than the quota refused?",
        work=_quota,
        rehearsed=r"^The account-level service limit '.*' is [0-9]+ Instances, with current utilization of [0-9]+ ",
    ),
    Step(name="update", question="Does an update reach the endpoint?", work=_update),
    Step(
        name="broken-update",
        question="Is an update that cannot start taken back, and why does SageMaker say so?",
        work=_broken_update,
        rehearsed=r"did not pass the ping health check",
    ),
    Step(name="rollback", question="Does the version of before come back?", work=_rollback),
    Step(
        name="other-types",
        question="Are other instance types refused under scaling, and do two deployments change them?",
        work=_other_types,
        rehearsed=r"must be deregistered as scalable targets",
    ),
    Step(
        name="vpc",
        question="Does it come and go in a VPC too, or without one?",
        work=_other_network,
        rehearsed=r"; 0 stacks are left$",
    ),
)


def write_report(results: Sequence[Result], folder: Path, *, where: str) -> tuple[Path, Path]:
    """Write ``report.json`` and ``report.md``.

    Args:
        results: The outcomes.
        folder: Where to; it is made.
        where: Account and region, for the heading.

    Returns:
        Both paths.
    """
    folder.mkdir(parents=True, exist_ok=True)
    data, page = folder / "report.json", folder / "report.md"
    data.write_text(json.dumps([asdict(each) for each in results], indent=2) + "\n", encoding="utf-8")
    lines = [f"# Acceptance in {where}", "", "| step | | s | answered |", "| --- | --- | --- | --- |"]
    lines += [f"| {each.step} | {each.state} | {each.seconds:g} | {_cell(each.answered)} |" for each in results]
    lines += ["", "## What the local cloud would have answered otherwise", ""]
    differing = [each for each in results if each.differs]
    lines += [f"- {each.step}: {_cell(each.answered)}" for each in differing] or ["Nothing."]
    page.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return data, page


def _cell(text: str) -> str:
    return text.replace("\n", " ").replace("|", "\\|")
