"""Deploys an environment: first what the endpoints need, then what they serve, then the endpoints."""

from __future__ import annotations

from contextlib import suppress
from typing import Protocol

from steelyard.aws.cloudformation import Stack, find_stack
from steelyard.aws.session import Aws, aws_errors
from steelyard.cdk.program import Cdk
from steelyard.deploy.adoption import adopted
from steelyard.deploy.endpoints import Say, stacks_of
from steelyard.deploy.failures import causes, newest_events
from steelyard.deploy.scaling import unscale
from steelyard.environments.fixed import OUTPUT as FIXED
from steelyard.environments.fixed import fixed_faults, fixed_values
from steelyard.environments.schema import Environment
from steelyard.releases.assemble import place_decisions
from steelyard.releases.checks import (
    State,
    check_account,
    findings,
    image_manifest,
    model_faults,
    own_registry,
    refuse,
)
from steelyard.releases.compatibility import check_release
from steelyard.releases.manifest import Release, ReleasedModel
from steelyard.releases.record import Occasion, recorded
from steelyard_base.exit_codes import CommandError, ExitCode

_TAKEN_BACK = "CloudFormation took the stack back: what ran before goes on. Deploy again when the cause is gone."
_STUCK = "UPDATE_ROLLBACK_FAILED"


class Supplies(Protocol):
    """Provides what a release names and an environment does not have yet."""

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:
        """Put the model into the bucket.

        Raises:
            CommandError: It cannot be provided from here; the message says what to do.
        """

    def provide_image(self, digest: str, *, repository: str) -> None:
        """Put our image into the registry.

        Raises:
            CommandError: It cannot be provided from here; the message says what to do.
        """


def prepare(aws: Aws, environment: Environment, cdk: Cdk, say: Say, *, note: Say) -> str:
    """Deploy what models and images are built with and stored in.

    Args:
        aws: Where to.
        environment: The environment.
        cdk: The CDK's command line for it.
        say: Receives each step.
        note: Receives what a person should know beside the steps.

    Returns:
        The bucket of artifacts.

    Raises:
        CommandError: A step failed. Run it again when the cause is gone: it continues from there.
    """
    account = aws.account()
    if not is_bootstrapped(aws, environment):
        say(f"cdk bootstrap aws://{account}/{aws.region}")
        cdk.bootstrap(
            account=account,
            region=aws.region,
            qualifier=environment.bootstrap.qualifier,
            stack=environment.bootstrap.stack,
        )
    check_updatable(aws, environment)
    check_fixed(aws, environment)
    kept = adopted(aws, environment)
    for each in kept:
        note(f"{each.arn} was kept by an earlier deployment; it is adopted")
    say(f"cdk synth: environment {environment.name}, release {cdk.release}")
    cdk.synth()
    unprotect_failed(aws, environment, say)
    for stack in undeclared(aws, environment, cdk):
        note(
            f"the stack {stack.name} ({stack.status}) belongs to nothing in environments/{environment.name}.toml any "
            f"more; it still exists, and is billed. To delete it: {deletion(aws, stack)}"
        )
    say("cdk deploy: the bucket, the registry and the builds")
    parts = ("Artifacts", "Build") if environment.builds_or_stores else ("Artifacts",)
    cdk.deploy(*(environment.stack_name(part) for part in parts), adopt=bool(kept))
    return artifact_bucket(aws, environment)


def deploy(
    aws: Aws,
    environment: Environment,
    release: Release,
    cdk: Cdk,
    say: Say,
    *,
    note: Say,
    supplies: Supplies | None = None,
    occasion: Occasion | None = None,
) -> None:
    """Deploy everything. What is as it should be already is left as it is.

    What the release names is looked for before anything of the endpoints changes; their stacks look again. From then on
    the deployment is in the environment's record.

    Args:
        aws: Where to.
        environment: The environment.
        release: What its endpoints serve.
        cdk: The CDK's command line for the same two.
        say: Receives each step.
        note: Receives what a person should know beside the steps.
        supplies: Provides the models and images that are missing; None where they must be there.
        occasion: What it is recorded as; a deployment without a reason unless given.

    Raises:
        CommandError: A model or an image is missing or differs, or a step failed. Run it again when the cause is gone:
            it continues from there.
    """
    check_account(release, aws.account())
    check_release(environment, release)
    bucket = prepare(aws, environment, cdk, say, note=note)
    if supplies is not None:
        _provide(aws, environment, release, supplies, say, bucket=bucket)
        place_decisions(aws, environment, release, bucket=bucket, say=say)
    say(f"looking for what release {release.id} names")
    found = findings(aws, environment, release, bucket=bucket, used_only=True)
    refuse(
        [each for each in found if each.state is not State.OK],
        what=f"release {release.id} cannot be deployed to {environment.name}",
    )
    with recorded(aws, environment, release, bucket=bucket, occasion=occasion or Occasion()):
        unscale(aws, environment, cdk, say)
        say("cdk deploy --all")
        _deploy_all(aws, environment, cdk)
        for name in environment.endpoints:
            check_serving(aws, environment, release, name)


def _deploy_all(aws: Aws, environment: Environment, cdk: Cdk) -> None:
    """Deploy all stacks.

    Raises:
        CommandError: A stack failed; with CloudFormation's reason, and the alarms that took an update back.
    """
    before: dict[str, str] = {}
    with suppress(CommandError):
        before = newest_events(aws, environment)
    try:
        cdk.deploy(adopt=bool(adopted(aws, environment)))
    except CommandError as error:
        found: list[str] = []
        with suppress(CommandError):  # that it cannot be explained must not hide that it failed
            found = causes(aws, environment, before=before)
        if not found:
            raise
        raise CommandError("\n".join((error.message, *found)), code=error.code, hint=_TAKEN_BACK) from error


def check_updatable(aws: Aws, environment: Environment) -> None:
    """Refuse to deploy over an update that CloudFormation could not take back; AWS lets nothing else be done to it.

    Raises:
        CommandError: With the command that continues the way back, for each such stack.
    """
    stuck = [each.name for _, each in sorted(stacks_of(aws, environment).items()) if each.status == _STUCK]
    if stuck:
        commands = [
            f"aws cloudformation continue-update-rollback --stack-name {name} --region {aws.region}" for name in stuck
        ]
        raise CommandError(
            f"CloudFormation could not take back the last update of {', '.join(stuck)}: {_STUCK}",
            hint="Remove the cause that describe-stack-events tells, continue the rollback, and deploy again: "
            + "; ".join(commands),
        )


def check_fixed(aws: Aws, environment: Environment) -> None:
    """Refuse a change of what AWS keeps from the creation of a stack, before anything is changed.

    Raises:
        CommandError: The environment's file has another value than a deployed stack.
    """
    faults: list[str] = []
    for part in fixed_values(environment):
        stack = find_stack(aws, environment.stack_name(part))
        if stack is not None and stack.lived and FIXED in stack.outputs:
            faults += fixed_faults(environment, part, stack.outputs[FIXED])
    if faults:
        raise CommandError(
            f"environments/{environment.name}.toml changes what cannot change in place:\n"
            + "\n".join(f"- {fault}" for fault in dict.fromkeys(faults)),
            code=ExitCode.USAGE,
            hint="Nothing was changed. Put the old value back; or make another environment with the new value, deploy "
            f"it, move the callers, and then destroy this one: steelyard down --env {environment.name}.",
        )


def unprotect_failed(aws: Aws, environment: Environment, say: Say) -> None:
    """Lift the protection of stacks whose first deployment failed: the CDK deletes them before it makes them anew.

    CloudFormation protects a stack from the moment it is asked for, and nothing but deletion is possible after that.

    Raises:
        CommandError: AWS refuses.
    """
    for stack in stacks_of(aws, environment).values():
        if stack.protected and not stack.lived:
            say(f"the first deployment of {stack.name} failed ({stack.status}); it is deployed anew")
            with aws_errors():
                aws.client("cloudformation").update_termination_protection(
                    StackName=stack.name, EnableTerminationProtection=False
                )


def check_serving(aws: Aws, environment: Environment, release: Release, name: str) -> None:
    """Find out whether an endpoint serves what its stack declares; an answer alone could be the old version's.

    Args:
        aws: Where to ask.
        environment: The environment.
        release: What was deployed.
        name: The endpoint's name in the environment file.

    Raises:
        CommandError: Another configuration or image is in service, or the endpoint is not in service.
    """
    declared = environment.endpoints[name]
    stack, full_name = environment.stack_name(f"Endpoint-{name}"), environment.endpoint_name(name)
    with aws_errors():
        resources = aws.client("cloudformation").describe_stack_resources(StackName=stack)["StackResources"]
        serving = aws.client("sagemaker").describe_endpoint(EndpointName=full_name)
    configs = [
        each["PhysicalResourceId"].rpartition("/")[2]
        for each in resources
        if each["ResourceType"] == "AWS::SageMaker::EndpointConfig"
    ]
    digest = release.image(declared.kind, declared.hardware).digest
    images = [
        image["ResolvedImage"].rpartition("@")[2]
        for variant in serving.get("ProductionVariants", ())
        for image in variant.get("DeployedImages", ())
    ]
    if serving["EndpointStatus"] != "InService":
        fault = f"it is {serving['EndpointStatus']}"
    elif [serving["EndpointConfigName"].lower()] != [each.lower() for each in configs]:  # an ARN is in lower case
        fault = f"the configuration {serving['EndpointConfigName']} is in service, and the stack declares {configs[0]}"
    elif set(images) != {digest}:
        fault = f"it runs the image {', '.join(images) or 'of none'}, and the release has {digest}"
    else:
        return
    reason = f" ({serving['FailureReason']})" if serving.get("FailureReason") else ""
    raise CommandError(
        f"the endpoint {full_name} does not serve release {release.id}: {fault}{reason}",
        hint=f"The log of its containers says more: /aws/sagemaker/Endpoints/{full_name}. Deploy again when the "
        "cause is gone.",
    )


def _provide(
    aws: Aws, environment: Environment, release: Release, supplies: Supplies, say: Say, *, bucket: str
) -> None:
    for model in models_of(environment, release):
        if any(fault.endswith(" is missing") for fault in model_faults(aws, model, bucket=bucket)):
            say(f"the model {model.name} into s3://{bucket}")
            supplies.provide_model(aws, model, bucket=bucket)
    for digest in image_digests(environment, release):
        if image_manifest(aws, own_registry(aws, environment), digest) is None:
            say(f"our image {digest[:19]} into the registry")
            supplies.provide_image(digest, repository=environment.repository_name)


def undeclared(aws: Aws, environment: Environment, cdk: Cdk) -> list[Stack]:
    """Stacks of an environment that are not in the assembly, such as that of an endpoint whose section was removed.

    The CDK touches none of them, and cannot delete what they import from the others.
    """
    declared = cdk.declared()
    return [stack for name, stack in sorted(stacks_of(aws, environment).items()) if name not in declared]


def deletion(aws: Aws, stack: Stack) -> str:
    """The command that deletes a stack."""
    where = f"--region {aws.region} --stack-name {stack.name}"
    unprotect = f"aws cloudformation update-termination-protection --no-enable-termination-protection {where} && "
    return f"{unprotect if stack.protected else ''}aws cloudformation delete-stack {where}"


def is_bootstrapped(aws: Aws, environment: Environment) -> bool:
    """Return whether the account and region are prepared for the CDK. A stack that others made is left as it is."""
    stack = find_stack(aws, environment.bootstrap.stack)
    return stack is not None and stack.stands


def artifact_bucket(aws: Aws, environment: Environment) -> str:
    """The bucket of model artifacts.

    Raises:
        CommandError: The stack that has it is not deployed.
    """
    name = environment.stack_name("Artifacts")
    stack = find_stack(aws, name)
    if stack is None or "BucketName" not in stack.outputs:
        raise CommandError(f"the stack {name} is not deployed, or has no output BucketName")
    return stack.outputs["BucketName"]


def models_of(environment: Environment, release: Release) -> list[ReleasedModel]:
    """The models that the endpoints of an environment serve from its bucket, each once."""
    roles = {endpoint.role for endpoint in environment.endpoints.values() if endpoint.hub is None}
    return list({release.model(role).key: release.model(role) for role in sorted(roles)}.values())


def image_digests(environment: Environment, release: Release) -> list[str]:
    """Digests of our images that the endpoints of an environment run, each once."""
    machines = {each.hardware for each in environment.endpoints.values() if each.kind == "decision"}
    return sorted({release.image("decision", machine).digest for machine in machines})
