"""A decision's contract: the file ``contract.toml`` in the decision's folder, and its hashes.

The hashes are of what the file says, so that comments, spaces and the order of tables do not count. ``sha256`` covers
everything and is named in answers. ``question_sha256`` covers what labelled cases and fitted heads depend on: type,
question, options, way out and readout. Thresholds are chosen after a head was fitted, so they are not part of it.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, ValidationError, model_validator

from steelyard_runtime.contracts.option_names import check_names
from steelyard_runtime.decision import DecisionType
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.settings import one_per_line
from steelyard_runtime.strict_toml import parse as parse_toml

Type = DecisionType
ReadoutName = Literal["head", "options-as-cases", "question-as-case", "letters"]

MAX_FILE_BYTES = 1 << 20
"""Bytes of a contract's file."""
MAX_OPTIONS = 255
MAX_TEXT = 4000
"""Characters of a question or a description."""
YES_NO = ("yes", "no")
DEFAULT_WORDING = "one-word-1"
NAME_PATTERN = r"^[a-z0-9]+(-[a-z0-9]+)*$"

_QUESTION_FIELDS = frozenset({"type", "question", "options", "way_out", "readout"})
_FORMAT = "steelyard decision contract 1\n"

Probability = Annotated[float, Field(ge=0, le=1)]


class ContractError(ValueError):
    """A contract cannot be read; the message has a line for each fault."""


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be blank")
    return text


Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT), AfterValidator(_filled)]


class _Part(BaseModel):
    """A part of the file: no unknown field, no value of another type, no change afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Option(_Part):
    """One declared answer."""

    id: Annotated[str, Field(min_length=1, max_length=200, description="Names it in cases, answers and policy.")]
    description: Annotated[
        str,
        Field(max_length=MAX_TEXT, description="Which states belong to it, in words that tell it from the others."),
    ] = ""
    value: Annotated[
        float | None, Field(description="Its number, for type `score` only; each larger than the one before.")
    ] = None


class Thresholds(_Part):
    """Minimum requirements of an action. All of them must hold."""

    probability: Annotated[Probability, Field(description="Least calibrated probability of the chosen option.")] = 0.0
    margin: Annotated[
        Probability, Field(description="Least difference between the chosen option's probability and the next one's.")
    ] = 0.0
    distance: Annotated[
        Probability,
        Field(
            description="Largest distance rank of the state: the share of the held-out cases that lay nearer to the "
            "cases that the head was fitted on. 1 sets no limit."
        ),
    ] = 1.0


class OptionPolicy(_Part):
    """Requirements of one option instead of the general ones."""

    automate: Annotated[Thresholds | None, Field(description="In place of `policy.automate`.")] = None
    review: Annotated[Thresholds | None, Field(description="In place of `policy.review`.")] = None
    never_automate: Annotated[bool, Field(description="A person always looks at this option.")] = False


class Policy(_Part):
    """The actions: `automate` needs no person, `review` needs a person's word, `abstain` is no answer (all others)."""

    automate: Annotated[
        Thresholds | None, Field(description="Requirements of `automate`; without them nothing is automated.")
    ] = None
    review: Annotated[Thresholds, Field(description="Requirements of `review`; what misses them is `abstain`.")] = (
        Thresholds()
    )
    options: Annotated[dict[str, OptionPolicy], Field(description="Other requirements by option id.")] = Field(
        default_factory=dict
    )
    target_wrong: Annotated[
        float | None,
        Field(
            gt=0,
            lt=1,
            description="Largest share of wrong answers among the automated ones; `steelyard decision fit` says which "
            "probability reaches it.",
        ),
    ] = None


class Readout(_Part):
    """The way from a state to probabilities."""

    strategy: Annotated[
        ReadoutName,
        Field(
            description="`head`: a linear map of the model's last hidden state, fitted on labelled cases. `letters`: "
            "the logits of the options' letters, without cases and without calibration. `options-as-cases` and "
            "`question-as-case` (yes or no): the likeness of texts, without both, too."
        ),
    ] = "head"
    wording: Annotated[str, Field(min_length=1, description="The fixed words around the state, for `head`.")] = (
        DEFAULT_WORDING
    )
    words: Annotated[
        bool, Field(description="Let the head also count the state's words and parts of words, where that helps.")
    ] = True


class Contract(_Part):
    """One decision: what is asked, which answers there are, and what is done with an answer."""

    name: Annotated[str, Field(pattern=NAME_PATTERN, max_length=64, description="The name of its folder.")]
    version: Annotated[int, Field(ge=1, description="Counts up with every change of question, options or readout.")]
    type: Annotated[
        Type,
        Field(
            description="`choice`: one of the options. `yesno`: the options `yes` and `no`. `score`: one of several "
            "numbers in order."
        ),
    ]
    question: Annotated[Text, Field(description="The question that every case answers.")]
    options: Annotated[
        tuple[Option, ...],
        Strict(False),
        Field(min_length=2, max_length=MAX_OPTIONS, description="The answers, in a fixed order."),
    ]
    way_out: Annotated[
        str | None,
        Field(description="The id of the option for states that no other option fits, such as `none_of_these`."),
    ] = None
    no_way_out: Annotated[
        Text | None, Field(description="Why every state fits an option. A `choice` has this or `way_out`.")
    ] = None
    readout: Annotated[Readout, Field(description="The way from a state to probabilities.")] = Readout()
    policy: Annotated[Policy, Field(description="What is done with an answer.")] = Policy()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _check_options(self)
        if self.readout.wording not in WORDINGS:
            raise ValueError(f"there is no wording {self.readout.wording!r}; there are {', '.join(sorted(WORDINGS))}")
        _check_way_out(self)
        _check_policy(self)
        return self

    @property
    def option_ids(self) -> tuple[str, ...]:
        """Ids of the options, in order."""
        return tuple(option.id for option in self.options)

    @property
    def full_name(self) -> str:
        """``NAME@VERSION``."""
        return f"{self.name}@{self.version}"

    @property
    def sha256(self) -> str:
        """Hash of everything that the contract says."""
        return _sha256(self.model_dump(mode="json", exclude_defaults=True))

    @property
    def question_sha256(self) -> str:
        """Hash of what labelled cases and heads depend on."""
        return _sha256(self.model_dump(mode="json", exclude_defaults=True, include=set(_QUESTION_FIELDS)))

    def requirements(self, option: str) -> tuple[Thresholds | None, Thresholds]:
        """Return the requirements of `automate` and `review` for an answer that names ``option``.

        The first is None where the option is never automated. The way out is automated only by requirements of its
        own: it says that no option fits, which is rarely something to act on.
        """
        own = self.policy.options.get(option, OptionPolicy())
        automate = own.automate if option == self.way_out else own.automate or self.policy.automate
        return None if own.never_automate else automate, own.review or self.policy.review


def _sha256(said: Any) -> str:
    text = json.dumps(said, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256((_FORMAT + text).encode()).hexdigest()


def _check_options(contract: Contract) -> None:
    ids = contract.option_ids
    if twice := sorted({each for each in ids if ids.count(each) > 1}):
        raise ValueError(f"the option id {twice[0]!r} appears more than once")
    check_names(ids, "option id")
    if contract.type == "yesno" and ids != YES_NO:
        raise ValueError(f"a yesno decision has the options 'yes' and 'no' in this order; it has {named(ids)}")
    values = [option.value for option in contract.options]
    if contract.type != "score":
        if any(value is not None for value in values):
            raise ValueError(f"only options of a score have a value; this is a {contract.type}")
        return
    for option, (before, value) in zip(contract.options, itertools.pairwise([None, *values]), strict=True):
        if value is None:
            raise ValueError(f"the option {option.id!r} of a score needs a value")
        if before is not None and value <= before:
            raise ValueError(f"the values of a score increase; {option.id!r} has {value:g} after {before:g}")


def _check_way_out(contract: Contract) -> None:
    if contract.way_out is not None and contract.no_way_out is not None:
        raise ValueError("way_out and no_way_out are both given; keep one")
    if contract.type != "choice":
        if contract.way_out is not None:
            raise ValueError(f"way_out is for a choice; this is a {contract.type}, which abstains by its policy")
    elif contract.way_out is None and contract.no_way_out is None:
        raise ValueError(
            "a choice needs way_out (the id of an option such as none_of_these) or no_way_out (the reason why every "
            "state fits an option)"
        )
    elif contract.way_out is not None and contract.way_out not in contract.option_ids:
        raise ValueError(f"way_out is {contract.way_out!r}, which is none of the options {named(contract.option_ids)}")


def _check_policy(contract: Contract) -> None:
    policy = contract.policy
    for option in policy.options:
        if option not in contract.option_ids:
            raise ValueError(f"policy.options names {option!r}, which is none of {named(contract.option_ids)}")
    for option, own in policy.options.items():
        if own.never_automate and own.automate is not None:
            raise ValueError(f"policy.options.{option} has both never_automate and automate; keep one")
    for option in contract.option_ids:
        automate, review = contract.requirements(option)
        if automate is not None:
            _check_order(automate, review, option)
            _check_effect(automate, option, contract)
        _check_effect(review, option, contract)


def _check_order(automate: Thresholds, review: Thresholds, option: str) -> None:
    """Refuse requirements of `automate` that are weaker than those of `review`."""
    pairs = {
        "probability": (automate.probability, review.probability, "at least"),
        "margin": (automate.margin, review.margin, "at least"),
        "distance": (-automate.distance, -review.distance, "at most"),
    }
    for name, (ours, theirs, relation) in pairs.items():
        if ours < theirs:
            raise ValueError(
                f"the policy contradicts itself for {option!r}: automate has {name} {abs(ours):g} and review "
                f"{abs(theirs):g}; it must be {relation} that"
            )


def _check_effect(thresholds: Thresholds, option: str, contract: Contract) -> None:
    """Refuse thresholds that every answer passes, and those that nothing measures."""
    least = 1 / len(contract.options)
    if 0 < thresholds.probability <= least:
        raise ValueError(
            f"the probability {thresholds.probability:g} for {option!r} refuses nothing: the likeliest of "
            f"{len(contract.options)} options has at least {least:g}; set more, or 0"
        )
    if thresholds.distance < 1 and contract.readout.strategy != "head":
        raise ValueError(
            f"the policy limits the distance for {option!r}, which the readout {contract.readout.strategy} does not "
            "measure; leave it out, or use the readout head"
        )


def named(ids: Sequence[str]) -> str:
    """Return ids as a message names them: the first 20, and how many more there are."""
    shown = ", ".join(ids[:20])
    return shown if len(ids) <= 20 else f"{shown} and {len(ids) - 20} more"


def parse_contract(text: str) -> Contract:
    """Read a contract.

    Args:
        text: TOML.

    Raises:
        ContractError: It is too long, is not TOML, or says something that no contract may say.
    """
    if (size := len(text.encode())) > MAX_FILE_BYTES:
        raise ContractError(f"the contract has {size} bytes and {MAX_FILE_BYTES} are allowed")
    try:
        said = parse_toml(text)
    except ValueError as error:
        raise ContractError(f"the contract is not TOML: {error}") from error
    try:
        return Contract.model_validate(said)
    except ValidationError as error:
        raise ContractError(one_per_line(_sentences(error))) from error


def _sentences(error: ValidationError) -> list[str]:
    return [
        f"{'.'.join(map(str, fault['loc'])) or 'contract'}: {fault['msg'].removeprefix('Value error, ')}"
        for fault in error.errors(include_url=False, include_context=False, include_input=False)
    ]


_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_ESCAPES: Mapping[str, str] = MappingProxyType({'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"})


def write_contract(contract: Contract) -> str:
    """Return a contract as TOML that reads as the same contract; defaults are left out."""
    said = contract.model_dump(mode="json", exclude_defaults=True)
    options = said.pop("options")
    lines = list(_table(said))
    for option in options:
        lines += ["", "[[options]]", *_table(option)]
    # Tables follow all values of the document, and [[options]] are tables.
    tables = [(name, value) for name, value in said.items() if isinstance(value, dict)]
    for name, value in tables:
        lines += _tables(value, (name,))
    return "\n".join(lines) + "\n"


def _table(values: dict[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_value(value)}" for name, value in values.items() if not isinstance(value, dict)]


def _tables(values: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = ["", f"[{'.'.join(map(_key, path))}]", *_table(values)]
    for name, value in values.items():
        if isinstance(value, dict):
            lines += _tables(value, (*path, name))
    return lines


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _value(name)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return '"' + "".join(_escaped(character) for character in value) + '"'
    return repr(value)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    return character if character.isprintable() else f"\\U{ord(character):08X}"
