"""``AWS::Budgets::Budget``, kept by ministack's own Budgets service. Nothing is spent, so none goes off."""

from __future__ import annotations

import json
from typing import Any

from ministack.core.responses import get_account_id
from ministack.services import budgets

from steelyard_localcloud import shapes
from steelyard_localcloud.cloudformation.handler import Handler, Provisioned, physical_name
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters

_LONGEST_NAME = 100


def handlers() -> list[Handler]:
    """The one handler."""
    return [
        Handler(
            type="AWS::Budgets::Budget",
            create=_create,
            update=_update,
            delete=_delete,
            replacing=("NotificationsWithSubscribers", "ResourceTags"),
        )
    ]


def _create(logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
    budget = {"BudgetName": physical_name(logical_id, stack_name, longest=_LONGEST_NAME), **properties["Budget"]}
    given = {**properties, "AccountId": get_account_id(), "Budget": budget}
    parameters = shapes.from_template("budgets", "CreateBudget", given)
    shapes.validate("budgets", "CreateBudget", parameters)
    _check(budgets._create_budget(parameters))
    return budget["BudgetName"], {}


def _update(physical_id: str, _old: Parameters, new: Parameters) -> Provisioned:
    given = {"AccountId": get_account_id(), "NewBudget": {"BudgetName": physical_id, **new["Budget"]}}
    parameters = shapes.from_template("budgets", "UpdateBudget", given)
    shapes.validate("budgets", "UpdateBudget", parameters)
    _check(budgets._update_budget(parameters))
    return physical_id, {}


def _delete(physical_id: str, _properties: Parameters) -> None:
    if physical_id in budgets._budgets:
        _check(budgets._delete_budget({"BudgetName": physical_id}))


def _check(answer: tuple[int, Any, bytes]) -> None:
    if answer[0] >= 400:
        raise ServiceError(str(json.loads(answer[2])["message"]))
