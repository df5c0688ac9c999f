"""A local cloud for all of these tests, and an account in it for each."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Behind the other rooms' folders: only the names that are unique to this one are meant.
sys.path.append(str(Path(__file__).parent))

from accounts import Account

from switchyard import local_cloud
from switchyard.aws import Aws
from switchyard_localcloud import LocalCloud


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    """A local cloud with an account in which releases can be built, and this process sent there."""
    with LocalCloud(tmp_path / "cloud") as cloud, local_cloud.reached(cloud.environment()):
        yield Account(cloud, tmp_path)


@pytest.fixture
def aws(account: Account) -> Aws:
    """The account, as the commands reach it."""
    return Aws("us-east-1")
