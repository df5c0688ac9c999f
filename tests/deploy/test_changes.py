"""Deployments while requests are sent: what stands, what a change replaces, and what a broken change leaves alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from world import CHAT, DECISION, DECISION_STACK, GREETING, Wanted, World, digest

from steelyard.aws.session import Aws
from steelyard.deploy.deployment import check_fixed
from steelyard.deploy.local_cloud import reached
from steelyard.environments.files import load_environment
from steelyard.environments.schema import CreatedKey
from steelyard_base.exit_codes import CommandError

MODEL, CONFIG, ENDPOINT = "AWS::SageMaker::Model", "AWS::SageMaker::EndpointConfig", "AWS::SageMaker::Endpoint"


def failures(outcomes: list[Any]) -> list[Any]:
    return [each for each in outcomes if isinstance(each, Exception)]


def test_first_deployment_answers(world: World) -> None:
    for part in ("Artifacts", "Build", "Observability", "Endpoint-decision", "Endpoint-chat"):
        assert world.status(f"Steelyard-dev-{part}").removeprefix("UPDATE_").removeprefix("CREATE_") == "COMPLETE"
    outputs = world.outputs(DECISION_STACK)
    assert outputs["EndpointName"] == load_environment("dev").endpoint_name("decision") == DECISION
    assert (outputs["Kind"], outputs["Release"]) == ("decision", "tiny")
    assert outputs["LogGroup"] == f"/aws/sagemaker/Endpoints/{DECISION}"
    result = world.ask()["result"]
    assert result["option_ids"] == ["yes", "no"]
    assert sum(result["probabilities"]) == pytest.approx(1)
    assert world.ask(CHAT, GREETING)["usage"]["completion_tokens"] >= 1


def test_second_deployment_changes_nothing(world: World) -> None:
    before, processes = world.serving(), world.cloud.processes()
    everything = world.everything()
    done = world.deploy(world.wanted)
    assert done.code == 0, done.said
    assert done.said.count("(no changes)") == 5
    assert world.serving() == before
    assert world.cloud.processes() == processes
    assert world.everything() == everything


def other_model(world: World) -> dict[str, Any]:
    return {"model": world.model("llama", seed=world.wanted.model.name.endswith("-0"))}


def other_image(world: World) -> dict[str, Any]:
    return {"image": digest()}


def deploy_under_traffic(world: World, changes: dict[str, Any]) -> tuple[set[str], list[Any]]:
    """Deploy changes while requests are sent, all of which must be answered.

    Returns:
        The types of what was replaced, and the answers.
    """
    before, old_processes = world.serving(), world.cloud.processes()
    sagemaker = world.client("sagemaker")
    models, configs = len(sagemaker.list_models()["Models"]), len(sagemaker.list_endpoint_configs()["EndpointConfigs"])
    with world.traffic() as outcomes:
        done = world.deploy(world.change(**changes))
    after = world.serving()
    assert done.code == 0, done.said
    assert failures(outcomes) == []
    assert (after["status"], after["made"]) == ("InService", before["made"])
    assert after["config"] != before["config"]
    # Another process serves, the old one is gone, and so is everything that was replaced.
    assert len(world.cloud.processes()) == len(old_processes)
    assert set(world.cloud.processes()) != set(old_processes)
    assert len(sagemaker.list_models()["Models"]) == models
    assert len(sagemaker.list_endpoint_configs()["EndpointConfigs"]) == configs
    return {kind for kind in (MODEL, CONFIG, ENDPOINT) if before[kind] != after[kind]}, outcomes


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        pytest.param(other_model, {MODEL, CONFIG}, id="model"),
        pytest.param(other_image, {MODEL, CONFIG}, id="image"),
    ],
)
def test_change_replaces_what_it_must_under_traffic(
    world: World, change: Callable[[World], dict[str, Any]], replaced: set[str]
) -> None:
    assert deploy_under_traffic(world, change(world))[0] == replaced


def test_changed_environment_variable_reaches_the_answers_at_one_point_in_time(world: World) -> None:
    old, new = world.ask()["result"]["model"]["id"], f"renamed-{digest()[-8:]}"
    replaced, answers = deploy_under_traffic(
        world, {"variables": {**world.wanted.variables, "STEELYARD_MODEL_ID": new}}
    )
    assert replaced == {MODEL, CONFIG}
    names = [each["model"]["id"] for each in answers]
    switch = names.index(new)
    assert switch > 0
    assert set(names[:switch]) == {old}
    assert set(names[switch:]) == {new}


def broken_model(world: World) -> Wanted:
    return world.change(model=world.broken_model())


def test_broken_change_rolls_back_and_the_old_version_serves(world: World) -> None:
    before, processes, everything = world.serving(), world.cloud.processes(), world.everything()
    wanted = broken_model(world)
    world.provide(wanted)
    assembly = world.synth(wanted)
    # The one that is looked at: with --all, another endpoint with the same model may fail first.
    words = ("deploy", "--exclusively", DECISION_STACK, "--require-approval", "never", "--app", str(assembly))
    with world.traffic() as outcomes:
        done = world.cdk(*words)
    assert done.code == 1
    assert "did not pass the ping health check" in done.said
    assert world.status(DECISION_STACK) == "UPDATE_ROLLBACK_COMPLETE"
    assert failures(outcomes) == []
    assert world.serving() == before
    assert world.cloud.processes() == processes
    assert world.everything() == everything
    # What stood can be deployed again.
    again = world.deploy(world.wanted)
    assert again.code == 0, again.said
    assert world.ask()["result"]["option_ids"] == ["yes", "no"]


def test_what_cannot_change_in_place_is_refused_before_anything_changes(world: World) -> None:
    """Renamed twice, both old buckets stayed; a new key failed at the repository, after the key was made."""
    before = world.everything()
    wanted = world.wanted.environment()
    changed = wanted.model_copy(
        update={
            "artifacts": wanted.artifacts.model_copy(update={"bucket_name": "another-bucket"}),
            "encryption": CreatedKey(kind="created"),
        }
    )
    with reached(world.cloud.environment()), pytest.raises(CommandError) as refused:
        check_fixed(Aws("us-east-1"), changed)
    assert "artifacts.bucket_name is 'another-bucket', and was '' when it was made" in str(refused.value)
    assert str(refused.value).count("encryption is 'created'") == 1  # of two stacks
    with reached(world.cloud.environment()):
        check_fixed(Aws("us-east-1"), wanted)
    assert world.everything() == before
