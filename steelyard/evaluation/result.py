"""The file of an evaluation: what was asked where, every answer, and the figures that follow from them.

Its form has a number. A reader takes the numbers that it knows and refuses the others; a field is added or changed
under a new number only.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from steelyard.client.decision_file import usage
from steelyard.models.storage import write_atomically
from steelyard_base.faults import first_fault
from steelyard_base.strict import Listed, Strict
from steelyard_runtime.decisions.contract import named
from steelyard_runtime.decisions.head import Interval
from steelyard_runtime.whole_files import read_whole

FORMAT: Literal[1] = 1
MOST_BYTES = 1 << 30

Count = Annotated[int, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]


class EvaluatedOption(Strict):
    """One option of the decision."""

    id: Annotated[str, Field(description="Its id.")]
    description: Annotated[str, Field(description="Its description.")] = ""


class EvaluatedDecision(Strict):
    """The decision that was asked."""

    name: Annotated[str, Field(description="`NAME@VERSION` of a registered one, else the name of its file.")]
    question: Annotated[str, Field(description="Its question.")]
    options: Annotated[Listed[EvaluatedOption], Field(description="Its options, in order.")]
    way_out: Annotated[str | None, Field(description="The option for states that no other fits.")] = None
    registered: Annotated[bool, Field(description="Whether it was asked by its name, so that its policy applied.")]
    contract_sha256: Annotated[str | None, Field(description="Hash of its contract, if it has one.")] = None


class Target(Strict):
    """The place that answered."""

    kind: Annotated[Literal["model", "url", "endpoint"], Field(description="What the command line named.")]
    name: Annotated[str, Field(description="The file, address or endpoint; without credentials.")]
    model: Annotated[
        dict[str, Any],
        Field(description="As the answers name it: file hash, llama.cpp, runtime, hardware, device, threads."),
    ]
    readout: Annotated[str, Field(description="The readout of the answers.")]
    prompt_version: Annotated[str, Field(description="The words or the layout around the states.")]
    head_sha256: Annotated[str | None, Field(description="Hash of the head, if one answered.")] = None


class Answer(Strict):
    """One answer. Probabilities are in the order of the decision's options."""

    probabilities: Annotated[Listed[Share], Field(description="Of each option.")]
    action: Annotated[str | None, Field(description="The policy's action, of a registered decision.")] = None
    reason: Annotated[str | None, Field(description="Why.")] = None
    distance_rank: Annotated[Share | None, Field(description="How unlike the fitted cases the state is.")] = None
    evaluated_tokens: Annotated[Count, Field(description="Tokens that were evaluated for it.")]
    reused_tokens: Annotated[Count, Field(description="Tokens whose evaluation was kept from before.")]
    cached: Annotated[bool, Field(description="The server had kept the whole answer, and evaluated nothing.")] = False
    total_ms: Annotated[float, Field(ge=0, description="At the server, waiting included, in milliseconds.")]
    engine_ms: Annotated[float, Field(ge=0, description="Of these, the engine's work.")]

    @property
    def choice(self) -> int:
        """Index of the likeliest option; the first of equals."""
        return max(range(len(self.probabilities)), key=self.probabilities.__getitem__)


class Judged(Strict):
    """A case with its answer."""

    case: Annotated[int, Field(ge=1, description="Its number in the file of cases.")]
    id: Annotated[str | None, Field(description="Its id.")] = None
    state: Annotated[str, Field(description="As the model read it.")]
    label: Annotated[str, Field(description="The right option.")]
    kind: Annotated[str | None, Field(description="What is special about it.")] = None
    same_as: Annotated[str | None, Field(description="The case that it says again in other words.")] = None
    answer: Annotated[Answer | None, Field(description="Null where it was refused.")] = None
    error: Annotated[str | None, Field(description="Why it was refused.")] = None


class Again(Strict):
    """A case that was asked once more, with the options reversed or unchanged."""

    case: Annotated[int, Field(ge=1, description="Number of the case.")]
    answer: Annotated[Answer, Field(description="The answer; its probabilities are in the decision's order.")]


class Attacked(Strict):
    """A case with a text in its state that tries to steer the answer to another option."""

    case: Annotated[int, Field(ge=1, description="Number of the case.")]
    kind: Annotated[str, Field(description="Kind of the attack; `neutral` is none.")]
    text: Annotated[str, Field(description="The text.")]
    place: Annotated[str, Field(description="`after` or `before` the state.")]
    wanted: Annotated[str, Field(description="The attacker's option: the one after the answer without it.")]
    before: Annotated[str, Field(description="The answer without it.")]
    answer: Annotated[Answer, Field(description="The answer.")]


class Bin(Strict):
    """Answers whose likeliest option has a probability in one tenth."""

    low: Annotated[Share, Field(description="Above this.")]
    high: Annotated[Share, Field(description="Up to this.")]
    cases: Annotated[Count, Field(description="Answers.")]
    probability: Annotated[Share | None, Field(description="Their mean probability; null where there is none.")]
    accuracy: Annotated[Interval | None, Field(description="Share of right ones, with its 95 % interval.")]


class Taken(Strict):
    """The most probable answers, up to a share of all."""

    coverage: Annotated[Share, Field(description="Their share of all answers.")]
    risk: Annotated[Share, Field(description="Share of wrong ones among them.")]


class Counted(Strict):
    """Cases of one kind, or answers of one action."""

    cases: Annotated[Count, Field(description="How many.")]
    wrong: Annotated[Count, Field(description="Of these, wrong answers.")]


class Flips(Strict):
    """Answers that changed where nothing should change them."""

    asked: Annotated[Count, Field(description="How many were compared.")]
    flipped: Annotated[Count, Field(description="How many changed; under attack, to the attacker's option.")]
    share: Annotated[Interval, Field(description="Their share, with its 95 % interval.")]
    kinds: Annotated[dict[str, Counted], Field(description="By kind of attack; `wrong` counts the flips.")] = Field(
        default_factory=dict
    )


class Noise(Strict):
    """Movement of answers when the same is asked again."""

    asked: Annotated[Count, Field(description="Cases that were asked again, and evaluated again.")]
    moved: Annotated[Count, Field(description="Answers that were another option.")]
    largest_shift: Annotated[Share, Field(description="Largest change of a probability.")]


class Measures(Strict):
    """All figures. Intervals are of 95 %: Wilson's for shares, a bootstrap over cases for the rest."""

    cases: Annotated[Count, Field(description="Cases with an answer; all figures are of these.")]
    unanswered: Annotated[Count, Field(description="Cases that were refused.")]
    accuracy: Annotated[Interval, Field(description="Share of right answers.")]
    macro_f1: Annotated[Interval, Field(description="Mean F1 of the options.")]
    log_loss: Annotated[Interval, Field(description="Mean of -log(probability of the right option), in nats.")]
    brier: Annotated[Interval, Field(description="Mean squared distance of probabilities and truth, 0 to 2.")]
    ece: Annotated[Interval, Field(description="Mean gap of probability and accuracy, in ten bins.")]
    reliability: Annotated[Listed[Bin], Field(description="The ten bins.")]
    risk_coverage: Annotated[Listed[Taken], Field(description="At most 100 points.")]
    confusion: Annotated[
        Listed[Listed[int]], Field(description="Counts: a row for each right option, a column for each answer.")
    ]
    kinds: Annotated[dict[str, Counted], Field(description="By kind of case.")]
    actions: Annotated[dict[str, Counted], Field(description="By the policy's action; empty where none applied.")]
    automated: Annotated[Interval | None, Field(description="Share of `automate`.")] = None
    automated_wrong: Annotated[Interval | None, Field(description="Share of wrong answers among `automate`.")] = None
    order_flips: Annotated[Flips | None, Field(description="With the options reversed.")] = None
    paraphrase_flips: Annotated[Flips | None, Field(description="Between cases that are the `same_as` another.")] = None
    injection_flips: Annotated[Flips | None, Field(description="Under attack, without neutral texts.")] = None
    noise: Annotated[Noise | None, Field(description="When asked again.")] = None
    cached: Annotated[
        Count, Field(description="Answers that the server had kept whole: their time and tokens are not a new state's.")
    ] = 0
    p50_ms: Annotated[float, Field(ge=0, description="Median time of an answer at the server, in milliseconds.")]
    p95_ms: Annotated[float, Field(ge=0, description="95 of 100 answers took no longer.")]
    engine_ms: Annotated[float, Field(ge=0, description="Mean work of the engine for an answer, in milliseconds.")]
    evaluated_tokens: Annotated[float, Field(ge=0, description="Mean tokens evaluated for an answer.")]
    reused_tokens: Annotated[float, Field(ge=0, description="Mean tokens reused.")]
    cost_per_1000: Annotated[
        float | None,
        Field(ge=0, description="Price of 1,000 decisions: the machine's price for the engine's time; no idle time."),
    ] = None


class Evaluation(Strict):
    """A decision on labelled cases, at one target."""

    format: Annotated[Literal[1], Field(description="Of this file.")] = FORMAT
    made: Annotated[str, Field(description="When it was finished, UTC.")]
    steelyard: Annotated[str, Field(description="Version of the command.")]
    decision: Annotated[EvaluatedDecision, Field(description="What was asked.")]
    target: Annotated[Target, Field(description="What answered.")]
    cases_file: Annotated[str, Field(description="Name of the file of cases.")]
    cases_sha256: Annotated[str, Field(description="Hash of states and labels, in order.")]
    price_per_hour: Annotated[float | None, Field(ge=0, description="Of the machine, as it was given.")] = None
    figures: Annotated[Measures, Field(description="What follows from the answers.")]
    judged: Annotated[Listed[Judged], Field(description="Every case with its answer.")]
    reordered: Annotated[Listed[Again], Field(description="Cases with the options reversed.")] = ()
    repeated: Annotated[Listed[Again], Field(description="Cases that were asked again as they were.")] = ()
    attacked: Annotated[Listed[Attacked], Field(description="Cases under attack.")] = ()

    @property
    def option_ids(self) -> tuple[str, ...]:
        """Ids of the options, in order."""
        return tuple(option.id for option in self.decision.options)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        """Refuse a file whose parts are of different decisions: somebody changed it."""
        options = self.option_ids
        if len(options) < 2 or len(set(options)) < len(options):
            raise ValueError(f"the options are {named(options)}; they are two or more different ones")
        answered: tuple[Judged | Again | Attacked, ...] = (
            *self.judged,
            *self.reordered,
            *self.repeated,
            *self.attacked,
        )
        for each in answered:
            if each.answer is not None and len(each.answer.probabilities) != len(options):
                raise ValueError(
                    f"an answer to case {each.case} has {len(each.answer.probabilities)} probabilities, and there are "
                    f"{len(options)} options"
                )
        for case in self.judged:
            if case.label not in options:
                raise ValueError(f"case {case.case} has the label {case.label!r}, which is none of {named(options)}")
        if {len(options)} != {len(row) for row in (self.figures.confusion, *self.figures.confusion)}:
            raise ValueError(f"the table of confusion is not of the {len(options)} options")
        if (self.price_per_hour is None) != (self.figures.cost_per_1000 is None):
            raise ValueError("price_per_hour and cost_per_1000 belong together, and one is missing")
        return self


def read_evaluation(path: Path) -> Evaluation:
    """Read the file of an evaluation.

    Raises:
        CommandError: It cannot be read, or is none.
    """
    try:
        return Evaluation.model_validate_json(read_whole(path, most=MOST_BYTES, pipes=True))
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
    except ValidationError as error:
        raise usage(
            f"{path} is no evaluation: {first_fault(error, whole='the file')}",
            "Make one: steelyard decision evaluate NAME --cases FILE --out FILE.json",
        ) from error


def write_evaluation(path: Path, evaluation: Evaluation) -> None:
    """Write the file of an evaluation; a reader sees the old or the new one.

    Raises:
        CommandError: It cannot be written.
    """
    try:
        write_atomically(path, json.dumps(evaluation.model_dump(mode="json"), ensure_ascii=False) + "\n")
    except OSError as error:
        raise usage(f"cannot write {path}: {error.strerror}") from error
