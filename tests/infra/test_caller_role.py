"""CallerRole: exactly what a caller needs."""

from __future__ import annotations

import pytest
from aws_cdk import aws_iam as iam

from steelyard_constructs.caller_role import CallerRole
from steelyard_constructs.refusal import Refused

ONE, OTHER = (f"arn:aws:sagemaker:eu-west-1:111122223333:endpoint/{name}" for name in ("one", "other"))


@pytest.fixture
def caller() -> iam.IPrincipal:
    return iam.ServicePrincipal("ecs-tasks.amazonaws.com")


@pytest.mark.parametrize("bearer_token", [False, True])
def test_no_finding_of_cdk_nag_or_cfn_lint(stack, caller, bearer_token, nag_findings, lint_findings):
    CallerRole(stack, "Caller", assumed_by=caller, endpoints=[ONE], bearer_token=bearer_token)
    assert nag_findings(stack) == []
    assert lint_findings(stack) == []


def test_a_caller_who_signs_asks_for_answers_and_streams_of_its_endpoints(stack, caller, allowed):
    role = CallerRole(stack, "Caller", assumed_by=caller, endpoints=[ONE])
    role.grant_invoke(OTHER)
    assert allowed(stack) == {
        (f"sagemaker:{action}", endpoint)
        for action in ("InvokeEndpoint", "InvokeEndpointWithResponseStream")
        for endpoint in (ONE, OTHER)
    }


def test_a_caller_with_a_bearer_token_gets_exactly_two_actions(stack, caller, allowed):
    CallerRole(stack, "Caller", assumed_by=caller, endpoints=[ONE], bearer_token=True)
    assert allowed(stack) == {("sagemaker:InvokeEndpoint", ONE), ("sagemaker:CallWithBearerToken", "*")}


def test_a_caller_without_endpoints_may_do_nothing(stack, caller, allowed):
    CallerRole(stack, "Caller", assumed_by=caller)
    assert allowed(stack) == set()


def test_a_pattern_of_endpoints_is_refused(stack, caller):
    with pytest.raises(Refused, match=r"endpoint/\*' is a pattern"):
        CallerRole(stack, "Caller", assumed_by=caller, endpoints=["arn:aws:sagemaker:eu-west-1:1:endpoint/*"])
