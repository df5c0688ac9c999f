"""The build and its library: what is known to fit is let through, and every kind of misfit is refused."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import pytest

from steelyard_runtime.engine import abi, builds, llama

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ("llama_batch", "llama_context_params", "llama_model_params", "llama_model_quantize_params")


@pytest.fixture
def build() -> builds.Build:
    return builds.find(builds.BUNDLED)


@pytest.fixture(scope="module")
def found() -> abi.Library:
    return abi.inspect(llama.LIBRARIES)


@pytest.fixture
def sizes(build) -> dict[str, int]:
    return llama.struct_sizes(build.structs)


def test_this_environment_has_a_build_of_the_table(build):
    assert abi.prove() == build == llama.BUILD


def test_the_bundled_build_is_called_after_the_package_that_brings_it(build):
    assert build.name == f"bundled-{version('llama-cpp-python')}"
    assert builds.find("b10435").name == "b10435"


def test_a_build_that_is_not_in_the_table_is_refused(monkeypatch):
    monkeypatch.setenv(builds.BUILD_VARIABLE, "b1")
    with pytest.raises(builds.AbiError, match=r"llama.cpp b1 is not a build that is known; abi\.toml has b10435, "):
        abi.prove()


@pytest.mark.parametrize("other", [each.llama_cpp for each in builds.table() if each.interface == "b10429"])
def test_a_library_under_the_name_of_another_build_is_refused(found, other):
    """The declarations of that build, which a process of its own would have, over this environment's library."""
    code = "import sys; from steelyard_runtime.engine import abi; sys.exit(abi.main())"
    environment = {"PATH": "/usr/bin:/bin", builds.BUILD_VARIABLE: other}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    assert "it is another build; put the right library there" in done.stderr


def test_sizes_are_measured_and_those_that_are_declared(sizes, found):
    assert set(found.sizes) == set(MEASURED)
    assert found.sizes == {name: sizes[name] for name in found.sizes}


@pytest.mark.parametrize("struct", MEASURED)
def test_a_library_with_another_size_is_refused(build, found, sizes, struct):
    foreign = replace(found, sizes={**found.sizes, struct: found.sizes[struct] - 8})
    with pytest.raises(builds.AbiError, match=f"{struct} has {foreign.sizes[struct]} bytes in the libllama in /else"):
        abi.check_library(build, foreign, sizes=sizes, libraries=Path("/elsewhere"))


@pytest.mark.parametrize(("field", "name"), [("llama_version", "libllama"), ("ggml_version", "libggml")])
def test_a_library_of_another_version_is_refused(build, found, sizes, field, name):
    with pytest.raises(builds.AbiError, match=rf"{name} in /else is version 0\.0\.1, but that of llama.cpp bundled"):
        abi.check_library(build, replace(found, **{field: "0.0.1"}), sizes=sizes, libraries=Path("/else"))


def test_every_number_of_the_defaults_is_in_the_table(build):
    assert llama.default_values() == build.defaults


def test_another_default_is_refused(build):
    read = {struct: dict(members) for struct, members in build.defaults.items()}
    read["llama_context_params"]["n_batch"] = 512
    with pytest.raises(builds.AbiError, match=r"llama_context_params.n_batch reads as 512 and is 2048"):
        abi.check_defaults(build, read)


def called() -> dict[str, set[int]]:
    """The functions of llama.cpp that our source names, with the numbers of arguments that it calls them with."""
    found: dict[str, set[int]] = {}
    for path in (ROOT / "runtime").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if name := function_name(node):
                found.setdefault(name, set())
            if isinstance(node, ast.Call) and (name := function_name(node.func)):
                found.setdefault(name, set()).add(len(node.args))
    return found


def function_name(node: ast.AST) -> str:
    """The function that ``L.name`` is; "" for anything else, such as a struct."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "L"):
        return ""
    return "" if isinstance(getattr(llama.L, node.attr, type), type) else node.attr


def test_every_function_that_is_called_is_in_the_table_with_as_many_arguments(build):
    known = {name: signature.count(": ") for name, signature in build.calls.items()}
    found = called()
    assert set(found) == set(known), "abi.toml lists each; scripts/read_llama_header.py refuses a header without it"
    wrong = {name: counts for name, counts in found.items() if counts - {known.get(name)}}
    assert not wrong


def test_a_library_whose_sampler_takes_its_values_in_another_order_is_refused():
    def swapped(size, *, presence_penalty=0.0, frequency_penalty=0.0, **step):
        return llama.Sampler(size, presence_penalty=frequency_penalty, frequency_penalty=presence_penalty, **step)

    with pytest.raises(builds.AbiError, match=r"samples wrongly: with \{'frequency_penalty': 1.0\} it chooses"):
        abi.check_sampling(swapped)
    abi.check_sampling(llama.Sampler)


@pytest.mark.parametrize("wrong", [0.5, float("nan"), float("inf")])
def test_another_logit_is_refused(wrong):
    def evaluate(path, tokens):
        logits = llama.logits_of_file(path, tokens)
        logits[17] = wrong
        return logits

    with pytest.raises(builds.AbiError, match=r"1 of 260 logits of abi\.gguf are off by more than 0\.02"):
        abi.check_logits(evaluate)


def test_a_member_at_a_wrong_place_moves_the_logits_far_beyond_the_tolerance():
    """The tolerance is for rounding. Evaluating another token, as a shifted batch would, is no rounding."""
    reference = json.loads(abi.LOGITS.read_text(encoding="utf-8"))

    def difference(tokens):
        logits = llama.logits_of_file(abi.MODEL, tokens)
        return max(abs(float(a) - b) for a, b in zip(logits, reference["logits"], strict=True))

    assert difference(reference["tokens"]) < abi.TOLERANCE / 2
    assert difference(reference["tokens"][1:]) > 20 * abi.TOLERANCE


def test_model_and_reference_are_what_the_generator_writes(tmp_path):
    subprocess.run([sys.executable, ROOT / "scripts" / "generate_self_test.py", tmp_path], check=True)
    assert (tmp_path / abi.MODEL.name).read_bytes() == abi.MODEL.read_bytes()
    assert (tmp_path / abi.LOGITS.name).read_bytes() == abi.LOGITS.read_bytes()
    assert abi.MODEL.stat().st_size < 200_000


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda folder: (folder / "libllama.so").unlink(), "there is no libllama.so"),
        (lambda folder: (folder / "libllama.so").write_bytes(b"\x7fELF but no more"), "file too short|invalid ELF"),
        (lambda folder: shutil.copy(folder / "libggml-base.so", folder / "libllama.so"), "undefined symbol"),
    ],
)
def test_a_library_that_is_missing_or_broken_is_refused(tmp_path, break_it, said):
    folder = tmp_path / "lib"
    shutil.copytree(llama.LIBRARIES, folder)
    break_it(folder)
    with pytest.raises(builds.AbiError, match=rf"libllama in {folder} cannot be used: .*({said})"):
        abi.inspect(folder)


def test_a_library_that_brings_its_process_down_is_refused(tmp_path):
    source = tmp_path / "bad.c"
    source.write_text("#include <stdlib.h>\nconst char *llama_version(void) { abort(); }\n", encoding="utf-8")
    for name in ("libllama.so", "libggml-base.so"):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / name, source], check=True)
    with pytest.raises(builds.AbiError, match="cannot be used: exit status -6"):
        abi.inspect(tmp_path)


def test_a_server_over_a_missing_library_ends_with_a_sentence(tmp_path):
    command = [sys.executable, "-m", "steelyard_runtime.http.serve"]
    environment = {"PATH": "/usr/bin:/bin", "LLAMA_CPP_LIB_PATH": str(tmp_path), "STEELYARD_PORT": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert f"the libllama in {tmp_path} cannot be used" in done.stdout + done.stderr
