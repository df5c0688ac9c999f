"""The topic of alarms, the budget, and the page that shows the endpoints."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_kms as kms

from stacks.environment_stack import TAG_ENVIRONMENT, EnvironmentStack
from steelyard.environments.schema import Environment
from steelyard_constructs.alarm_topic import AlarmTopic
from steelyard_constructs.cost_budget import CostBudget
from steelyard_constructs.endpoint import VARIANT_NAME
from steelyard_constructs.endpoint_dashboard import EndpointDashboard, Shown
from steelyard_constructs.hardware import Hardware


class ObservabilityStack(EnvironmentStack):
    """Deployed before the endpoints, whose alarms publish to its topic. It knows them by their names only.

    Args:
        environment: The environment.
        encryption_key: Its key, for the topic.

    Attributes:
        alarms: The topic of all alarms.
    """

    def __init__(self, scope: cdk.App, environment: Environment, *, encryption_key: kms.IKey | None) -> None:
        super().__init__(scope, "Observability", environment=environment, description="alarms, dashboard, budget")
        self.alarms = AlarmTopic(self, "Alarms", emails=environment.alarms.emails, encryption_key=encryption_key)
        self.output("AlarmTopicArn", self.alarms.topic.topic_arn, "Topic of all alarms")
        if environment.endpoints:
            dashboard = EndpointDashboard(
                self,
                "Dashboard",
                dashboard_name=f"Steelyard-{environment.name}",
                endpoints=[
                    Shown(
                        environment.endpoint_name(name),
                        VARIANT_NAME,
                        gpu=endpoint.hardware is Hardware.CUDA,
                        ours=endpoint.kind == "decision",
                    )
                    for name, endpoint in environment.endpoints.items()
                ],
            )
            self.output("DashboardName", dashboard.dashboard.dashboard_name, "Dashboard of the endpoints")
        if (budget := environment.budget) is not None:
            CostBudget(
                self,
                "Budget",
                monthly_usd=budget.monthly_usd,
                tag=(TAG_ENVIRONMENT, environment.name),
                emails=budget.emails,
            )
