"""What an installed package needs is in the wheel; the lock files fit the project and name no place of their own."""

from __future__ import annotations

import importlib
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ["requirements.txt", "requirements-run.txt", "runtime/requirements.txt"]
BINDING = "llama-cpp-python"  # brings the libllama of a checkout; images have their base's


def test_a_wheel_carries_the_catalogue_and_the_examples(tmp_path):
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in ("steelyard", "base", "runtime", "models", "examples"):
        shutil.copytree(ROOT / name, tree / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, tree / name)
    pip = [sys.executable, "-m", "pip", "--quiet", "wheel", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*pip, "-w", str(tmp_path), str(tree)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    installed = tmp_path / "installed"
    assert (installed / "steelyard_runtime" / "http" / "serve.py").is_file()
    assert {path.suffix for path in (installed / "steelyard" / "evaluation").iterdir()} >= {".py", ".css", ".jsonl"}
    code = "; ".join(
        [
            "from steelyard.models import catalogue as c",
            "print(c.__file__, *c.catalogue(), c.example('ticket.json').is_file())",
        ]
    )
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(installed)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    names = [path.stem for path in sorted((ROOT / "models").glob("*.toml"))]
    assert done.stdout.split() == [str(installed / "steelyard" / "models" / "catalogue.py"), *names, "True"], (
        done.stderr
    )


def pins(lock):
    text = (ROOT / lock).read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)(==(?:.*\\\n)+.*)$", text, re.MULTILINE))


@pytest.mark.parametrize("lock", LOCKS)
def test_every_pin_has_a_hash_and_no_place(lock):
    found = pins(lock)
    assert found
    assert all("--hash=sha256:" in block for block in found.values())
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert not re.search(r"https?://|file:|--index|--find-links|--extra-index|\s@\s", text)


def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def normal(requirement):
    return re.match(r"[A-Za-z0-9._-]+", requirement)[0].lower().replace("_", "-").replace(".", "-")


def test_everything_that_is_asked_for_is_locked():
    asked = project()
    everything = asked["dependencies"] + [r for extra in asked["optional-dependencies"].values() for r in extra]
    assert {normal(r) for r in everything} <= set(pins("requirements.txt"))
    runtime = {normal(r) for r in asked["optional-dependencies"]["runtime"]}
    assert runtime - {BINDING} <= set(pins("runtime/requirements.txt"))
    assert BINDING not in pins("runtime/requirements.txt")


def test_a_run_installs_a_part_of_the_same_versions_without_what_tests_fits_and_builds(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    run_extras = importlib.import_module("lock").RUN_EXTRAS
    everything, run = pins("requirements.txt"), pins("requirements-run.txt")
    assert versions(run).items() < versions(everything).items()
    asked = project()
    extras = {name: {normal(r) for r in requirements} for name, requirements in asked["optional-dependencies"].items()}
    needed = {normal(r) for r in asked["dependencies"]}.union(*(extras[name] for name in run_extras))
    assert needed <= set(run)
    # setuptools builds the installation of the checkout.
    assert not (extras["dev"] | extras["fit"] | extras["images"]) - needed - {"setuptools"} & set(run)


@pytest.mark.parametrize(
    ("asked", "there", "installed"),
    [
        (["--run"], None, "requirements-run.txt"),
        (["--run"], "requirements-run.txt", None),
        (["--run"], "requirements.txt", None),
        ([], "requirements-run.txt", "requirements.txt"),
        ([], "requirements.txt", None),
    ],
)
def test_setting_up_installs_what_is_missing_of_what_was_asked_for(asked, there, installed, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    setup = importlib.import_module("setup_environment")
    monkeypatch.delenv("CMAKE_ARGS", raising=False)
    stamp = {"inputs": setup.inputs_hash(), "cmake_args": setup.DEFAULT_CMAKE_ARGS, "lock": there}
    monkeypatch.setattr(setup, "read_stamp", lambda: stamp if there else {})
    monkeypatch.setattr(setup, "works", lambda: True)
    monkeypatch.setattr(setup, "CDK", str(ROOT))
    monkeypatch.setattr(sys, "argv", ["setup_environment.py", *asked])
    done = []
    monkeypatch.setattr(setup, "install", lambda wanted, lock, *, rebuild: done.append((wanted["lock"], lock)) or 0)
    assert setup.main() == 0
    assert done == ([(installed, str(ROOT / installed))] if installed else [])


def test_the_images_get_the_same_versions_and_no_command_line():
    everything, images = pins("requirements.txt"), pins("runtime/requirements.txt")
    assert versions(images).items() <= versions(everything).items()
    assert not {"typer", "rich", "pytest", "boto3"} & set(images)


def versions(found):
    return {name: block.split()[0] for name, block in found.items()}


WITHOUT_EXTRAS = """
import sys
from importlib.metadata import packages_distributions, requires
from packaging.requirements import Requirement

kept, waiting = set(), ["steelyard"]
while waiting:
    name = waiting.pop()
    if name in kept:
        continue
    kept.add(name)
    for each in map(Requirement, requires(name) or []):
        if each.marker is None or each.marker.evaluate({"extra": ""}):
            waiting.append(each.name.lower().replace("_", "-"))
foreign = {
    module
    for module, owners in packages_distributions().items()
    if not kept & {owner.lower().replace("_", "-") for owner in owners}
}


class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in foreign:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


for module in [each for each in sys.modules if each.partition(".")[0] in foreign]:
    del sys.modules[module]
sys.meta_path.insert(0, Absent())
assert {"numpy", "boto3", "aws_cdk", "llama_cpp"} <= foreign
from steelyard.cli import main
main()
"""


def test_the_command_line_starts_with_its_own_packages_alone():
    done = subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS, "--help"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "decision" in done.stdout
