"""Build one of our images on its pinned base, test it, push it, and say what it is: ``images/image.buildspec.yml``.

Everything can be repeated. An image that its tag already names is not built again, and what the build would have said
of it is said all the same. ``docker`` builds, runs and pushes; the SDK asks ECR and S3.

    python -m steelyard.build_programs.image publish --export FILE    # in CodeBuild, from the project's variables
    python -m steelyard.build_programs.image build --help             # on this machine, without a registry
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from steelyard.aws.session import Aws
from steelyard.build_programs.container_tool import docker, first_local, has_locally, kept_type, output
from steelyard.build_programs.program import build_region, exit_code_of, export, say
from steelyard.build_programs.recipe import Recipe, build
from steelyard.build_programs.registry import (
    Target,
    find_pushed,
    log_in,
    require_clean,
    require_immutable,
    require_single,
    store,
    stored,
)
from steelyard.build_programs.sbom import Package, image_sbom
from steelyard.build_programs.self_test import self_test
from steelyard.models import storage
from steelyard_base.exit_codes import CommandError, ExitCode

SCAN_TIMEOUT_S = 900.0
_PYTHON = "/opt/steelyard/bin/python"


def publish(recipe: Recipe, target: Target, *, aws: Aws, allow_critical: bool, scan_timeout_s: float) -> dict[str, str]:
    """Build, test and push, as far as it is not done yet.

    Returns:
        The variables that the build exports.

    Raises:
        CommandError: Something is refused or failed; nothing is exported then.
    """
    interface, base_digest = recipe.interface, recipe.base_digest
    ecr = aws.client("ecr")
    require_immutable(ecr, target.repository)
    local = f"{target.uri}:{target.tag}"
    pushed = find_pushed(ecr, target)
    if pushed is None:
        base_ecr = ecr if target.base_region == target.region else Aws(target.base_region).client("ecr")
        log_in(base_ecr, target.base_registry)
        if target.uri.partition("/")[0] != target.base_registry:
            log_in(ecr, target.uri.partition("/")[0])
        build(recipe, local)
        # Before the push: an immutable tag cannot be pushed again.
        require_single(local, kept_type(local))
        self_test(local)
        docker("push", local)
        pushed = find_pushed(ecr, target)
        if pushed is None:
            raise CommandError(f"{local} was pushed, and ECR does not have it")
    else:
        say(f"{local} is there already; nothing is built")
    require_single(local, pushed.media_type)
    require_clean(ecr, target.repository, pushed.digest, allow_critical=allow_critical, timeout_s=scan_timeout_s)
    reference = f"{target.uri}@{pushed.digest}"
    key = f"images/{pushed.digest.removeprefix('sha256:')}/sbom.cdx.json"
    s3 = aws.client("s3")
    document = stored(s3, target.bucket, key)
    if document is None:
        if not has_locally(local):
            log_in(ecr, target.uri.partition("/")[0])
            docker("pull", reference)
        document = describe(recipe, name=target.uri, digest=pushed.digest, reference=first_local(local, reference))
        store(s3, target.bucket, key, document)
    say(f"{reference} ({pushed.media_type}), listed in s3://{target.bucket}/{key}")
    return {
        "IMAGE_DIGEST": pushed.digest,
        "IMAGE_URI": reference,
        "IMAGE_MEDIA_TYPE": pushed.media_type,
        "IMAGE_BASE_DIGEST": base_digest,
        "IMAGE_LLAMA_CPP": recipe.llama_cpp,
        "IMAGE_INTERFACE": interface,
        "IMAGE_SBOM_KEY": key,
        "IMAGE_SBOM_SHA256": hashlib.sha256(document).hexdigest(),
    }


_LIST = """\
import importlib.metadata, json
found = []
for each in importlib.metadata.distributions():
    said = each.metadata
    classifiers = [c.rpartition(" :: ")[2] for c in said.get_all("Classifier", []) if c.startswith("License :: OSI")]
    free = said.get("License") or ""
    licence = said.get("License-Expression") or (free if "\\n" not in free else "") or " / ".join(classifiers)
    found.append({"name": said["Name"], "version": each.version, "licence": licence})
print(json.dumps(found))
"""


def describe(recipe: Recipe, *, name: str, digest: str, reference: str) -> bytes:
    """The SBOM of an image that is here under ``reference``."""
    words = ("run", "--rm", "--network", "none", "--entrypoint", _PYTHON, reference, "-I", "-c", _LIST)
    packages = [Package(**each) for each in json.loads(output(*words))]
    return image_sbom(
        repository=name,
        digest=digest,
        base_name=recipe.base_name,
        base_digest=recipe.base_digest,
        llama_cpp=recipe.llama_cpp,
        packages=packages,
    )


def from_environment(variables: Mapping[str, str]) -> tuple[Recipe, Target]:
    """Read the recipe and the target from the project's variables.

    Raises:
        CommandError: Some are missing; the message names all of them.
    """
    names = (
        *("ARTIFACT_BUCKET", "BASE_IMAGE", "BASE_REGION", "BASE_REGISTRY", "DOCKERFILE", "IMAGE_TAG"),
        *("LLAMA_CPP_BUILD", "REPOSITORY", "REPOSITORY_URI", "SOURCE_REVISION"),
    )
    missing = [name for name in names if not variables.get(name)]
    region = build_region(variables)
    if missing or not region:
        wanted = [*missing, *([] if region else ["AWS_REGION"])]
        raise CommandError(f"variables of the build are missing: {', '.join(wanted)}", code=ExitCode.USAGE)
    recipe = Recipe(
        dockerfile=variables["DOCKERFILE"],
        base=variables["BASE_IMAGE"],
        llama_cpp=variables["LLAMA_CPP_BUILD"],
        revision=variables["SOURCE_REVISION"],
        source_url=variables.get("SOURCE_URL", ""),
    )
    target = Target(
        repository=variables["REPOSITORY"],
        uri=variables["REPOSITORY_URI"],
        tag=variables["IMAGE_TAG"],
        region=region,
        base_registry=variables["BASE_REGISTRY"],
        base_region=variables["BASE_REGION"],
        bucket=variables["ARTIFACT_BUCKET"],
    )
    return recipe, target


def main(arguments: Sequence[str]) -> int:
    """Build as asked; returns an exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m steelyard.build_programs.image", description=__doc__.splitlines()[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    publishing = commands.add_parser("publish", help="build, test, push and describe, from the project's variables")
    publishing.add_argument("--export", type=Path, required=True, help="file for the variables that are exported")
    publishing.add_argument("--allow-critical", action="store_true", help="accept critical findings of ECR's scan")
    publishing.add_argument("--scan-timeout", type=float, default=SCAN_TIMEOUT_S, help="seconds to wait for the scan")
    building = commands.add_parser("build", help="build and test here; nothing is pushed")
    building.add_argument("--dockerfile", required=True, help="such as images/cpu.Dockerfile")
    building.add_argument("--base", required=True, help="the base image, NAME@sha256:DIGEST")
    building.add_argument("--llama-cpp", required=True, help="its build of llama.cpp, such as b10433")
    building.add_argument("--tag", required=True, help="name of the image")
    building.add_argument("--revision", required=True, help="the commit that is built")
    building.add_argument("--sbom", type=Path, help="file for the SBOM")
    building.add_argument("--no-self-test", action="store_true", help="do not start it")
    given = parser.parse_args(arguments)
    return exit_code_of(lambda: _publish(given) if given.command == "publish" else _build(given))


def _publish(given: argparse.Namespace) -> None:
    recipe, target = from_environment(os.environ)
    exported = publish(
        recipe,
        target,
        aws=Aws(target.region),
        allow_critical=given.allow_critical,
        scan_timeout_s=given.scan_timeout,
    )
    export(given.export, exported)


def _build(given: argparse.Namespace) -> None:
    recipe = Recipe(dockerfile=given.dockerfile, base=given.base, llama_cpp=given.llama_cpp, revision=given.revision)
    build_here(recipe, given.tag, sbom=given.sbom, test=not given.no_self_test)


def build_here(recipe: Recipe, tag: str, *, sbom: Path | None, test: bool) -> None:
    """Build, test and describe an image without a registry."""
    build(recipe, tag)
    if test:
        self_test(tag)
    if sbom is not None:
        # An image that was never pushed has no manifest yet; its configuration's hash names it.
        identity = output("image", "inspect", "--format", "{{.ID}}", tag).strip()
        digest = f"sha256:{identity.removeprefix('sha256:')}"
        document = describe(recipe, name=tag.rpartition(":")[0] or tag, digest=digest, reference=tag)
        storage.write_atomically(sbom, document.decode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
