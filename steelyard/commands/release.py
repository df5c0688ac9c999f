"""``steelyard release``: build what is deployed, look at it, compare it, check that it is there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk, file_reference
from steelyard.commands import completion
from steelyard.commands.app import App
from steelyard.commands.options import AllowCritical, AllowDirty, BasesFile, Bootstrap, EnvironmentName, Json
from steelyard.deploy import deployment
from steelyard.environments.files import DEFAULT, load_environment, promotion_targets
from steelyard.environments.schema import Environment
from steelyard.models.storage import human_size
from steelyard.releases.assemble import Order
from steelyard.releases.base_tags import BaseState, look, write_moved
from steelyard.releases.bases import FILE, load_bases
from steelyard.releases.checks import Finding, State, findings
from steelyard.releases.decided import decide_again
from steelyard.releases.difference import Change, changes
from steelyard.releases.manifest import FOLDER, SAMPLE, Release, ReleasedDecision, load_release, release_names
from steelyard.releases.plan import plan_for
from steelyard.releases.source import read_checkout
from steelyard.terminal import console
from steelyard.terminal.bootstrap import agree_to_bootstrap
from steelyard.terminal.building import build_with_log
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_constructs.hardware import Hardware

app = App(help="What is deployed: build it, look at it, compare it, check it.")

Reference = Annotated[
    str,
    typer.Argument(
        help="Id of a release, its first digits, or a path ending in .json.", autocompletion=completion.releases
    ),
]
_SIGNS = {State.OK: ("ok", "green"), State.MISSING: ("missing", "bold red"), State.DIFFERS: ("differs", "bold red")}


@app.command("build")
def build(
    *,
    env: EnvironmentName = DEFAULT,
    local: Annotated[bool, typer.Option("--local", help="Run the builds on this machine, not in CodeBuild.")] = False,
    model: Annotated[list[str] | None, typer.Option("--model", help="ROLE=NAME: the model of a role.")] = None,
    image: Annotated[list[Hardware] | None, typer.Option("--image", help="Build for this hardware too.")] = None,
    decision: Annotated[
        list[str] | None, typer.Option("--decision", help="NAME@VERSION: a registered decision that it has too.")
    ] = None,
    based_on: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="A release whose images and models it has; only its decisions are those of now, and nothing is built.",
            autocompletion=completion.releases,
        ),
    ] = None,
    meant_for: Annotated[
        list[str] | None,
        typer.Option("--for", help="Also for this environment; those of promotes_to in its file unless given."),
    ] = None,
    bases: BasesFile = FILE,
    allow_dirty: AllowDirty = False,
    bootstrap: Bootstrap = False,
    allow_critical: AllowCritical = False,
    note: Annotated[str | None, typer.Option("--note", help="What a person should know about it.")] = None,
    to: Annotated[Path, typer.Option("--to", help="Folder that the manifest is written to.")] = FOLDER,
    stacks: Annotated[
        bool, typer.Option("--stacks/--no-stacks", help="Deploy the bucket, the registry and the projects first.")
    ] = True,
) -> None:
    """Build the models and images that an environment's endpoints need, and write a release of them.

    CodeBuild builds in the account of your credentials; this follows its logs. What was built before from the same
    source is not built again, and after Ctrl-C the builds continue: run it again to follow them. The release is written
    when all that it names has been found in S3 and ECR. With --from nothing is built: new heads go to the same images.
    """
    environment = load_environment(env)
    if based_on is not None:
        if model or image or local or allow_critical or allow_dirty or meant_for:
            raise CommandError(
                "--from takes the images and models of a release as they are; --model, --image, --for, --local, "
                "--allow-dirty and --allow-critical are for those that are built",
                code=ExitCode.USAGE,
            )
        _decide_again(environment, load_release(based_on), decision or (), note=note, to=to)
        return
    targets = [load_environment(each) for each in meant_for] if meant_for else promotion_targets(environment)
    models = dict(map(_role, model or ()))
    plan = plan_for(environment, targets=targets, models=models, images=image or (), decisions=decision or ())
    # Before the stacks: a source that is refused must not have become that of the projects.
    checkout = read_checkout(allow_dirty=allow_dirty)
    aws = Aws(environment.region)
    if stacks:
        if not bootstrap:
            agree_to_bootstrap(aws, environment)
        cdk = Cdk(environment=file_reference(env), release=SAMPLE, bases=bases.resolve())
        bucket = deployment.prepare(aws, environment, cdk, console.step, note=console.note)
    else:
        bucket = deployment.artifact_bucket(aws, environment)
    order = Order(
        environment=environment,
        bucket=bucket,
        plan=plan,
        bases=load_bases(bases),
        checkout=checkout,
        note=note,
        allow_critical=allow_critical,
    )
    release, path = build_with_log(aws, order, here=local, to=to)
    _tell_written(environment, release, path)


def _decide_again(
    environment: Environment, release: Release, decisions: Sequence[str], *, note: str | None, to: Path
) -> None:
    aws = Aws(environment.region)
    bucket = deployment.artifact_bucket(aws, environment)
    made, path = decide_again(
        aws, environment, release, decisions, bucket=bucket, note=note, folder=to, say=console.note
    )
    _tell_written(environment, made, path)


def _tell_written(environment: Environment, release: Release, path: Path) -> None:
    print_contents(release)
    console.out.print(Text(f"written to {path}"), soft_wrap=True)
    console.note(f"next: commit it; steelyard up --env {environment.name} --release {release.id}")


def _role(text: str) -> tuple[str, str]:
    role, equals, name = text.partition("=")
    if not role or not equals or not name:
        raise CommandError(f"--model {text!r} is not ROLE=NAME, such as decision=qwen3.5-4b", code=ExitCode.USAGE)
    return role, name


@app.command("list")
def list_releases(*, as_json: Json = False) -> None:
    """List the releases of this checkout."""
    releases = [load_release(name) for name in release_names()]
    if as_json:
        console.out.print_json(json.dumps([each.model_dump(mode="json") for each in releases]))
        return
    heads = ("release", "built from", "model", "images")
    console.rows([(each.id, _when(each), _models(each), _images(each)) for each in releases], heads=heads)


def _when(release: Release) -> str:
    if release.source is None:
        return "sample"
    return f"commit {release.source.commit[:12]}{' and changes' if release.source.dirty else ''}"


def _models(release: Release) -> str:
    """Return the models: the name alone where every role has the same."""
    names = {model.name for model in release.models.values()}
    if len(names) == 1:
        return names.pop()
    return ", ".join(f"{role} {model.name}" for role, model in release.models.items())


def _images(release: Release) -> str:
    """Return the hardware of the images: once where it is the same for every kind."""
    different = {tuple(hardware.value for hardware in images) for images in release.images.values()}
    if len(different) == 1:
        return ", ".join(different.pop())
    return "; ".join(f"{kind} {', '.join(h.value for h in images)}" for kind, images in release.images.items())


@app.command("show")
def show(release: Reference, *, as_json: Json = False) -> None:
    """Show what a release consists of."""
    found = load_release(release)
    if as_json:
        console.out.print_json(found.model_dump_json())
        return
    print_contents(found)


@app.command("diff")
def diff(before: Reference, after: Reference, *, as_json: Json = False) -> None:
    """Show what changes from one release to another."""
    old, new = load_release(before), load_release(after)
    found = changes(old, new)
    if as_json:
        said = {"before": old.id, "after": new.id, "changes": [asdict(each) for each in found]}
        console.out.print_json(json.dumps(said))
        return
    if not found:
        console.out.print(Text(f"{old.id} and {new.id} are the same"), soft_wrap=True)
        return
    _print_changes(found)


@app.command("verify")
def verify(
    release: Reference,
    *,
    env: EnvironmentName = DEFAULT,
    used: Annotated[bool, typer.Option("--used", help="Only what the environment's endpoints need.")] = False,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of every model again.")] = False,
    as_json: Json = False,
) -> None:
    """Check that all that a release names is in an environment's account, and is what the release says.

    Exit code 1 when something is missing or differs.
    """
    environment, found = load_environment(env), load_release(release)
    aws = Aws(environment.region)
    bucket = deployment.artifact_bucket(aws, environment)
    with console.err.status("looking") as status:
        results = list(
            findings(
                aws,
                environment,
                found,
                bucket=bucket,
                used_only=used,
                deep=deep,
                tell=lambda what: status.update(f"looking at {what}"),
            )
        )
    wrong = [each for each in results if each.state is not State.OK]
    if as_json:
        said = {
            "release": found.id,
            "environment": env,
            "ok": not wrong,
            "findings": [asdict(each) for each in results],
        }
        console.out.print_json(json.dumps(said))
    else:
        _print_findings(results)
    if wrong:
        raise CommandError(
            f"{len(wrong)} of {len(results)} parts of release {found.id} are not in {env} as the release says",
            hint="steelyard release build makes what is missing. What differs was changed by somebody: find out who.",
        )
    console.note(f"all {len(results)} parts of release {found.id} are in account {aws.account()}, as it says")


@app.command("bases")
def bases_now(
    *,
    env: EnvironmentName = DEFAULT,
    bases: BasesFile = FILE,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 when a tag names another image now.")] = False,
    write: Annotated[bool, typer.Option("--write", help="Write the digests that the tags have now.")] = False,
    llama_cpp: Annotated[
        str | None, typer.Option("--llama-cpp", help="With --write: the build of llama.cpp in what moved.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Tell whether AWS has moved the tags of the containers that images are built on.

    Asks the registry of the environment's region, also for the critical findings of the present containers, which it
    may not tell.
    """
    environment = load_environment(env)
    aws = Aws(environment.region)
    with console.err.status("asking the registry"):
        found = list(look(aws, bases, account=environment.images.chat_account))
    moved = [each for each in found if each.moved]
    if write and moved:
        if llama_cpp is None:
            raise CommandError(
                f"{len(moved)} containers moved, and which llama.cpp they have now is not said",
                code=ExitCode.USAGE,
                hint="Add --llama-cpp, such as b10964: AWS names it in the release notes of its containers.",
            )
        write_moved(bases, found, llama_cpp=llama_cpp)
    if as_json:
        console.out.print_json(json.dumps([{**asdict(each), "moved": each.moved} for each in found]))
    else:
        console.rows([(each.hardware.value, _standing(each)) for each in found])
    if write and moved:
        console.note(f"wrote {len(moved)} digests into {bases}; build a release on them: steelyard release build")
    elif check and moved:
        raise CommandError(
            f"{len(moved)} of {len(found)} tags name other images than {bases}",
            hint="Write them: steelyard release bases --write --llama-cpp BUILD. Then build a release.",
        )


def _standing(base: BaseState) -> str:
    critical = "critical findings: not told" if base.critical is None else f"critical findings: {base.critical}"
    if base.tag is None:
        return f"{base.digest[:19]}; no tag, so it is not followed; {critical}"
    now = f"moved to {base.now[:19]}" if base.moved and base.now else "as the file has it"
    return f"{base.tag} is {now}; {base.digest[:19]} has {critical}"


def print_contents(release: Release) -> None:
    """Print a release: its parts, each with its hash in a line of its own."""
    rows: list[tuple[str | Text, str | Text]] = [("source", _origin(release))]
    for role, model in release.models.items():
        files = f"{len(model.files)} file{'s' if len(model.files) > 1 else ''}, {human_size(model.bytes)}"
        rows.append((f"model {role}", _hashed(f"{model.name}: {model.file}, {files}", model.manifest_sha256)))
    for kind, images in release.images.items():
        for hardware, image in images.items():
            cuda = f", CUDA {image.cuda}" if image.cuda else ""
            made = f" with llama.h of {image.build.interface} on {image.build.base_digest[:19]}" if image.build else ""
            accepted = "; critical findings accepted" if image.build and image.build.critical_accepted else ""
            said = f"{image.architecture.value}{cuda}, llama.cpp {image.llama_cpp}{made}{accepted}"
            rows.append((f"image {kind} {hardware.value}", _hashed(said, image.digest)))
    rows.extend((f"decision {each.name}", _decision(each)) for each in release.decision_contracts)
    for name in ("prompts", "calibrations", "evaluation_reports"):
        what = name.replace("_", " ")[:-1]
        rows.extend((f"{what} {part.name}", _hashed(part.version, part.sha256)) for part in getattr(release, name))
    if release.note:
        rows.append(("note", release.note))
    console.out.print(Text(f"release {release.id}", style="bold"), soft_wrap=True)
    console.rows(rows)


def _decision(decision: ReleasedDecision) -> Text:
    if (head := decision.head) is None:
        return _hashed("letters", decision.contract_sha256)
    fitted = f"head, fitted on {head.model_sha256[:12]} with llama.cpp {head.llama_cpp}"
    return Text.assemble(_hashed(fitted, decision.contract_sha256), "\n", (head.sha256, "dim"))


def _hashed(said: str, digest: str) -> Text:
    return Text.assemble(said, "\n", (digest, "dim"))


def _origin(release: Release) -> str:
    if release.source is None:
        return "a sample: its image digests are placeholders"
    return f"commit {release.source.commit[:12]}{' with changes that no commit has' if release.source.dirty else ''}"


def _print_changes(found: Sequence[Change]) -> None:
    """Print what changes: a part, and below it each value before and after in a line of its own."""
    for part, of_part in groupby(found, key=lambda each: each.part):
        console.out.print(Text(part, style="bold"), soft_wrap=True)
        for each in of_part:
            before, after = each.before or "none", each.after or "none"
            change = Text.assemble((f"- {before}", "red"), "\n", (f"+ {after}", "green"))
            console.rows([(f"  {each.what}" if each.what else " ", change)])


def _print_findings(results: Sequence[Finding]) -> None:
    signs: Mapping[State, tuple[str, str]] = _SIGNS
    rows = []
    for each in results:
        said, style = signs[each.state]
        rows.append((Text(said, style=style), each.item, each.detail))
    console.rows(rows)
