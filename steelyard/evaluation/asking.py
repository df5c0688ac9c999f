"""Asks a decision about labelled cases: each once, some reversed, some again, some under attack."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steelyard.client.decision_file import usage
from steelyard.decisions.folder import Case
from steelyard.evaluation.attacks import attacked, injected, read_attacks
from steelyard.evaluation.journal import About, Journal, Line
from steelyard.evaluation.result import Again, Answer, Attacked, Judged
from steelyard.evaluation.subject import Subject
from steelyard.rows.asking import Ask, Decides, Outcome, ask_all
from steelyard_base.exit_codes import CommandError

Step = Callable[[str, int, int], None]
"""Called with the stage, and its requests that are done and their number."""

CASES, REVERSED, AGAIN, ATTACKED = "cases", "options reversed", "asked again", "under attack"


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Numbers of cases that are asked more than once; they are taken evenly from the file.

    Attributes:
        reversed: With the options reversed; a registered decision has one order, so none.
        again: As they were.
        attacked: With each attack of the suite.
        beside: Further fields of the requests, such as their layout.
        concurrency: Requests under way together.
    """

    reversed: int
    again: int
    attacked: int
    beside: Mapping[str, str]
    concurrency: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """All answers.

    Attributes:
        about: What they have in common.
        judged: Every case; some may have been refused.
        reordered: Cases with the options reversed.
        repeated: Cases that were asked again.
        attacked: Cases under attack.
    """

    about: About
    judged: tuple[Judged, ...]
    reordered: tuple[Again, ...]
    repeated: tuple[Again, ...]
    attacked: tuple[Attacked, ...]


@dataclass(frozen=True, slots=True)
class _Wanted:
    """One request: its name in the journal, the state, the decision, and whether its options are reversed."""

    key: tuple[str, int, int]
    state: Any
    decision: dict[str, Any]
    backwards: bool = False


def asked_sha256(subject: Subject, cases: Sequence[Case], target: str, beside: Mapping[str, str]) -> str:
    """Return the hash of what decides the answers of an evaluation."""
    contract = subject.contract.sha256 if subject.contract else None
    rows = [[case.text, case.label] for case in cases]
    said = json.dumps([subject.asked(), contract, rows, target, beside], ensure_ascii=False, sort_keys=True)
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()


def ask_cases(
    client: Decides, subject: Subject, cases: Sequence[Case], extent: Extent, kept: Journal, *, step: Step
) -> Asked:
    """Ask everything that the journal does not have.

    Args:
        client: The target.
        subject: The decision.
        cases: Labelled cases; one or more.
        extent: How many cases are asked more than once.
        kept: Answers so far; gets the new ones.
        step: Receives progress.

    Raises:
        CommandError: Nothing more can be asked, every case was refused, or the answers are not of one target.
    """
    asking = _Asking(client, subject, extent, kept, step)
    once = [_Wanted((CASES, n, 0), case.state, subject.asked()) for n, case in enumerate(cases, 1)]
    errors = asking.ask(CASES, once)
    judged = tuple(_judged(kept, n, case, errors) for n, case in enumerate(cases, 1))
    answered = {each.case: each.answer for each in judged if each.answer is not None}
    if kept.about is None or not answered:
        raise CommandError(f"none of the {len(cases)} cases was answered: {next(iter(errors.values()), 'no reason')}")
    backwards = [] if subject.registered else _evenly(list(answered), extent.reversed)
    asking.ask(
        REVERSED,
        [
            _Wanted((REVERSED, n, 0), cases[n - 1].state, subject.asked(backwards=True), backwards=True)
            for n in backwards
        ],
    )
    again = _evenly(list(answered), extent.again)
    asking.ask(AGAIN, [_Wanted((AGAIN, n, 0), cases[n - 1].state, subject.asked()) for n in again])
    attacks = tuple(_attacks(subject, cases, answered, _evenly(list(answered), extent.attacked)))
    asking.ask(ATTACKED, [wanted for wanted, _ in attacks])
    return Asked(
        about=kept.about,
        judged=judged,
        reordered=tuple(_again(kept, REVERSED, backwards)),
        repeated=tuple(_again(kept, AGAIN, again)),
        attacked=tuple(
            Attacked(answer=kept.lines[wanted.key].answer, **said)
            for wanted, said in attacks
            if wanted.key in kept.lines
        ),
    )


@dataclass(frozen=True, slots=True)
class _Asking:
    client: Decides
    subject: Subject
    extent: Extent
    kept: Journal
    step: Step

    def ask(self, stage: str, wanted: Sequence[_Wanted]) -> dict[int, str]:
        """Ask what is not kept; the refusals by case."""
        left = [each for each in wanted if each.key not in self.kept.lines]
        done, errors = len(wanted) - len(left), {}
        if wanted:
            self.step(stage, done, len(wanted))
        rows = (Ask(index, each.state, [each.decision], self.extent.beside) for index, each in enumerate(left))
        for (outcome,) in ask_all(self.client, rows, concurrency=self.extent.concurrency):
            each = left[outcome.row.id]
            if outcome.error is not None:
                errors[each.key[1]] = outcome.error.message
            else:
                self.kept.add(self._line(each, outcome))
            done += 1
            self.step(stage, done, len(wanted))
        return errors

    def _line(self, wanted: _Wanted, outcome: Outcome) -> Line:
        result = outcome.result or {}
        try:
            about, answer = self._read(wanted, result)
        except (KeyError, TypeError, ValueError) as error:
            raise CommandError(
                f"an answer is not one of a Steelyard server: {error}", hint="Is it another server, or an older one?"
            ) from error
        self._require_same(about)
        stage, case, number = wanted.key
        return Line(stage=stage, case=case, number=number, answer=answer, about=about)

    def _read(self, wanted: _Wanted, result: dict[str, Any]) -> tuple[About, Answer]:
        expected = self.subject.option_ids[::-1] if wanted.backwards else self.subject.option_ids
        if tuple(result["option_ids"]) != expected:
            raise ValueError(f"its options are {', '.join(map(str, result['option_ids']))}")
        probabilities = tuple(map(float, result["probabilities"]))
        if len(probabilities) != len(expected):
            raise ValueError(f"it has {len(probabilities)} probabilities for {len(expected)} options")
        tokens, timing = result["tokens"], result["timing"]
        about = About(
            model=result["model"],
            readout=result["readout"],
            prompt_version=result["prompt_version"],
            head_sha256=result.get("head_sha256"),
            contract_sha256=result.get("contract_sha256"),
        )
        answer = Answer(
            probabilities=probabilities[::-1] if wanted.backwards else probabilities,
            action=result.get("action"),
            reason=result.get("reason"),
            distance_rank=result.get("distance_rank"),
            evaluated_tokens=tokens["evaluated"],
            reused_tokens=tokens["reused"],
            cached=bool(result.get("cached")),
            total_ms=timing["total_ms"],
            engine_ms=timing["engine_ms"],
        )
        return about, answer

    def _require_same(self, now: About) -> None:
        contract = self.subject.contract
        if self.subject.registered and contract is not None and now.contract_sha256 != contract.sha256:
            raise usage(
                f"the target has another contract {self.subject.name}: {now.contract_sha256}, and the one here is "
                f"{contract.sha256}",
                "Serve this one, or evaluate the folder that is served.",
            )
        before = self.kept.about
        if before is not None and (now.model, now.head_sha256) != (before.model, before.head_sha256):
            names = [name for name in now.model if now.model[name] != before.model.get(name)] or ["head"]
            raise usage(
                f"the target is not the one that answered before: {', '.join(names)} changed",
                "Answers of two targets make no figures: begin again with another --out.",
            )


def _evenly(cases: Sequence[int], count: int) -> list[int]:
    """So many of the cases, from all of the file."""
    most = min(count, len(cases))
    return [cases[index * len(cases) // most] for index in range(most)]


def _judged(kept: Journal, number: int, case: Case, errors: dict[int, str]) -> Judged:
    line = kept.lines.get((CASES, number, 0))
    return Judged(
        case=number,
        id=case.id,
        state=case.text,
        label=case.label,
        kind=case.kind,
        same_as=case.same_as,
        answer=line.answer if line else None,
        error=None if line else errors.get(number, "it was not answered"),
    )


def _again(kept: Journal, stage: str, cases: Sequence[int]) -> Iterator[Again]:
    for number in cases:
        if (line := kept.lines.get((stage, number, 0))) is not None:
            yield Again(case=number, answer=line.answer)


def _attacks(
    subject: Subject, cases: Sequence[Case], answered: dict[int, Answer], chosen: Sequence[int]
) -> Iterator[tuple[_Wanted, dict[str, Any]]]:
    """Each attack on each chosen case, always for the option after the answer: nothing is drawn."""
    suite = read_attacks()
    for number in chosen:
        before = answered[number].choice
        wanted = (before + 1) % len(subject.options)
        for index, attack in enumerate(suite):
            text = injected(attack, question=subject.question, options=subject.options, wanted=wanted, before=before)
            state = attacked(cases[number - 1].text, attack, text)
            said = {
                "case": number,
                "kind": attack.kind,
                "text": text,
                "place": attack.place,
                "wanted": subject.option_ids[wanted],
                "before": subject.option_ids[before],
            }
            yield _Wanted((ATTACKED, number, index), state, subject.asked()), said
