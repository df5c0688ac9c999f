"""What has to be built for an environment's endpoints, and where nothing says what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from steelyard.environments.files import environment_names, load_environment, parse_environment, promotion_targets
from steelyard.environments.schema import Environment
from steelyard.releases.bases import base_for, load_bases
from steelyard.releases.compatibility import check_release
from steelyard.releases.manifest import load_release
from steelyard.releases.plan import image_project, model_project, plan_for
from steelyard_base.exit_codes import CommandError
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.images import DLC_REPOSITORIES

CPU = {"kind": "decision", "hardware": "cpu", "instance_type": "ml.c7i.xlarge"}
CHAT = {**CPU, "kind": "chat"}


def environment(**changes: Any) -> Environment:
    data = {
        "region": "us-east-1",
        "removal_policy": "destroy",
        "builds": {"models": ["small", "large"], "images": ["cpu", "graviton"], "roles": {"decision": "small"}},
        "endpoints": {"one": CPU},
        **changes,
    }
    return parse_environment(data, name="test", source="test.toml")


def test_what_the_endpoints_need_and_what_is_asked_for() -> None:
    plan = plan_for(environment())
    assert (plan.models, plan.images, plan.published) == ({"decision": "small"}, (Hardware.CPU,), ())
    both = environment(endpoints={"one": CPU, "two": {**CHAT, "model": "talk"}})
    plan = plan_for(both, models={"talk": "large"}, images=[Hardware.GRAVITON])
    assert plan.models == {"decision": "small", "talk": "large"}
    assert (plan.images, plan.published) == ((Hardware.CPU, Hardware.GRAVITON), (Hardware.CPU,))
    assert plan_for(environment(), models={"decision": "large"}).models == {"decision": "large"}


@pytest.mark.parametrize("name", environment_names())
def test_a_release_that_is_planned_here_runs_wherever_it_is_promoted_to(name: str) -> None:
    """What staging builds without this cannot be deployed to production, whose chat runs on other hardware."""
    builder = load_environment(name)
    if builder.images.account is not None:
        return  # it builds no images; the one that builds for it is looked at
    targets = promotion_targets(builder)
    plan = plan_for(builder, targets=targets)
    sample = load_release()
    planned = sample.model_copy(
        update={
            "models": {role: sample.model(role) for role in plan.models},
            "images": {
                "chat": {each: sample.image("chat", each) for each in plan.published},
                "decision": {each: sample.image("decision", each) for each in plan.images},
            },
        }
    )
    for meant in (builder, *targets):
        check_release(meant, planned)


def test_staging_feeds_production() -> None:
    staging = load_environment("staging")
    assert [each.name for each in promotion_targets(staging)] == ["prod"]
    assert plan_for(staging).published == (Hardware.GRAVITON,)
    assert plan_for(staging, targets=promotion_targets(staging)).published == (Hardware.CUDA, Hardware.GRAVITON)


def test_what_a_target_needs_and_nobody_builds_is_said_with_its_name() -> None:
    target = environment(
        endpoints={"big": {**CPU, "hardware": "cuda", "instance_type": "ml.g6.xlarge", "gpu_layers": -1}}
    )
    with pytest.raises(CommandError, match="builds no image for cuda, which test needs; it builds for cpu, graviton"):
        plan_for(environment(), targets=[target])


def test_a_way_that_leads_back_is_refused(tmp_path: Path) -> None:
    for name, to in (("one", "two"), ("two", "one")):
        (tmp_path / f"{name}.toml").write_text(
            f'region = "us-east-1"\nremoval_policy = "destroy"\npromotes_to = ["{to}"]\n'
        )
    with pytest.raises(CommandError, match="promotes_to of the environment 'one' leads back to it"):
        promotion_targets(load_environment("one", folder=tmp_path), folder=tmp_path)


def test_the_only_model_is_the_one_of_every_role() -> None:
    only = environment(builds={"models": ["small"], "images": ["cpu"]}, endpoints={"one": CPU, "two": CHAT})
    assert plan_for(only).models == {"chat": "small", "decision": "small"}


@pytest.mark.parametrize(
    ("changes", "asked", "sentence"),
    [
        ({"endpoints": {"one": CPU, "two": CHAT}}, {}, "nothing says which model the role 'chat' gets: small, large"),
        ({}, {"models": {"decision": "huge"}}, "does not build the model 'huge' of the role 'decision'"),
        ({}, {"images": [Hardware.CUDA]}, "builds no image for cuda; it builds for cpu, graviton"),
        ({"endpoints": {}}, {}, "has no endpoints, so there is nothing to put into a release"),
        (
            {"builds": {"models": ["small"]}, "images": {"account": "111122223333", "repository": "ours"}},
            {},
            "builds no images: it pulls those of account 111122223333",
        ),
    ],
)
def test_refused(changes: dict[str, Any], asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CommandError) as refused:
        plan_for(environment(**changes), **asked)
    assert sentence in refused.value.message
    assert refused.value.hint


def test_a_role_gets_a_model_that_is_built() -> None:
    with pytest.raises(CommandError, match="role 'decision' has the model 'huge', which is not built here"):
        environment(builds={"models": ["small"], "images": ["cpu"], "roles": {"decision": "huge"}})


def test_ours_can_be_planned_where_images_are_built() -> None:
    assert plan_for(load_environment("dev")).models == {"chat": "gemma-3-270m", "decision": "gemma-3-270m"}
    assert plan_for(load_environment("staging")).images == (Hardware.CPU, Hardware.CUDA)


def test_the_sample_has_the_bases_of_the_builds() -> None:
    for hardware, base in load_bases().items():
        assert load_release().image("chat", hardware) == base
        # AWS has a repository for each architecture.
        assert base.repository == DLC_REPOSITORIES[hardware.architecture]
    with pytest.raises(CommandError, match="there is no base image for cuda; the file of base images has none"):
        base_for({}, Hardware.CUDA)


def test_names_of_outputs() -> None:
    assert model_project("qwen3.5-4b") == "ModelProjectQwen354b"
    assert image_project(Hardware.CPU) == "ImageProjectCpu"
