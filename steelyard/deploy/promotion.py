"""Promotion of a release: what runs in one environment, and whether another can reach and run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from steelyard.aws.session import Aws, aws_errors
from steelyard.client.sagemaker import EndpointClient
from steelyard.deploy.deployment import Supplies, artifact_bucket, check_serving, models_of
from steelyard.deploy.endpoints import Say, deployed_endpoint
from steelyard.deploy.preflight import account_check
from steelyard.environments.schema import DECISIONS_VARIABLE, Environment
from steelyard.releases.checks import image_faults, model_faults, own_registry, scan_counts
from steelyard.releases.manifest import MODEL_MANIFEST, Release, ReleasedModel, load_release
from steelyard.releases.packing import copy_object
from steelyard.releases.record import deployed
from steelyard.releases.served import Served, served_by
from steelyard.releases.tags import tag_images
from steelyard_base.checks import Level
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.gates import GateResult, Gates, judge

QUESTION = {
    "decision": {
        "id": "identity",
        "state": "a release",
        "question": "Is this a question?",
        "options": [{"id": "yes", "description": "yes"}, {"id": "no", "description": "no"}],
    }
}
"""Its answer says what the server is."""

ANSWER_S = 120.0

Report = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Place:
    """An environment, and the way to it.

    Attributes:
        aws: Clients with the credentials of its account.
        environment: The environment.
    """

    aws: Aws
    environment: Environment

    def check_account(self) -> None:
        """Refuse credentials of another account than the environment's.

        Raises:
            CommandError: They are.
        """
        check = account_check(self.aws.account(), self.environment)
        if check.level is Level.FAILED:
            raise CommandError(check.finding, code=ExitCode.USAGE, hint=check.advice)

    def bucket(self) -> str:
        """Return the bucket of artifacts.

        Raises:
            CommandError: It is not deployed.
        """
        return artifact_bucket(self.aws, self.environment)


def release_of(place: Place) -> Release:
    """Return the release that the stacks of an environment name.

    Raises:
        CommandError: An endpoint is not deployed, they name several, or the manifest is nowhere.
    """
    environment = place.environment
    if not environment.endpoints:
        raise CommandError(f"the environment {environment.name} has no endpoint", code=ExitCode.USAGE)
    names = {name: deployed_endpoint(place.aws, environment, name).release for name in environment.endpoints}
    if len(set(names.values())) > 1:
        raise CommandError(
            f"the endpoints of {environment.name} have several releases: "
            f"{', '.join(f'{name} has {release}' for name, release in names.items())}",
            hint=f"Deploy one to all of them: steelyard up --env {environment.name} --release ID",
        )
    identifier = next(iter(names.values()))
    event = deployed(place.aws, environment, bucket=place.bucket())
    if event is not None and event.release_id == identifier:
        return event.manifest()
    return load_release(identifier)


def check_running(place: Place, release: Release) -> dict[str, Report]:
    """Find out whether a release is what runs in an environment, by its stacks, its configurations and its servers.

    Args:
        place: The environment.
        release: The release.

    Returns:
        What the server behind each decision endpoint says of itself, by the endpoint's name.

    Raises:
        CommandError: Something else runs, or an endpoint does not answer.
    """
    aws, environment = place.aws, place.environment
    bucket = place.bucket()
    reports: dict[str, Report] = {}
    for name, declared in environment.endpoints.items():
        found = deployed_endpoint(aws, environment, name)
        if found.release != release.id:
            raise CommandError(
                f"the endpoint {found.name} was deployed with release {found.release}, not with {release.id}"
            )
        check_serving(aws, environment, release, name)
        served = None if declared.hub else served_by(release, declared)
        _check_container(aws, found.name, served, bucket=bucket)
        if declared.kind == "decision" and served is not None:
            client = EndpointClient(found.name, runtime=aws.runtime(ANSWER_S), timeout_s=ANSWER_S)
            report: Report = client.decide(QUESTION)[0].get("model", {})
            if (sha256 := report.get("sha256")) != served.model.weights_sha256:
                raise CommandError(
                    f"the server of {found.name} says that it has the model file {sha256}, and release {release.id} "
                    f"has {served.model.weights_sha256}"
                )
            reports[name] = report
    return reports


def _check_container(aws: Aws, endpoint: str, served: Served | None, *, bucket: str) -> None:
    """Refuse a model in service that has other files or other decisions than the release."""
    if served is None:
        return
    sagemaker = aws.client("sagemaker")
    with aws_errors():
        config = sagemaker.describe_endpoint(EndpointName=endpoint)["EndpointConfigName"]
        variants = sagemaker.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
        models = [sagemaker.describe_model(ModelName=each["ModelName"]) for each in variants]
    for model in models:
        container = model["PrimaryContainer"]
        files = container.get("ModelDataSource", {}).get("S3DataSource", {}).get("S3Uri")
        if files != (wanted := f"s3://{bucket}/{served.key}"):
            raise CommandError(f"the model of {endpoint} has the files {files}, and the release has {wanted}")
        known = container.get("Environment", {}).get(DECISIONS_VARIABLE)
        if known != (hashed := served.variables.get(DECISIONS_VARIABLE)):
            raise CommandError(f"the model of {endpoint} has the decisions {known}, and the release has {hashed}")


def runs(place: Place, release: Release) -> bool:
    """Return whether a release has been deployed to an environment, to the end, and is what runs there."""
    try:
        event = deployed(place.aws, place.environment, bucket=place.bucket())
        if event is None or event.release_id != release.id:
            return False
        check_running(place, release)
    except CommandError:
        return False
    return True


def judge_scans(source: Place, target: Environment, release: Release, gates: Gates) -> list[GateResult]:
    """Judge what ECR's scan found in those of our images that an environment runs.

    Args:
        source: Where the images were built, or are pulled from.
        target: Where they are to run.
        release: The release.
        gates: The limits.

    Returns:
        One for each limit of a scan that is set; an image without a finished scan keeps none.

    Raises:
        CommandError: ECR cannot be asked.
    """
    machines = {each.hardware for each in target.endpoints.values() if each.kind == "decision"}
    images = {release.image("decision", machine).digest: release.image("decision", machine) for machine in machines}
    if gates.critical_findings_at_most is None and gates.high_findings_at_most is None:
        return []
    counts = [scan_counts(source.aws, source.environment, each) for each in images.values()]
    scanned = [each for each in counts if each is not None]

    def figure(severity: str) -> float | None:
        return None if len(scanned) < len(counts) else max((each.get(severity, 0) for each in scanned), default=0)

    return judge(gates, {"critical_findings": figure("CRITICAL"), "high_findings": figure("HIGH")})


def check_reachable(source: Place, target: Place, release: Release) -> None:
    """Refuse a promotion to an account that could not get what the release names. Nothing is changed.

    Raises:
        CommandError: An image cannot be pulled there, or a model neither published nor copied there.
    """
    environment = target.environment
    faults = []
    for name, declared in environment.endpoints.items():
        if release.sample and declared.kind == "chat":
            continue  # a placeholder
        image = release.image(declared.kind, declared.hardware)
        found = image_faults(target.aws, environment, declared.kind, declared.hardware, image)
        faults += [f"{name}: {fault}" for fault in found]
    for model in models_of(environment, release):
        if model.name not in environment.builds.models:
            bucket = source.bucket()
            try:
                faults += [f"model {model.name}: {fault}" for fault in model_faults(target.aws, model, bucket=bucket)]
            except CommandError as error:
                faults.append(f"model {model.name} cannot be copied from s3://{bucket}: {error.message}")
    if faults:
        account, repository = own_registry(source.aws, source.environment)
        raise CommandError(
            f"account {target.aws.account()} of {environment.name} cannot get all of release {release.id}:\n"
            + "\n".join(f"- {fault}" for fault in faults),
            hint=f'Nothing was changed. For images: account = "{account}" and repository = "{repository}" under '
            f"[images] in environments/{environment.name}.toml, and its account in pull_accounts of "
            f"{source.environment.name}. For a model: its name in models of [builds], so that it is published there, "
            "or a policy that lets that account read the bucket.",
        )


def tag(source: Place, target: Place, release: Release, *, tell: Say) -> None:
    """Put the release's tag on its images wherever they are pulled from, so that no rule expires them.

    Raises:
        CommandError: Another image has a tag, or ECR refuses.
    """
    tag_images(source.aws, source.environment, release, tell=tell)
    if target.environment.images.account is None:
        tag_images(target.aws, target.environment, release, tell=tell)


@dataclass(frozen=True, kw_only=True)
class FromSource:
    """The supplies of a promotion: a model that the target does not publish itself is copied from the source's bucket.

    Attributes:
        source: The source's bucket.
        published: For models that the target publishes.
        published_models: Their names.
    """

    source: str
    published: Supplies
    published_models: tuple[str, ...]

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:
        """Copy the model, or have it published.

        Raises:
            CommandError: It cannot be read there, or not be written here.
        """
        if model.name in self.published_models:
            self.published.provide_model(aws, model, bucket=bucket)
            return
        files = {
            **{name: sha256 for name, (_, sha256) in model.objects().items()},
            MODEL_MANIFEST: model.manifest_sha256,
        }
        with aws_errors():
            s3 = aws.client("s3")
            for name, sha256 in files.items():
                copy_object(s3, (self.source, model.key + name), (bucket, model.key + name), sha256=sha256)

    def provide_image(self, digest: str, *, repository: str) -> None:
        """Nothing: images stay where they were built, and :func:`check_reachable` has seen them."""
