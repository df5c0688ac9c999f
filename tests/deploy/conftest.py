"""One local cloud for all of these tests, bootstrapped once, and one environment in it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Behind the other rooms' folders: only the names that are unique to this one are meant.
sys.path.append(str(Path(__file__).parent))

from world import PROCESSES, World

from steelyard_localcloud.cloud import LocalCloud


@pytest.fixture(scope="session")
def bootstrapped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A local cloud in which the CDK can deploy, and nothing has been deployed by us."""
    with LocalCloud(tmp_path_factory.mktemp("cloud"), environment=PROCESSES, longest_wait_s=0.2) as cloud:
        world = World(cloud, tmp_path_factory.mktemp("world"))
        done = world.cdk("bootstrap", "aws://000000000000/us-east-1")
        assert done.code == 0, done.said
        yield world


@pytest.fixture
def world(bootstrapped: World) -> World:
    """The environment, as some test has left it; deployed anew where one has destroyed it."""
    bootstrapped.ensure()
    return bootstrapped
