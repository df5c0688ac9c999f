"""A release whose parts are missing or differ: the stack's own gate refuses it before anything else changes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from world import DECISION_STACK, REPOSITORY, Wanted, World, digest

from steelyard.releases.manifest import write_release

INDEX_TYPE = "application/vnd.oci.image.index.v1+json"
OCI_IMAGE_TYPE = "application/vnd.oci.image.manifest.v1+json"
IMAGE_TYPE = "application/vnd.docker.distribution.manifest.v2+json"


def missing_image(world: World) -> tuple[Wanted, str]:
    image = digest()
    return world.change(image=image), f"image {REPOSITORY}@{image} in registry 000000000000 is missing"


def index_of_images(world: World) -> tuple[Wanted, str]:
    return other_media_type(world, INDEX_TYPE, manifests=[])


def image_of_oci(world: World) -> tuple[Wanted, str]:
    return other_media_type(world, OCI_IMAGE_TYPE, config={}, layers=[])


def other_media_type(world: World, media_type: str, **content: object) -> tuple[Wanted, str]:
    image = digest()
    world.client("ecr").put_image(
        repositoryName=REPOSITORY,
        imageDigest=image,
        imageManifest=json.dumps({"schemaVersion": 2, "mediaType": media_type, **content}),
        imageManifestMediaType=media_type,
    )
    return world.change(image=image), f"is a {media_type}; SageMaker takes {IMAGE_TYPE} only"


def missing_model(world: World) -> tuple[Wanted, str]:
    wanted = published(world)
    for name in ("model.gguf", "model-manifest.json"):
        delete(world, wanted.model.key + name)
    return wanted, f"s3://{world.bucket()}/{wanted.model.key}model-manifest.json is missing"


def other_size(world: World) -> tuple[Wanted, str]:
    wanted = published(world)
    replace(world, wanted.model.key + "model.gguf", b"short")
    return wanted, f"{wanted.model.key}model.gguf differs: 5 bytes, not {wanted.model.path.stat().st_size}"


def other_bytes(world: World) -> tuple[Wanted, str]:
    wanted = published(world)
    content = bytearray(wanted.model.path.read_bytes())
    content[-1] ^= 1
    replace(world, wanted.model.key + "model.gguf", bytes(content))
    return wanted, f"model.gguf differs: sha256 {hashlib.sha256(content).hexdigest()}, not "


def other_manifest(world: World) -> tuple[Wanted, str]:
    wanted = published(world)
    replace(world, wanted.model.key + "model-manifest.json", wanted.model.manifest + b" ")
    return wanted, f"model-manifest.json differs: sha256 {hashlib.sha256(wanted.model.manifest + b' ').hexdigest()}"


def second_model(world: World) -> tuple[Wanted, str]:
    wanted = published(world)
    replace(world, wanted.model.key + "another.gguf", b"GGUF")
    return wanted, f"{wanted.model.key}another.gguf does not belong there"


def published(world: World) -> Wanted:
    """A change to a model of its own, in its place."""
    world.models += 1
    model = world.model("llama", seed=100 + world.models)
    wanted = world.change(model=model)
    world.provide(wanted)
    return wanted


def replace(world: World, key: str, content: bytes) -> None:
    recorded = hashlib.sha256(content).hexdigest()
    world.client("s3").put_object(Bucket=world.bucket(), Key=key, Body=content, Metadata={"sha256": recorded})


def delete(world: World, key: str) -> None:
    world.client("s3").delete_object(Bucket=world.bucket(), Key=key)


FAULTS = [
    missing_image,
    index_of_images,
    image_of_oci,
    missing_model,
    other_size,
    other_bytes,
    other_manifest,
    second_model,
]


@pytest.mark.parametrize("fault", FAULTS)
def test_refused_before_anything_changes_and_the_old_release_serves(
    world: World, fault: Callable[[World], tuple[Wanted, str]]
) -> None:
    wanted, sentence = fault(world)
    before, processes, everything = world.serving(), world.cloud.processes(), world.everything()
    assembly = world.synth(wanted)
    with world.traffic() as outcomes:
        done = world.cdk(
            *("deploy", "--exclusively", DECISION_STACK, "--require-approval", "never", "--app", str(assembly))
        )
    assert done.code == 1
    assert sentence in done.said
    assert world.status(DECISION_STACK) == "UPDATE_ROLLBACK_COMPLETE"
    assert [each for each in outcomes if isinstance(each, Exception)] == []
    assert outcomes
    assert world.serving() == before
    assert world.cloud.processes() == processes
    assert world.everything() == everything
    assert touched(world) <= {"Gate", "Steelyard-dev-Endpoint-decision"}


def touched(world: World) -> set[str]:
    """Logical ids of what the last deployment began to change, up to the first capital of their second word."""
    events = world.client("cloudformation").describe_stack_events(StackName=DECISION_STACK)["StackEvents"]
    found = set()
    for event in events:
        name = event["LogicalResourceId"]
        if name == DECISION_STACK and event["ResourceStatus"] == "UPDATE_IN_PROGRESS":
            break
        found.add("Gate" if name.startswith("Gate") else name)
    return found


@pytest.mark.parametrize("fault", [missing_image, missing_model, other_bytes])
def test_the_command_refuses_it_before_it_calls_the_cdk(
    world: World, fault: Callable[[World], tuple[Wanted, str]], tmp_path: Path
) -> None:
    """A release that is no sample: the local cloud does not stand in for what is missing."""
    wanted, sentence = fault(world)
    manifest, path = write_release(wanted.sealed_data(), folder=tmp_path)
    before, stack = world.serving(), world.updated()
    words = ("--local", "--home", str(world.cloud.options.home), "--release", str(path))
    done = world.steelyard("up", *words)
    world.stands = False
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    if fault is missing_model:
        assert "which does not build it" in done.stderr
    else:
        assert f"release {manifest.id} cannot be deployed to dev" in done.stderr
        assert sentence in done.stderr
    assert world.serving() == before
    assert world.updated() == stack
