"""Heads that are fitted with the engine of an image: the program in it, where they lie, and which one a server takes.

A program called ``docker`` runs the image's program in this environment: containers have tests of their own.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_models
from registered_decisions import URGENT, contract, write_fitted
from steelyard import cli
from steelyard.decisions import fitting, metrics
from steelyard_base.exit_codes import ExitCode
from steelyard_runtime.decisions.head import head_folders, load_head
from steelyard_runtime.decisions.registry import RegistryError, load_registry
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.start import start_engine
from steelyard_runtime.http.runtime import build_services
from steelyard_runtime.services import hidden_states_program
from steelyard_runtime.services.hidden_states import HiddenStates
from steelyard_runtime.settings import load_settings

NAME = "parcel-status"
TEXTS = {
    "lost": "parcel {} vanished and nobody knows where",
    "late": "delivery {} is slow and came after the promised day",
    "none_of_these": "lovely weather {} today isn't it",
}
DOCKER = f"""#!{sys.executable}
import os, sys
words = sys.argv[1:]
if words[0] != "run":
    sys.exit(0)
assert "--rm" in words and words[words.index("--network") + 1] == "none"
folder, inside, how = words[words.index("--volume") + 1].split(":")
assert how == "ro"
for word, value in zip(words, words[1:]):
    if word == "--env":
        name, _, value = value.partition("=")
        os.environ[name] = value.replace(inside, folder)
image, *program = words[words.index("--entrypoint") + 2:]
if image != "ours:1":
    sys.exit(f"no such image: {{image}}")
os.execv(sys.executable, [sys.executable, *program])
"""

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.write("llama", tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def engine(model: Path):
    engine = start_engine(load_settings(model=str(model), threads=1, context_tokens=256, chats=1))
    yield engine
    engine.close(timeout_s=1)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command about a labelled decision in a folder of its own; gives exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEELYARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fitting, "STRENGTHS", (1.0, 100.0))
    monkeypatch.setattr(metrics, "RESAMPLES", 20)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "docker").write_text(DOCKER)
    (tmp_path / "bin" / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    options = {"lost": "A parcel that cannot be found", "late": "A delivery after the promised day"}
    assert cli.run(["decision", "new", NAME, *(f"--option={key}={text}" for key, text in options.items())]) == 0
    cases = [{"state": text.format(n), "label": label} for label, text in TEXTS.items() for n in range(6)]
    (tmp_path / "decisions" / NAME / "cases.jsonl").write_text("".join(json.dumps(each) + "\n" for each in cases))
    flags = ("--model", str(model), "--threads=1", "--context-tokens=256")

    def run(verb: str, *more: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = cli.run(["decision", verb, NAME, *(() if verb == "show" else flags), *more])
        said = capsys.readouterr()
        return code, said.out, said.err

    return run


def test_the_engine_of_an_image_gives_the_head_that_it_would_give_here(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "decisions" / NAME
    code, _, err = run("fit", "--image", "ours:1")
    assert (code, "20 states evaluated" in err) == (ExitCode.OK, True), err
    (there,) = head_folders(folder)
    assert there == folder / "heads" / load_head(there).description.bound.llama_cpp
    shutil.rmtree(tmp_path / "cache")
    assert run("fit")[0] == ExitCode.OK
    for file in ("head.json", "head.safetensors"):
        assert (there / file).read_bytes() == (folder / file).read_bytes()
    assert head_folders(folder) == (folder, there)
    # What was evaluated in this process has the same place among the kept states: it is the same build.
    code, _, err = run("test", "--image", "ours:1", "--accept")
    assert (code, "0 states evaluated" in err) == (ExitCode.OK, True), err
    code, out, _ = run("show", "--json")
    assert list(json.loads(out)["llama_cpp"]) == [there.name]


@pytest.mark.parametrize(
    ("image", "more", "said"),
    [
        ("theirs:1", (), "the image theirs:1 gives no hidden states: no such image: theirs:1"),
        ("ours:1", ("--context-tokens=64",), "the state that begins with 'parcel 0 vanished"),
    ],
)
def test_an_image_that_gives_no_states_is_told(run: Run, image: str, more: tuple[str, ...], said: str) -> None:
    code, _, err = run("fit", "--image", image, *more)
    assert code != ExitCode.OK
    assert said in " ".join(err.split())


def test_without_docker_it_is_said(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    code, _, err = run("fit", "--image", "ours:1")
    assert (code, "docker is not installed" in err) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[", "is no JSON list"),
        (b'{"a": 1}', "is no JSON list"),
        (b'["a", 1]', "is no JSON list"),
        (b'["a", ""]', "is no JSON list"),
        (json.dumps(["a"] * 65).encode(), "is no JSON list of at most 64 states"),
        (json.dumps(["a " * 2000]).encode(), "tokens"),
    ],
)
def test_the_program_refuses_other_lines_and_goes_on(engine: LlamaEngine, line: bytes, said: str) -> None:
    answers = io.BytesIO()
    states = HiddenStates(engine, wording="one-word-1")
    hidden_states_program.serve(states, io.BytesIO(line + b'\n["a state"]\n'), answers)
    refused, answered = map(json.loads, answers.getvalue().splitlines())
    assert said in refused["refused"]
    assert len(answered["hidden"]) == 1


def test_a_line_without_an_end_ends_the_program(engine: LlamaEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden_states_program, "MAX_LINE_BYTES", 20)
    answers = io.BytesIO()
    states = HiddenStates(engine, wording="one-word-1")
    hidden_states_program.serve(states, io.BytesIO(b"[" + b" " * 100), answers)
    assert "more than the 20 bytes" in json.loads(answers.getvalue())["refused"]


def test_a_server_takes_the_head_for_its_own_build(engine: LlamaEngine, tmp_path: Path) -> None:
    """The folder's own head is of another build; one beside it is of the server's."""
    build = engine.identity.llama_cpp
    asked = contract(URGENT)
    folder = tmp_path / "decisions" / "urgent"
    write_fitted(folder, engine, asked, seed=1)
    write_fitted(folder / "heads" / build, engine, asked, seed=2)
    other = (folder / "head.json").read_text().replace(build, "b1")
    (folder / "head.json").write_text(other)
    alone = shutil.copytree(folder, tmp_path / "alone" / "urgent", ignore=shutil.ignore_patterns("heads"))
    with pytest.raises(RegistryError, match=rf"fitted for b1, used with {build}\. Fit it again: .*--image IMAGE"):
        build_services(load_settings(decisions=str(alone.parent)), engine)
    (said,) = build_services(load_settings(decisions=str(folder.parent)), engine).identity.decisions
    assert said["head_sha256"] == load_head(folder / "heads" / build).sha256
    (found,) = load_registry(folder.parent).decisions.values()
    assert found.content.head_sha256 == load_head(folder).sha256
