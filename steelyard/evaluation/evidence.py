"""Evidence for a promotion: evaluations, bound by hash to what a release serves, and judged by gates."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.environments.schema import Environment
from steelyard.evaluation.comparison import compare
from steelyard.evaluation.gating import judged_by
from steelyard.evaluation.result import Evaluation, read_evaluation
from steelyard.releases.manifest import Release, ReleasedDecision, ReleasedModel
from steelyard.releases.served import all_served
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.gates import GateResult, Gates

BOUND = ("sha256", "llama_cpp", "binding", "runtime")
"""The parts of a server's own description that its evaluation must share: the model's hash, and the code."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Something that a release serves in an environment, and that an evaluation can be of.

    Attributes:
        endpoint: The first endpoint that serves it.
        model: The model.
        decision: The registered decision; None where the endpoint has none, and any decision may be asked.
    """

    endpoint: str
    model: ReleasedModel
    decision: ReleasedDecision | None

    @property
    def said(self) -> str:
        """The decision and the model in words."""
        return f"{self.decision.name if self.decision else 'a decision'} on {self.model.name}"

    def faults(self, evaluation: Evaluation) -> list[str]:
        """Return how an evaluation is not of this; nothing where it is."""
        found = []
        if (sha256 := evaluation.target.model.get("sha256")) != self.model.weights_sha256:
            found.append(f"it is of the model file {sha256}, and {self.model.name} has {self.model.weights_sha256}")
        if (wanted := self.decision) is None:
            return found
        asked = evaluation.decision
        if asked.name != wanted.name or not asked.registered:
            how = "" if asked.registered else ", which was not asked by its name,"
            return [*found, f"it is of {asked.name}{how} and {wanted.name} is served"]
        if asked.contract_sha256 != wanted.contract_sha256:
            found.append(f"it is of the contract {asked.contract_sha256}, and the release has {wanted.contract_sha256}")
        head = wanted.head.sha256 if wanted.head else None
        if evaluation.target.head_sha256 != head:
            found.append(f"it is of the head {evaluation.target.head_sha256}, and the release has {head}")
        return found


@dataclass(frozen=True, kw_only=True)
class Judged:
    """An evaluation that belongs to the release.

    Attributes:
        file: Its file.
        sha256: Hash of the file.
        evaluation: The evaluation.
        results: Each limit with its figure.
    """

    file: Path
    sha256: str
    evaluation: Evaluation
    results: tuple[GateResult, ...]


def wanted_evidence(environment: Environment, release: Release) -> list[Wanted]:
    """Return what evaluations must be of before a release comes to an environment, each once."""
    found: dict[tuple[str, str, str], Wanted] = {}
    for name, served in all_served(environment, release).items():
        if environment.endpoints[name].kind != "decision":
            continue
        for decision in served.decisions or (None,):
            head = decision.head.sha256 if decision and decision.head else ""
            key = (served.model.weights_sha256, decision.name if decision else "", head)
            found.setdefault(key, Wanted(endpoint=name, model=served.model, decision=decision))
    return list(found.values())


def judge_evidence(
    files: Sequence[Path],
    wanted: Sequence[Wanted],
    gates: Gates,
    *,
    source: Environment,
    reports: Mapping[str, Mapping[str, Any]],
    against: Sequence[Path] = (),
) -> list[Judged]:
    """Read evaluations, refuse those that are of something else, and judge the others.

    Args:
        files: The evaluations.
        wanted: What there must be one of, each.
        gates: The limits.
        source: The environment that the release comes from.
        reports: What the server behind each of its decision endpoints says of itself, by the endpoint's name.
        against: Evaluations that others are compared with, by the decision that they are of.

    Raises:
        CommandError: An evaluation is of something else, there is none of something, or a figure misses its limit.
    """
    before = {each.decision.name: each for each in map(read_evaluation, against)}
    judged = []
    missing = list(wanted)
    for file in files:
        evaluation = read_evaluation(file)
        _check_target(file, evaluation, source, reports)
        of = [each for each in wanted if not each.faults(evaluation)]
        if not of:
            faults = "; ".join(dict.fromkeys(fault for each in wanted for fault in each.faults(evaluation)))
            raise CommandError(
                f"{file} is not of this release: {faults}", code=ExitCode.USAGE, hint=_hint(source, wanted)
            )
        missing = [each for each in missing if each not in of]
        other = before.get(evaluation.decision.name)
        results = judged_by(gates, evaluation, None if other is None else compare(evaluation, other))
        sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
        judged.append(Judged(file=file, sha256=sha256, evaluation=evaluation, results=tuple(results)))
    if missing and gates.of_evaluations:
        raise CommandError(
            f"there is no evaluation of {', nor of '.join(each.said for each in missing)}",
            code=ExitCode.GATE,
            hint=_hint(source, missing),
        )
    return judged


def refuse_missed(judged: Sequence[Judged], scanned: Sequence[GateResult], *, target: str) -> None:
    """Refuse figures that miss their limits.

    Raises:
        CommandError: Some do; the message has a line for each, with figure and limit.
    """
    missed = [
        f"{each.evaluation.decision.name} ({each.file.name}): {result.sentence}"
        for each in judged
        for result in each.results
        if not result.kept
    ]
    missed += [f"our images: {result.sentence}" for result in scanned if not result.kept]
    if missed:
        raise CommandError(
            f"the release misses {len(missed)} of the gates of {target}:\n" + "\n".join(f"- {each}" for each in missed),
            code=ExitCode.GATE,
            hint=f"Nothing was changed. The limits stand under [gates] in environments/{target}.toml.",
        )


def _check_target(
    file: Path, evaluation: Evaluation, source: Environment, reports: Mapping[str, Mapping[str, Any]]
) -> None:
    """Refuse an evaluation of another place than what runs in the source environment now."""
    target = evaluation.target
    report = reports.get(target.name) if target.kind == "endpoint" else None
    if report is None:
        raise CommandError(
            f"{file} is of the {target.kind} {target.name}, which is no decision endpoint of {source.name}",
            code=ExitCode.USAGE,
            hint=f"Evaluate what runs there: --endpoint {next(iter(reports), 'NAME')} --env {source.name}.",
        )
    differs = [name for name in BOUND if target.model.get(name) != report.get(name)]
    if differs:
        said = ", ".join(f"{name} was {target.model.get(name)} and is {report.get(name)}" for name in differs)
        raise CommandError(
            f"{file} is not of what runs behind {target.name} of {source.name} now: {said}",
            code=ExitCode.USAGE,
            hint="Evaluate it again.",
        )


def _hint(source: Environment, wanted: Sequence[Wanted]) -> str:
    lines = ["Make it, and name it with --evidence:"]
    for each in wanted:
        name = each.decision.name.partition("@")[0] if each.decision else "DECISION"
        endpoint = each.endpoint if each.endpoint in source.endpoints else "NAME"
        lines.append(
            f"steelyard decision evaluate {name} --cases CASES.jsonl --endpoint {endpoint} --env {source.name} "
            f"--out {name.lower()}.json"
        )
    return "\n".join(lines)
