"""The CDK's bootstrap under names of the account's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from steelyard.cdk.program import Cdk
from steelyard.deploy.permissions import duties
from steelyard.environments.files import parse_environment


@dataclass(frozen=True, kw_only=True)
class Recording(Cdk):
    """Keeps the words of the CDK's command line instead of running it."""

    ran: list[tuple[str, ...]] = field(default_factory=list)

    def _run(self, *words: str) -> None:
        self.ran.append(words)


class Account:
    """An account that is only named."""

    region = "eu-west-1"

    def account(self) -> str:
        return "111122223333"

    def partition(self) -> str:
        return "aws"


def test_the_bootstrap_has_the_names_of_the_file() -> None:
    cdk = Recording(environment="dev", release="sample")
    cdk.bootstrap(account="111122223333", region="eu-west-1", qualifier="ours", stack="OurToolkit")
    words = ("bootstrap", "aws://111122223333/eu-west-1", "--qualifier", "ours", "--toolkit-stack-name", "OurToolkit")
    assert cdk.ran == [words]


def test_its_roles_are_the_ones_that_must_be_assumed() -> None:
    data = {"region": "eu-west-1", "removal_policy": "destroy", "bootstrap": {"qualifier": "ours"}}
    aws: Any = Account()
    first, *_ = duties(aws, parse_environment(data, name="dev", source="it"))
    assert first.resources[0] == "arn:aws:iam::111122223333:role/cdk-ours-deploy-role-111122223333-eu-west-1"
