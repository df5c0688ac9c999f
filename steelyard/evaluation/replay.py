"""Ask recorded decisions again, in this process, and compare the answers to the last bit.

A record has hashes; the texts are in it where ``record_text`` was on, or else in a file of requests or cases.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from steelyard.client.decision_file import usage
from steelyard.rows.reading import fault, read_values, short
from steelyard_base.faults import first_fault
from steelyard_runtime.contracts.contract import DecisionContract
from steelyard_runtime.contracts.dispatch import contract_of
from steelyard_runtime.contracts.limits import Limits
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.contracts.text import render
from steelyard_runtime.decision import Answer, DecisionRequest, Question
from steelyard_runtime.decisions.record import (
    DecisionRecord,
    decision_records,
    question_of,
    sha256_of_question,
    sha256_of_state,
)
from steelyard_runtime.engine.places import UNNAMED
from steelyard_runtime.errors import Problem
from steelyard_runtime.identity import Identity
from steelyard_runtime.services.decisions import DecisionService
from steelyard_runtime.services.preparation import Preparation

MOST_RECORDS = 100_000
"""Records of one file: all of them are held in memory."""
COMPARED = (
    "prompt_sha256",
    "prompt_version",
    "readout",
    "contract_sha256",
    "head_sha256",
    "logits",
    "probabilities",
    "answer",
    "action",
    "cause",
    "distance_rank",
)
"""Fields of a record that the same answer has again."""
_DEADLINE_S = 3600.0
_DECISION_CONTRACTS = tuple(each for each in CONTRACTS if isinstance(each, DecisionContract))

Step = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Texts:
    """The texts that records have hashes of.

    Attributes:
        wanted: Hashes of the states and questions that records have; other texts are not kept.
        states: By their hash.
        questions: By theirs.
    """

    wanted: frozenset[str] = frozenset()
    states: dict[str, str] = field(default_factory=dict)
    questions: dict[str, Question] = field(default_factory=dict)

    def add_state(self, state: str) -> None:
        """Take a state, where it is wanted."""
        if (sha256 := sha256_of_state(state)) in self.wanted:
            self.states[sha256] = state

    def add(self, request: DecisionRequest) -> None:
        """Take the texts of a request, where they are wanted."""
        self.add_state(request.state)
        for question in request.questions:
            if (sha256 := sha256_of_question(question)) in self.wanted:
                self.questions[sha256] = question

    def request_of(self, record: DecisionRecord, registered: Mapping[str, Question]) -> DecisionRequest | str:
        """Return the request that a record answers, or what is missing for it."""
        state = record.text.state if record.text else self.states.get(record.state_sha256)
        if state is None:
            return f"the state with the hash {record.state_sha256[:12]} is not there"
        if record.decision is not None:
            question = registered.get(record.decision)
            if question is None:
                return f"the decision {record.decision} is not there"
        else:
            question = question_of(record) or self.questions.get(record.question_sha256)
            if question is None:
                return f"the question with the hash {record.question_sha256[:12]} is not there"
            # The request may have named it, or the server's setting.
            question = replace(question, readout=record.readout)
        return DecisionRequest(state=state, questions=(question,), layout=record.layout)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """One record, asked again.

    Attributes:
        id: The record's.
        differs: Fields that have other values now, each with both.
        missing: What kept it from being asked; "" where it was.
        identity: What answers depend on that is other than it was, each with both values.
    """

    id: str
    differs: dict[str, tuple[Any, Any]]
    missing: str
    identity: dict[str, tuple[Any, Any]]

    @property
    def same(self) -> bool:
        """Tell whether it was asked, and answered to the bit as before."""
        return not self.missing and not self.differs


def read_records(path: Path) -> list[DecisionRecord]:
    """Return the decision records of a file, which may be a server's whole log.

    Raises:
        CommandError: It cannot be read, a record is damaged, or there is none or too many.
    """
    found: list[DecisionRecord] = []
    for line, value in _values(path):
        if not isinstance(value, dict) or value.get("event") != "decision":
            continue
        if len(found) == MOST_RECORDS:
            raise fault(str(path), line, f"it is record {len(found) + 1}, and {MOST_RECORDS} are allowed")
        try:
            found.append(DecisionRecord.model_validate(value))
        except ValidationError as error:
            raise fault(str(path), line, f"it is no decision record: {first_fault(error, whole='the line')}") from error
    if not found:
        raise usage(
            f"{path} has no decision record",
            "Give the file of the setting decision_records, or the log of a server with decision_records = log.",
        )
    return found


def read_texts(path: Path, records: Sequence[DecisionRecord], registered: Mapping[str, Question]) -> Texts:
    """Return texts of records from a file of JSON lines: bodies of requests for decisions, or cases with a ``state``.

    Args:
        path: The file.
        records: The records.
        registered: The registered decisions that bodies may name.

    Raises:
        CommandError: It cannot be read, or a line is neither.
    """
    texts = Texts(wanted=frozenset(sha256 for each in records for sha256 in (each.state_sha256, each.question_sha256)))
    limits = Limits(registered=lambda: registered)
    for line, value in _values(path):
        if not isinstance(value, dict):
            raise fault(str(path), line, f"it is {short(value)}, and neither a request nor a case")
        try:
            contract = contract_of(value, _DECISION_CONTRACTS)
        except Problem as problem:
            if "state" not in value:
                raise fault(str(path), line, f"it is neither a request nor a case: {problem.message}") from problem
            texts.add_state(render(value["state"]))
            continue
        try:
            texts.add(contract.decode(value, limits).request)
        except Problem as problem:
            raise fault(str(path), line, problem.message) from problem
    return texts


def replay(
    records: Sequence[DecisionRecord],
    *,
    service: DecisionService,
    identity: Identity,
    registered: Mapping[str, Question],
    texts: Texts,
    step: Step = lambda *_: None,
) -> Iterator[Replayed]:
    """Ask records again, one after the other.

    Args:
        records: What was answered.
        service: Answers now.
        identity: What its answers depend on.
        registered: Its registered decisions, by ``NAME@VERSION``.
        texts: Texts that the records do not have themselves.
        step: Receives progress.
    """
    basis = identity.basis()
    preparation = Preparation(places=1, large_bytes=1 << 30, unnamed_share=1)
    with asyncio.Runner() as runner:
        for count, record in enumerate(records, start=1):
            moved = _moved(record.identity, basis)
            request = texts.request_of(record, registered)
            if isinstance(request, str):
                yield Replayed(id=record.id, differs={}, missing=request, identity=moved)
            else:
                try:
                    answers = runner.run(_asked(request, service, preparation))
                except Problem as problem:
                    yield Replayed(id=record.id, differs={}, missing=problem.message, identity=moved)
                else:
                    yield Replayed(
                        id=record.id, differs=_differences(record, request, answers), missing="", identity=moved
                    )
            step(count, len(records))


async def _asked(request: DecisionRequest, service: DecisionService, preparation: Preparation) -> Sequence[Answer]:
    size = len(request.state.encode())
    with preparation.admit(caller=UNNAMED, size=size, arrived=time.monotonic(), deadline_s=_DEADLINE_S) as preparing:
        return await service.decide(request, preparing=preparing)


def _differences(
    record: DecisionRecord, request: DecisionRequest, answers: Sequence[Answer]
) -> dict[str, tuple[Any, Any]]:
    (now,) = decision_records(
        request,
        answers,
        request_id="replay",
        contract=record.contract,
        layout=record.layout,
        identity={},
        time=datetime.now(UTC),
        with_text=False,
    )
    pairs = {name: (getattr(record, name), getattr(now, name)) for name in COMPARED}
    return {name: (before, after) for name, (before, after) in pairs.items() if before != after}


def _moved(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*before, *now])
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def _values(path: Path) -> Iterator[tuple[int, Any]]:
    try:
        with path.open("rb") as file:
            for line, value, _ in read_values(file, kind="jsonl", origin=str(path)):
                yield line, value
    except OSError as error:
        raise usage(f"cannot read {path}: {error.strerror}") from error
