"""All stacks of one environment, in the order in which they need one another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import aws_cdk as cdk

from stacks.artifact_stack import ArtifactStack
from stacks.build_stack import BuildStack
from stacks.endpoint_stack import EndpointStack, Shared
from stacks.network_stack import NetworkStack
from stacks.observability_stack import ObservabilityStack
from steelyard.environments.schema import Environment, NoNetwork
from steelyard.releases.bases import Bases, load_bases
from steelyard.releases.compatibility import check_release
from steelyard.releases.manifest import Release

CDK_JSON = Path(__file__).resolve().parent.parent / "cdk.json"


def pinned_context() -> dict[str, Any]:
    """Return what the CDK command line passes to the app, and ``python app.py`` lacks: the flags of ``cdk.json``."""
    context: dict[str, Any] = json.loads(CDK_JSON.read_text(encoding="utf-8"))["context"]
    return {**context, "aws:cdk:enable-asset-metadata": True, "aws:cdk:enable-path-metadata": True}


def add_environment(app: cdk.App, environment: Environment, release: Release, bases: Bases | None = None) -> None:
    """Declare the stacks of ``environment`` with ``release``.

    Args:
        app: Where they go.
        environment: What differs between environments.
        release: What is deployed.
        bases: The published containers that our images are built on; those of ``images/bases.toml`` unless given.

    Raises:
        CommandError: The release cannot run in the environment.
        Refused: A construct refuses what it was given.
    """
    check_release(environment, release)
    artifacts = ArtifactStack(app, environment)
    key = artifacts.encryption_key
    observability = ObservabilityStack(app, environment, encryption_key=key)
    network = None
    if not isinstance(environment.network, NoNetwork):
        network = NetworkStack(app, environment, network=environment.network, encryption_key=key)
    build = None
    if environment.builds_or_stores:
        build = BuildStack(
            app,
            environment,
            bases=load_bases() if bases is None else bases,
            artifacts=artifacts.store.bucket,
            encryption_key=key,
        )
    shared = Shared(
        bucket_name=artifacts.bucket_name,
        encryption_key=key,
        topic=observability.alarms.topic,
        network=network,
    )
    for name in environment.endpoints:
        # The model is in the bucket of the one, the image in the registry of the other.
        endpoint = EndpointStack(app, environment, name=name, release=release, shared=shared)
        endpoint.add_stack_dependency(artifacts)
        if build is not None:
            endpoint.add_stack_dependency(build)
