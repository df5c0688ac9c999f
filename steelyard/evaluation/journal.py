"""Answers that were given, line by line on the disk, so that an interrupted evaluation continues where it stopped."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import ValidationError

from steelyard.client.decision_file import usage
from steelyard.evaluation.result import Answer
from steelyard.rows.writing import held
from steelyard_base.exit_codes import CommandError
from steelyard_base.strict import Strict

SUFFIX = ".answers"


class About(Strict):
    """The part of an answer that is equal for all answers of one target."""

    model: dict[str, Any]
    readout: str
    prompt_version: str
    head_sha256: str | None = None
    contract_sha256: str | None = None


class Line(Strict):
    """One answer. Stage, case and number name what was asked."""

    stage: str
    case: int
    number: int
    answer: Answer
    about: About

    @property
    def key(self) -> tuple[str, int, int]:
        """Name of what was asked."""
        return self.stage, self.case, self.number


class _Head(Strict):
    """The first line."""

    format: int
    asked_sha256: str


@dataclass(slots=True)
class Journal:
    """Answers so far, by what was asked.

    Attributes:
        lines: All of them.
        file: The file that gets each of them; None keeps them in memory only.
    """

    lines: dict[tuple[str, int, int], Line] = field(default_factory=dict)
    file: BinaryIO | None = None

    @property
    def about(self) -> About | None:
        """The part that all answers so far share; None before the first one."""
        return next((line.about for line in self.lines.values()), None)

    def add(self, line: Line) -> None:
        """Keep an answer.

        Raises:
            CommandError: The file cannot be written.
        """
        self.lines[line.key] = line
        if self.file is None:
            return
        try:
            self.file.write(_encoded(line))
            self.file.flush()
        except OSError as error:
            raise CommandError(f"cannot write {self.file.name}: {error.strerror or error}") from error


def _encoded(line: Strict) -> bytes:
    return json.dumps(line.model_dump(mode="json"), ensure_ascii=False).encode() + b"\n"


@contextmanager
def journal(out: Path | None, *, asked_sha256: str) -> Iterator[Journal]:
    """Hold the answers of an evaluation.

    Args:
        out: The evaluation's file, beside which the answers lie; None keeps them in memory only.
        asked_sha256: Hash of the decision, the cases and the target: answers to anything else are refused.

    Raises:
        CommandError: The answers there are to something else, another process has them, or they cannot be read.
    """
    if out is None:
        yield Journal()
        return
    path = out.with_name(out.name + SUFFIX)
    with held(path, writer="evaluation") as file:
        lines = _read(file, path, asked_sha256)
        yield Journal(lines=lines, file=file)


def _read(file: BinaryIO, path: Path, asked_sha256: str) -> dict[tuple[str, int, int], Line]:
    """Read all whole lines, and cut off what is behind them."""
    good, lines, begun = 0, {}, False
    hint = f"Remove {path}, or name another --out."
    for number, raw in enumerate(file, start=1):
        if not raw.endswith(b"\n"):
            break
        try:
            if not begun:
                head = _Head.model_validate_json(raw)
                if (head.format, head.asked_sha256) != (1, asked_sha256):
                    raise usage(f"{path} has the answers of another evaluation: other cases, decision or target", hint)
                begun = True
            else:
                line = Line.model_validate_json(raw)
                lines[line.key] = line
        except ValidationError as error:
            raise usage(f"line {number} of {path} is no answer of an evaluation", hint) from error
        good += len(raw)
    file.seek(good)
    file.truncate()
    if not begun:
        file.write(_encoded(_Head(format=1, asked_sha256=asked_sha256)))
        file.flush()
    return lines


def forget(out: Path) -> None:
    """Remove the answers of an evaluation that is whole."""
    out.with_name(out.name + SUFFIX).unlink(missing_ok=True)
