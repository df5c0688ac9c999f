"""The documentation is complete, up to date, free of dead links, and its examples run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.commands.root import app
from steelyard.commands.setting_flags import environment_name, flag_names
from steelyard_base.exit_codes import ExitCode
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.errors import Kind
from steelyard_runtime.http.routes.table import operations
from steelyard_runtime.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
SERVED = "http://127.0.0.1:8080"


def name_of(path):
    return str(path.relative_to(ROOT))


def reference(name):
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_generated_pages_are_up_to_date():
    script = ROOT / "scripts" / "generate_reference.py"
    done = subprocess.run([sys.executable, script, "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_is_documented(name):
    page = reference("settings.md")
    field = Settings.model_fields[name]
    assert f"`{flag_names(name, field)[0]}`" in page
    assert f"`{environment_name(name)}`" in page
    assert field.description
    assert field.description in page


@pytest.mark.parametrize("route", [f"{each.method} {each.template}" for each in operations(CONTRACTS)])
def test_every_route_is_documented(route):
    assert f"`{route}`" in reference("routes.md")


@pytest.mark.parametrize("kind", Kind)
def test_every_error_is_documented(kind):
    assert f"`{kind.value}`" in reference("errors.md")


@pytest.mark.parametrize("code", ExitCode)
def test_every_exit_code_is_documented(code):
    assert f"| `{int(code)}` |" in reference("exit-codes.md")


def test_every_command_is_documented():
    page = reference("commands.md")
    names = [command.name for command in app.registered_commands]
    for group in app.registered_groups:
        inner = group.typer_instance.registered_commands
        names += [f"{group.name} {command.name or command.callback.__name__}" for command in inner]
    assert len(names) >= 8
    for name in names:
        assert f"## `steelyard {name}`" in page


def anchors(path):
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_no_link_is_dead(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(path.read_text(encoding="utf-8"))):
        if target.startswith(("https://", "http://")):
            continue
        file, _, anchor = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        assert found.exists(), target
        assert found.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(found), target


@pytest.mark.parametrize("path", [p for p in PAGES if "docs" in p.parts], ids=name_of)
def test_every_page_can_be_reached(path):
    index = ROOT / "docs" / "README.md"
    assert path == index or f"({path.relative_to(index.parent)})" in index.read_text(encoding="utf-8")


def runnable():
    """Each fenced block whose info string is ``bash run`` or ``python run``."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(bash|python) run\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            line = text.count("\n", 0, match.start()) + 1
            yield pytest.param(match[1], match[2], id=f"{name_of(path)}:{line}")


def test_there_are_examples_of_every_client():
    blocks = [param.values for param in runnable()]
    for word in ("curl", "from openai import", "typesafe_sdk", "steelyard decide"):
        assert any(word in code for _, code in blocks), word


@pytest.mark.parametrize(("language", "code"), list(runnable()))
def test_examples_run(language, code, server):
    code = code.replace(SERVED, server.url).replace(".venv/bin/", str(Path(sys.executable).parent) + "/")
    environment = os.environ | {"STEELYARD_URL": server.url}
    command = ["bash", "-euo", "pipefail", "-c", code] if language == "bash" else [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
    assert "Traceback" not in done.stderr
