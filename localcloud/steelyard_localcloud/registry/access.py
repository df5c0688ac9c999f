"""Access to the registry: tokens of ``ecr:GetAuthorizationToken``, and the policies of their owners."""

from __future__ import annotations

import base64
import binascii
import secrets
import time
from dataclasses import dataclass

from ministack.core import iam_evaluator as evaluator
from ministack.core.responses import request_scope

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.registry.names import Repository

VALID_S = 12 * 3600
USER = "AWS"


@dataclass(frozen=True)
class Caller:
    """Somebody who has logged in.

    Attributes:
        access_key_id: Whose policies count.
        account: The key's account.
        publisher: The administrator with the cloud's own key, who may also push to the registries of AWS.
    """

    access_key_id: str
    account: str
    publisher: bool = False


class Access:
    """Tokens, and what they open."""

    def __init__(self, cloud: CloudDetails) -> None:
        self._cloud = cloud
        self._tokens: dict[str, tuple[Caller, float]] = {}

    @property
    def registry(self) -> str:
        """``HOST:PORT`` of the registry."""
        return self._cloud.registry

    def token(self, access_key_id: str, account: str) -> tuple[str, float]:
        """A new token of a caller, and when it ends."""
        now = time.time()
        self._tokens = {token: given for token, given in self._tokens.items() if given[1] > now}
        token, end = secrets.token_urlsafe(48), now + VALID_S
        self._tokens[token] = (Caller(access_key_id, account), end)
        return token, end

    def caller(self, authorization: str) -> Caller | None:
        """Return the owner of an ``Authorization`` header's token; None for nobody."""
        kind, _, encoded = authorization.partition(" ")
        if kind.lower() != "basic":
            return None
        try:
            user, _, password = base64.b64decode(encoded, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return None
        if user == USER:
            caller, end = self._tokens.get(password, (None, 0.0))
            return caller if end > time.time() else None
        if user == self._cloud.access_key_id and secrets.compare_digest(password, self._cloud.secret_access_key):
            return Caller(user, self._cloud.account, publisher=True)
        return None

    def denied(self, caller: Caller, action: str, repository: Repository) -> str | None:
        """Return why a caller may not take an action on a repository; None when it may."""
        if caller.publisher:
            return None
        with request_scope(caller.account, repository.region):
            principal = evaluator.resolve_principal(caller.access_key_id, caller.account)
        if isinstance(principal, evaluator.AuthError):
            return str(principal.message)
        context = evaluator.EvalContext(
            principal_arn=principal.arn,
            principal_type=principal.type,
            principal_account=principal.account,
            action=action,
            resource_arn=repository.arn,
            region=repository.region,
            service_context={},
            principal_keys=principal.keys,
        )
        result = evaluator.evaluate(context, principal.policies, *principal.limits)
        with request_scope(repository.account, repository.region):
            policy = evaluator._resource_policy("ecr", repository.arn)
        if policy is not None:
            result = evaluator.combine_resource_policy(result, context, *policy, limits=principal.limits)
        if result.decision == "Allow":
            return None
        return f"User: {principal.arn} is not authorized to perform: {action} on resource: {repository.arn}"
