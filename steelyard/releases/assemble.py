"""Makes a release: has its models and images built, looks at what came of it, and writes the manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from steelyard.aws.cloudformation import find_stack
from steelyard.aws.session import Aws
from steelyard.environments.schema import Environment
from steelyard.models.catalogue import find
from steelyard.models.manifest import read_manifest
from steelyard.releases.bases import Bases, base_for
from steelyard.releases.checks import (
    State,
    findings,
    image_manifest,
    own_registry,
    published_registry,
    recorded_size,
    served_faults,
)
from steelyard.releases.codebuild import FinishedBuild, WantedBuild, Watcher, run_builds
from steelyard.releases.compatibility import check_release
from steelyard.releases.local import run_builds_here
from steelyard.releases.manifest import (
    FOLDER,
    FORMAT,
    MODEL_MANIFEST,
    Release,
    ReleasedImage,
    ReleaseSource,
    load_release,
    parse_release,
    release_names,
    sealed,
    write_release,
)
from steelyard.releases.packing import PackedDecision, check_heads, for_builds, pack, place
from steelyard.releases.plan import Plan, fits, image_project, model_project
from steelyard.releases.served import all_served
from steelyard.releases.source import Checkout
from steelyard.releases.tags import tag_images
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.hardware import Hardware

MODEL_VARIABLES = ("MODEL_KEY", "MODEL_MANIFEST_SHA256")
IMAGE_VARIABLES = (
    "IMAGE_DIGEST",
    "IMAGE_MEDIA_TYPE",
    "IMAGE_BASE_DIGEST",
    "IMAGE_LLAMA_CPP",
    "IMAGE_INTERFACE",
    "IMAGE_SBOM_KEY",
    "IMAGE_SBOM_SHA256",
)
"""The names that the builds export; ``images/*.buildspec.yml``."""


@dataclass(frozen=True, kw_only=True)
class Order:
    """A release to be made.

    Attributes:
        environment: Where its parts are built.
        bucket: That environment's bucket of artifacts.
        plan: What is in it.
        bases: The published containers.
        checkout: The code.
        note: What a person should know about it.
        allow_critical: Accept critical findings of the scan of our images.
    """

    environment: Environment
    bucket: str
    plan: Plan
    bases: Bases
    checkout: Checkout
    note: str | None = None
    allow_critical: bool = False

    @property
    def decisions(self) -> tuple[PackedDecision, ...]:
        """The decisions with the heads that its images can serve."""
        return decisions_of(self.plan, self.bases)


def decisions_of(plan: Plan, bases: Bases) -> tuple[PackedDecision, ...]:
    """Return a plan's decisions with the heads for the builds of llama.cpp that its images get."""
    return for_builds(plan.decisions, {bases[each].llama_cpp for each in plan.images if each in bases})


def build_release(
    aws: Aws,
    order: Order,
    watcher: Watcher,
    *,
    here: bool = False,
    folder: Path = FOLDER,
    poll_s: float | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Release, Path]:
    """Build a release's parts and write its manifest. What is built already is not built again.

    Args:
        aws: Where to.
        order: What to make.
        watcher: Receives the builds' progress.
        here: Run the builds on this machine instead of CodeBuild.
        folder: Where the manifest goes.
        poll_s: Seconds between two looks at CodeBuild.
        say: Receives each step.

    Returns:
        The release, and its file.

    Raises:
        CommandError: A base image is missing, a project or build has other source than the order, a build failed, or
            what it made is not there. Nothing is written then.
    """
    published = _published(aws, order)
    _check_heads(order)
    wanted = _wanted(aws, order)

    def run(builds: Sequence[WantedBuild], again: frozenset[str] = frozenset()) -> dict[str, FinishedBuild]:
        if here:
            return run_builds_here(aws, builds, watcher)
        return run_builds(aws, builds, watcher, again=again, **({} if poll_s is None else {"poll_s": poll_s}))

    finished = run(list(wanted))
    if gone := {each.label for each in finished.values() if not each.fresh} & _gone(aws, order, wanted, finished):
        say(f"what was built before is gone: {', '.join(sorted(gone))}")
        finished |= run([each for each in wanted if each.label in gone], again=frozenset(gone))
    data = sealed(_content(aws, order, wanted, finished, published))
    release = parse_release(data, source="that was built")
    put_in_place(aws, order.environment, release, order.decisions, bucket=order.bucket, say=say)
    return write_release(data, folder=folder)


def put_in_place(
    aws: Aws,
    environment: Environment,
    release: Release,
    decisions: Sequence[PackedDecision],
    *,
    bucket: str,
    say: Callable[[str], None],
) -> None:
    """Put a new release's decisions beside its models, tag its images, and find all of it, before it is written.

    Args:
        aws: Where to.
        environment: The environment.
        release: The release.
        decisions: Its decisions with their bytes.
        bucket: The environment's bucket of artifacts.
        say: Receives each step.

    Raises:
        CommandError: It does not fit the environment, or a part of it is missing or differs.
    """
    check_release(environment, release)
    place_decisions(aws, environment, release, decisions, bucket=bucket, say=say)
    tag_images(aws, environment, release, tell=say)
    say("comparing with what is in S3 and ECR")
    faulty = [each for each in findings(aws, environment, release, bucket=bucket) if each.state is not State.OK]
    if faulty:
        raise CommandError(
            "what was built is not what is there, so no release was written:\n"
            + "\n".join(f"- {each.item}: {each.detail}" for each in faulty),
            hint="Find out who changed it. Built parts are never overwritten; delete what is wrong and run this again.",
        )


def place_decisions(
    aws: Aws,
    environment: Environment,
    release: Release,
    decisions: Sequence[PackedDecision] | None = None,
    *,
    bucket: str,
    say: Callable[[str], None],
) -> None:
    """Put the registered decisions of an environment's endpoints beside their models, where they are not yet.

    Args:
        aws: Where to.
        environment: The environment; its models are in the bucket.
        release: What its endpoints serve.
        decisions: The decisions with their bytes; None reads those of this checkout.
        bucket: The environment's bucket of artifacts.
        say: Receives each step.

    Raises:
        CommandError: A decision of this checkout is another one than the release's, or S3 refused.
    """
    for served in {each.key: each for each in all_served(environment, release).values()}.values():
        if not served.decisions or not any(served_faults(aws, served, bucket=bucket)):
            continue
        names = [each.name for each in served.decisions]
        say(f"{', '.join(names)} beside the model {served.model.name}")
        place(aws, served, pack(names) if decisions is None else decisions, bucket=bucket)


def _check_heads(order: Order) -> None:
    """Refuse heads that belong to no model of the release, or to another build of llama.cpp, before anything is built.

    Raises:
        CommandError: With what each head was fitted for.
    """
    check_heads(
        order.plan.decisions,
        builds={f"the image for {each.value}": base_for(order.bases, each).llama_cpp for each in order.plan.images},
        models={name: find(name).file.sha256 for name in order.plan.models.values()},
    )


def matching_release(plan: Plan, source: ReleaseSource, bases: Bases, *, folder: Path = FOLDER) -> Release | None:
    """A release in ``folder`` that building by ``plan`` from ``source`` would make again; None without one.

    Raises:
        CommandError: A manifest in the folder is refused.
    """
    decided = replace(plan, decisions=decisions_of(plan, bases))
    for name in release_names(folder):
        release = load_release(name, folder=folder)
        if fits(release, decided, source) and _on_bases(release, bases):
            return release
    return None


def _on_bases(release: Release, bases: Bases) -> bool:
    built = {hw: image.build.base_digest for hw, image in release.images.get("decision", {}).items() if image.build}
    used = built | {hw: image.digest for hw, image in release.images.get("chat", {}).items()}
    return all(hardware in bases and bases[hardware].digest == digest for hardware, digest in used.items())


def _published(aws: Aws, order: Order) -> dict[Hardware, ReleasedImage]:
    """The published containers that are needed, with the media types that the registry tells.

    Raises:
        CommandError: One is not there. The digests that come with this project are placeholders.
    """
    found = {}
    for hardware in sorted({*order.plan.published, *order.plan.images}):
        base = base_for(order.bases, hardware)
        account, repository = published_registry(aws, order.environment, base)
        there = image_manifest(aws, (account, repository), base.digest)
        if there is None:
            raise CommandError(
                f"the base image for {hardware.value}, {repository}@{base.digest}, is not in the registry of account "
                f"{account} in {aws.region}",
                code=ExitCode.USAGE,
                hint="images/bases.toml holds placeholders until you enter those of the published "
                "llama.cpp container; it says how to find them.",
            )
        found[hardware] = ReleasedImage.model_validate({**base.model_dump(), "media_type": there[1]})
    return found


def _wanted(aws: Aws, order: Order) -> dict[WantedBuild, str | Hardware]:
    """The builds, each with the model or hardware that it is for."""
    name = order.environment.stack_name("Build")
    stack = find_stack(aws, name)
    outputs = {} if stack is None else stack.outputs

    def project(output: str) -> str:
        if output not in outputs:
            raise CommandError(f"the stack {name} is not deployed as this checkout has it: it has no output {output}")
        return outputs[output]

    source, asset = order.checkout.source, order.checkout.asset
    # Part of the build's key: a build that accepts them is not taken by one that does not.
    flags = (("IMAGE_FLAGS", "--allow-critical"),) if order.allow_critical else ()
    variables = (("SOURCE_REVISION", source.commit + ("-dirty" if source.dirty else "")), *flags)
    wanted: dict[WantedBuild, str | Hardware] = {}
    for model in sorted(set(order.plan.models.values())):
        wanted[WantedBuild(label=f"model {model}", project=project(model_project(model)), asset=asset)] = model
    for hardware in order.plan.images:
        build = WantedBuild(
            label=f"image {hardware.value}",
            project=project(image_project(hardware)),
            variables=variables,
            asset=asset,
        )
        wanted[build] = hardware
    return wanted


def _gone(
    aws: Aws, order: Order, wanted: Mapping[WantedBuild, str | Hardware], finished: Mapping[str, FinishedBuild]
) -> set[str]:
    """Labels of builds whose results are no longer in their place."""
    gone = set()
    for build, thing in wanted.items():
        exported = _exported(finished[build.label], IMAGE_VARIABLES if isinstance(thing, Hardware) else MODEL_VARIABLES)
        if isinstance(thing, Hardware):
            there = (
                image_manifest(aws, own_registry(aws, order.environment), exported["IMAGE_DIGEST"]) is not None
                and recorded_size(aws, order.bucket, exported["IMAGE_SBOM_KEY"]) is not None
            )
        else:
            there = _model_is_there(aws, order.bucket, exported["MODEL_KEY"])
        if not there:
            gone.add(build.label)
    return gone


def _model_is_there(aws: Aws, bucket: str, key: str) -> bool:
    if (manifest := _object(aws, bucket, f"{key}{MODEL_MANIFEST}")) is None:
        return False
    files = read_manifest(manifest).files
    return all(recorded_size(aws, bucket, key + each.name) is not None for each in files)


def _content(
    aws: Aws,
    order: Order,
    wanted: Mapping[WantedBuild, str | Hardware],
    finished: Mapping[str, FinishedBuild],
    published: Mapping[Hardware, ReleasedImage],
) -> dict[str, Any]:
    """Return the content of the release, without its id."""
    models: dict[str, dict[str, Any]] = {}
    images: dict[Hardware, dict[str, Any]] = {}
    for build, thing in wanted.items():
        done = finished[build.label]
        if isinstance(thing, Hardware):
            exported = _exported(done, IMAGE_VARIABLES)
            images[thing] = _image(exported, done, published[thing], allow_critical=order.allow_critical)
        else:
            models[thing] = _model(aws, order.bucket, thing, _exported(done, MODEL_VARIABLES))
    chat = {each.value: published[each].model_dump(mode="json") for each in order.plan.published}
    decision = {each.value: images[each] for each in order.plan.images}
    return {
        "format": FORMAT,
        "note": order.note,
        "sample": False,
        "source": order.checkout.source.model_dump(mode="json"),
        "models": {role: models[name] for role, name in order.plan.models.items()},
        "images": {kind: given for kind, given in (("chat", chat), ("decision", decision)) if given},
        "prompts": prompt_versions(),
        "decision_contracts": [each.released.model_dump(mode="json") for each in order.decisions],
        "calibrations": [],
        "evaluation_reports": [],
    }


def prompt_versions() -> list[dict[str, str]]:
    """The words around a decision: by readout and layout their version, and the hash that servers report of them."""
    # The runtime's numpy; the command line starts without it.
    from steelyard_runtime.prompt_identity import prompt_identities, wording_hashes

    questions = [
        {"name": f"{each.strategy} {each.layout}", "version": each.version, "sha256": each.sha256}
        for each in prompt_identities()
    ]
    heads = [{"name": f"head {name}", "version": name, "sha256": found} for name, found in wording_hashes().items()]
    return questions + heads


def _image(
    exported: Mapping[str, str], done: FinishedBuild, base: ReleasedImage, *, allow_critical: bool
) -> dict[str, Any]:
    for variable, pinned in (("IMAGE_BASE_DIGEST", base.digest), ("IMAGE_LLAMA_CPP", base.llama_cpp)):
        if exported[variable] != pinned:
            raise CommandError(
                f"the build {done.id} of {done.label} says {variable} {exported[variable]}, and the file of base "
                f"images has {pinned}",
                hint="Correct the file of base images, or deploy the stack of builds with the one that is meant.",
            )
    return {
        "digest": exported["IMAGE_DIGEST"],
        "architecture": base.architecture.value,
        "cuda": base.cuda,
        "llama_cpp": exported["IMAGE_LLAMA_CPP"],
        "media_type": exported["IMAGE_MEDIA_TYPE"],
        "build": {
            "base_digest": exported["IMAGE_BASE_DIGEST"],
            "interface": exported["IMAGE_INTERFACE"],
            "sbom": {"key": exported["IMAGE_SBOM_KEY"], "sha256": exported["IMAGE_SBOM_SHA256"]},
            **({"critical_accepted": True} if allow_critical else {}),
        },
    }


def _model(aws: Aws, bucket: str, name: str, exported: Mapping[str, str]) -> dict[str, Any]:
    key, said = exported["MODEL_KEY"], exported["MODEL_MANIFEST_SHA256"]
    where = f"s3://{bucket}/{key}{MODEL_MANIFEST}"
    if (content := _object(aws, bucket, f"{key}{MODEL_MANIFEST}")) is None:
        raise CommandError(f"the build of the model {name} said that it published {where}, and it is missing")
    if (found := hashlib.sha256(content).hexdigest()) != said:
        raise CommandError(f"{where} differs: sha256 {found}, and its build said {said}")
    manifest = read_manifest(content)
    return {
        "name": manifest.name,
        "key": key,
        "manifest_sha256": said,
        "file": manifest.file.name,
        "files": [each.model_dump(mode="json", include={"name", "role", "size", "sha256"}) for each in manifest.files],
    }


def _exported(done: FinishedBuild, names: Sequence[str]) -> dict[str, str]:
    if absent := [name for name in names if not done.exported.get(name)]:
        raise CommandError(
            f"the build {done.id} of {done.label} has finished, but did not export {', '.join(absent)}",
            hint="The build specification in images/ exports them; deploy the stack of builds anew and run this again.",
        )
    return {name: done.exported[name] for name in names}


def _object(aws: Aws, bucket: str, key: str) -> bytes | None:
    """A small object's bytes; None where there is none."""
    from botocore.exceptions import ClientError

    from steelyard.aws.session import aws_errors, error_code

    with aws_errors():
        try:
            content: bytes = aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
        except ClientError as error:
            if error_code(error) in ("NoSuchKey", "404"):
                return None
            raise
    return content
