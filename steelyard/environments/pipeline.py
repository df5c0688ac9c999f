"""The file of a pipeline: what it reads, which environments it brings a release to, and by which roles."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from steelyard.environments.files import FOLDER, load_environment
from steelyard.environments.schema import AccountId, Email, Environment, Positive, RegionName
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import sentences
from steelyard_base.strict import Listed, Strict, read_toml
from steelyard_constructs.log_retention import check_log_retention

_RECORDS = "STEELYARD_DECISION_RECORDS"


class Stage(Strict):
    """One environment of a pipeline."""

    environment: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$", description="Its name.")]
    role_arn: Annotated[
        str,
        Field(
            pattern=r"^arn:aws(-[a-z]+)*:iam::[0-9]{12}:role/[A-Za-z0-9_+=,.@/-]+$",
            description="The role in its account that its commands run with.",
        ),
    ]
    approval: Annotated[bool, Field(description="Whether people must approve before it is deployed.")] = False

    @property
    def account(self) -> str:
        """The account of the role."""
        return self.role_arn.split(":")[4]


class Pipeline(Strict):
    """A pipeline of CodePipeline."""

    account: Annotated[AccountId, Field(description="Account of the pipeline itself.")]
    region: Annotated[RegionName, Field(description="Region of the pipeline itself.")]
    qualifier: Annotated[
        str, Field(pattern=r"^[a-z0-9]{1,10}$", description="Qualifier of the CDK's bootstrap in its account.")
    ] = "hnb659fds"
    connection_arn: Annotated[
        str,
        Field(
            pattern=r"^arn:aws(-[a-z]+)*:(codeconnections|codestar-connections):[a-z0-9-]+:[0-9]{12}:connection/[0-9a-f-]{36}$",
            description="Connection to the repository.",
        ),
    ]
    repository: Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+$", description="`owner/name`.")]
    branch: Annotated[
        str, Field(pattern=r"^[A-Za-z0-9_./-]{1,100}$", description="A commit on it starts the pipeline.")
    ]
    decision: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./@-]+$", description="The decision that is evaluated.")]
    cases: Annotated[str, Field(pattern=r"^[A-Za-z0-9_./-]+$", description="Its labelled cases, in the repository.")]
    endpoint: Annotated[str, Field(min_length=1, description="The decision endpoint that is asked.")]
    artifact_days: Annotated[Positive, Field(description="Days for which what a stage found is kept.")] = 90
    log_retention_days: Annotated[int, Field(description="Days for which the logs of builds are kept.")] = 90
    watch_minutes: Annotated[
        float, Field(ge=0.01, le=240, description="Minutes for which the last environment's alarms are watched.")
    ] = 15
    drift_every_hours: Annotated[
        int | None,
        Field(ge=1, le=720, description="How often the last environment is looked at for drift; never unless set."),
    ] = None
    drift_hours: Annotated[
        int, Field(ge=1, le=4380, description="Hours whose answers are compared with those of as many hours before.")
    ] = 168
    emails: Annotated[Listed[Email], Field(description="Who hears of drift.")] = ()
    stages: Annotated[
        Listed[Stage], Field(min_length=2, max_length=10, description="The environments, in the order of promotion.")
    ]

    @field_validator("log_retention_days")
    @classmethod
    def _a_period_of_cloudwatch(cls, value: int) -> int:
        check_log_retention(value)
        return value

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        names = [each.environment for each in self.stages]
        if len(set(names)) < len(names):
            raise ValueError(f"stages has an environment twice: {', '.join(names)}; a release comes to each once")
        if self.stages[0].approval:
            raise ValueError("the first of stages has approval; a commit comes there by itself: remove it")
        return self


@dataclass(frozen=True, kw_only=True)
class Step:
    """A stage with its environment.

    Attributes:
        stage: What the pipeline's file says.
        environment: What the environment's file says.
    """

    stage: Stage
    environment: Environment


def load_pipeline(path: Path, *, folder: Path = FOLDER) -> tuple[Pipeline, tuple[Step, ...]]:
    """Read a pipeline's file and the files of its environments.

    Args:
        path: The file.
        folder: Where environments are looked for by name.

    Raises:
        CommandError: A file is refused, or they do not fit: a role of another account than its environment's, an
            environment that is not promoted to the next, an endpoint that is not there.
    """
    if not path.exists():
        raise CommandError(f"there is no pipeline's file {path}", code=ExitCode.USAGE)
    try:
        pipeline = Pipeline.model_validate(read_toml(path, what="the pipeline's file", code=ExitCode.USAGE))
    except ValidationError as error:
        raise CommandError(
            f"the pipeline's file {path} is refused:\n{sentences(error)}", code=ExitCode.USAGE
        ) from error
    steps = tuple(
        Step(stage=each, environment=load_environment(each.environment, folder=folder)) for each in pipeline.stages
    )
    if faults := _faults(pipeline, steps):
        raise CommandError(
            f"the pipeline's file {path} does not fit its environments:\n" + "\n".join(f"- {each}" for each in faults),
            code=ExitCode.USAGE,
        )
    return pipeline, steps


def _faults(pipeline: Pipeline, steps: tuple[Step, ...]) -> list[str]:
    found = []
    last = steps[-1].environment
    watched = last.endpoints.get(pipeline.endpoint)
    if pipeline.drift_every_hours is not None and (watched is None or watched.environment.get(_RECORDS) != "log"):
        found.append(
            f"drift_every_hours is set, and {last.name} does not record what {pipeline.endpoint} decides: set "
            f'{_RECORDS} = "log" under [endpoints.{pipeline.endpoint}.environment]'
        )
    for step in steps:
        environment = step.environment
        if environment.account not in (None, step.stage.account):
            found.append(
                f"role_arn of {environment.name} is in account {step.stage.account}, and its file has account "
                f"{environment.account}"
            )
    for step, following in pairwise(steps):
        environment, target = step.environment, following.environment
        if target.name not in environment.promotes_to:
            found.append(f'promotes_to of {environment.name} lacks "{target.name}", which comes after it')
        asked = environment.endpoints.get(pipeline.endpoint)
        if asked is None or asked.kind != "decision":
            known = ", ".join(name for name, each in environment.endpoints.items() if each.kind == "decision") or "none"
            found.append(
                f"{environment.name} has no decision endpoint {pipeline.endpoint!r} to evaluate; it has {known}"
            )
    return found
