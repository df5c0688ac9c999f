"""The files that a container gets: those of its model, and the registered decisions beside it.

SageMaker fetches one prefix into a container. CloudFormation has no field for a second one
(``AdditionalModelDataSources``, which the API has), and a container in network isolation cannot fetch anything itself.
So a model with decisions lies once more, copied within the bucket, under a key that follows from the hashes of both.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from steelyard.environments.schema import DECISIONS_VARIABLE, Endpoint, Environment
from steelyard.releases.manifest import Release, ReleasedDecision, ReleasedModel
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_runtime.decisions.content import content_sha256
from steelyard_runtime.engine import builds

FOLDER = "decisions"
"""Beside the model file; where the server looks for registered decisions by itself."""


@dataclass(frozen=True, kw_only=True)
class Served:
    """A model, and registered decisions beside it.

    Attributes:
        model: The model.
        decisions: The decisions, in the order of their names.
    """

    model: ReleasedModel
    decisions: tuple[ReleasedDecision, ...] = ()

    @property
    def key(self) -> str:
        """The place of both in each bucket: a prefix ending in ``/``; the model's own where there are no decisions."""
        if not self.decisions:
            return self.model.key
        listed = "".join(f"{name} {size} {sha256}\n" for name, (size, sha256) in sorted(self.objects().items()))
        content = f"{self.model.manifest_sha256}\n{listed}"
        return f"served/{self.model.name}/{hashlib.sha256(content.encode()).hexdigest()}/"

    @property
    def variables(self) -> dict[str, str]:
        """The variables that tell the server which decisions must be there."""
        if not self.decisions:
            return {}
        return {DECISIONS_VARIABLE: content_sha256(each.content for each in self.decisions)}

    def objects(self) -> dict[str, tuple[int, str]]:
        """Return what must lie below the key beside the model's manifest: size in bytes and sha256 by name."""
        return {**self.model.objects(), **{name: wanted for name, (_, wanted) in self.decision_objects().items()}}

    def decision_objects(self) -> dict[str, tuple[tuple[str, str], tuple[int, str]]]:
        """Return the decisions' files by their names below the key: whose they are, then size in bytes and sha256."""
        beside = PurePosixPath(self.model.file).parent / FOLDER
        return {
            str(beside / decision.name / file.name): ((decision.name, file.name), (file.size, file.sha256))
            for decision in self.decisions
            for file in decision.files
        }

    def artifact(self, *, bucket: str) -> ModelArtifact:
        """Both in one environment's ``bucket``."""
        size = self.model.bytes + sum(file.size for decision in self.decisions for file in decision.files)
        return ModelArtifact(bucket=bucket, key=self.key, bytes=size, file=self.model.file)


def served_by(release: Release, endpoint: Endpoint) -> Served:
    """Return what an endpoint serves of a release.

    Raises:
        CommandError: The release has no model for it, or not a decision that it names.
    """
    model = release.model(endpoint.role)
    if endpoint.kind != "decision":
        return Served(model=model)
    build = serving_build(release, endpoint)
    known: dict[str, ReleasedDecision] = {}
    for each in release.decision_contracts:
        if each.name not in known or each.fits((build,)):
            known[each.name] = each
    if endpoint.decisions is None:
        names = [each.name for each in known.values() if belongs_to(each, model)]
    else:
        names = list(endpoint.decisions)
    if absent := [name for name in names if name not in known]:
        raise CommandError(
            f"release {release.id!r} has no decision {absent[0]}; it has {', '.join(known) or 'none'}",
            code=ExitCode.USAGE,
            hint="Build a release that has it: steelyard release build. Or take it out of the endpoint's decisions.",
        )
    return Served(model=model, decisions=tuple(known[name] for name in sorted(names)))


def serving_build(release: Release, endpoint: Endpoint) -> str:
    """Return the build of llama.cpp behind an endpoint; empty where the release has no image for it."""
    if release.sample:
        return _build_here()
    image = release.images.get(endpoint.kind, {}).get(endpoint.hardware)
    return "" if image is None else image.llama_cpp


def serving_builds(release: Release) -> dict[str, str]:
    """Return the builds of llama.cpp that serve a release's decisions, by what has them."""
    if release.sample:
        return {"this checkout": _build_here()}
    images = release.images.get("decision", {})
    return {f"the image for {hardware.value}": image.llama_cpp for hardware, image in images.items()}


def _build_here() -> str:
    """Return the build behind a sample: its images stand for none, and processes of this checkout serve.

    Their library is the one that pip built.
    """
    return builds.find(builds.BUNDLED).name


def all_served(environment: Environment, release: Release) -> Mapping[str, Served]:
    """Return what the endpoints of an environment serve of a release's models, by their names."""
    return {name: served_by(release, each) for name, each in environment.endpoints.items() if each.hub is None}


def belongs_to(decision: ReleasedDecision, model: ReleasedModel) -> bool:
    """Return whether a decision can be asked of a model: its head was fitted on that file, or it has none."""
    return decision.head is None or decision.head.model_sha256 == model.weights_sha256


def head_faults(decision: ReleasedDecision, model: ReleasedModel, *, llama_cpp: str) -> Iterator[str]:
    """Yield a sentence for each thing that a head was fitted for and that its server is not.

    Args:
        decision: The decision.
        model: The model that it is served with.
        llama_cpp: The build of llama.cpp that serves it, such as ``b10435``.
    """
    if decision.head is None:
        return
    if not belongs_to(decision, model):
        yield (
            f"the head of {decision.name} was fitted on the model file {decision.head.model_sha256}, and {model.name} "
            f"has {model.weights_sha256}; fit it on that one: steelyard decision fit"
        )
    if not decision.fits((llama_cpp,)):
        yield (
            f"the head of {decision.name} was fitted with llama.cpp {decision.head.llama_cpp}, and {llama_cpp} serves "
            f"it; {fit_hint(decision.name)}"
        )


def fit_hint(name: str) -> str:
    """Return how a head for the build of an image is made, for the decision ``NAME@VERSION``."""
    return f"fit it with that build: steelyard decision fit {name.partition('@')[0]} --image IMAGE"
