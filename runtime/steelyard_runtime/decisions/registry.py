"""The registered decisions of a server: loaded from their folders, proved to belong to it, and found by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from steelyard_runtime.contracts.text import labelled
from steelyard_runtime.decision import Option, Question, Registration, Ruling
from steelyard_runtime.decisions.content import DecisionContent, content_sha256
from steelyard_runtime.decisions.contract import MAX_FILE_BYTES, Contract, ContractError, parse_contract
from steelyard_runtime.decisions.head import DESCRIPTION_FILE, Head, HeadError, folder_for_build, load_head
from steelyard_runtime.decisions.policy import decide
from steelyard_runtime.decisions.readout import HeadReadout
from steelyard_runtime.engine.interface import EngineIdentity
from steelyard_runtime.scoring.letters import Letters
from steelyard_runtime.scoring.strategies import Strategies
from steelyard_runtime.scoring.strategy import Readout
from steelyard_runtime.scoring.wordings import WORDINGS, Wording
from steelyard_runtime.whole_files import read_whole

FOLDER = "decisions"
"""A folder of this name beside the model file is found by itself."""
CONTRACT_FILE = "contract.toml"


class RegistryError(ValueError):
    """The registered decisions cannot be served; the message says which file, what is wrong and what to do."""


class MismatchedHeadError(RegistryError):
    """A head was fitted on another model, prompt, contract or build than this server's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One registered decision.

    Attributes:
        contract: What is asked, and what is done with an answer.
        head: Its fitted head; None for a readout without one.
    """

    contract: Contract
    head: Head | None

    @property
    def readout(self) -> str:
        """Name of the strategy that reads it."""
        if self.head:
            return f"head:{self.contract.full_name}"
        return Letters().name if self.contract.readout.strategy == "letters" else self.contract.readout.strategy

    @property
    def question(self) -> Question:
        """The question, as a request would ask it."""
        return Question(
            instructions=self.contract.question,
            options=tuple(
                Option(
                    id=option.id,
                    text=labelled(option.id, option.description),
                    name=option.id,
                    way_out=option.id == self.contract.way_out,
                )
                for option in self.contract.options
            ),
            ordered=self.contract.type == "score",
            readout=self.readout,
            registration=Registration(name=self.contract.full_name, type=self.contract.type),
        )

    def rule(self, readout: Readout) -> Ruling:
        """Apply the policy to what was read."""
        verdict = decide(
            self.contract,
            readout.probabilities,
            distance_rank=readout.distance_rank,
            calibrated=self.head is not None,
        )
        return Ruling(
            decision=self.contract.full_name,
            contract_sha256=self.contract.sha256,
            head_sha256=self.head.sha256 if self.head else None,
            action=verdict.action,
            reason=verdict.reason,
            cause=verdict.cause,
            option=self.contract.option_ids[verdict.option],
            probability=verdict.probability,
            distance_rank=verdict.distance_rank,
        )

    @property
    def content(self) -> DecisionContent:
        """Its name, and the hashes of what it says and knows."""
        return DecisionContent(
            name=self.contract.full_name,
            contract_sha256=self.contract.sha256,
            head_sha256=self.head.sha256 if self.head else None,
        )

    def described(self, *, shadow: bool) -> dict[str, Any]:
        """Its entry in ``GET /v1/identity``, JSON-ready; ``shadow`` says whether it is only recorded."""
        contract = self.contract
        return {
            "decision": contract.full_name,
            "type": contract.type,
            "question": contract.question,
            "options": list(contract.option_ids),
            "way_out": contract.way_out,
            "shadow": shadow,
            "readout": self.readout,
            "calibrated": self.head is not None,
            "contract_sha256": contract.sha256,
            "head_sha256": self.head.sha256 if self.head else None,
        }


@dataclass(frozen=True, slots=True)
class Registry:
    """Registered decisions.

    Attributes:
        decisions: By ``NAME@VERSION``.
        shadows: ``NAME@VERSION`` of those that do not answer for their ``NAME``, at most one of each.
        questions: What requests find by ``NAME@VERSION``, and by ``NAME`` for the latest version that answers.
    """

    decisions: Mapping[str, Registered] = field(default_factory=dict)
    shadows: frozenset[str] = frozenset()
    questions: Mapping[str, Question] = field(init=False)

    def __post_init__(self) -> None:
        latest: dict[str, Registered] = {}
        for each in sorted(self.decisions.values(), key=lambda each: each.contract.version):
            if each.contract.full_name not in self.shadows:
                latest[each.contract.name] = each
        found = {name: each.question for name, each in {**self.decisions, **latest}.items()}
        object.__setattr__(self, "questions", MappingProxyType(found))

    def shadow_of(self, question: Question) -> Question | None:
        """The question that is decided beside this one and only recorded; None where there is none."""
        if question.registration is None or question.registration.name in self.shadows:
            return None
        name = self.decisions[question.registration.name].contract.name
        found = (each for each in self.shadows if self.decisions[each].contract.name == name)
        return next((self.questions[each] for each in found), None)

    @property
    def sha256(self) -> str:
        """Hash of all of them, as a release names it."""
        return content_sha256(each.content for each in self.decisions.values())

    def strategies(self) -> Strategies:
        """The heads' readouts, by name."""
        return {each.readout: HeadReadout(each.readout, each.head) for each in self.decisions.values() if each.head}

    def check(self, identity: EngineIdentity, *, prompt_sha256: Callable[[Wording], str]) -> None:
        """Refuse heads that were fitted on anything else than this engine's model, build and words.

        Args:
            identity: The engine's.
            prompt_sha256: The hash of a wording's tokens.

        Raises:
            MismatchedHeadError: With each thing that differs.
        """
        for each in self.decisions.values():
            if each.head is None:
                continue
            try:
                each.head.check(
                    contract=each.contract,
                    model_sha256=identity.model.sha256,
                    prompt_sha256=prompt_sha256(WORDINGS[each.contract.readout.wording]),
                    llama_cpp=identity.llama_cpp,
                )
            except HeadError as error:
                raise MismatchedHeadError(str(error)) from error
            if (size := each.head.description.embedding_size) != identity.model.embedding_size:
                raise MismatchedHeadError(
                    f"the head of {each.contract.full_name} takes {size} numbers and the model's hidden states have "
                    f"{identity.model.embedding_size}; fit it again: steelyard decision fit {each.contract.name}"
                )


def folder_of(setting: str | None, *, model: Path) -> Path | None:
    """The folder of registered decisions: the setting's, or the one beside the model file; None where there is none."""
    if setting is not None:
        return Path(setting).expanduser()
    beside = model.parent / FOLDER
    return beside if beside.is_dir() else None


def with_shadows(registry: Registry, names: Sequence[str]) -> Registry:
    """Return the registry with some of its decisions as shadows.

    Args:
        registry: The decisions.
        names: ``NAME@VERSION`` of each shadow.

    Raises:
        RegistryError: One is not registered, has no other version that answers, or is the second of its name.
    """
    taken: dict[str, str] = {}
    for name in names:
        if name not in registry.decisions:
            raise RegistryError(
                f"shadow_decisions names {name}, and there is no such decision; there are "
                f"{', '.join(registry.decisions) or 'none'}"
            )
        base = registry.decisions[name].contract.name
        if base in taken:
            raise RegistryError(
                f"shadow_decisions names {taken[base]} and {name}; a decision has one shadow: leave one out"
            )
        taken[base] = name
        if all(each.contract.name != base or other == name for other, each in registry.decisions.items()):
            raise RegistryError(
                f"shadow_decisions names {name}, and no other version of {base} is there to answer; add it, or "
                "take the shadow out"
            )
    return Registry(registry.decisions, frozenset(taken.values()))


def check_content(registry: Registry, wanted: str | None, *, folder: Path | None) -> None:
    """Refuse other decisions than those that are wanted.

    Args:
        registry: What was loaded.
        wanted: Its hash, of the setting ``decisions_sha256``; None for whatever there is.
        folder: Where it was loaded from; None where there is no such folder.

    Raises:
        RegistryError: With both hashes.
    """
    if wanted is None or registry.sha256 == wanted:
        return
    there = ", ".join(registry.decisions) or "none"
    raise RegistryError(
        f"the registered decisions in {folder or FOLDER} are not those that decisions_sha256 names: they hash to "
        f"{registry.sha256} ({there}), and {wanted} is wanted. Put back the files of the release, or deploy the "
        "release that has these"
    )


def load_registry(folder: Path, *, llama_cpp: str | None = None) -> Registry:
    """Load every decision of a folder; a folder in it is one decision, called ``NAME`` or ``NAME@VERSION``.

    Args:
        folder: The folder.
        llama_cpp: The build of llama.cpp that serves: heads for it come before those of the folders themselves.

    Raises:
        RegistryError: The folder or a file in it cannot be read, is wrong, or is there twice.
    """
    try:
        inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise RegistryError(f"the folder of decisions {folder} cannot be read: {error.strerror}") from error
    found: dict[str, Registered] = {}
    for path in inside:
        each = load_decision(path, llama_cpp=llama_cpp)
        if each.contract.full_name in found:
            raise RegistryError(f"{folder} has the decision {each.contract.full_name} twice; remove one")
        found[each.contract.full_name] = each
    in_order = sorted(found.values(), key=lambda each: (each.contract.name, each.contract.version))
    return Registry({each.contract.full_name: each for each in in_order})


def load_decision(folder: Path, *, llama_cpp: str | None = None) -> Registered:
    """Load one decision from its folder, called ``NAME`` or ``NAME@VERSION``. Arguments as of ``load_registry``.

    Raises:
        RegistryError: A file in it cannot be read, or is wrong.
    """
    contract = load_contract(folder)
    if contract.readout.strategy != "head":
        return Registered(contract=contract, head=None)
    try:
        return Registered(contract=contract, head=load_head(_head_folder(folder, llama_cpp)))
    except HeadError as error:
        raise RegistryError(str(error)) from error


def load_contract(folder: Path) -> Contract:
    """Load the contract of a decision's folder.

    Raises:
        RegistryError: It cannot be read, is wrong, or is another one than the folder is called.
    """
    path = folder / CONTRACT_FILE
    try:
        contract = parse_contract(_text(path))
    except ContractError as error:
        raise RegistryError(f"{path} is no contract: {error}") from error
    if folder.name not in (contract.name, contract.full_name):
        raise RegistryError(
            f"{path} has the name {contract.name!r} and version {contract.version}, and lies in the folder "
            f"{folder.name!r}; call the folder {contract.name} or {contract.full_name}"
        )
    return contract


def _head_folder(folder: Path, llama_cpp: str | None) -> Path:
    if llama_cpp is None:
        return folder
    own = folder_for_build(folder, llama_cpp)
    return own if (own / DESCRIPTION_FILE).exists() else folder


def _text(path: Path) -> str:
    try:
        return read_whole(path, most=MAX_FILE_BYTES).decode()
    except OSError as error:
        raise RegistryError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise RegistryError(f"{path} is not UTF-8") from error
