"""The list of what is in an image: Python packages, llama.cpp and the base, as CycloneDX JSON.

It is a function of the image: no time, no random serial number. It lies beside the image and not inside or as an
attestation, which would make an index of the image that SageMaker does not take.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

_EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "steelyard/image")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A Python package that is installed in an image.

    Attributes:
        name: As its metadata has it.
        version: Its version.
        licence: An SPDX expression or what it says instead; empty when it says nothing.
    """

    name: str
    version: str
    licence: str


def image_sbom(
    *,
    repository: str,
    digest: str,
    base_name: str,
    base_digest: str,
    llama_cpp: str,
    packages: Sequence[Package],
) -> bytes:
    """The document, as UTF-8.

    Args:
        repository: Name of the image's repository.
        digest: The image's digest, ``sha256:`` and 64 hexadecimal digits.
        base_name: The base's registry and repository.
        base_digest: The base's digest.
        llama_cpp: Build of llama.cpp in the base, such as ``b10433``.
        packages: What is installed in the image's Python environment.
    """
    image = _container(repository, digest)
    base = _container(base_name, base_digest)
    llama = Component(
        type=ComponentType.LIBRARY,
        name="llama.cpp",
        version=llama_cpp,
        bom_ref="llama.cpp",
        purl=PackageURL(type="github", namespace="ggml-org", name="llama.cpp", version=llama_cpp),
        licenses=[LicenseFactory().make_from_string("MIT")],
        properties=[Property(name="steelyard:part-of", value="base image")],
    )
    installed = [_package(each) for each in sorted(packages, key=lambda each: (each.name.lower(), each.version))]
    bom = Bom(
        serial_number=uuid.uuid5(_NAMESPACE, digest),
        components=[base, llama, *installed],
    )
    bom.metadata.timestamp = _EPOCH
    bom.metadata.component = image
    bom.register_dependency(image, [base, llama, *installed])
    bom.register_dependency(base, [llama])
    return f"{JsonV1Dot6(bom).output_as_string(indent=2)}\n".encode()


def _container(name: str, digest: str) -> Component:
    short = name.rpartition("/")[2]
    algorithm, _, value = digest.partition(":")
    return Component(
        type=ComponentType.CONTAINER,
        name=name,
        version=digest,
        bom_ref=f"{name}@{digest}",
        purl=PackageURL(type="oci", name=short, version=digest, qualifiers={"repository_url": name}),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=value)] if algorithm == "sha256" else [],
    )


def _package(package: Package) -> Component:
    name = package.name.lower().replace("_", "-")
    return Component(
        type=ComponentType.LIBRARY,
        name=package.name,
        version=package.version,
        bom_ref=f"pypi:{name}",
        purl=PackageURL(type="pypi", name=name, version=package.version),
        licenses=[LicenseFactory().make_from_string(package.licence)] if package.licence else [],
    )
