"""Acting as a service with a role: assume it as SageMaker does, and ask what its policies allow."""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass

from ministack.core import iam_evaluator as evaluator
from ministack.core.responses import get_account_id, get_region
from ministack.services import iam, sts

from steelyard_localcloud.errors import ServiceError

_SESSION_S = 12 * 3600


@dataclass(frozen=True)
class Credentials:
    """Temporary credentials of an assumed role, good for a caller of the emulator."""

    access_key_id: str
    secret_access_key: str
    session_token: str


@dataclass(frozen=True)
class ServiceRole:
    """A role that a service may use.

    Attributes:
        arn: The role.
        service: The service that assumes it, such as ``sagemaker.amazonaws.com``.
        source_arn: The resource for which it does, for trust policies that name it in a condition.
    """

    arn: str
    service: str
    source_arn: str

    def assume(self, session: str) -> Credentials:
        """Credentials of the role, as the service gets them.

        Raises:
            ServiceError: The role does not exist, or its trust policy does not let the service in.
        """
        if not self.trusts_service():
            raise ServiceError(
                f"Could not assume role {self.arn}. Please ensure that the role exists and allows principal "
                f"'{self.service}' to assume the role."
            )
        key = f"ASIA{secrets.token_hex(8).upper()}"
        credentials = Credentials(key, secrets.token_urlsafe(30), secrets.token_urlsafe(60))
        sts.register_session(
            key,
            {
                "Arn": self._session_arn(session),
                "UserId": f"{sts._role_id(self.arn)}:{session}",
                "SecretAccessKey": credentials.secret_access_key,
                "SessionToken": credentials.session_token,
                "Expiration": time.time() + _SESSION_S,
                "AccountId": self._account,
                "PrincipalType": "AssumedRole",
            },
        )
        return credentials

    def allows(self, action: str, resource: str) -> bool:
        """Return whether the role may take an action on a resource.

        Its own policies within its permissions boundary count, and the resource's, such as a key's or a repository's.
        """
        context = self._context(action, resource)
        policies = evaluator._gather_role_policies(self._name, self._account)
        limits = evaluator._permissions_boundary(iam._roles, self._name, self._account)
        result = evaluator.evaluate(context, policies, *limits)
        service = action.partition(":")[0]
        if (found := evaluator._resource_policy(service, resource)) is not None:
            required = service in evaluator._POLICY_REQUIRED
            result = evaluator.combine_resource_policy(result, context, *found, required=required, limits=limits)
        return bool(result.decision == "Allow")

    def trusts_service(self) -> bool:
        """Return whether the role exists and its trust policy lets the service in, for this source."""
        role = iam._roles.get_scoped(self._account, None, self._name)
        if role is None or role.get("Arn", self.arn) != self.arn:
            return False
        context = self._context("sts:AssumeRole", self.arn)
        effects = {
            statement.get("Effect")
            for statement in _statements(role.get("AssumeRolePolicyDocument"))
            if evaluator._service_principal_matches(statement.get("Principal"), self.service)
            and evaluator._action_matches("sts:AssumeRole", _listed(statement.get("Action")), [])
            and evaluator._conditions_met(statement.get("Condition", {}), context)
        }
        return effects == {"Allow"}

    def _context(self, action: str, resource: str) -> evaluator.EvalContext:
        return evaluator.EvalContext(
            principal_arn=self._session_arn("SageMaker"),
            principal_type="AssumedRole",
            principal_account=self._account,
            action=action,
            resource_arn=resource,
            region=get_region(),
            source_ip="127.0.0.1",
            secure_transport=True,
            service_context={"aws:sourceaccount": get_account_id(), "aws:sourcearn": self.source_arn},
        )

    def _session_arn(self, session: str) -> str:
        return f"arn:aws:sts::{self._account}:assumed-role/{self._name}/{session}"

    @property
    def _name(self) -> str:
        return self.arn.rpartition("/")[2]

    @property
    def _account(self) -> str:
        parts = self.arn.split(":")
        return parts[4] if len(parts) > 4 else ""


def _statements(document: object) -> list[dict[str, object]]:
    policy = json.loads(document) if isinstance(document, str) else document
    statements = policy.get("Statement", []) if isinstance(policy, dict) else []
    return statements if isinstance(statements, list) else [statements]


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else [value]
