"""Reads hidden states inside an image, for heads that are fitted outside of it.

    python -m steelyard_runtime.services.hidden_states_program WORDING

The settings are the server's (``STEELYARD_MODEL`` and others). The first line of the output says what the states depend
on. Each line of the input is then a JSON list of states, and is answered by one line: their hidden states, each as
base64 of 32-bit floats in little-endian order, or why there are none. The input's end ends the program.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, BinaryIO

from pydantic import Field, TypeAdapter, ValidationError

from steelyard_runtime.engine.start import EngineStartError, start_engine
from steelyard_runtime.errors import Problem
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.services.hidden_states import HiddenStates
from steelyard_runtime.settings import load_settings

MOST_TOGETHER = 64
"""States of one line."""
MAX_LINE_BYTES = 64 << 20

_STATES = TypeAdapter(Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=MOST_TOGETHER)])


def serve(states: HiddenStates, lines: BinaryIO, answers: BinaryIO) -> None:
    """Answer each line until there is none."""
    while line := lines.readline(MAX_LINE_BYTES + 1):
        if len(line) > MAX_LINE_BYTES:
            _write(answers, {"refused": f"the line has more than the {MAX_LINE_BYTES} bytes that are allowed"})
            return
        _write(answers, _answer(states, line))


def _answer(states: HiddenStates, line: bytes) -> dict[str, Any]:
    try:
        asked = _STATES.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return {"refused": f"the line is no JSON list of at most {MOST_TOGETHER} states: {first['msg']}"}
    before = states.evaluated_tokens
    try:
        found = states.evaluate(asked)
    except Problem as problem:
        return {"refused": problem.message}
    except ValueError as error:
        return {"damaged": str(error)}
    packed = [base64.b64encode(each.astype("<f4").tobytes()).decode() for each in found]
    return {"hidden": packed, "evaluated_tokens": states.evaluated_tokens - before}


def _write(answers: BinaryIO, said: dict[str, Any]) -> None:
    answers.write(json.dumps(said).encode() + b"\n")
    answers.flush()


@contextmanager
def _own_output() -> Iterator[BinaryIO]:
    """Keep the output for answers alone: what any library prints goes where errors go."""
    with os.fdopen(os.dup(sys.stdout.fileno()), "wb") as answers:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        yield answers


def main(arguments: list[str]) -> int:
    """Read states in the wording that is named; returns an exit code."""
    if len(arguments) != 1 or arguments[0] not in WORDINGS:
        sys.stderr.write(f"name one wording: {', '.join(WORDINGS)}\n")
        return 2
    with _own_output() as answers:
        try:
            engine = start_engine(load_settings(chats=1))
        except EngineStartError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        try:
            states = HiddenStates(engine, wording=arguments[0])
            known = {
                "model_sha256": engine.identity.model.sha256,
                "prompt_sha256": states.prompt_sha256,
                "llama_cpp": engine.identity.llama_cpp,
                "device": engine.identity.device,
                "system_info": engine.identity.system_info,
                "embedding_size": engine.identity.model.embedding_size,
            }
            _write(answers, known)
            serve(states, sys.stdin.buffer, answers)
        finally:
            engine.close(timeout_s=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
