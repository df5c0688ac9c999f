"""Container images: which repository a URI names, and whether the emulated registry holds the image."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ministack.core.responses import get_account_id, get_region
from ministack.services import ecr

from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.manifests import COMMAND_ANNOTATION
from steelyard_localcloud.registry.manifests import INDEXES, OCI
from steelyard_localcloud.service_role import ServiceRole
from steelyard_localcloud.wire import Parameters

PUBLISHED = {"llama-cpp": "x86_64", "llama-cpp-arm64": "arm64"}
"""The published llama.cpp containers: AWS has a repository for each architecture."""

_URI = re.compile(
    r"(?P<account>[0-9]{12})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.amazonaws\.com(\.cn)?/(?P<repository>[a-z0-9._/-]+)"
    r"(?::(?P<tag>[A-Za-z0-9_.-]+))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_PULL_ACTIONS = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


@dataclass(frozen=True)
class Image:
    """An image URI, taken apart."""

    uri: str
    account: str
    region: str
    repository: str
    tag: str | None
    digest: str | None

    @property
    def owned(self) -> bool:
        """Tell whether it lies in the caller's own registry, so in the emulated one."""
        return bool(self.account == get_account_id())

    @property
    def is_chat(self) -> bool:
        """Tell whether it is a published llama.cpp container of another account, the regional registry of AWS."""
        return self.published_architecture is not None

    @property
    def published_architecture(self) -> str | None:
        """Instruction set of a published llama.cpp container; None for any other image."""
        return None if self.owned else PUBLISHED.get(self.repository.rpartition("/")[2])

    @property
    def repository_arn(self) -> str:
        """The repository, as policies name it."""
        return f"arn:aws:ecr:{self.region}:{self.account}:repository/{self.repository}"


def parse_image(uri: str) -> Image:
    """Take an image URI apart.

    Raises:
        ServiceError: It is not in private ECR; SageMaker takes nothing else.
    """
    match = _URI.fullmatch(uri)
    if match is None:
        raise ServiceError(
            f"Using non-ECR image {uri!r} without Vpc repository access mode is not supported; name an image in "
            "ACCOUNT.dkr.ecr.REGION.amazonaws.com."
        )
    parts = match.groupdict()
    if not parts["tag"] and not parts["digest"]:
        raise ServiceError(f"The image {uri!r} names neither a tag nor a digest.")
    return Image(uri, parts["account"], parts["region"], parts["repository"], parts["tag"], parts["digest"])


def resolve(image: Image) -> str:
    """The URI by digest of an image that exists.

    Images of other accounts are outside the emulated registry: only the published chat container is known, unseen.

    Raises:
        ServiceError: The registry does not hold the image.
    """
    if image.owned:
        found = _find(image)
        version = found["imageDigest"]
        if found.get("imageManifestMediaType") in (OCI, *INDEXES):
            raise ServiceError(
                f"Unsupported manifest media type {found['imageManifestMediaType']} for image {image.uri}. Ensure that "
                "valid manifest media type is used for specified image."
            )
    elif image.is_chat:
        version = image.digest or image.tag or ""
    else:
        raise ServiceError(
            f"Requested image {image.uri} is not known to the local cloud: it runs images of account "
            f"{get_account_id()} and the published containers {' and '.join(PUBLISHED)}."
        )
    separator = "@" if version.startswith("sha256:") else ":"
    registry, _, _ = image.uri.partition("/")
    return f"{registry}/{image.repository}{separator}{version}"


def check_pull(image: Image, role: ServiceRole) -> None:
    """Refuse an image that the execution role may not pull.

    Raises:
        ServiceError: With the missing actions.
    """
    missing = [action for action in _PULL_ACTIONS if not role.allows(action, image.repository_arn)]
    if not role.allows("ecr:GetAuthorizationToken", "*"):
        missing.insert(0, "ecr:GetAuthorizationToken")
    if missing:
        raise ServiceError(
            f"The role '{role.arn}' does not have {', '.join(missing)} permission(s) for the image: '{image.uri}'."
        )


def is_real(image: Image) -> bool:
    """Return whether there are layers behind an image's manifest, so that it runs as a container.

    Images of other accounts never are: what is published to those registries here stands for the bases of builds.
    """
    return image.owned and bool(_manifest(image).get("layers"))


def command_of(image: Image) -> list[str] | None:
    """The command that an image's manifest names for the local cloud; None means our server."""
    if not image.owned:
        return None
    command = _manifest(image).get("annotations", {}).get(COMMAND_ANNOTATION)
    return None if command is None else [str(word) for word in json.loads(command)]


def _manifest(image: Image) -> Parameters:
    manifest: Parameters = json.loads(_find(image).get("imageManifest") or "{}")
    return manifest


def _find(image: Image) -> dict[str, str]:
    if image.region != get_region():
        raise ServiceError(
            f"Invalid ECR image {image.uri}: it is in {image.region}, the endpoint in {get_region()}; SageMaker pulls "
            "from its own region."
        )
    wanted = {"imageDigest": image.digest} if image.digest else {"imageTag": image.tag}
    found: dict[str, str] | None = ecr._find_image(image.repository, wanted)
    if found is None:
        raise ServiceError(f"Requested image {image.uri} not found.")
    return found
