"""Tags the images that a release names, so that the registry's rule never expires them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from steelyard.aws.session import Aws, aws_errors
from steelyard.environments.schema import Environment
from steelyard.releases.checks import image_manifest, own_registry, release_tag, tagged_digest
from steelyard.releases.manifest import Release, ReleasedImage
from steelyard_base.exit_codes import CommandError
from steelyard_constructs.hardware import Hardware


def built_images(release: Release) -> Iterator[tuple[Hardware, ReleasedImage]]:
    """The images of a release that were built for it; containers that AWS publishes are not ours to tag."""
    for hardware, image in release.images.get("decision", {}).items():
        if image.build is not None:
            yield hardware, image


def tag_images(
    aws: Aws, environment: Environment, release: Release, *, tell: Callable[[str], None] = lambda _: None
) -> None:
    """Put a release's tag on each of its images. A tag that is there already stays.

    Raises:
        CommandError: Another image has a tag, or ECR refuses.
    """
    account, repository = own_registry(aws, environment)
    for hardware, image in built_images(release):
        tag = release_tag(release.id, hardware)
        if (there := tagged_digest(aws, environment, tag)) == image.digest:
            continue
        if there is not None:
            raise CommandError(
                f"the tag {tag} of {repository} is on {there}, not on {image.digest}",
                hint="Tags of this repository cannot be moved. Find out what put it there; steelyard never does.",
            )
        tell(f"tagging {repository}@{image.digest} as {tag}")
        if (found := image_manifest(aws, (account, repository), image.digest)) is None:
            continue  # `findings` tells of a missing image
        manifest, media_type = found
        wanted: dict[str, Any] = {"imageManifest": manifest, "imageTag": tag}
        if media_type:
            wanted["imageManifestMediaType"] = media_type
        with aws_errors():
            aws.client("ecr").put_image(
                registryId=account, repositoryName=repository, imageDigest=image.digest, **wanted
            )
