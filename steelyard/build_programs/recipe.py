"""The recipe of an image: its Dockerfile, its pinned base, and the arguments that follow from them."""

from __future__ import annotations

import re
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path

from steelyard.build_programs.container_tool import docker
from steelyard.build_programs.program import say
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine import builds

SOURCE_DATE_EPOCH = 1767225600
"""Time stamp of everything in an image: 2026-01-01. A fixed one, so that the same source gives the same layers."""

_PINNED = re.compile(r"(?P<name>[^@:\s]+(?::[0-9]+)?(?:/[^@:\s]+)*)@(?P<digest>sha256:[0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """The parts that an image is made of.

    Attributes:
        dockerfile: The Dockerfile, relative to the source.
        base: The base image, ``NAME@sha256:DIGEST``.
        llama_cpp: Build of llama.cpp in the base.
        revision: What names the source: a commit, or the hash of a source archive.
        source_url: Where the source is kept; may be empty.
    """

    dockerfile: str
    base: str
    llama_cpp: str
    revision: str
    source_url: str = ""

    @property
    def base_digest(self) -> str:
        """The base's digest.

        Raises:
            CommandError: The base is named by a tag.
        """
        return _pinned(self.base)["digest"]

    @property
    def base_name(self) -> str:
        """The base's registry and repository."""
        return _pinned(self.base)["name"]

    @property
    def interface(self) -> str:
        """The structs that the base's llama.cpp has, by the first build that has them.

        Raises:
            CommandError: The table has none.
        """
        try:
            return builds.find(self.llama_cpp).interface
        except builds.AbiError as error:
            raise CommandError(str(error)) from error

    def arguments(self) -> dict[str, str]:
        """The Dockerfile's build arguments."""
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
        return {
            "BASE_IMAGE": self.base,
            "BASE_DIGEST": self.base_digest,
            "INTERFACE": self.interface,
            "LLAMA_CPP_BUILD": self.llama_cpp,
            "SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH),
            "SOURCE_REVISION": self.revision,
            "SOURCE_URL": self.source_url,
            "VERSION": str(project["version"]),
        }


def _pinned(reference: str) -> re.Match[str]:
    match = _PINNED.fullmatch(reference)
    if match is None:
        raise CommandError(
            f"the base image {reference!r} is not pinned: a tag can be moved to another image later",
            code=ExitCode.USAGE,
            hint="Write REGISTRY/REPOSITORY@sha256:DIGEST.",
        )
    return match


def build(recipe: Recipe, tag: str) -> None:
    """Build an image and keep it here under ``tag``."""
    arguments = [word for name, value in recipe.arguments().items() for word in ("--build-arg", f"{name}={value}")]
    # Attestations would make an index of the image. A cache could only hold another image's labels: what is built is
    # new, and buildah takes a cached label although its argument has changed.
    plain = ["--provenance=false", "--sbom=false", "--load", "--no-cache"]
    pull_base = [] if recipe.base_name.startswith("localhost/") else ["--pull"]
    began = time.monotonic()
    docker("buildx", "build", *plain, *pull_base, "--file", recipe.dockerfile, *arguments, "--tag", tag, ".")
    say(f"built {tag} in {time.monotonic() - began:.0f} s")
