"""Each finding of the doctor, with what to do about it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from steelyard.serving import machine
from steelyard_base.checks import Level


@pytest.mark.parametrize(
    ("check", "level", "advised"),
    [
        (lambda: machine.python_check((3, 12, 1)), Level.OK, ""),
        (lambda: machine.python_check((3, 10, 9)), Level.FAILED, "3.11"),
        (lambda: machine.python_check((3, 14, 0)), Level.FAILED, "3.13"),
        (lambda: machine.binding_check({"version": "1"}), Level.OK, ""),
        (lambda: machine.binding_check(None), Level.FAILED, "make setup"),
        (lambda: machine.cpu_check(frozenset({"avx2"}), "x86_64"), Level.OK, ""),
        (lambda: machine.cpu_check(frozenset(), "x86_64"), Level.WARNING, "AVX2"),
        (lambda: machine.cores_check(4, 8), Level.OK, ""),
        (lambda: machine.cores_check(1, 8), Level.WARNING, "core"),
        (lambda: machine.memory_check(4_000_000_000, 253_000_000), Level.OK, ""),
        (lambda: machine.memory_check(900_000_000, 253_000_000), Level.FAILED, "smaller model"),
        (lambda: machine.memory_check(900_000_000, None), Level.OK, ""),
        (lambda: machine.memory_check(None, None), Level.WARNING, "yourself"),
        (lambda: machine.gpu_check([], False), Level.OK, ""),
        (lambda: machine.gpu_check(["H200"], True), Level.OK, "--gpu-layers"),
        (lambda: machine.gpu_check(["H200"], False), Level.WARNING, "GGML_CUDA"),
    ],
)
def test_a_finding_and_its_advice(check, level, advised):
    found = check()
    assert found.level is level
    assert advised in found.advice
    assert found.level is Level.OK or found.advice


def test_memory_names_both_numbers():
    assert machine.memory_check(900_000_000, 253_000_000).finding == "900 MB available, about 953 MB needed"


def test_the_control_group_limits_the_memory(tmp_path):
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9 kB\nMemAvailable:   8000 kB\n")
    assert machine.usable_memory(tmp_path, meminfo) == 8_192_000
    (tmp_path / "memory.max").write_text("5000000\n")
    (tmp_path / "memory.current").write_text("1000000\n")
    assert machine.usable_memory(tmp_path, meminfo) == 4_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert machine.usable_memory(tmp_path, meminfo) == 8_192_000
    assert machine.usable_memory(tmp_path / "none", tmp_path / "none") is None


def test_cpu_flags_of_both_families(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("model name : x\nflags\t\t: fpu avx2 fma sse\n")
    assert machine.cpu_flags(path) == {"avx2", "fma"}
    path.write_text("Features\t: fp asimd asimddp\n")
    assert machine.cpu_flags(path) == {"asimd", "asimddp"}
    assert machine.cpu_flags(tmp_path / "none") == frozenset()


def test_the_binding_is_asked_in_a_child_that_may_die(monkeypatch):
    assert machine.ask_binding()["version"]
    monkeypatch.setattr(machine, "_ASK_BINDING", "import os; os.abort()")
    assert machine.ask_binding() is None


def test_a_model_that_is_not_here_says_how_to_get_it(cache):
    size, (check,) = machine.model_checks("gemma-3-270m")
    assert size is None
    assert check.level is Level.FAILED
    assert check.advice == "Fetch it: steelyard model pull gemma-3-270m"


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "x.gguf"
    path.write_bytes(b"no")
    _, (check,) = machine.model_checks(str(path))
    assert check.level is Level.FAILED
    assert str(path) in check.finding


def test_a_full_or_closed_disk(tmp_path, monkeypatch):
    assert machine.disk_check(tmp_path / "deep" / "down").name == "disk"
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _path: machine.shutil._ntuple_diskusage(2, 1, 10))
    assert machine.disk_check(tmp_path).level is Level.WARNING
    monkeypatch.setattr(machine.os, "access", lambda *_args: False)
    assert machine.disk_check(tmp_path).level is Level.FAILED


WITHOUT_THE_RUNTIME = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("numpy", "jinja2", "llama_cpp"):
            raise ImportError(f"No module named {name!r}")

sys.meta_path.insert(0, Missing())
import steelyard.cli
from steelyard.serving.machine import template_check
print(template_check(sys.argv[1]).advice)
"""


def test_the_command_line_needs_nothing_of_the_runtimes(tmp_path):
    command = [sys.executable, "-c", WITHOUT_THE_RUNTIME, str(tmp_path / "model.gguf")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "steelyard[runtime]" in done.stdout, done.stderr
