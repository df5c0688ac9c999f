"""What the CDK passes to the app is understood, or refused: an unknown key must not mean the default environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stacks.context import choices
from stacks.environment_app import pinned_context
from steelyard.environments.files import DEFAULT
from steelyard.releases.bases import FILE
from steelyard.releases.manifest import SAMPLE
from steelyard_base.exit_codes import CommandError, ExitCode

# Keys as the CDK writes them into cdk.context.json and passes them to an app.
OF_THE_CDK = {
    **pinned_context(),
    "@aws-cdk/core:newStyleStackSynthesis": True,
    "@aws-cdk-containers/ecs-service-extensions:enableDefaultLogDriver": True,
    "acknowledged-issue-numbers": [1],
    "ami:account=1:region=us-east-1": "ami-1",
    "availability-zones:account=1:region=us-east-1": ["us-east-1a"],
    "aws:cdk:bundling-stacks": ["**"],
    "aws:cdk:disable-version-reporting": True,
    "aws-cdk:enableDiffNoFail": "true",
    "hosted-zone:account=1:domainName=x": {"Id": "x"},
    "key-provider:account=1:aliasName=alias/x": {"keyId": "x"},
    "security-group:account=1": {"securityGroupId": "sg-1"},
    "ssm:account=1:parameterName=x": "y",
    "vpc-provider:account=1:filter.vpc-id=vpc-1": {"vpcId": "vpc-1"},
}


def test_nothing_chosen_is_the_default() -> None:
    found = choices(OF_THE_CDK)
    assert (found.environment, found.release, found.bases) == (DEFAULT, SAMPLE, FILE)


@pytest.mark.parametrize("key", ["environment", "env"])
def test_an_environment_is_chosen_by_either_key(key: str) -> None:
    assert choices({**OF_THE_CDK, key: "prod"}).environment == "prod"


def test_two_keys_may_agree() -> None:
    found = choices({"env": "prod", "environment": "prod", "release": "1", "bases": "x.toml"})
    assert (found.environment, found.release, found.bases) == ("prod", "1", Path("x.toml"))


@pytest.mark.parametrize(
    ("context", "said"),
    [
        ({"enviroment": "prod"}, "'enviroment' is unknown: did you mean environment?"),
        ({"ENV": "prod"}, "'ENV' is unknown: did you mean env?"),
        ({"releas": "1"}, "did you mean release?"),
        ({"stage": "prod"}, "'stage' is unknown: remove it; docs/how-to/deploy.md has all names"),
        ({"": "prod"}, "'' is unknown"),
        ({"x" * 10_000: "prod"}, "xxx..."),
        ({"environment": ""}, "'environment' is ''; it must be a text"),
        ({"env": True}, "'env' is True; it must be a text"),
        ({"release": ["1"]}, "it must be a text"),
        ({"env": "dev", "environment": "prod"}, "'environment' and 'env' disagree: 'dev' and 'prod'"),
        ({"environment": "prod", "env": "dev"}, "'environment' and 'env' disagree: 'prod' and 'dev'"),
    ],
)
def test_what_is_not_understood_is_refused(context: dict[str, Any], said: str) -> None:
    with pytest.raises(CommandError) as caught:
        choices({**OF_THE_CDK, **context})
    assert caught.value.code is ExitCode.USAGE
    assert said in caught.value.message
    assert len(caught.value.message) < 300


def test_every_flag_in_cdk_json_is_known() -> None:
    file = Path(__file__).parents[2] / "cdk.json"
    choices(json.loads(file.read_text(encoding="utf-8"))["context"])
