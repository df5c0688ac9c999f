"""A role for those who call endpoints, and do nothing else."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_iam as iam
from constructs import Construct

from steelyard_constructs.nag import acknowledge_wildcard
from steelyard_constructs.refusal import Refused

INVOKE_ACTIONS = ("sagemaker:InvokeEndpoint", "sagemaker:InvokeEndpointWithResponseStream")
"""The actions on an endpoint that a signing caller needs: whole answers and streams."""


class CallerRole(Construct):
    """A role that may invoke the endpoints that it was given, and only those.

    A caller who signs requests (boto3) may ask for whole answers and for streams. A caller with a bearer token (the
    OpenAI-compatible path) needs ``sagemaker:InvokeEndpoint`` on the endpoint and ``sagemaker:CallWithBearerToken``,
    which has no resource, and gets exactly these two.

    Args:
        assumed_by: Who may assume it.
        endpoints: ARNs of endpoints that it may invoke from the start.
        bearer_token: Whether it calls with bearer tokens instead of signed requests.

    Example:
        >>> import aws_cdk as cdk
        >>> from aws_cdk import aws_iam as iam
        >>> from steelyard_constructs.caller_role import CallerRole
        >>> stack = cdk.Stack(cdk.App(), "Callers")
        >>> caller = CallerRole(stack, "Support", assumed_by=iam.ServicePrincipal("ecs-tasks.amazonaws.com"))
        >>> caller.grant_invoke("arn:aws:sagemaker:eu-west-1:111122223333:endpoint/steelyard-dev-decision")

    Attributes:
        role: The role.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        assumed_by: iam.IPrincipal,
        endpoints: Sequence[str] = (),
        bearer_token: bool = False,
    ) -> None:
        super().__init__(scope, id)
        self._bearer_token = bearer_token
        self.role = iam.Role(self, "Role", assumed_by=assumed_by, description="Invokes Steelyard endpoints")
        if bearer_token:
            self.role.add_to_policy(
                iam.PolicyStatement(sid="BearerToken", actions=["sagemaker:CallWithBearerToken"], resources=["*"])
            )
            acknowledge_wildcard(
                self.role, "*", reason="sagemaker:CallWithBearerToken has no resource; it allows nothing by itself."
            )
        for endpoint_arn in endpoints:
            self.grant_invoke(endpoint_arn)

    def grant_invoke(self, endpoint_arn: str) -> None:
        """Let the role invoke one more endpoint.

        Args:
            endpoint_arn: The ARN of one endpoint.

        Raises:
            Refused: The ARN has a ``*``: endpoints are granted one by one.
        """
        if "*" in endpoint_arn:
            raise Refused(f"{endpoint_arn!r} is a pattern; grant each endpoint by its own ARN")
        actions = INVOKE_ACTIONS[:1] if self._bearer_token else INVOKE_ACTIONS
        self.role.add_to_policy(iam.PolicyStatement(actions=list(actions), resources=[endpoint_arn]))
