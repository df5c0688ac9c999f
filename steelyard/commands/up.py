"""``steelyard up``: from nothing to answering endpoints. ``make run`` calls it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk, file_reference
from steelyard.commands.options import (
    AllowCritical,
    AllowDirty,
    BasesFile,
    Bootstrap,
    EnvironmentName,
    Home,
    Local,
    Port,
    Prices,
    ReleaseName,
    Why,
)
from steelyard.deploy import deployment, local_cloud
from steelyard.deploy.endpoints import DeployedEndpoint, deployed_endpoint, stacks_of
from steelyard.deploy.prices import read_prices
from steelyard.deploy.supplies import FromCodeBuild, FromThisMachine
from steelyard.environments.files import DEFAULT, load_environment, promotion_targets
from steelyard.environments.schema import Environment
from steelyard.releases.assemble import Order, matching_release
from steelyard.releases.bases import FILE, load_bases
from steelyard.releases.manifest import FOLDER, SAMPLE, Release, load_release
from steelyard.releases.plan import Plan, plan_for
from steelyard.releases.record import Occasion, reason
from steelyard.releases.source import read_checkout, read_source
from steelyard.terminal import console, examples
from steelyard.terminal.bootstrap import agree_to_bootstrap
from steelyard.terminal.build_log import build_log
from steelyard.terminal.building import build_with_log
from steelyard.terminal.deploying import ask_examples, look_at
from steelyard_base.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from steelyard_localcloud.details import CloudDetails


def command(
    *,
    env: EnvironmentName = DEFAULT,
    release: ReleaseName = None,
    local: Local = False,
    build: Annotated[
        bool, typer.Option("--build", help="With --local: build and run real images, as on AWS, instead of processes.")
    ] = False,
    bases: BasesFile = FILE,
    allow_dirty: AllowDirty = False,
    allow_critical: AllowCritical = False,
    home: Home = local_cloud.HOME,
    port: Port = 0,
    check: Annotated[
        bool, typer.Option("--check/--no-check", help="Look first whether quotas, zones and bootstrap allow it.")
    ] = True,
    prices: Prices = None,
    bootstrap: Bootstrap = False,
    ask: Annotated[bool, typer.Option("--ask/--no-ask", help="Ask each endpoint an example at the end.")] = True,
    why: Why = None,
) -> None:
    """Deploy an environment with the CDK, ask its endpoints an example each, and say where everything is.

    In the AWS account of your credentials, where the release is built first when none is named and none was built from
    this source. With --local all of it happens in a local cloud on this machine, which is started when none runs: with
    the sample release, whose images are processes of this checkout, unless a release is named or --build is given.
    """
    began = time.monotonic()
    if build and (release is not None or not local):
        raise CommandError(
            "--build is for --local without --release: on AWS a release is built when none is named",
            code=ExitCode.USAGE,
        )
    if prices is not None and not check:
        raise CommandError(
            "--prices is for the look at the account, and --no-check leaves it out: remove one", code=ExitCode.USAGE
        )
    given = None if prices is None else read_prices(prices)
    occasion = Occasion(why=reason(why))
    environment = load_environment(env)
    named = SAMPLE if release is None and local and not build else release
    manifest = None if named is None else load_release(named)
    plan = plan_for(environment, targets=promotion_targets(environment)) if manifest is None else None
    cloud = None
    if local and (cloud := local_cloud.running(home)) is None:
        console.step("the local cloud")
        cloud = local_cloud.start(home, port=port)
    with local_cloud.reached(cloud.environment() if cloud else {}):
        aws = Aws(environment.region)

        def look() -> None:
            if check:
                look_at(aws, environment, local=local, prices=given)
            if not bootstrap:
                agree_to_bootstrap(aws, environment)

        if plan is None:
            look()
        else:
            # What is built in a local cloud goes with it, and so does its manifest.
            folder = home / "releases" if local else FOLDER
            manifest = _built(
                aws,
                environment,
                plan,
                env=env,
                bases=bases,
                allow_dirty=allow_dirty,
                allow_critical=allow_critical,
                folder=folder,
                look=look,
            )
            named = str(folder / f"{manifest.id}.json")
        manifest = manifest or load_release()
        cdk = Cdk(environment=file_reference(env), release=file_reference(named or manifest.id), bases=bases.resolve())
        supplies = _supplies(environment, cloud if manifest.sample else None)
        deployment.deploy(
            aws, environment, manifest, cdk, console.step, note=console.note, supplies=supplies, occasion=occasion
        )
        removed = deployment.undeclared(aws, environment, cdk)
        console.note(f"deployed after {time.monotonic() - began:.0f} s")
        endpoints = {name: deployed_endpoint(aws, environment, name) for name in environment.endpoints}
        if ask:
            ask_examples(aws, environment, manifest, endpoints)
            _notices(environment, manifest)
        console.heading("where everything is")
        console.rows(_places(aws, environment, endpoints, home=home if local else None))
    _advise(env, endpoints, local=local, deletions=[deployment.deletion(aws, stack) for stack in removed])


def _supplies(environment: Environment, cloud: CloudDetails | None) -> deployment.Supplies:
    if cloud is not None:
        return FromThisMachine(cloud, progress=console.pull_bar)
    return FromCodeBuild(environment, watch=build_log)


def _built(
    aws: Aws,
    environment: Environment,
    plan: Plan,
    *,
    env: str,
    bases: Path,
    allow_dirty: bool,
    allow_critical: bool,
    folder: Path,
    look: Callable[[], None],
) -> Release:
    """The release of this source: one that was built before, or a new one.

    ``look`` looks at the account, after the source and before anything is made.
    """
    if (found := matching_release(plan, read_source(), load_bases(bases), folder=folder)) is not None:
        look()
        console.note(f"release {found.id} was built from this source; it is deployed")
        return found
    # Before the stacks: a source that is refused must not have become that of the projects.
    checkout = read_checkout(allow_dirty=allow_dirty)
    look()
    cdk = Cdk(environment=file_reference(env), release=SAMPLE, bases=bases.resolve())
    bucket = deployment.prepare(aws, environment, cdk, console.step, note=console.note)
    order = Order(
        environment=environment,
        bucket=bucket,
        plan=plan,
        bases=load_bases(bases),
        checkout=checkout,
        allow_critical=allow_critical,
    )
    made, path = build_with_log(aws, order, here=False, to=folder)
    console.note(f"release {made.id} is written to {path}{'; commit it' if folder == FOLDER else ''}")
    return made


def _notices(environment: Environment, release: Release) -> None:
    for name in sorted({model.name for model in deployment.models_of(environment, release)}):
        examples.notice(name)


def _places(
    aws: Aws, environment: Environment, endpoints: Mapping[str, DeployedEndpoint], *, home: Path | None
) -> list[tuple[Text, str]]:
    rows = [("account", f"{aws.account()} in {aws.region}")]
    if home is not None:
        details = local_cloud.require(home)
        rows = [
            ("local cloud", f"{details.url}, process {details.pid}, account {details.account}, region {aws.region}"),
            ("its folder", f"{home} (emulator.log, logs/)"),
        ]
    for name, endpoint in endpoints.items():
        rows.append((f"{endpoint.kind} endpoint", f"{name}: {endpoint.name}, release {endpoint.release}"))
        rows.append(("its log", endpoint.log_group))
    rows.append(("models", f"s3://{deployment.artifact_bucket(aws, environment)}"))
    rows.append(("stacks", "\n".join(sorted(stacks_of(aws, environment)))))
    return [(Text(name, style="bold"), value) for name, value in rows]


def _advise(env: str, endpoints: Mapping[str, DeployedEndpoint], *, local: bool, deletions: Sequence[str] = ()) -> None:
    """Print what to type next."""
    chosen = "" if env == DEFAULT else f"--env {env} "
    lines = ['eval "$(.venv/bin/steelyard cloud env)"'] if local else []
    # Of stacks that the environment's file no longer has; they stand among "stacks" above, and cost money.
    lines.extend(deletions)
    for name, endpoint in endpoints.items():
        what = "examples/ticket.json" if endpoint.kind == "decision" else "'Tell me about trains.'"
        lines.append(f".venv/bin/steelyard invoke {chosen}{name} {what}")
    lines.append(f".venv/bin/steelyard down {chosen}{'--local' if local else ''}".rstrip())
    console.heading("next")
    console.out.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
