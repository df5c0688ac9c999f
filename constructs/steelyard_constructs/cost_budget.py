"""A monthly limit on what resources with a tag cost. It warns; it stops nothing."""

from __future__ import annotations

from collections.abc import Sequence

from aws_cdk import aws_budgets as budgets
from constructs import Construct

from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused


class CostBudget(Construct):
    """Mails at 80 % of the limit, and as soon as all of it is forecast.

    AWS knows the costs of a tag only after the tag was activated for cost allocation, once for each payer account.

    Args:
        monthly_usd: The limit, in US dollars a month.
        tag: Key and value of the tag whose costs count.
        emails: Addresses that are mailed; 1 to 10.

    Raises:
        Refused: A limit below 1, or a number of addresses that Budgets does not take.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.cost_budget import CostBudget
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example")
        >>> budget = CostBudget(
        ...     stack, "Budget", monthly_usd=500, tag=("team", "support"), emails=["owner@example.com"]
        ... )
        >>> template = app.synth().get_stack_by_name("Example").template

    Attributes:
        budget: The budget.
    """

    def __init__(
        self, scope: Construct, id: str, *, monthly_usd: int, tag: tuple[str, str], emails: Sequence[str]
    ) -> None:
        super().__init__(scope, id)
        check_whole("monthly_usd", monthly_usd)
        if monthly_usd < 1:
            raise Refused(f"monthly_usd is {monthly_usd}; set 1 or more")
        if not 1 <= len(emails) <= 10:
            raise Refused(f"the budget has {len(emails)} addresses; AWS Budgets takes 1 to 10")
        subscribers = [
            budgets.CfnBudget.SubscriberProperty(subscription_type="EMAIL", address=email) for email in emails
        ]
        self.budget = budgets.CfnBudget(
            self,
            "Budget",
            budget=budgets.CfnBudget.BudgetDataProperty(
                budget_type="COST",
                time_unit="MONTHLY",
                budget_limit=budgets.CfnBudget.SpendProperty(amount=monthly_usd, unit="USD"),
                cost_filters={"TagKeyValue": [f"user:{tag[0]}${tag[1]}"]},
            ),
            notifications_with_subscribers=[
                budgets.CfnBudget.NotificationWithSubscribersProperty(
                    notification=budgets.CfnBudget.NotificationProperty(
                        notification_type=kind,
                        comparison_operator="GREATER_THAN",
                        threshold=percent,
                        threshold_type="PERCENTAGE",
                    ),
                    subscribers=subscribers,
                )
                for kind, percent in (("ACTUAL", 80), ("FORECASTED", 100))
            ],
        )
