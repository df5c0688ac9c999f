"""The tags of the published containers: where they point now, and the file of base images brought up to that."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from steelyard.aws.session import Aws, aws_errors, error_code
from steelyard.models.storage import write_atomically
from steelyard.releases.bases import base_tags, load_bases
from steelyard.releases.checks import published_account
from steelyard.releases.manifest import IMAGE_TYPE, ReleasedImage
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.hardware import Hardware
from steelyard_runtime.engine import builds


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseState:
    """One published container: as the file has it, and as the registry has its tag.

    Attributes:
        hardware: The hardware that it is for.
        tag: ``REPOSITORY:TAG`` of the file; None where the file names no tag.
        digest: The digest of the file.
        now: The digest that the tag has; None where the file names no tag.
        critical: Critical findings of the file's digest; None where the registry does not tell.
    """

    hardware: Hardware
    tag: str | None
    digest: str
    now: str | None
    critical: int | None

    @property
    def moved(self) -> bool:
        """True when the tag names another image than the file."""
        return self.now is not None and self.now != self.digest


def look(aws: Aws, path: Path, *, account: str | None) -> Iterator[BaseState]:
    """Ask the registry about every container of the file.

    Args:
        aws: In the region whose registry is asked.
        path: The file of base images.
        account: Account of the registry; AWS's own of the region unless set.

    Raises:
        CommandError: The file is refused, the registry cannot be asked, or a tag is not there or is an index.
    """
    tags = base_tags(path)
    for hardware, base in load_bases(path).items():
        registry = published_account(aws, base, account=account)
        tag = tags.get(hardware)
        yield BaseState(
            hardware=hardware,
            tag=None if tag is None else f"{base.repository}:{tag}",
            digest=base.digest,
            now=None if tag is None else _tagged(aws, registry, base, tag),
            critical=_critical(aws, registry, base),
        )


def _tagged(aws: Aws, registry: str, base: ReleasedImage, tag: str) -> str:
    from botocore.exceptions import ClientError

    with aws_errors():
        try:
            images = aws.client("ecr").batch_get_image(
                registryId=registry, repositoryName=base.repository, imageIds=[{"imageTag": tag}]
            )["images"]
        except ClientError as error:
            if error_code(error) != "RepositoryNotFoundException":
                raise
            images = []
    if not images:
        raise CommandError(
            f"{base.repository} of registry {registry} in {aws.region} has no tag {tag}",
            hint="AWS lists its containers in the releases of the AWS Deep Learning Containers; correct tag.",
        )
    if (kind := images[0].get("imageManifestMediaType", "")) != IMAGE_TYPE:
        raise CommandError(
            f"{base.repository}:{tag} is {kind or 'of an unknown type'}, and SageMaker takes {IMAGE_TYPE} only",
            hint="A tag that ends in -soci is an index: name the one without.",
        )
    return str(images[0]["imageId"]["imageDigest"])


def _critical(aws: Aws, registry: str, base: ReleasedImage) -> int | None:
    """Return the critical findings of a container; None where the registry does not tell, as is usual for AWS's own."""
    from botocore.exceptions import ClientError

    with aws_errors():
        try:
            said = aws.client("ecr").describe_image_scan_findings(
                registryId=registry, repositoryName=base.repository, imageId={"imageDigest": base.digest}
            )
        except ClientError as error:
            known = ("AccessDeniedException", "ImageNotFoundException", "RepositoryNotFoundException")
            if error_code(error) in (*known, "ScanNotFoundException", "UnsupportedImageTypeException"):
                return None
            raise
    if said.get("imageScanStatus", {}).get("status") not in ("COMPLETE", "ACTIVE"):
        return None
    return int(said.get("imageScanFindings", {}).get("findingSeverityCounts", {}).get("CRITICAL", 0))


def write_moved(path: Path, states: Sequence[BaseState], *, llama_cpp: str) -> None:
    """Write the digests that the tags have now, and their build of llama.cpp; comments and order stay.

    Args:
        path: The file of base images.
        states: What ``look`` found.
        llama_cpp: The build of llama.cpp in every container that moved, such as ``b10964``.

    Raises:
        CommandError: The engine does not know the build, or the file is not written as this reads it.
    """
    try:
        builds.find(llama_cpp)
    except builds.AbiError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error
    changed = path.read_text(encoding="utf-8")
    moved = {state.hardware: str(state.now) for state in states if state.moved}
    for hardware, digest in moved.items():
        changed = _with_values(changed, hardware, {"digest": digest, "llama_cpp": llama_cpp}, path=path)
    write_atomically(path, changed)


def _with_values(text: str, hardware: Hardware, values: Mapping[str, str], *, path: Path) -> str:
    """Return a file of base images with other values in the table of one hardware."""
    lines, inside, left = text.splitlines(keepends=True), False, dict(values)
    for index, line in enumerate(lines):
        if line.lstrip().startswith("["):
            inside = line.split("#")[0].strip() == f"[{hardware.value}]"
        match = re.match(r"""(\s*([a-z_]+)\s*=\s*)(?:"[^"]*"|'[^']*')(.*)""", line, re.DOTALL)
        if inside and match and match.group(2) in left:
            lines[index] = f'{match.group(1)}"{left.pop(match.group(2))}"{match.group(3)}'
    if left:
        raise CommandError(
            f"{path} has no line {' and no line '.join(f'{name} = …' for name in left)} under [{hardware.value}], so "
            "it was not changed",
            hint='Write it as a table with one "name = value" in a line, as images/bases.toml is.',
        )
    return "".join(lines)
