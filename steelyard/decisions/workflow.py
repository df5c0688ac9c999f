"""Fits and tests the decision of a folder: contract, cases and a reader of hidden states become files and figures."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steelyard.decisions import fitting, metrics
from steelyard.decisions.curve import Curve, learning_curve
from steelyard.decisions.evaluation import Evaluation
from steelyard.decisions.features import StateReader
from steelyard.decisions.fitting import Examples, FitError, Fitted
from steelyard.decisions.folder import BASELINE_FILE, CASES_FILE, Cases
from steelyard.decisions.metrics import Operating
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.decisions.contract import Contract
from steelyard_runtime.decisions.head import Bound, Description, Head, HeadError, Interval, head_files, load_head
from steelyard_runtime.whole_files import read_whole

MOST_BASELINE_BYTES = 1 << 20

Step = Callable[[str, int, int], None]
"""Called with the stage, and its steps that are done and their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedDecision:
    """A fitted decision.

    Attributes:
        contract: Its contract.
        cases: The cases that it was fitted on.
        fitted: The head and its figures.
        description: The head's description.
        files: The head's files by name.
        operating: The threshold for the contract's ``target_wrong``; None where it names none.
    """

    contract: Contract
    cases: Cases
    fitted: Fitted
    description: Description
    files: dict[str, bytes]
    operating: Operating | None

    def curve(self) -> Curve:
        """Return accuracy against labels, with the strengths and weights of the whole head."""
        return learning_curve(self.fitted.validated, self.fitted.chosen.calibration.weights)


class Baseline(BaseModel):
    """The file ``baseline.json``: the figures that a decision was accepted with."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    format: Literal[1] = 1
    contract: Annotated[str, Field(description="`NAME@VERSION`.")]
    question_sha256: Annotated[str, Field(description="Hash of what the contract asked.")]
    model_sha256: Annotated[str, Field(description="Hash of the model file.")]
    cases_sha256: Annotated[str, Field(description="Hash of the cases.")]
    accuracy: Annotated[Interval, Field(description="Cross-validated share of right answers.")]
    log_loss: Annotated[Interval, Field(description="Cross-validated log loss.")]


def option_text(contract: Contract, index: int) -> str | None:
    """Return what an option says of itself, as a case of it; None where it says nothing.

    The way out says what it is not, and "yes" or "3" are no texts of their states.
    """
    option = contract.options[index]
    if option.id == contract.way_out:
        return None
    name = option.id.replace("_", " ").replace("-", " ").strip() if contract.type == "choice" else ""
    return option.description.strip() or name or None


def with_wording(contract: Contract, wording: str) -> Contract:
    """Return a contract with another wording, to compare it."""
    return contract.model_copy(update={"readout": contract.readout.model_copy(update={"wording": wording})})


def fit_decision(
    contract: Contract, cases: Cases, reader: StateReader, *, step: Step = lambda *_: None
) -> FittedDecision:
    """Fit a decision's head.

    Args:
        contract: Its contract; the readout is ``head``.
        cases: Its labelled cases.
        reader: Gives hidden states.
        step: Receives progress.

    Raises:
        CommandError: The readout needs no fitting, the cases are too few, or a state cannot be evaluated.
    """
    require_head(contract, cases)
    labels = np.array([contract.option_ids.index(case.label) for case in cases.cases], np.int64)
    texts = tuple(case.text for case in cases.cases)
    own = [(text, index) for index in range(len(contract.options)) if (text := option_text(contract, index))]
    hidden = reader.read([*texts, *(text for text, _ in own)], step=lambda done, total: step("states", done, total))
    try:
        fitted = fitting.fit(
            Examples(hidden=hidden[: len(texts)], texts=texts, labels=labels),
            anchors=Examples(
                hidden=hidden[len(texts) :],
                texts=tuple(text for text, _ in own),
                labels=np.array([index for _, index in own], np.int64),
            ),
            options=len(contract.options),
            words=contract.readout.words,
            in_order=contract.type == "score",
            step=lambda done, total: step("regressions", done, total),
        )
    except FitError as error:
        raise CommandError(f"{contract.full_name} cannot be fitted: {error}", code=ExitCode.USAGE) from error
    description = Description(
        format=1,
        bound=Bound(
            contract=contract.full_name,
            question_sha256=contract.question_sha256,
            model_sha256=reader.model_sha256,
            wording=contract.readout.wording,
            prompt_sha256=reader.prompt_sha256,
            llama_cpp=reader.llama_cpp,
        ),
        options=contract.option_ids,
        cases_sha256=cases.sha256,
        tensors_sha256="0" * 64,
        embedding_size=hidden.shape[1],
        word_terms=0,
        run_terms=0,
        temperature=fitted.linear.temperature,
        calibration=fitted.chosen.way.kind,
        measured=fitted.measured,
    )
    target = contract.policy.target_wrong
    return FittedDecision(
        contract=contract,
        cases=cases,
        fitted=fitted,
        description=description,
        files=head_files(description, fitted.linear),
        operating=None
        if target is None
        else metrics.operating_point(fitted.probabilities, labels, target_wrong=target),
    )


def require_head(contract: Contract, cases: Cases) -> None:
    """Refuse what no head can be fitted for, before a model is loaded.

    Raises:
        CommandError: The readout needs no fitting, or an option has too few cases.
    """
    if contract.readout.strategy != "head":
        raise CommandError(
            f"the readout of {contract.full_name} is {contract.readout.strategy!r}, which is not fitted",
            code=ExitCode.USAGE,
            hint='Set strategy = "head" in the contract\'s [readout].',
        )
    states: dict[str, set[str]] = {option: set() for option in contract.option_ids}
    for case in cases.cases:
        states[case.label].add(case.text)
    few = {option: len(found) for option, found in states.items() if len(found) < fitting.LEAST_CASES}
    if few:
        raise CommandError(
            f"{contract.full_name} cannot be fitted: each option needs {fitting.LEAST_CASES} different labelled cases, "
            f"and {', '.join(f'{option!r} has {count}' for option, count in few.items())}",
            code=ExitCode.USAGE,
            hint=f"Add lines to {CASES_FILE}.",
        )


def baseline_of(done: FittedDecision) -> Baseline:
    """Return the baseline that accepts these figures."""
    head = done.fitted.measured.head
    return Baseline(
        contract=done.contract.full_name,
        question_sha256=done.contract.question_sha256,
        model_sha256=done.description.bound.model_sha256,
        cases_sha256=done.cases.sha256,
        accuracy=head.accuracy,
        log_loss=head.log_loss,
    )


def read_baseline(folder: Path) -> Baseline | None:
    """Return the accepted baseline; None where none was accepted.

    Raises:
        CommandError: The file is none.
    """
    path = folder / BASELINE_FILE
    try:
        return Baseline.model_validate_json(read_whole(path, most=MOST_BASELINE_BYTES)) if path.exists() else None
    except (OSError, ValidationError) as error:
        raise CommandError(
            f"{path} is no baseline: {error}",
            code=ExitCode.USAGE,
            hint="Accept one again: steelyard decision test --accept",
        ) from error


def read_head(folder: Path) -> Head:
    """Return the head of a folder.

    Raises:
        CommandError: There is none, or it is damaged.
    """
    try:
        return load_head(folder)
    except HeadError as error:
        raise CommandError(str(error), code=ExitCode.USAGE) from error


def stale(head: Head, done: FittedDecision) -> list[str]:
    """Return how the head of a folder differs from what its contract, cases and model give now."""
    theirs, ours = head.description, done.description
    pairs = {
        "contract": (theirs.bound.contract, ours.bound.contract),
        "question, options or readout": (theirs.bound.question_sha256, ours.bound.question_sha256),
        "cases": (theirs.cases_sha256, ours.cases_sha256),
        "model": (theirs.bound.model_sha256, ours.bound.model_sha256),
        "prompt": (theirs.bound.prompt_sha256, ours.bound.prompt_sha256),
        "llama.cpp": (theirs.bound.llama_cpp, ours.bound.llama_cpp),
    }
    return [
        f"the head was fitted with other {what} ({old}, now {new}); fit it again: steelyard decision fit "
        f"{done.contract.name}"
        for what, (old, new) in pairs.items()
        if old != new
    ]


def facts(contract: Contract, cases: Cases, heads: Sequence[Head]) -> dict[str, object]:
    """Return what a person asks first of a decision, by name. Figures are of its first head."""
    counts = Counter(case.label for case in cases.cases)
    said: dict[str, object] = {
        "decision": contract.full_name,
        "type": contract.type,
        "question": contract.question,
        "options": {option: counts[option] for option in contract.option_ids},
        "way_out": contract.way_out or contract.no_way_out or "abstain",
        "readout": contract.readout.strategy,
        "contract_sha256": contract.sha256,
        "question_sha256": contract.question_sha256,
        "cases": len(cases),
        "cases_sha256": cases.sha256,
    }
    if heads:
        head = heads[0]
        said["llama_cpp"] = {each.description.bound.llama_cpp: each.sha256 for each in heads}
        said |= {"head_sha256": head.sha256, "bound": head.description.bound.model_dump()}
        said["measured"] = head.description.measured.model_dump(mode="json")
        said["up_to_date"] = (
            head.description.cases_sha256 == cases.sha256
            and head.description.bound.question_sha256 == contract.question_sha256
        )
    return said


def regressions(now: Baseline, accepted: Baseline) -> list[str]:
    """Return how the figures are worse than the accepted ones, beyond what the cases leave open.

    Accuracy may fall to the lower end of the accepted interval, and the log loss rise to its upper end.
    """
    found = []
    if now.accuracy.value < accepted.accuracy.low:
        found.append(
            f"accuracy is {now.accuracy.value:.3f}; accepted was {accepted.accuracy.value:.3f}, and no less than "
            f"{accepted.accuracy.low:.3f} is taken for the same"
        )
    if now.log_loss.value > accepted.log_loss.high:
        found.append(
            f"log loss is {now.log_loss.value:.3f}; accepted was {accepted.log_loss.value:.3f}, and no more than "
            f"{accepted.log_loss.high:.3f} is taken for the same"
        )
    return found


def held_out(done: FittedDecision) -> Evaluation:
    """Return the held-out answers of a fitted decision's cases."""
    return Evaluation(
        contract=done.contract,
        cases=done.cases.cases,
        probabilities=done.fitted.probabilities,
        distance_ranks=done.fitted.distance_ranks,
    )


def to_json(done: FittedDecision, curve: Curve | None = None) -> str:
    """Return a fitted decision's figures as one JSON object, with its learning curve where it is given."""
    operating = None if done.operating is None else asdict(done.operating)
    return json.dumps(
        held_out(done).to_json()
        | {
            "cases_sha256": done.cases.sha256,
            "uses_words": done.fitted.uses_words,
            "calibration": done.fitted.chosen.way.kind,
            "measured": done.fitted.measured.model_dump(mode="json"),
            "operating_point": operating,
            **({} if curve is None else {"learning_curve": curve.to_json()}),
        },
        ensure_ascii=False,
    )
