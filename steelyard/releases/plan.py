"""Plan of a release for some environments: what has to be built, and by which projects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from steelyard.environments.schema import Environment
from steelyard.releases.manifest import Release, ReleaseSource
from steelyard.releases.packing import PackedDecision, pack
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.hardware import Hardware


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The contents of a release before they exist.

    Attributes:
        models: Name in the catalogue by role.
        images: Hardware that our image is built for.
        published: Hardware whose published container chat endpoints run.
        decisions: Registered decisions, in the order of their names.
    """

    models: Mapping[str, str]
    images: tuple[Hardware, ...]
    published: tuple[Hardware, ...]
    decisions: tuple[PackedDecision, ...] = ()


def plan_for(
    environment: Environment,
    *,
    targets: Sequence[Environment] = (),
    models: Mapping[str, str] | None = None,
    images: Iterable[Hardware] = (),
    decisions: Iterable[str] = (),
) -> Plan:
    """Plan a release that fits an environment and those that it is promoted to, with what is asked for beside it.

    Args:
        environment: The environment that builds it.
        targets: The other environments that it is meant for.
        models: Model by role, over those of the environment's file.
        images: Further hardware to build our image for.
        decisions: Further registered decisions, each as ``NAME@VERSION``.

    Raises:
        CommandError: The environment does not build what is needed, does not say which model a role gets, or names a
            decision that is not in ``decisions/``.
    """
    asked = dict(models or {})
    served = [each for meant in (environment, *targets) for each in meant.endpoints.values()]
    roles = {each.role for each in served if each.hub is None} | asked.keys()
    hardware = {each.hardware for each in served if each.kind == "decision"} | set(images)
    if not roles and not hardware:
        raise CommandError(
            f"the environment {environment.name!r} has no endpoints, so there is nothing to put into a release",
            code=ExitCode.USAGE,
            hint="Say what to build: --model ROLE=NAME, --image HARDWARE.",
        )
    if hardware and environment.images.account is not None:
        raise CommandError(
            f"the environment {environment.name!r} builds no images: it pulls those of account "
            f"{environment.images.account}",
            code=ExitCode.USAGE,
            hint="Build the release in the environment of that account, and deploy it here: it is the same everywhere.",
        )
    if absent := sorted(each.value for each in hardware if each.value not in environment.builds.images):
        raise CommandError(
            f"the environment {environment.name!r} builds no image for {', '.join(absent)}"
            f"{_needed_by(targets, absent)}; it builds for {', '.join(environment.builds.images) or 'none'}",
            code=ExitCode.USAGE,
            hint=f"Add it to images of [builds] in environments/{environment.name}.toml.",
        )
    return Plan(
        models={role: _model_of(environment, role, asked) for role in sorted(roles)},
        images=tuple(sorted(hardware)),
        published=tuple(sorted({each.hardware for each in served if each.kind == "chat"})),
        decisions=pack({*decisions, *(name for each in served for name in each.decisions or ())}),
    )


def _needed_by(targets: Sequence[Environment], hardware: Sequence[str]) -> str:
    needing = [
        each.name
        for each in targets
        if any(one.kind == "decision" and one.hardware in hardware for one in each.endpoints.values())
    ]
    return f", which {', '.join(needing)} needs" if needing else ""


def _model_of(environment: Environment, role: str, asked: Mapping[str, str]) -> str:
    built = environment.builds.models
    only = built[0] if len(built) == 1 else None
    name = asked.get(role) or environment.builds.roles.get(role) or only
    if name is None:
        raise CommandError(
            f"nothing says which model the role {role!r} gets: {', '.join(built) or 'no model'} can be built",
            code=ExitCode.USAGE,
            hint=f"Add roles.{role} to [builds] in environments/{environment.name}.toml, or say --model {role}=NAME.",
        )
    if name not in built:
        raise CommandError(
            f"the environment {environment.name!r} does not build the model {name!r} of the role {role!r}; it builds "
            f"{', '.join(built) or 'none'}",
            code=ExitCode.USAGE,
            hint=f"Add it to models of [builds] in environments/{environment.name}.toml.",
        )
    return name


def fits(release: Release, plan: Plan, source: ReleaseSource) -> bool:
    """Return whether a release is what building by ``plan`` from ``source`` would make again."""
    return (
        not release.sample
        and not source.dirty
        and release.source == source
        and {role: model.name for role, model in release.models.items()} == plan.models
        and set(release.images.get("decision", {})) == set(plan.images)
        and set(release.images.get("chat", {})) == set(plan.published)
        and release.decision_contracts == tuple(each.released for each in plan.decisions)
    )


def model_project(name: str) -> str:
    """The output of the stack ``Build`` that names the project for a model."""
    return f"ModelProject{pascal(name)}"


def image_project(hardware: Hardware) -> str:
    """The output of the stack ``Build`` that names the project for an image."""
    return f"ImageProject{pascal(hardware.value)}"


def pascal(name: str) -> str:
    """A name as part of an output's, which takes letters and digits only: ``qwen3.5-4b`` is ``Qwen354b``."""
    return "".join(part.capitalize() for part in name.replace(".", "").split("-"))
