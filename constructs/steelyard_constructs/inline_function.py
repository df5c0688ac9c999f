"""The small Lambda function behind a custom resource: its source in the template, its role, its log."""

from __future__ import annotations

from dataclasses import dataclass

from aws_cdk import aws_iam as iam
from aws_cdk import aws_lambda as lambda_
from aws_cdk import aws_logs as logs
from constructs import Construct

from steelyard_constructs.service_principal import service_principal


@dataclass(frozen=True, kw_only=True)
class InlineFunction:
    """The resources that ``inline_function`` made.

    Attributes:
        role: May write the function's log, and what is added to it.
        function: The function.
    """

    role: iam.Role
    function: lambda_.CfnFunction


def inline_function(
    scope: Construct, *, description: str, source: str, log_group: logs.ILogGroup, timeout_s: int
) -> InlineFunction:
    """A function whose whole source stands in the template, so that nothing has to be published before it.

    Args:
        scope: The construct that it belongs to; it gets the children ``Role`` and ``Function``.
        description: What the function does.
        source: Its Python source, at most 4096 characters, with a ``handler``.
        log_group: Where it logs.
        timeout_s: The longest that one call may take, in seconds.
    """
    role = iam.Role(
        scope,
        "Role",
        assumed_by=service_principal(scope, "lambda"),
        description=description,
        inline_policies={
            "Log": iam.PolicyDocument(
                statements=[
                    iam.PolicyStatement(
                        actions=["logs:CreateLogStream", "logs:PutLogEvents"], resources=[log_group.log_group_arn]
                    )
                ]
            )
        },
    )
    function = lambda_.CfnFunction(
        scope,
        "Function",
        description=description,
        runtime="python3.14",
        handler="index.handler",
        code=lambda_.CfnFunction.CodeProperty(zip_file=source),
        role=role.role_arn,
        logging_config=lambda_.CfnFunction.LoggingConfigProperty(log_group=log_group.log_group_name),
        timeout=timeout_s,
        memory_size=256,
    )
    return InlineFunction(role=role, function=function)
