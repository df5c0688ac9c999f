"""Container images by digest, from private ECR, with what must be known to place them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from steelyard_constructs.hardware import Architecture, Hardware
from steelyard_constructs.refusal import Refused

#: Repositories of the published llama.cpp containers in the regional registry of the AWS Deep Learning Containers, by
#: architecture (deep-learning-containers, ``.github/config/image/llama_cpp``).
DLC_REPOSITORIES = {Architecture.X86_64: "llama-cpp", Architecture.ARM64: "llama-cpp-arm64"}

RELEASE_TAG_PREFIX = "release-"
"""Begins the tag that a release puts on each image that it names; such an image is never expired."""

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ACCOUNT = re.compile(r"[0-9]{12}")
# ECR's own rule for repository names: path components of lower-case letters and digits, joined by . _ - inside.
_REPOSITORY = re.compile(r"[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*")
# The domains of all partitions of AWS, as botocore's endpoints.json lists them.
_DOMAINS = (
    *("amazonaws.com", "amazonaws.com.cn", "amazonaws.eu"),
    *("c2s.ic.gov", "sc2s.sgov.gov", "cloud.adc-e.uk", "csp.hci.ic.gov"),
)
_PRIVATE_URI = re.compile(
    rf"(?P<account>[0-9]{{12}})\.dkr\.ecr\.(?P<region>[a-z0-9-]+)\.(?:{'|'.join(map(re.escape, _DOMAINS))})"
    r"/(?P<repository>[^:@]+)@(?P<digest>.+)"
)
_CUDA = re.compile(r"[0-9]{1,3}\.[0-9]{1,3}")
_BUILD = re.compile(r"b[0-9]{1,9}")


@dataclass(frozen=True)
class ImageReference:
    """An image in private ECR, pinned by its digest.

    Attributes:
        repository: Name of the repository, without registry.
        digest: ``sha256:`` and 64 hexadecimal digits, of the image itself, not of an index of several platforms.
        architecture: Instruction set that it was built for.
        cuda: Version of CUDA in it, such as ``13.0``, or None for an image without CUDA.
        account: Registry that holds it; None means the account of the stack.
        region: Region of the registry; None means the region of the stack.
        llama_cpp: The build of llama.cpp in it, such as ``b10433``, or None where that is not known.
        published: Whether it is an AWS Deep Learning Container; ``account`` None then means AWS's regional registry.
    """

    repository: str
    digest: str
    architecture: Architecture = Architecture.X86_64
    cuda: str | None = None
    account: str | None = None
    region: str | None = None
    llama_cpp: str | None = None
    published: bool = False

    def __post_init__(self) -> None:
        if not _DIGEST.fullmatch(self.digest):
            raise Refused(
                f"image {self.repository!r} is named by {self.digest!r}, which is not a digest: a tag can be moved to "
                "another image later; write sha256: and the 64 hexadecimal digits that the registry shows for it"
            )
        if "public.ecr.aws" in self.repository:
            raise Refused(
                f"image {self.repository!r} is in the public gallery, which SageMaker does not pull from; use "
                f"ImageReference.dlc(...) for the published container, or copy it to a private repository"
            )
        # A value that the CDK knows only when it deploys, such as the name of a repository in another stack.
        known_later = "${Token[" in self.repository
        if not known_later and not _REPOSITORY.fullmatch(self.repository):
            raise Refused(
                f"image repository {self.repository!r} is not a name that ECR takes: lower-case letters and digits, "
                "with . _ - and / between them, no registry in front and no tag behind"
            )
        if self.account is not None and not _ACCOUNT.fullmatch(self.account):
            raise Refused(f"image {self.repository!r} is of account {self.account!r}; an account is 12 digits")
        if self.cuda is not None and not _CUDA.fullmatch(self.cuda):
            raise Refused(f"image {self.repository!r} has CUDA {self.cuda!r}; write it as MAJOR.MINOR, such as 13.0")
        if self.llama_cpp is not None and not _BUILD.fullmatch(self.llama_cpp):
            raise Refused(
                f"image {self.repository!r} has llama.cpp {self.llama_cpp!r}; write the build, such as b10433"
            )

    @classmethod
    def parse(
        cls, uri: str, *, architecture: Architecture = Architecture.X86_64, cuda: str | None = None
    ) -> ImageReference:
        """The image at ``uri``, written as ``ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY@sha256:DIGEST``.

        >>> ImageReference.parse("111122223333.dkr.ecr.eu-west-1.amazonaws.com/mine@sha256:" + "0" * 64).region
        'eu-west-1'

        Raises:
            Refused: It is in a public registry, or named by a tag.
        """
        if uri.startswith("public.ecr.aws/"):
            raise Refused(
                f"image {uri!r} is in the public gallery, which SageMaker does not pull from; use "
                "ImageReference.dlc(...) for the published container, or copy it to a private repository"
            )
        match = _PRIVATE_URI.fullmatch(uri)
        if match is None:
            raise Refused(
                f"image {uri!r} is not pinned in private ECR: a tag can be moved to another image later, and SageMaker "
                "pulls from ECR only; write ACCOUNT.dkr.ecr.REGION.amazonaws.com/REPOSITORY@sha256:DIGEST"
            )
        return cls(
            repository=match["repository"],
            digest=match["digest"],
            architecture=architecture,
            cuda=cuda,
            account=match["account"],
            region=match["region"],
        )

    @classmethod
    def dlc(
        cls,
        *,
        digest: str,
        architecture: Architecture = Architecture.X86_64,
        cuda: str | None = None,
        llama_cpp: str | None = None,
        account: str | None = None,
        repository: str | None = None,
    ) -> ImageReference:
        """A published llama.cpp container, from the registry that AWS keeps in the endpoint's region.

        Args:
            digest: Digest in that region's registry.
            architecture: Instruction set of the image.
            cuda: CUDA version of the GPU image; None for a CPU image.
            llama_cpp: Build of llama.cpp in it; flags of chat endpoints are checked against it.
            account: Account of the regional registry, where the CDK's ``region_info`` does not know it.
            repository: Name of the repository there; that of the architecture unless set.

        Raises:
            Refused: ``digest`` is not a digest.
        """
        return cls(
            repository=repository or DLC_REPOSITORIES[architecture],
            digest=digest,
            architecture=architecture,
            cuda=cuda,
            llama_cpp=llama_cpp,
            account=account,
            published=True,
        )


def publisher_account(region: str) -> str:
    """Account of the registry in which AWS publishes its containers in ``region``.

    Raises:
        Refused: The CDK knows none there.
    """
    # Here, because environments are read without the CDK, which takes a second to start.
    from aws_cdk import region_info

    account = region_info.RegionInfo.get(region).dlc_repository_account
    if account is None:
        raise Refused(
            f"the CDK knows no registry of AWS Deep Learning Containers in {region!r}: take the account from AWS's "
            "list of their registries and set it, as chat_account of [images] in an environment file or as account of "
            "ImageReference.dlc(...), or use another region"
        )
    return account


def check_image(image: ImageReference, hardware: Hardware) -> None:
    """Refuse an image that was not built for ``hardware``.

    Raises:
        Refused: Its architecture is another, it lacks CUDA on a GPU, or it has CUDA without one.
    """
    if image.architecture is not hardware.architecture:
        raise Refused(
            f"image {image.repository!r} is built for {image.architecture.value}, but {hardware.value!r} instances are "
            f"{hardware.architecture.value}: the container would not start; use an image built for the latter"
        )
    if hardware is Hardware.CUDA and image.cuda is None:
        raise Refused(
            f"image {image.repository!r} has no CUDA, so the GPUs of a {hardware.value!r} endpoint would stay idle; "
            "use a CUDA image and state its version, or other hardware"
        )
    if hardware is not Hardware.CUDA and image.cuda is not None:
        raise Refused(
            f"image {image.repository!r} has CUDA {image.cuda}, but a {hardware.value!r} endpoint has no GPU; use the "
            "CPU image, or hardware 'cuda'"
        )
