"""Compatibility of a release with an environment, and the image that an endpoint gets from it."""

from __future__ import annotations

from collections.abc import Iterator

from steelyard.environments.schema import Endpoint, Environment, endpoint_faults
from steelyard.releases.manifest import Release
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.declared_endpoint import Check, check_endpoint_image
from steelyard_constructs.images import ImageReference


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
        yield lambda: release.model(endpoint.role)


def _check_image(environment: Environment, endpoint: Endpoint, release: Release) -> None:
    check_endpoint_image(endpoint, image_of(environment, endpoint, release), region=environment.region)
