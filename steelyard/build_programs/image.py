"""Build one of our images on its pinned base, test it, push it, and say what it is: ``images/image.buildspec.yml``.

Everything can be repeated. An image that its tag already names is not built again, and what the build would have said
of it is said all the same. ``docker`` builds, runs and pushes; the SDK asks ECR and S3.

    python -m steelyard.build_programs.image publish --export FILE    # in CodeBuild, from the project's variables
    python -m steelyard.build_programs.image build --help             # on this machine, without a registry
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.aws.session import Aws, error_code, told
from steelyard.build_programs.program import build_region, exit_code_of, export, say
from steelyard.build_programs.sbom import Package, image_sbom
from steelyard.models import catalogue, storage
from steelyard.models.pull import pull
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.engine import abi

SINGLE = "application/vnd.docker.distribution.manifest.v2+json"
"""Media types of a single image. SageMaker takes no index."""

SOURCE_DATE_EPOCH = 1767225600
"""Time stamp of everything in an image: 2026-01-01. A fixed one, so that the same source gives the same layers."""

SELF_TEST_MODEL = "gemma-3-270m"
START_TIMEOUT_S = 600.0
STOP_TIMEOUT_S = 20
SCAN_TIMEOUT_S = 900.0
POLL_S = 2.0

_PINNED = re.compile(r"(?P<name>[^@:\s]+(?::[0-9]+)?(?:/[^@:\s]+)*)@(?P<digest>sha256:[0-9a-f]{64})")
_PYTHON = "/opt/steelyard/bin/python"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an image is made of.

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
    def binding(self) -> str:
        """The version of llama-cpp-python that goes with the base.

        Raises:
            CommandError: The table has none.
        """
        try:
            return abi.binding_for(self.llama_cpp).binding
        except abi.AbiError as error:
            raise CommandError(str(error)) from error

    def arguments(self) -> dict[str, str]:
        """The Dockerfile's build arguments."""
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
        return {
            "BASE_IMAGE": self.base,
            "BASE_DIGEST": self.base_digest,
            "BINDING": self.binding,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where an image goes, and where what is said of it goes.

    Attributes:
        repository: Name of the repository in ECR.
        uri: ``REGISTRY/REPOSITORY``.
        tag: The tag, a hash of what the image is made of.
        region: Region of the registry.
        base_registry: Registry that holds the base.
        base_region: Its region.
        bucket: The artifact bucket.
    """

    repository: str
    uri: str
    tag: str
    region: str
    base_registry: str
    base_region: str
    bucket: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pushed:
    """An image in ECR."""

    digest: str
    media_type: str


def publish(recipe: Recipe, target: Target, *, aws: Aws, allow_critical: bool, scan_timeout_s: float) -> dict[str, str]:
    """Build, test and push, as far as it is not done yet.

    Returns:
        The variables that the build exports.

    Raises:
        CommandError: Something is refused or failed; nothing is exported then.
    """
    binding, base_digest = recipe.binding, recipe.base_digest
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
        "IMAGE_BINDING": binding,
        "IMAGE_SBOM_KEY": key,
        "IMAGE_SBOM_SHA256": hashlib.sha256(document).hexdigest(),
    }


def require_immutable(ecr: Any, repository: str) -> None:
    """Refuse a repository whose tags can be moved: a tag would not say what the image is made of.

    Raises:
        CommandError: Its tags are mutable.
    """
    with told():
        (found,) = ecr.describe_repositories(repositoryNames=[repository])["repositories"]
    if found["imageTagMutability"] != "IMMUTABLE":
        raise CommandError(
            f"tags of the repository {repository} can be moved ({found['imageTagMutability']}), so a tag would not say "
            "what an image is made of",
            code=ExitCode.REFUSED,
            hint="Make them immutable: the stack of builds does, so deploy it again.",
        )


def find_pushed(ecr: Any, target: Target) -> Pushed | None:
    """The image that the tag names in ECR; None if there is none."""
    accepted = [SINGLE, "application/vnd.docker.distribution.manifest.list.v2+json"]
    accepted += [f"application/vnd.oci.image.{kind}.v1+json" for kind in ("index", "manifest")]
    with told():
        answer = ecr.batch_get_image(
            repositoryName=target.repository, imageIds=[{"imageTag": target.tag}], acceptedMediaTypes=accepted
        )
    for failure in answer.get("failures", []):
        if failure["failureCode"] != "ImageNotFound":
            raise CommandError(f"ECR does not show {target.uri}:{target.tag}: {failure['failureReason']}")
    for image in answer["images"]:
        return Pushed(digest=image["imageId"]["imageDigest"], media_type=image["imageManifestMediaType"])
    return None


def require_single(reference: str, media_type: str) -> None:
    """Refuse what SageMaker would refuse: an index of several images, or an image in OCI's format.

    Raises:
        CommandError: The image is one of these.
    """
    if media_type != SINGLE:
        raise CommandError(
            f"{reference} is a {media_type}, and SageMaker takes {SINGLE} only",
            code=ExitCode.REFUSED,
            hint="Attestations make an index (build with --provenance=false --sbom=false), and Docker's containerd "
            "image store keeps images in OCI's format: turn that store off. Then build under another tag.",
        )


def kept_type(tag: str) -> str:
    """The media type under which ``docker`` keeps an image here: Docker's own, unless its store is containerd's."""
    (found,) = json.loads(output("image", "inspect", tag))
    return str((found.get("Descriptor") or {}).get("mediaType") or SINGLE)


def require_clean(ecr: Any, repository: str, digest: str, *, allow_critical: bool, timeout_s: float) -> None:
    """Wait for ECR's scan of a pushed image and refuse one with critical findings.

    Raises:
        CommandError: The scan failed, took too long, or found something critical.
    """
    findings = scan_findings(ecr, repository, digest, timeout_s=timeout_s)
    counts = findings.get("findingSeverityCounts", {})
    summary = ", ".join(f"{count} {severity.lower()}" for severity, count in sorted(counts.items())) or "nothing"
    say(f"ECR's scan found {summary}")
    if counts.get("CRITICAL", 0) and not allow_critical:
        found = [each for each in findings.get("findings", []) if each.get("severity") == "CRITICAL"]
        names = ", ".join(sorted(each["name"] for each in found[:5])) or "see the console"
        raise CommandError(
            f"{repository}@{digest} has {counts['CRITICAL']} critical findings: {names}",
            code=ExitCode.REFUSED,
            hint="Take a newer base image. To accept them: steelyard release build --allow-critical.",
        )


def scan_findings(ecr: Any, repository: str, digest: str, *, timeout_s: float) -> dict[str, Any]:
    """What the scan found, once it has ended."""
    from botocore.exceptions import ClientError

    until = time.monotonic() + timeout_s
    while True:
        status = "NOT_STARTED"
        try:
            with told():
                answer = ecr.describe_image_scan_findings(repositoryName=repository, imageId={"imageDigest": digest})
            status = answer["imageScanStatus"]["status"]
            if status in ("COMPLETE", "ACTIVE"):
                return dict(answer["imageScanFindings"])
            if status not in ("IN_PROGRESS", "PENDING"):
                why = answer["imageScanStatus"].get("description", "no reason given")
                raise CommandError(f"ECR's scan of {repository}@{digest} ended as {status}: {why}")
        except CommandError as error:
            cause = error.__cause__
            # It takes a moment from the push until the scan is known.
            if not (isinstance(cause, ClientError) and error_code(cause) == "ScanNotFoundException"):
                raise
        if time.monotonic() >= until:
            raise CommandError(
                f"ECR's scan of {repository}@{digest} is {status} after {timeout_s:.0f} s",
                hint="Start the build again: it goes on from here. Scan on push has to be on for the repository.",
            )
        time.sleep(POLL_S)


def log_in(ecr: Any, registry: str) -> None:
    """Let ``docker`` reach a registry; the password goes through standard input."""
    with told():
        (given,) = ecr.get_authorization_token()["authorizationData"]
    user, _, password = base64.b64decode(given["authorizationToken"]).decode().partition(":")
    docker("login", "--username", user, "--password-stdin", registry, stdin=password, quiet=True)


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


_ASK = """\
import json, sys, urllib.error, urllib.request
path, body = sys.argv[1], sys.argv[2].encode() if sys.argv[2:] else None
request = urllib.request.Request("http://127.0.0.1:8080" + path, body, {"Content-Type": "application/json"})
try:
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(json.dumps({"status": answer.status, "body": answer.read().decode()}))
except urllib.error.HTTPError as error:
    print(json.dumps({"status": error.code, "body": error.read().decode()}))
except OSError as error:
    print(json.dumps({"status": 0, "body": str(error)}))
"""


def self_test(reference: str) -> None:
    """Start the image as SageMaker does, decide once, stop it.

    Without a network, the model's folder read-only, the argument ``serve``; and on the CPU, because a machine that
    builds has no GPU.

    Raises:
        CommandError: It does not start, does not decide, or does not stop.
    """
    model = pull(catalogue.find(SELF_TEST_MODEL))
    name = f"steelyard-self-test-{os.getpid()}"
    docker(
        *("run", "--detach", "--name", name, "--network", "none", "--volume", f"{model.parent}:/opt/ml/model:ro"),
        *("--env", "STEELYARD_GPU_LAYERS=0", reference, "serve"),
    )
    try:
        _try_out(name, reference)
    except CommandError:
        docker("logs", name, check=False)
        raise
    finally:
        docker("rm", "--force", name, check=False, quiet=True)


def _try_out(name: str, reference: str) -> None:
    began = time.monotonic()
    while (answer := _ask(name, "/ping"))["status"] != 200:
        if not _running(name):
            raise CommandError(f"the container of {reference} ended before it was ready; its log is above")
        if time.monotonic() - began > START_TIMEOUT_S:
            raise CommandError(f"{reference} is not ready after {START_TIMEOUT_S:.0f} s: {answer['body']}")
        time.sleep(POLL_S)
    say(f"ready after {time.monotonic() - began:.1f} s")
    request = catalogue.example("ticket.json").read_text(encoding="utf-8")
    answer = _ask(name, "/invocations", request)
    if answer["status"] != 200 or not _decided(answer["body"], json.loads(request)):
        raise CommandError(f"{reference} answered a decision with {answer['status']}: {answer['body'][:500]}")
    began = time.monotonic()
    docker("stop", "--time", str(STOP_TIMEOUT_S), name, quiet=True)
    code = output("inspect", "--format", "{{.State.ExitCode}}", name).strip()
    if code != "0":
        raise CommandError(f"{reference} ended with {code} after SIGTERM, not with 0 within {STOP_TIMEOUT_S} s")
    say(f"decided, and stopped in {time.monotonic() - began:.1f} s after SIGTERM")


def _ask(name: str, path: str, body: str | None = None) -> dict[str, Any]:
    words = ["exec", name, _PYTHON, "-I", "-c", _ASK, path, *([body] if body is not None else [])]
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode:
        return {"status": 0, "body": done.stderr.strip()}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _running(name: str) -> bool:
    return output("inspect", "--format", "{{.State.Running}}", name).strip() == "true"


def _decided(body: str, request: Mapping[str, Any]) -> bool:
    """Whether an answer has a probability for each option, together 1."""
    wanted = [option["id"] for option in request["decision"]["options"]]
    try:
        result = json.loads(body)["result"]
        return bool(result["option_ids"] == wanted and abs(sum(result["probabilities"]) - 1) < 1e-6)
    except (KeyError, TypeError, ValueError):
        return False


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


def has_locally(reference: str) -> bool:
    """Whether ``docker`` has an image here."""
    words = ["docker", "image", "inspect", reference]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603


def first_local(*references: str) -> str:
    """The first of the references that is here, else the last."""
    return next((each for each in references if has_locally(each)), references[-1])


def stored(s3: Any, bucket: str, key: str) -> bytes | None:
    """An object's bytes; None if it is missing."""
    from botocore.exceptions import ClientError

    try:
        return bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    except ClientError as error:
        # S3 answers 403 for what is missing to those who may not list the bucket; the write then tells which it is.
        if error_code(error) in ("NoSuchKey", "404", "403", "AccessDenied"):
            return None
        with told():
            raise


def store(s3: Any, bucket: str, key: str, document: bytes) -> None:
    """Write an object that is not there yet; one that came to be there meanwhile has to be the same."""
    from botocore.exceptions import ClientError

    try:
        s3.put_object(
            Bucket=bucket,
            Key=key,
            Body=document,
            ContentType="application/vnd.cyclonedx+json",
            ChecksumSHA256=base64.b64encode(hashlib.sha256(document).digest()).decode("ascii"),
            IfNoneMatch="*",
        )
    except ClientError as error:
        if error_code(error) not in ("PreconditionFailed", "ConditionalRequestConflict"):
            with told():
                raise
        if stored(s3, bucket, key) != document:
            raise CommandError(
                f"s3://{bucket}/{key} is there already and lists something else", code=ExitCode.REFUSED
            ) from error


def docker(*words: str, stdin: str | None = None, check: bool = True, quiet: bool = False) -> None:
    """Run ``docker``; what it says goes where our own output goes.

    Raises:
        CommandError: It failed, or there is none.
    """
    silent = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(  # noqa: S603
            ["docker", *words],  # noqa: S607
            input=stdin,
            text=True,
            stdout=silent,
            check=False,
        )
    except FileNotFoundError:
        raise CommandError("docker is not installed, or not on PATH", code=ExitCode.USAGE) from None
    if check and done.returncode:
        raise CommandError(f"docker {words[0]} failed with {done.returncode}; see above")


def output(*words: str) -> str:
    """What a ``docker`` command prints."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode:
        raise CommandError(f"docker {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def from_environment(variables: Mapping[str, str]) -> tuple[Recipe, Target]:
    """What the project's variables say.

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
