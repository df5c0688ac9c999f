"""A local cloud for all of these tests, and an account in it for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Behind the other rooms' folders: only the names that are unique to this one are meant.
sys.path.append(str(Path(__file__).parent))

from accounts import Account

from steelyard.aws.session import Aws
from steelyard.deploy import local_cloud
from steelyard_localcloud.cloud import LocalCloud


@pytest.fixture(scope="session")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCloud]:
    """A local cloud."""
    with LocalCloud(tmp_path_factory.mktemp("cloud")) as cloud:
        yield cloud


@pytest.fixture
def account(cloud: LocalCloud, tmp_path: Path) -> Iterator[Account]:
    """An account in which releases can be built, and this process sent there."""
    with local_cloud.reached(cloud.environment()):
        account = Account(cloud, tmp_path)
        yield account
        account.close()


@pytest.fixture
def aws(account: Account) -> Aws:
    """The account, as the commands reach it."""
    return Aws("us-east-1")
