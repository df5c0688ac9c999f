"""The build specification: what is understood, and that everything else is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_localcloud.codebuild.buildspec import PHASES, parse

ROOT = Path(__file__).resolve().parents[2]
SMALLEST = "version: 0.2\nphases:\n  build:\n    commands: [make]\n"

names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
commands = st.lists(st.text(min_size=1, max_size=30), min_size=1, max_size=3)
phases = st.fixed_dictionaries(
    {"commands": commands},
    optional={"finally": commands, "on-failure": st.sampled_from(["ABORT", "CONTINUE"])},
)
specs = st.fixed_dictionaries(
    {
        "version": st.just("0.2"),
        "phases": st.dictionaries(st.sampled_from(PHASES), phases, min_size=1),
    },
    optional={
        "env": st.fixed_dictionaries(
            {},
            optional={
                "shell": st.sampled_from(["bash", "sh"]),
                "variables": st.dictionaries(names, st.text(max_size=10), max_size=3),
                "exported-variables": st.lists(names, max_size=3),
            },
        )
    },
)


@given(specs)
def test_what_is_written_is_read(content: dict) -> None:
    read = parse(yaml.safe_dump(content))
    for name in PHASES:
        phase, written = read.phase(name), content["phases"].get(name)
        assert (phase is None) == (written is None)
        if phase is not None and written is not None:
            assert phase.commands == written["commands"]
            assert phase.finally_ == written.get("finally", [])
            assert phase.on_failure == written.get("on-failure")
    env = content.get("env", {})
    assert read.env.variables == env.get("variables", {})
    assert read.env.exported_variables == env.get("exported-variables", [])
    assert read.env.shell == env.get("shell", "sh")


@given(specs, st.sampled_from(["", "env", "phases", "phase"]), names.filter(lambda name: name not in PHASES))
def test_an_unknown_key_is_named(content: dict, place: str, key: str) -> None:
    inside = content if place == "" else content.setdefault("env", {}) if place == "env" else content["phases"]
    if place == "phase":
        inside = next(iter(content["phases"].values()))
    if key in inside or key in ("shell", "variables", "commands", "finally", "version", "env", "phases"):
        return
    inside[key] = {"commands": ["true"]}
    with pytest.raises(CommandError, match=rf"{key}.*there is no such field") as caught:
        parse(yaml.safe_dump(content), name="it.yml")
    assert caught.value.code == ExitCode.USAGE
    assert "it.yml" in caught.value.message


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        read = parse(text)
    except CommandError:
        return
    assert read.version == "0.2"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "NoneType, not a mapping"),
        ("- a", "list, not a mapping"),
        ("a: [", "cannot be read as YAML"),
        ("version: 0.1\nphases: {build: {commands: [a]}}", "version"),
        ("version: 0.2\nphases: {}", "there is no phase"),
        ("version: 0.2\nphases: {build: {commands: []}}", "phases.build.commands"),
        ("version: 0.2\nphases: {build: {commands: [1]}}", "phases.build.commands.0"),
        ("version: 0.2\nphases: {build: {commands: [{echo: a}]}}", "phases.build.commands.0"),
        (SMALLEST + "artifacts: {files: [a], name: b}", "artifacts.name"),
        (SMALLEST + "artifacts: {files: [../a]}", "'../a' is not below the folder of the source"),
        (SMALLEST + "artifacts: {files: [a], base-directory: /tmp}", "'/tmp' is not below the folder of the source"),
        (SMALLEST + "env: {parameter-store: {A: b}}", "env.parameter-store"),
        (SMALLEST + "env: {secrets-manager: {A: b}}", "env.secrets-manager"),
        (SMALLEST + "env: {variables: {A: 1}}", "env.variables.A"),
        (SMALLEST + "env: {variables: {A-B: a}}", "A-B"),
        (SMALLEST + "env: {shell: powershell.exe}", "env.shell"),
        (SMALLEST + "    on-failure: RETRY", "phases.build.on-failure"),
        (SMALLEST + "    run-as: root", "phases.build.run-as"),
        (SMALLEST + "    commands: [again]", "the key 'commands' is there twice"),
        (SMALLEST + '    runtime-versions: {python: "3.12"}', "it belongs in install"),
        ('version: 0.2\nphases: {install: {commands: [a], runtime-versions: {nodejs: "22"}}}', "nodejs"),
        ("version: 0.2\nphases: {install: {commands: [a], runtime-versions: {python: 3.10}}}", "python"),
        (
            'version: 0.2\nphases: {install: {commands: [a], runtime-versions: {python: "2.7"}}}',
            "'2.7' is not a Python",
        ),
    ],
)
def test_what_is_not_run_is_refused(text: str, said: str) -> None:
    with pytest.raises(CommandError) as caught:
        parse(text)
    assert said in caught.value.message


@pytest.mark.parametrize("path", sorted((ROOT / "images").glob("*.buildspec.yml")), ids=lambda path: path.name)
def test_the_buildspecs_of_this_repository_can_be_run(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    read = parse(text, name=path.name)
    assert read.env.exported_variables == yaml.safe_load(text)["env"]["exported-variables"]
