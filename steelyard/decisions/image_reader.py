"""Hidden states from inside an image: for heads that belong to the build of llama.cpp in it."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from steelyard.decisions.features import DependsOn, Hidden, KeptReader
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.errors import Kind, Problem

MODEL_FOLDER = "/opt/ml/model"
PROGRAM = "steelyard_runtime.services.hidden_states_program"
MAX_LINE_BYTES = 16 << 20
"""Of an answer: eight hidden states of 100,000 numbers have 4.3 MB."""
STOP_S = 30.0

_PYTHON = "/opt/steelyard/bin/python"
_TOLD_BYTES = 2000


class ImageReader(KeptReader):
    """Reads hidden states with the engine of an image, which runs as long as ``opened`` is open."""

    def __init__(self, program: _Program, *, cache: Path | None) -> None:
        self._program = program
        super().__init__(_depends_on(program.ask(None)), cache=cache)

    @classmethod
    @contextlib.contextmanager
    def opened(
        cls,
        image: str,
        *,
        model: Path,
        wording: str,
        cache: Path | None,
        threads: int = 0,
        context_tokens: int = 0,
    ) -> Iterator[ImageReader]:
        """Run an image with ``docker``: no network, the model's folder read-only, on the CPU.

        Args:
            image: The image, as ``docker run`` takes it.
            model: The model file.
            wording: Name of the words around a state.
            cache: Folder of kept hidden states; None keeps none.
            threads: Threads for llama.cpp; 0 chooses.
            context_tokens: Longest prompt in tokens; 0 chooses.

        Raises:
            CommandError: There is no docker, or the image does not start or has no such program.
        """
        settings = {
            "STEELYARD_MODEL": f"{MODEL_FOLDER}/{model.name}",
            "STEELYARD_GPU_LAYERS": "0",
            "STEELYARD_THREADS": str(threads),
            "STEELYARD_CONTEXT_TOKENS": str(context_tokens),
            "STEELYARD_LOG_LEVEL": "error",
        }
        name = f"steelyard-hidden-states-{os.getpid()}"
        command = [
            *("docker", "run", "--rm", "--interactive", "--name", name, "--network", "none"),
            *("--volume", f"{model.parent.resolve()}:{MODEL_FOLDER}:ro"),
            *(word for key, value in settings.items() for word in ("--env", f"{key}={value}")),
            *("--entrypoint", _PYTHON, image, "-I", "-m", PROGRAM, wording),
        ]
        with tempfile.TemporaryFile() as told, _running(command, name, told) as process:
            yield cls(_Program(image, process, told), cache=cache)

    def _evaluate(self, states: Sequence[str]) -> tuple[list[Hidden], int]:
        answer = self._program.ask(list(states))
        if "refused" in answer:
            raise Problem(Kind.INVALID, str(answer["refused"]))
        if "damaged" in answer:
            raise ValueError(str(answer["damaged"]))
        found = [np.frombuffer(base64.b64decode(each, validate=True), "<f4") for each in answer["hidden"]]
        if len(found) != len(states) or any(each.shape != (self._size,) for each in found):
            raise ValueError("the image gave other hidden states than it was asked for")
        return found, int(answer["evaluated_tokens"])


class _Program:
    """The program in the image, asked line by line."""

    def __init__(self, image: str, process: subprocess.Popen[bytes], told: IO[bytes]) -> None:
        self._image = image
        self._process = process
        self._told = told

    def ask(self, states: list[str] | None) -> Mapping[str, Any]:
        """Return the answer to a line; to None what the program says at its start.

        Raises:
            CommandError: It ended, or says something else.
        """
        lines, answers = self._process.stdin, self._process.stdout
        assert lines is not None  # noqa: S101 - both are pipes
        assert answers is not None  # noqa: S101
        try:
            if states is not None:
                lines.write(json.dumps(states).encode() + b"\n")
                lines.flush()
            answer: Mapping[str, Any] = json.loads(answers.readline(MAX_LINE_BYTES))
        except (OSError, ValueError) as error:
            raise CommandError(
                f"the image {self._image} gives no hidden states: {self._last_words()}",
                hint="It must be one of ours, of this version or newer: docs/how-to/build-images.md.",
            ) from error
        return answer

    def _last_words(self) -> str:
        """Return the end of what the container said when it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        size = self._told.seek(0, os.SEEK_END)
        self._told.seek(max(0, size - _TOLD_BYTES))
        return self._told.read().decode(errors="replace").strip() or f"it ended with {self._process.poll()}"


def _depends_on(said: Mapping[str, Any]) -> DependsOn:
    return DependsOn(
        model_sha256=str(said["model_sha256"]),
        prompt_sha256=str(said["prompt_sha256"]),
        llama_cpp=str(said["llama_cpp"]),
        device=str(said["device"]),
        embedding_size=int(said["embedding_size"]),
    )


@contextlib.contextmanager
def _running(command: Sequence[str], name: str, told: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Run a container, and leave none behind."""
    try:
        process = subprocess.Popen(  # noqa: S603 - our own words, and the names of an image and a file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told
        )
    except FileNotFoundError:
        raise CommandError(
            "docker is not installed, or not on PATH",
            code=ExitCode.USAGE,
            hint="Without --image the model runs in this process.",
        ) from None
    try:
        yield process
    finally:
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):  # a container that has ended reads nothing
                if pipe is not None:
                    pipe.close()
        try:
            process.wait(STOP_S)  # the program ends when its input does
        except subprocess.TimeoutExpired:
            subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)  # noqa: S603, S607
            process.kill()
            process.wait()
