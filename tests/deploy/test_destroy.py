"""``switchyard down`` after traffic, with objects, versions and images inside, leaves nothing."""

from __future__ import annotations

import pytest
from world import CHAT, GREETING, REPOSITORY, World, digest


@pytest.fixture
def furnished(bootstrapped: World) -> World:
    """The environment after use: asked, with further objects, versions, delete markers and images inside."""
    world = bootstrapped
    if not world.exists():
        world.ensure()
    world.ask()
    world.ask(CHAT, GREETING)
    s3, bucket = world.client("s3"), world.bucket()
    for number in range(3):
        s3.put_object(Bucket=bucket, Key="models/other/file", Body=b"version %d" % number)
    s3.delete_object(Bucket=bucket, Key="models/other/file")
    world.cloud.register_image(REPOSITORY, digest(), tag="another")
    return world


def test_destroyed_environment_leaves_nothing(furnished: World) -> None:
    world = furnished
    assert world.cloud.processes()
    world.stands = False
    done = world.switchyard("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert "no stack of dev is left" in done.stderr
    assert world.everything() == world.untouched
    # A second time there is nothing to do.
    again = world.switchyard("down", "--yes")
    assert again.returncode == 0, again.stderr
