"""``steelyard down`` after traffic, with objects, versions and images inside, leaves nothing."""

from __future__ import annotations

import json

import pytest
from world import CHAT, GREETING, REPOSITORY, World, digest

REMOVED = "Steelyard-dev-Endpoint-removed"


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
    leave_a_removed_endpoint(world)
    return world


def leave_a_removed_endpoint(world: World) -> None:
    """The stack of an endpoint whose section was removed: it still imports from the others."""
    exports = world.client("cloudformation").list_exports()["Exports"]
    (bucket,) = [each["Name"] for each in exports if each["Value"] == world.bucket()][:1]
    topic = {"Type": "AWS::SNS::Topic", "Properties": {"DisplayName": {"Fn::ImportValue": bucket}}}
    template = json.dumps({"Resources": {"Topic": topic}})
    client = world.client("cloudformation")
    client.create_stack(StackName=REMOVED, TemplateBody=template)
    client.get_waiter("stack_create_complete").wait(StackName=REMOVED, WaiterConfig={"Delay": 1})


def test_destroyed_environment_leaves_nothing(furnished: World) -> None:
    world = furnished
    assert world.cloud.processes()
    # Who says no keeps all of it.
    standing = world.everything()
    refused = world.steelyard("down", stdin="n\n")
    assert refused.returncode == 1
    assert "Destroy dev in account 000000000000, us-east-1: Steelyard-dev-Artifacts, " in refused.stderr
    assert REMOVED in refused.stderr
    assert "nothing was destroyed" in refused.stderr
    assert world.everything() == standing
    world.stands = False
    done = world.steelyard("down", "--yes")
    assert done.returncode == 0, done.stderr
    assert f"deleting {REMOVED}, which environments/dev.toml no longer has" in done.stderr
    assert done.stderr.index(f"deleting {REMOVED}") < done.stderr.index("cdk destroy --all")
    assert "no stack of dev is left" in done.stderr
    assert world.everything() == world.untouched
    # A second time there is nothing to do.
    again = world.steelyard("down", "--yes")
    assert again.returncode == 0, again.stderr
