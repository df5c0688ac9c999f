"""Functions run with their role as Lambda takes it: its trust policy is asked, and its keys are random.

Ministack derives the keys of a function's role from its ARN, so that everyone who knows the ARN has them, and asks no
trust policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ministack.core import lambda_runtime
from ministack.core.responses import error_response_json, get_account_id, get_region, request_scope
from ministack.services import lambda_svc
from ministack.services.cloudformation import provisioners

from steelyard_localcloud.cloudformation.handler import Provisioned
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.service_role import ServiceRole
from steelyard_localcloud.wire import Parameters

_SERVICE = "lambda.amazonaws.com"
_TYPE = "AWS::Lambda::Function"
_REFUSAL = "The role defined for the function cannot be assumed by Lambda."


def extend() -> None:
    """Give functions random keys of a role that trusts Lambda, and refuse to make one whose role does not."""
    create, handler = lambda_svc._create_function, provisioners._RESOURCE_HANDLERS[_TYPE]

    def create_function(data: dict[str, Any]) -> Any:
        if not _is_trusting(data):
            return error_response_json("InvalidParameterValueException", _REFUSAL, 400)
        return create(data)

    def create_resource(logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
        if not _is_trusting(properties):
            raise ServiceError(_REFUSAL, code="InvalidParameterValueException")
        made: Provisioned = handler["create"](logical_id, properties, stack_name)
        return made

    lambda_svc._create_function = create_function
    provisioners._RESOURCE_HANDLERS[_TYPE] = {**handler, "create": create_resource}
    for module in (lambda_runtime, lambda_svc):
        module.execution_credentials = credentials


def credentials(config: dict[str, Any]) -> dict[str, str]:
    """The environment with which a function has its role.

    Raises:
        ServiceError: The role is gone, or does not trust Lambda any more.
    """
    arn = str(config["FunctionArn"])
    _, _, _, region, account, *_ = arn.split(":")
    with request_scope(account, region):
        keys = _role(str(config["Role"]), arn).assume(str(config["FunctionName"])[:64])
    return {
        "AWS_ACCESS_KEY_ID": keys.access_key_id,
        "AWS_SECRET_ACCESS_KEY": keys.secret_access_key,
        "AWS_SESSION_TOKEN": keys.session_token,
    }


def _is_trusting(function: Mapping[str, Any]) -> bool:
    name = function.get("FunctionName", "*")
    arn = f"arn:aws:lambda:{get_region()}:{get_account_id()}:function:{name}"
    return _role(str(function.get("Role", "")), arn).trusts_service()


def _role(role_arn: str, function_arn: str) -> ServiceRole:
    return ServiceRole(role_arn, _SERVICE, function_arn)
