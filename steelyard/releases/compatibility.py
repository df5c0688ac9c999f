"""Compatibility of a release with an environment, and the image that an endpoint gets from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from steelyard.environments.schema import Endpoint, Environment, endpoint_faults
from steelyard.releases.manifest import Release
from steelyard.releases.served import head_faults, served_by, serving_build
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.chat_flags import check_flags_of_build
from steelyard_constructs.declared_endpoint import Check, check_endpoint_image
from steelyard_constructs.images import ImageReference
from steelyard_constructs.refusal import Refused

SHADOWS_VARIABLE = "STEELYARD_SHADOW_DECISIONS"


def check_release(environment: Environment, release: Release) -> None:
    """Refuse a release that cannot run in this environment.

    Raises:
        CommandError: It lacks a model or an image that an endpoint needs, or an image does not fit its instances; the
            message has a sentence for each.
    """
    faults = endpoint_faults(environment.endpoints, lambda endpoint: _checks(environment, endpoint, release))
    if faults:
        raise CommandError(
            f"release {release.id!r} cannot run in environment {environment.name!r}:\n"
            + "\n".join(f"- {fault}" for fault in faults),
            code=ExitCode.USAGE,
        )


def image_of(environment: Environment, endpoint: Endpoint, release: Release) -> ImageReference:
    """Return the image of ``endpoint`` in ``release``, in the registry that this environment pulls from.

    Raises:
        CommandError: The release has none for this kind and hardware.
    """
    image = release.image(endpoint.kind, endpoint.hardware)
    if endpoint.kind == "chat":
        return image.published(account=environment.images.chat_account)
    return image.ours(repository=environment.repository_name, account=environment.images.account)


def _checks(environment: Environment, endpoint: Endpoint, release: Release) -> Iterator[Check]:
    yield lambda: _check_image(environment, endpoint, release)
    if endpoint.hub is None:
        yield lambda: _check_served(endpoint, release)


def _check_served(endpoint: Endpoint, release: Release) -> None:
    served = served_by(release, endpoint)
    _check_shadows(endpoint, [each.name for each in served.decisions])
    if not served.decisions:
        return
    llama_cpp = serving_build(release, endpoint)
    for decision in served.decisions:
        for fault in head_faults(decision, served.model, llama_cpp=llama_cpp):
            raise Refused(fault)


def _check_shadows(endpoint: Endpoint, served: Sequence[str]) -> None:
    """Refuse a shadow that the endpoint does not get: its server would not start."""
    given = endpoint.environment.get(SHADOWS_VARIABLE, "")
    if absent := [name for name in map(str.strip, given.split(",")) if name and name not in served]:
        raise Refused(
            f"{SHADOWS_VARIABLE} names {absent[0]}, which the endpoint does not serve; it serves "
            f"{', '.join(served) or 'no registered decisions'}: add it to decisions, or take the shadow out"
        )


def _check_image(environment: Environment, endpoint: Endpoint, release: Release) -> None:
    image = image_of(environment, endpoint, release)
    check_endpoint_image(endpoint, image, region=environment.region)
    if endpoint.kind == "chat":
        check_flags_of_build(endpoint.environment, image.llama_cpp)
