"""The images that are built: what is in them, what is not, and that they come out the same again."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from steelyard.build_programs import container_tool, image, self_test
from steelyard_runtime.engine import abi

pytestmark = pytest.mark.containers

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "images").glob("*.Dockerfile"))


def inspect(reference, template):
    return json.loads(container_tool.output("image", "inspect", "--format", f"{{{{json {template}}}}}", reference))


def python(reference, code):
    words = ("run", "--rm", "--network", "none", "--entrypoint", "/opt/steelyard/bin/python", reference, "-I", "-c")
    return container_tool.output(*words, code)


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.name)
def test_hadolint_finds_nothing(dockerfile):
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent))
    done = subprocess.run([hadolint, dockerfile], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_two_dockerfiles_differ_in_hardware_only():
    cpu, cuda = ((ROOT / "images" / f"{name}.Dockerfile").read_text(encoding="utf-8") for name in ("cpu", "cuda"))
    same = set(cpu.splitlines()) & set(cuda.splitlines())
    assert len(set(cuda.splitlines()) - same) == len(set(cpu.splitlines()) - same) + 1 == 5
    assert "STEELYARD_GPU_LAYERS=-1" in cuda


def test_labels_say_what_it_was_made_of(cpu_image, recipe):
    labels = inspect(cpu_image, ".Config.Labels")
    assert labels["org.opencontainers.image.source"] == recipe.source_url
    assert labels["org.opencontainers.image.revision"] == recipe.revision
    assert labels["org.opencontainers.image.base.digest"] == recipe.base_digest
    assert labels["org.opencontainers.image.base.name"] == recipe.base
    assert labels["org.opencontainers.image.licenses"] == "Apache-2.0 AND MIT"
    assert re.fullmatch(r"\d+\.\d+\.\d+", labels["org.opencontainers.image.version"])
    assert (labels["steelyard.llama-cpp"], labels["steelyard.llama-cpp-interface"]) == (
        recipe.llama_cpp,
        recipe.interface,
    )


def test_the_entry_point_is_a_program_that_takes_serve(cpu_image):
    assert inspect(cpu_image, ".Config.Entrypoint") == [
        *("/opt/steelyard/bin/python", "-I", "-u", "-m", "steelyard_runtime.http.serve")
    ]
    assert inspect(cpu_image, ".Config.Cmd") == ["serve"]
    assert "8080/tcp" in inspect(cpu_image, ".Config.ExposedPorts")


def test_only_the_locked_packages_and_the_runtime_are_in_it(cpu_image, recipe):
    lock = (ROOT / "runtime" / "requirements.txt").read_text(encoding="utf-8")
    wanted = dict(re.findall(r"^([a-z0-9.-]+)==([^ ;\\]+)(?! ; sys_platform == 'win)", lock, re.MULTILINE))
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    found = {name.lower().replace("_", "-"): version for name, version in json.loads(python(cpu_image, code)).items()}
    assert found.items() <= wanted.items()
    # What is locked for other systems is not installed; the runtime would not start if anything were missing.
    assert set(wanted) - set(found) <= {"colorama", "pyreadline3", "tzdata"}
    for name in ("steelyard", "steelyard_constructs", "llama_cpp", "pip", "setuptools", "pytest", "boto3"):
        assert python(cpu_image, f"import importlib.util as u; print(u.find_spec({name!r}))").strip() == "None"


def test_no_compiler_cache_or_test_is_in_it(cpu_image):
    code = """
import pathlib, shutil
home = pathlib.Path("/opt/steelyard")
print([name for name in ("cc", "gcc", "c++", "cmake", "make") if shutil.which(name)])
names, suffixes = ("tests", "server", "pip"), (".whl", ".a", ".c", ".h")
print([str(p) for p in home.rglob("*") if p.name in names or p.suffix in suffixes][:5])
print([str(p) for p in (pathlib.Path("/source"), pathlib.Path("/opt/steelyard-build"), pathlib.Path("/root/.cache"))
       if p.exists()])
print([str(p) for p in home.rglob("lib*.so*") if "llama" in p.name or "ggml" in p.name])
"""
    assert python(cpu_image, code).splitlines() == ["[]"] * 4


def test_building_it_again_gives_the_same_layers(cpu_image, recipe):
    arguments = [word for name, value in recipe.arguments().items() for word in ("--build-arg", f"{name}={value}")]
    again = "localhost/steelyard-test-again:latest"
    words = ["buildx", "build", "--no-cache", "--load", "--quiet", "--file", recipe.dockerfile, *arguments]
    container_tool.docker(*words, "--tag", again, ".", quiet=True)
    first, second = (inspect(each, ".RootFS.Layers") for each in (cpu_image, again))
    assert first == second
    assert inspect(cpu_image, ".Config") == inspect(again, ".Config")


@pytest.mark.timeout(1200)
def test_it_decides_without_a_network_and_stops_when_told(cpu_image):
    self_test.self_test(cpu_image)


def test_a_cuda_image_proves_its_library_and_does_not_serve_without_a_gpu(cuda_image, tmp_path):
    checked = container_tool.output("run", "--rm", "--entrypoint", "/opt/steelyard/bin/python", cuda_image, *CHECK)
    assert "the library is llama.cpp b" in checked
    model = tmp_path / "model"
    model.mkdir()
    shutil.copy(abi.MODEL, model / "model.gguf")
    words = ["docker", "run", "--rm", "--network", "none", "--volume", f"{model}:/opt/ml/model:ro", cuda_image, "serve"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 1
    assert "gpu_layers=-1 but this build of llama.cpp has no GPU backend with a device" in done.stdout


CHECK = ("-I", "-m", "steelyard_runtime.engine.abi")


def test_the_list_of_contents_is_a_function_of_the_image(cpu_image, recipe):
    given = {"name": "registry/decision", "digest": "sha256:" + "a" * 64, "reference": cpu_image}
    document = image.describe(recipe, **given)
    assert document == image.describe(recipe, **given)
    listed = json.loads(document)
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    assert listed["metadata"]["component"]["version"] == given["digest"]
    components = {each["name"]: each for each in listed["components"]}
    assert components["llama.cpp"]["version"] == recipe.llama_cpp
    assert components[recipe.base_name]["version"] == recipe.base_digest
    assert "llama_cpp_python" not in components
    assert components["numpy"]["purl"].startswith("pkg:pypi/numpy@")
