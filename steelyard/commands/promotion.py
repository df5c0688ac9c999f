"""``steelyard release promote``, ``rollback``, ``log``: deploy by evidence, return, and list what happened."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from steelyard.aws.session import Aws
from steelyard.cdk.program import Cdk, file_reference
from steelyard.commands.options import Bootstrap, EnvironmentName, Json, Why
from steelyard.deploy import deployment, promotion
from steelyard.deploy.endpoints import deployed_endpoint
from steelyard.deploy.promotion import FromSource, Place
from steelyard.deploy.supplies import FromCodeBuild
from steelyard.deploy.watching import watch as watch_alarms
from steelyard.environments.files import DEFAULT, load_environment
from steelyard.environments.schema import Environment
from steelyard.releases.checks import LOCAL_ACCOUNT
from steelyard.releases.compatibility import check_release
from steelyard.releases.difference import changes
from steelyard.releases.manifest import Release
from steelyard.releases.record import (
    Event,
    Evidence,
    Occasion,
    deployed,
    newest_events,
    reason,
    rollback_target,
)
from steelyard.terminal import console
from steelyard.terminal.bootstrap import agree_to_bootstrap
from steelyard.terminal.build_log import build_log
from steelyard.terminal.deploying import ask_examples, look_at
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.gates import GateResult, Gates

if TYPE_CHECKING:
    from steelyard.evaluation.evidence import Judged

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Ask = Annotated[bool, typer.Option("--ask/--no-ask", help="Ask each endpoint an example at the end.")]
_DIGEST_SHOWN = 19


def promote(
    *,
    source: Annotated[str, typer.Option("--from", help="The environment that it runs in.")],
    to: Annotated[str, typer.Option("--to", help="The environment that it goes to.")],
    evidence: Annotated[
        list[Path] | None,
        typer.Option("--evidence", help="An evaluation of a live endpoint of --from; once for each decision."),
    ] = None,
    against: Annotated[
        list[Path] | None,
        typer.Option("--against", help="An evaluation that those of the same decision are compared with."),
    ] = None,
    why: Why = None,
    from_profile: Annotated[
        str | None,
        typer.Option("--from-profile", help="AWS profile for --from, where it is in another account than --to."),
    ] = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Look whether quotas and zones allow it.")] = True,
    bootstrap: Bootstrap = False,
    yes: Yes = False,
    ask: Ask = True,
) -> None:
    """Bring the release that runs in one environment to another, if its evaluations keep that one's gates.

    The release must be what the endpoints of --from run and say that they run. Nothing is changed before all of it has
    been checked and you have agreed. Interrupted, the same command finishes it.
    """
    from steelyard.evaluation.evidence import judge_evidence, refuse_missed, wanted_evidence

    given = reason(why)
    if source == to:
        raise CommandError(f"--from and --to are both {to}; a release goes from one to another", code=ExitCode.USAGE)
    origin, target = load_environment(source), load_environment(to)
    here = Place(aws=Aws(origin.region, profile=from_profile), environment=origin)
    there = Place(aws=Aws(target.region), environment=target)
    here.check_account()
    there.check_account()
    console.step(f"looking at what runs in {source}")
    release = promotion.release_of(here)
    reports = promotion.check_running(here, release)
    console.note(f"release {release.id} runs in {source}, by its configurations and by what its servers say")
    if promotion.runs(there, release):
        console.note(f"release {release.id} runs in {to} already; nothing was changed")
        return
    check_release(target, release)
    gates = target.gates or Gates()
    if target.gates is None:
        console.note(f"environments/{to}.toml has no [gates]: nothing is demanded of the release")
    wanted = wanted_evidence(target, release)
    judged = judge_evidence(evidence or (), wanted, gates, source=origin, reports=reports, against=against or ())
    scanned = promotion.judge_scans(here, target, release, gates)
    _show_gates(judged, scanned)
    refuse_missed(judged, scanned, target=to)
    promotion.check_reachable(here, there, release)
    if check:
        look_at(there.aws, target, local=there.aws.account() == LOCAL_ACCOUNT)
    _show_changes(there, release)
    if not yes:
        _agree(f"Deploy release {release.id} to {to} in account {there.aws.account()}, {target.region}?")
    if not bootstrap:
        agree_to_bootstrap(there.aws, target)
    promotion.tag(here, there, release, tell=console.note)
    supplies = FromSource(
        source=here.bucket(),
        published=FromCodeBuild(target, watch=build_log),
        published_models=target.builds.models,
    )
    occasion = Occasion(
        action="promote", why=given, promoted_from=source, evidence=tuple(_recorded(each) for each in judged)
    )
    _deploy(to, there, release, occasion, supplies=supplies, ask=ask)
    console.note(f"release {release.id} runs in {to}; back: steelyard release rollback --env {to}")


def rollback(*, env: EnvironmentName = DEFAULT, why: Why = None, yes: Yes = False, ask: Ask = True) -> None:
    """Deploy the release again that an environment had before, also when the newest one never started.

    The release comes from the environment's record. The environment's file is that of this checkout.
    """
    given = reason(why)
    environment = load_environment(env)
    place = Place(aws=Aws(environment.region), environment=environment)
    place.check_account()
    event = rollback_target(place.aws, environment, bucket=place.bucket())
    release = event.manifest()
    console.note(f"release {release.id} was deployed to {env} at {event.at} by {event.by}")
    _show_changes(place, release)
    if not yes:
        _agree(f"Deploy release {release.id} to {env} again, in account {place.aws.account()}, {environment.region}?")
    occasion = Occasion(action="rollback", why=given, returns_to=event.number)
    _deploy(env, place, release, occasion, supplies=FromCodeBuild(environment, watch=build_log), ask=ask)
    console.note(f"release {release.id} runs in {env} again")


def watch(
    *,
    env: EnvironmentName = DEFAULT,
    minutes: Annotated[float, typer.Option("--minutes", min=0.01, max=24 * 60, help="For how long.")] = 15.0,
) -> None:
    """Watch the alarms of an environment's endpoints after a deployment.

    Exit code 1 as soon as one is on, with its name and what it means.
    """
    environment = load_environment(env)
    place = Place(aws=Aws(environment.region), environment=environment)
    place.check_account()
    console.step(f"watching the alarms of {env} for {minutes:g} minutes")
    watch_alarms(place.aws, environment, minutes=minutes)
    console.note(f"no alarm of {env} was on")


def log(
    *,
    env: EnvironmentName = DEFAULT,
    last: Annotated[int, typer.Option("--last", min=1, max=1000, help="Events, the newest first.")] = 20,
    as_json: Json = False,
) -> None:
    """Show the record of an environment: who deployed what, when, why, and on what evidence."""
    environment = load_environment(env)
    place = Place(aws=Aws(environment.region), environment=environment)
    found = newest_events(place.aws, environment, bucket=place.bucket(), most=last)
    if as_json:
        console.out.print_json(json.dumps([each.model_dump(mode="json") for each in found]))
        return
    if not found:
        console.note(f"the record of {env} has no event")
    for each in found:
        _show_event(each)


def _deploy(
    named: str, place: Place, release: Release, occasion: Occasion, *, supplies: deployment.Supplies, ask: bool
) -> None:
    """Deploy as ``steelyard up`` does, from a manifest that may be in no checkout."""
    environment = place.environment
    with tempfile.TemporaryDirectory(prefix="steelyard-") as folder:
        manifest = Path(folder) / f"{release.id}.json"
        manifest.write_text(json.dumps(release.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
        cdk = Cdk(environment=file_reference(named), release=str(manifest))
        deployment.deploy(
            place.aws,
            environment,
            release,
            cdk,
            console.step,
            note=console.note,
            supplies=supplies,
            occasion=occasion,
        )
    if ask:
        endpoints = {name: deployed_endpoint(place.aws, environment, name) for name in environment.endpoints}
        ask_examples(place.aws, environment, release, endpoints)


def _recorded(judged: Judged) -> Evidence:
    return Evidence(
        file=judged.file.name,
        sha256=judged.sha256,
        decision=judged.evaluation.decision.name,
        cases=judged.evaluation.figures.cases,
        gates=tuple(each.sentence for each in judged.results),
    )


def _agree(question: str) -> None:
    if not typer.confirm(question, err=True):
        raise CommandError("nothing was changed", hint="Answer y, or pass --yes, to continue.")


def _show_gates(judged: Sequence[Judged], scanned: Sequence[GateResult]) -> None:
    rows = [
        (_sign(result), each.evaluation.decision.name, result.sentence) for each in judged for result in each.results
    ]
    rows += [(_sign(result), "our images", result.sentence) for result in scanned]
    console.rows(rows)


def _sign(result: GateResult) -> Text:
    return Text("kept", style="green") if result.kept else Text("MISSED", style="bold red")


def _show_changes(place: Place, release: Release) -> None:
    """Print what changes from the release that the record has as deployed."""
    name = place.environment.name
    event = _deployed(place, place.environment)
    if event is None:
        console.note(f"the record of {name} has no release yet; {release.id} is its first")
        return
    found = changes(event.manifest(), release)
    console.heading(f"{name}: release {event.release_id} becomes {release.id}")
    console.rows([(each.part, each.what, f"{_short(each.before)} becomes {_short(each.after)}") for each in found])


def _deployed(place: Place, environment: Environment) -> Event | None:
    try:
        bucket = place.bucket()
    except CommandError:
        return None  # the first deployment makes it
    return deployed(place.aws, environment, bucket=bucket)


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    return f"{value[:_DIGEST_SHOWN]}..." if value.startswith("sha256:") else value


def _show_event(event: Event) -> None:
    origin = f" from {event.promoted_from}" if event.promoted_from else ""
    console.heading(f"{event.number}  {event.at}  {event.action}{origin}: release {event.release_id}, {event.outcome}")
    rows = [("by", event.by)]
    if event.why:
        rows.append(("why", event.why))
    for each in event.evidence:
        rows.append(("evidence", f"{each.decision}, {each.cases} cases: {each.file}, sha256 {each.sha256}"))
        rows += [("gate", sentence) for sentence in each.gates]
    if event.fault:
        rows.append(("fault", event.fault))
    console.rows(rows)
