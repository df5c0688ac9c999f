"""The decision that is evaluated: registered, of a contract that is asked without its head, or of a decision file."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from steelyard.client.decision_file import parse_json, read_text, usage
from steelyard.decisions.folder import folder_of, read_contract
from steelyard.evaluation.result import EvaluatedDecision, EvaluatedOption
from steelyard_runtime.decisions.contract import MAX_FILE_BYTES, MAX_OPTIONS, Contract

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One decision, as it is asked.

    Attributes:
        name: Names it in reports.
        question: Its question.
        options: Id and description of each.
        folder: Its folder, where it has a contract.
        contract: Its contract; None for a decision file.
        registered: Whether it is asked by name.
        further: Other fields of a decision file, which are sent as they are.
    """

    name: str
    question: str
    options: tuple[tuple[str, str], ...]
    folder: Path | None = None
    contract: Contract | None = None
    registered: bool = False
    further: Json = field(default_factory=dict)

    @property
    def option_ids(self) -> tuple[str, ...]:
        """Ids of the options, in order."""
        return tuple(name for name, _ in self.options)

    def asked(self, *, backwards: bool = False) -> Json:
        """Return the decision as a request has it, without a state.

        Args:
            backwards: With the options reversed; of no meaning for a registered decision.
        """
        if self.registered:
            return {"id": "decision", "use": self.name}
        options = [{"id": name, "description": text} if text else {"id": name} for name, text in self.options]
        return self.further | {
            "id": "decision",
            "question": self.question,
            "options": options[::-1] if backwards else options,
        }

    def described(self) -> EvaluatedDecision:
        """Return what the file of an evaluation says of it."""
        return EvaluatedDecision(
            name=self.name,
            question=self.question,
            options=tuple(EvaluatedOption(id=name, description=text) for name, text in self.options),
            way_out=self.contract.way_out if self.contract else None,
            registered=self.registered,
            contract_sha256=self.contract.sha256 if self.contract else None,
        )


def subject_of(name: str, *, zero_shot: bool) -> Subject:
    """Return the decision of a name.

    Args:
        name: A folder in ``decisions/``, a path with a slash, or a decision file that ends in ``.json``.
        zero_shot: Ask the question and options of a contract as if it were not registered.

    Raises:
        CommandError: There is none, or the file is no decision.
    """
    if name.endswith(".json"):
        return _of_file(Path(name))
    folder = folder_of(name)
    contract = read_contract(folder)
    return Subject(
        name=contract.full_name,
        question=contract.question,
        options=tuple((option.id, option.description) for option in contract.options),
        folder=folder,
        contract=contract,
        registered=not zero_shot,
    )


def _of_file(path: Path) -> Subject:
    said = parse_json(read_text(path, None, most=MAX_FILE_BYTES), str(path))
    if isinstance(said, dict) and "decision" in said:
        said = said["decision"]
    if not isinstance(said, dict):
        raise usage(f"{path} holds no decision: it must be an object with a question and options")
    question, options = said.get("question"), said.get("options")
    if not isinstance(question, str) or not question.strip():
        raise usage(f"the decision in {path} has no question")
    if not isinstance(options, list) or not 2 <= len(options) <= MAX_OPTIONS:
        count = len(options) if isinstance(options, list) else 0
        raise usage(f"the decision in {path} has {count} options; it needs 2, and {MAX_OPTIONS} are allowed")
    pairs = tuple(_option(option, path) for option in options)
    if twice := sorted({each for each, _ in pairs if sum(each == other for other, _ in pairs) > 1}):
        raise usage(f"the decision in {path} has the option {twice[0]!r} twice")
    further = {key: value for key, value in said.items() if key not in ("id", "state", "question", "options")}
    return Subject(name=path.stem, question=question, options=pairs, further=further)


def _option(option: Any, path: Path) -> tuple[str, str]:
    name = option.get("id") if isinstance(option, dict) else None
    text = option.get("description") if isinstance(option, dict) else None
    if not isinstance(name, str) or not name or not isinstance(text, str | None):
        raise usage(f"an option of the decision in {path} is {option!r}; it needs an id, and may have a description")
    return name, text or ""
