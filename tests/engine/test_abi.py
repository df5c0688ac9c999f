"""The pair of binding and library: what is known to fit is let through, and every kind of misfit is refused."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from steelyard_runtime.engine import abi, llama

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def pair() -> abi.Pair:
    return abi.find(abi.BUNDLED, llama.BINDING_VERSION)


@pytest.fixture(scope="module")
def found() -> abi.Library:
    return abi.inspect(llama.LIBRARIES)


def test_this_environment_is_a_pair_of_the_table(pair):
    assert abi.prove() == pair


def test_a_pair_that_is_not_in_the_table_is_refused(monkeypatch):
    monkeypatch.setenv(abi.BUILD_VARIABLE, "b10433")
    with pytest.raises(abi.AbiError, match=r"llama.cpp b10433 with llama-cpp-python .* is not a pair that is known"):
        abi.prove()


def test_a_build_that_is_not_in_the_table_has_no_binding():
    with pytest.raises(abi.AbiError, match=r"no binding is known for llama\.cpp b1"):
        abi.binding_for("b1")
    assert abi.binding_for("b10433").binding == abi.binding_for("b10435").binding == "0.3.35"


def test_sizes_are_measured_and_not_taken_from_the_binding(pair, found):
    assert found.sizes == pair.sizes == llama.struct_sizes(pair.sizes)


@pytest.mark.parametrize("struct", sorted(abi.table()[0].sizes))
def test_a_library_with_another_size_is_refused(pair, found, struct):
    foreign = replace(found, sizes={**found.sizes, struct: found.sizes[struct] - 8})
    with pytest.raises(abi.AbiError, match=f"{struct} has {foreign.sizes[struct]} bytes in the libllama in /somewhere"):
        abi.check_library(pair, foreign, Path("/somewhere"))


@pytest.mark.parametrize(("field", "name"), [("llama_version", "libllama"), ("ggml_version", "libggml")])
def test_a_library_of_another_version_is_refused(pair, found, field, name):
    with pytest.raises(abi.AbiError, match=rf"{name} in /somewhere is version 0\.0\.1, but that of llama.cpp bundled"):
        abi.check_library(pair, replace(found, **{field: "0.0.1"}), Path("/somewhere"))


def test_a_changed_binding_is_refused(pair):
    with pytest.raises(abi.AbiError, match="llama_batch has 48 bytes in the installed llama-cpp-python and 56"):
        abi.check_binding(pair, {"llama_batch": 48})


def test_every_number_of_the_defaults_is_in_the_table(pair):
    assert llama.default_values() == pair.defaults


def test_another_default_is_refused(pair):
    read = {struct: dict(members) for struct, members in pair.defaults.items()}
    read["llama_context_params"]["n_batch"] = 512
    with pytest.raises(abi.AbiError, match=r"llama_context_params.n_batch reads as 512 and is 2048"):
        abi.check_defaults(pair, read)


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
    """The function that ``L.name`` or ``binding.name`` is; "" for anything else, such as the binding's structs."""
    if not (isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("L", "binding")):
        return ""
    return "" if isinstance(getattr(llama.L, node.attr, type), type | str) else node.attr


def test_every_function_that_is_called_is_in_the_table_with_as_many_arguments(pair):
    known = {name: signature.count(": ") for name, signature in pair.calls.items()}
    found = called()
    assert set(found) - {"_base_path"} == set(known), "abi.toml lists each; llama.signatures() writes them"
    wrong = {name: counts for name, counts in found.items() if counts - {known.get(name)}}
    assert not wrong


@pytest.mark.parametrize("binding", sorted({pair.binding for pair in abi.table()}))
def test_every_binding_of_the_table_declares_the_same_functions(pair, binding):
    others = [other for other in abi.table() if other.binding == binding]
    assert all(other.calls == pair.calls for other in others)


def test_the_installed_binding_declares_what_the_table_says(pair):
    assert llama.signatures(pair.calls) == pair.calls


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("pointer(penalty_last_n: int32, penalty_repeat: float32)", "llama_sampler_init_penalties"),
        ("missing", "llama_state_seq_get_size"),
    ],
)
def test_a_binding_with_other_parameters_is_refused(pair, said, name):
    with pytest.raises(abi.AbiError, match=rf"{name} is {re.escape(said)} in the installed llama-cpp-python and "):
        abi.check_calls(pair, {**pair.calls, name: said})


def test_a_function_that_the_binding_lacks_is_told_as_missing():
    assert llama.signatures(["llama_no_such_thing"]) == {"llama_no_such_thing": "missing"}


def test_a_library_whose_sampler_takes_its_values_in_another_order_is_refused():
    def swapped(size, *, presence_penalty=0.0, frequency_penalty=0.0, **step):
        return llama.Sampler(size, presence_penalty=frequency_penalty, frequency_penalty=presence_penalty, **step)

    with pytest.raises(abi.AbiError, match=r"samples wrongly: with \{'frequency_penalty': 1.0\} it chooses"):
        abi.check_sampling(swapped)
    abi.check_sampling(llama.Sampler)


@pytest.mark.parametrize("wrong", [0.5, float("nan"), float("inf")])
def test_another_logit_is_refused(wrong):
    def evaluate(path, tokens):
        logits = llama.logits_of_file(path, tokens)
        logits[17] = wrong
        return logits

    with pytest.raises(abi.AbiError, match=r"1 of 260 logits of abi\.gguf are off by more than 0\.02"):
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
    with pytest.raises(abi.AbiError, match=rf"libllama in {folder} cannot be used: .*({said})"):
        abi.inspect(folder)


def test_a_library_that_brings_its_process_down_is_refused(tmp_path):
    source = tmp_path / "bad.c"
    source.write_text("#include <stdlib.h>\nconst char *llama_version(void) { abort(); }\n", encoding="utf-8")
    for name in ("libllama.so", "libggml-base.so"):
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / name, source], check=True)
    with pytest.raises(abi.AbiError, match="cannot be used: exit status -6"):
        abi.inspect(tmp_path)


def test_a_server_over_a_missing_library_ends_with_a_sentence(tmp_path):
    command = [sys.executable, "-m", "steelyard_runtime.http.serve"]
    environment = {"PATH": "/usr/bin:/bin", "LLAMA_CPP_LIB_PATH": str(tmp_path), "STEELYARD_PORT": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert "llama-cpp-python cannot use its libllama" in done.stdout + done.stderr
