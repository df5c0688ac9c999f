"""A decision's folder: ``decisions/NAME`` with its contract, its labelled cases, its head and its accepted baseline."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steelyard.client.decision_file import parse_json
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import first_fault
from steelyard_runtime.contracts.text import render
from steelyard_runtime.decisions.contract import MAX_FILE_BYTES, Contract, ContractError, named, parse_contract
from steelyard_runtime.whole_files import read_whole

DECISIONS = Path("decisions")
CONTRACT_FILE = "contract.toml"
CASES_FILE = "cases.jsonl"
BASELINE_FILE = "baseline.json"
MAX_CASES = 5000
"""Cases of one decision: fitting compares each with each."""
MAX_CASES_BYTES = 64 << 20


class Case(BaseModel):
    """One line of ``cases.jsonl``."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    state: Annotated[Any, Field(description="The state: text, or another JSON value.")]
    label: Annotated[str, Field(min_length=1, description="The id of the right option.")]
    kind: Annotated[
        str | None,
        Field(
            description="What is special about it, such as `ambiguous` or `out of scope`; figures are given by kind."
        ),
    ] = None
    note: Annotated[str | None, Field(description="For people.")] = None
    id: Annotated[str | None, Field(min_length=1, description="A name of its own, for `same_as` and reports.")] = None
    same_as: Annotated[
        str | None,
        Field(description="The `id` of a case that says the same in other words: a different answer is a flip."),
    ] = None

    @property
    def text(self) -> str:
        """The state as the model reads it."""
        return render(self.state)

    @property
    def blank(self) -> bool:
        """Tell whether there is nothing to decide on."""
        return self.state in (None, [], {}) or not self.text.strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Cases:
    """Labelled cases of a contract, in the file's order.

    Attributes:
        cases: At most ``MAX_CASES``.
        sha256: Of the states and labels, in that order; notes and kinds do not count.
    """

    cases: tuple[Case, ...]
    sha256: str

    def __len__(self) -> int:
        """Cases."""
        return len(self.cases)


def folder_of(name: str, *, within: Path = DECISIONS) -> Path:
    """Return the folder of a decision, by its name or its path.

    Raises:
        CommandError: There is none.
    """
    folder = Path(name) if "/" in name else within / name
    if (folder / CONTRACT_FILE).is_file():
        return folder
    there = names_within(within)
    raise CommandError(
        f"there is no decision {name!r}: {folder / CONTRACT_FILE} is missing",
        code=ExitCode.USAGE,
        hint=f"There are: {', '.join(there)}." if there else "Make one: steelyard decision new NAME",
    )


def names_within(folder: Path = DECISIONS) -> list[str]:
    """Return the names of the decisions in a folder; none where there is no such folder."""
    return sorted(each.parent.name for each in folder.glob(f"*/{CONTRACT_FILE}") if each.is_file())


def read_contract(folder: Path) -> Contract:
    """Return the contract of a folder.

    Raises:
        CommandError: It cannot be read, says something that no contract may say, or has another name than its folder.
    """
    path = folder / CONTRACT_FILE
    text = _read(path, most=MAX_FILE_BYTES)
    try:
        contract = parse_contract(text)
    except ContractError as error:
        raise CommandError(f"{path}: {error}", code=ExitCode.USAGE) from error
    if (called := folder.resolve().name) not in (contract.name, contract.full_name):
        raise CommandError(
            f"{path} has the name {contract.name!r} and version {contract.version}, and lies in the folder {called!r}",
            code=ExitCode.USAGE,
            hint=f"Call the folder {contract.name} or {contract.full_name}.",
        )
    return contract


def read_cases(path: Path, contract: Contract) -> Cases:
    """Return the labelled cases of a file.

    Raises:
        CommandError: The file cannot be read, a line is no case, or a label is none of the options.
    """
    cases = []
    for number, line in enumerate(_read(path, most=MAX_CASES_BYTES).split("\n"), start=1):
        if line.strip():
            cases.append(_case(line, f"{path}, line {number}", contract))
    if len(cases) > MAX_CASES:
        raise CommandError(f"{path} has {len(cases)} cases and {MAX_CASES} are allowed", code=ExitCode.USAGE)
    return Cases(cases=tuple(cases), sha256=cases_sha256(cases))


def cases_sha256(cases: list[Case]) -> str:
    """Return the hash of states and labels, in order."""
    digest = hashlib.sha256()
    for case in cases:
        digest.update(json.dumps([case.text, case.label], ensure_ascii=False).encode() + b"\n")
    return digest.hexdigest()


def write_cases(folder: Path, lines: str) -> None:
    """Replace the cases of a folder, by no more than are read again.

    Args:
        folder: The decision's folder.
        lines: Cases, each on a line.

    Raises:
        CommandError: There are too many, or the folder cannot be written.
    """
    body = lines.encode()
    cases = sum(bool(line.strip()) for line in lines.split("\n"))
    for count, what, most in ((cases, "cases", MAX_CASES), (len(body), "bytes", MAX_CASES_BYTES)):
        if count > most:
            raise CommandError(
                f"{folder / CASES_FILE} would have {count} {what}, and {most} are allowed; it stays as it is",
                code=ExitCode.USAGE,
                hint="A head needs no more: take a part of them, and keep the others to evaluate it with.",
            )
    write_files(folder, {CASES_FILE: body})


def _case(line: str, origin: str, contract: Contract) -> Case:
    try:
        case = Case.model_validate(parse_json(line, origin))
    except ValidationError as error:
        raise CommandError(f"{origin}: {first_fault(error, whole='the line')}", code=ExitCode.USAGE) from error
    if case.label not in contract.option_ids:
        raise CommandError(
            f"{origin}: the label {case.label!r} is none of the options {named(contract.option_ids)}",
            code=ExitCode.USAGE,
        )
    if case.blank:
        raise CommandError(f"{origin}: the state is blank", code=ExitCode.USAGE, hint="Remove the case.")
    return case


def _read(path: Path, *, most: int) -> str:
    try:
        return read_whole(path, most=most).decode()
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}", code=ExitCode.USAGE) from error
    except UnicodeDecodeError as error:
        raise CommandError(f"{path} is not UTF-8 text", code=ExitCode.USAGE) from error


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Replace files of a folder. A reader of any one of them sees the old or the new one, and never half of it.

    The last one is replaced last: an interruption leaves it as it was.

    Raises:
        CommandError: The folder cannot be written.
    """
    written: list[tuple[Path, Path]] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, body in files.items():
            temporary = folder / f".{name}.{os.getpid()}"
            written.append((temporary, folder / name))
            temporary.write_bytes(body)
        for temporary, path in written:
            temporary.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write to {folder}: {error.strerror or error}") from error
    finally:
        for temporary, _ in written:
            temporary.unlink(missing_ok=True)
