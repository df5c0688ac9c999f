"""Simulates, with IAM's own policy simulator, whether the caller may do what the commands do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from steelyard.aws.session import Aws, aws_errors
from steelyard.environments.schema import Environment
from steelyard_base.checks import Check, Level
from steelyard_base.exit_codes import CommandError


@dataclass(frozen=True, kw_only=True)
class Duty:
    """Work of the commands, and what it takes.

    Attributes:
        name: What it is for.
        actions: IAM actions.
        resources: ARNs, or ``*`` where the actions have none.
    """

    name: str
    actions: tuple[str, ...]
    resources: tuple[str, ...] = ("*",)


def duties(aws: Aws, environment: Environment) -> tuple[Duty, ...]:
    """The actions of ``up``, ``down`` and ``invoke`` by the caller's own rights; the CDK's roles do the rest."""
    arn, account = f"arn:{aws.partition()}", aws.account()
    here = f"{aws.region}:{account}"
    names = tuple(environment.endpoint_name(name) for name in environment.endpoints)
    return (
        Duty(
            name="deploy with the CDK",
            actions=("sts:AssumeRole",),
            resources=tuple(
                f"{arn}:iam::{account}:role/cdk-{environment.bootstrap.qualifier}-{role}-role-{account}-{aws.region}"
                for role in ("deploy", "file-publishing", "lookup")
            ),
        ),
        Duty(
            name="see and change stacks",
            actions=(
                "cloudformation:DeleteStack",
                "cloudformation:DescribeStackEvents",
                "cloudformation:DescribeStackResources",
                "cloudformation:DescribeStacks",
                "cloudformation:GetTemplate",
                "cloudformation:ListStackResources",
                "cloudformation:UpdateStack",
                "cloudformation:UpdateTerminationProtection",
            ),
            resources=(f"{arn}:cloudformation:{here}:stack/{environment.stack_name('Artifacts')}/1",),
        ),
        Duty(
            name="ask endpoints",
            actions=("sagemaker:DescribeEndpoint", "sagemaker:InvokeEndpoint"),
            resources=tuple(f"{arn}:sagemaker:{here}:endpoint/{name}" for name in names) or ("*",),
        ),
        Duty(
            name="look around",
            actions=(
                "cloudwatch:DescribeAlarmHistory",
                "ec2:DescribeAvailabilityZones",
                "ec2:DescribeInstanceTypeOfferings",
                "ec2:DescribeNetworkInterfaces",
                "servicequotas:ListAWSDefaultServiceQuotas",
                "servicequotas:ListServiceQuotas",
                "tag:GetResources",
            ),
        ),
    )


def permission_checks(aws: Aws, environment: Environment) -> Iterator[Check]:
    """For each duty: whether IAM's simulator lets the caller do it.

    A denial is a warning: the simulator does not know every condition, nor the policies of resources.
    """
    try:
        caller = policy_source(aws)
    except CommandError as error:
        yield _unknown(str(error))
        return
    if caller is None:
        yield Check(name="permissions", level=Level.OK, finding="the root user's, which may do everything")
        return
    for duty in duties(aws, environment):
        title = f"may {duty.name}"
        try:
            denied = denied_actions(aws, caller, duty)
        except CommandError as error:
            yield _unknown(str(error))
            return
        if denied:
            yield Check(
                name=title,
                level=Level.WARNING,
                finding=f"IAM's simulator denies {', '.join(denied)}",
                advice=f"Allow {caller} these on {', '.join(duty.resources)}.",
            )
        else:
            yield Check(name=title, level=Level.OK, finding=f"{len(duty.actions)} actions")


def policy_source(aws: Aws) -> str | None:
    """The user or role that the credentials are of, as IAM's simulator names it; None for the root user.

    Raises:
        CommandError: There are no credentials, or IAM does not tell the role.
    """
    with aws_errors():
        arn = str(aws.client("sts").get_caller_identity()["Arn"])
        if arn.endswith(":root"):
            return None
        kind, _, rest = arn.rpartition(":")[2].partition("/")
        if kind != "assumed-role":
            return arn
        # The session does not tell the role's path.
        return str(aws.client("iam").get_role(RoleName=rest.split("/")[0])["Role"]["Arn"])


def denied_actions(aws: Aws, caller: str, duty: Duty) -> list[str]:
    """Actions of a duty that the simulator denies on one of its resources.

    Raises:
        CommandError: The simulator cannot be asked.
    """
    denied = set()
    for resource in duty.resources:
        with aws_errors():
            found = aws.client("iam").simulate_principal_policy(
                PolicySourceArn=caller, ActionNames=list(duty.actions), ResourceArns=[resource]
            )["EvaluationResults"]
        denied |= {each["EvalActionName"] for each in found if each["EvalDecision"] != "allowed"}
    return sorted(denied)


def _unknown(reason: str) -> Check:
    return Check(
        name="permissions",
        level=Level.WARNING,
        finding=f"cannot be simulated: {reason}",
        advice="Allow iam:GetRole and iam:SimulatePrincipalPolicy.",
    )
