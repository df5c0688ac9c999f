"""The structs and functions of a llama.h: read strictly, and as a compiler reads them."""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import json
import subprocess
import sysconfig
from pathlib import Path

import pytest

from steelyard_runtime.engine import builds, llama

ROOT = Path(__file__).resolve().parents[2]
HEADER = Path(sysconfig.get_path("purelib")) / "include" / "llama.h"
"""That of the library which pip built; it is installed beside it."""

_spec = importlib.util.spec_from_file_location("read_llama_header", ROOT / "scripts" / "read_llama_header.py")
reader = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reader)


@pytest.fixture(scope="module")
def header() -> str:
    return HEADER.read_text(encoding="utf-8")


@pytest.fixture
def build() -> builds.Build:
    return builds.find(builds.BUNDLED)


def test_the_table_has_the_structs_and_functions_of_the_bundled_header(header, build):
    assert hashlib.sha256(header.encode()).hexdigest() == build.header_sha256
    assert reader.structs(header, build.structs) == build.structs
    reader.check_calls(header, build.calls, build.structs)


def test_every_member_lies_where_a_compiler_puts_it(build, tmp_path):
    wanted = {
        f"{struct}.{name}": [
            getattr(getattr(llama.L, struct), name).offset,
            getattr(getattr(llama.L, struct), name).size,
        ]
        for struct, members in build.structs.items()
        for name, _ in builds.members(members)
    }
    wanted |= {struct: [ctypes.sizeof(getattr(llama.L, struct)), 0] for struct in build.structs}
    lines = [
        f'P("{path}", offsetof(struct {struct}, {name}), sizeof(((struct {struct} *)0)->{name}));'
        for struct, _, name in (path.partition(".") for path in wanted)
        if name
        for path in [f"{struct}.{name}"]
    ]
    lines += [f'P("{struct}", sizeof(struct {struct}), (size_t)0);' for struct in build.structs]
    source = tmp_path / "probe.c"
    source.write_text(
        '#include <stdio.h>\n#include "llama.h"\n#define P(n, a, b) printf("\\"%s\\": [%zu, %zu],\\n", n, a, b)\n'
        "int main(void) { " + "\n".join(lines) + " return 0; }\n",
        encoding="utf-8",
    )
    subprocess.run(["cc", "-w", "-I", HEADER.parent, "-o", tmp_path / "probe", source], check=True)
    said = subprocess.run([tmp_path / "probe"], check=True, capture_output=True, text=True).stdout
    assert json.loads("{" + said.rstrip().rstrip(",") + "}") == wanted


def rows(header, *, llama_cpp="b99999"):
    table = builds.TABLE.read_text(encoding="utf-8")
    return reader.rows_for(header, table, llama_cpp=llama_cpp, source="a test")


def test_a_header_with_known_structs_gets_the_known_interface(header):
    added = rows(header + "\n// newer\n")
    assert 'interface = "b10883"' in added
    assert ".structs]" not in added


def test_a_header_with_another_member_gets_an_interface_of_its_own(header, tmp_path, monkeypatch):
    changed = header.replace("int32_t main_gpu;", "bool fast; int32_t main_gpu;")
    copy = tmp_path / "abi.toml"
    copy.write_text(builds.TABLE.read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "llama.h").write_text(changed, encoding="utf-8")
    monkeypatch.setattr(reader, "TABLE", copy)
    assert reader.main([str(tmp_path / "llama.h"), "--llama-cpp", "b99999", "--write"]) == 0
    monkeypatch.setattr(builds, "TABLE", copy)
    builds.table.cache_clear()
    try:
        found = builds.find("b99999")
    finally:
        monkeypatch.undo()
        builds.table.cache_clear()
    assert found.interface == "b99999"
    assert "lazy_mode: int32, fast: bool, main_gpu: int32" in found.structs["llama_model_params"]
    assert found.defaults == {"llama_model_params": {}, "llama_context_params": {}}, "nobody measured them yet"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "llama_sampler_init_top_k      (int32_t k)",
            "llama_sampler_init_top_k(int64_t k)",
            r"top_k is void\*\(k: int64",
        ),
        ("llama_memory_seq_rm(", "llama_memory_seq_remove(", "llama_memory_seq_rm is missing, and the engine calls"),
        ("int32_t main_gpu;", "int32_t main_gpu : 4;", "'int32_t main_gpu : 4' of llama_model_params is not underst"),
        (
            "int32_t main_gpu;",
            "llama_gpu_t main_gpu;",
            "the type of 'llama_gpu_t main_gpu' of llama_model_params is not",
        ),
        ("struct llama_model_params {", "struct llama_model_parameters {", "there is no struct llama_model_params"),
    ],
)
def test_a_header_that_the_engine_cannot_use_is_refused_by_name(header, old, new, said):
    changed = header.replace(old, new)
    assert changed != header
    with pytest.raises(reader.HeaderError, match=said):
        rows(changed)


def test_what_is_no_build_or_known_already_is_refused(header, capsys):
    assert reader.main([str(HEADER), "--llama-cpp", "v0.4.1"]) == 1
    assert "'v0.4.1' is not a build of llama.cpp: write it like b10964" in capsys.readouterr().err
    assert reader.main([str(HEADER), "--llama-cpp", "b10964"]) == 1
    assert "abi.toml has b10964 already" in capsys.readouterr().err
