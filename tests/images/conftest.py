"""A stand-in base, our images on it, and the ``docker`` that builds and runs them. All real; needs root."""

from __future__ import annotations

import importlib.util
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard.build_programs.recipe import Recipe, build
from steelyard_localcloud.containers.storage import VARIABLE, own_storage

ROOT = Path(__file__).resolve().parents[2]

_spec = importlib.util.spec_from_file_location("stand_in_base", Path(__file__).with_name("stand_in_base.py"))
stand_in_base = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = stand_in_base
_spec.loader.exec_module(stand_in_base)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the first of these tests the time to compile llama.cpp for the stand-in base, on a slow machine too."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session", autouse=True)
def docker_on_path(tmp_path_factory):
    """``docker`` is ours for these tests, so that they are the same with and without a daemon."""
    folder = tmp_path_factory.mktemp("docker")
    words = shlex.join([sys.executable, "-m", "steelyard_localcloud.containers.docker_on_buildah"])
    (folder / "docker").write_text(f'#!/bin/sh\nexec {words} "$@"\n', encoding="utf-8")
    (folder / "docker").chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        patch.setenv(VARIABLE, str(own_storage()))
        patch.chdir(ROOT)
        yield


@pytest.fixture(scope="session")
def base(docker_on_path):
    return stand_in_base.make(os.environ.get(stand_in_base.LLAMA_CPP_VARIABLE, "b10435"), report=print)


@pytest.fixture(scope="session")
def recipe(base) -> Recipe:
    return Recipe(
        dockerfile="images/cpu.Dockerfile",
        base=base.reference,
        llama_cpp=base.llama_cpp,
        revision="0" * 40,
        source_url="https://example.com/steelyard",
    )


@pytest.fixture(scope="session")
def cpu_image(recipe) -> str:
    tag = "localhost/steelyard-test-cpu:latest"
    build(recipe, tag)
    return tag


@pytest.fixture(scope="session")
def cuda_image(recipe) -> str:
    tag = "localhost/steelyard-test-cuda:latest"
    build(replace(recipe, dockerfile="images/cuda.Dockerfile"), tag)
    return tag


@pytest.fixture
def derived_base(base, tmp_path) -> Callable[..., str]:
    """Makes another base of the stand-in: some lines of a Dockerfile, and what they copy."""

    def make(lines: str) -> str:
        (tmp_path / "Dockerfile").write_text(f"FROM {base.reference}\n{lines}\n", encoding="utf-8")
        name = f"localhost/steelyard-test-base:{stand_in_base.key(lines, base.digest)}"
        subprocess.run(["docker", "build", "--quiet", "--tag", name, tmp_path], check=True, stdout=subprocess.DEVNULL)
        said = ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageDigest}}", name]
        digest = subprocess.run(said, check=True, capture_output=True, text=True).stdout.strip()
        return f"{name.rpartition(':')[0]}@{digest}"

    return make
