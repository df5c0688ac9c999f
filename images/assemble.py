"""Puts /opt/steelyard together in an image's build stage: the locked packages and our runtime.

Run by the Dockerfiles with the base's own Python. Only the standard library is there. The result is a function of its
inputs: no pip, no cache, one time stamp for every file.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

HOME = Path("/opt/steelyard")
LIBRARIES = Path("/opt/llama.cpp/bin")
NEEDED = ("libllama.so", "libggml.so", "libggml-base.so")
RECORD_OF_SOURCES = Path("/root/THIRD_PARTY_SOURCE_CODE_URLS")
"""The file in which AWS containers list what they were built from; llama.cpp is there with its tag or its
commit."""
COMMIT_DIGITS = 40


class BaseImageError(Exception):
    """The image cannot be built; the message says why and what to do."""


def main() -> int:
    """Assemble; returns an exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, required=True, help="folder with runtime/ and images/")
    parser.add_argument("--llama-cpp", required=True, help="the base's build of llama.cpp, such as b10433")
    parser.add_argument("--interface", required=True, help="the interface of its llama.h, which the label will name")
    parser.add_argument("--epoch", type=int, required=True, help="time stamp of every file, in seconds since 1970")
    arguments = parser.parse_args()
    try:
        assemble(arguments.source, build=arguments.llama_cpp, interface=arguments.interface, epoch=arguments.epoch)
    except BaseImageError as refusal:
        sys.stderr.write(f"the image is refused: {refusal}\n")
        return 1
    return 0


def assemble(source: Path, *, build: str, interface: str, epoch: int) -> None:
    """Make /opt/steelyard.

    Raises:
        BaseImageError: The base is not what the arguments say, or the build is not in the table.
    """
    check_libraries()
    commit = check_interface(source / "runtime", build=build, wanted=interface)
    check_build(build, commit=commit)
    tools = HOME.with_name("steelyard-build")
    run(sys.executable, "-m", "venv", tools)
    pip = [tools / "bin" / "python", "-m", "pip", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    locked = ["install", "--require-hashes", "--no-deps", "--only-binary", ":all:", "--no-compile", "--requirement"]
    run(sys.executable, "-m", "venv", "--without-pip", HOME)
    into = ["--python", HOME / "bin" / "python"]
    run(*pip, *into, *locked, source / "runtime" / "requirements.txt")
    packages = Path(output(HOME / "bin" / "python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"))
    shutil.copytree(
        source / "runtime" / "steelyard_runtime",
        packages / "steelyard_runtime",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    tidy(packages)
    python = [HOME / "bin" / "python", "-I", "-B"]
    run(
        *python,
        "-m",
        "steelyard_runtime.engine.abi",
        environment={"LLAMA_CPP_BUILD": build, "LLAMA_CPP_LIB_PATH": str(LIBRARIES)},
    )
    set_times(HOME, epoch)


def check_libraries() -> None:
    """Refuse a base without llama.cpp's libraries."""
    missing = [name for name in NEEDED if not (LIBRARIES / name).exists()]
    if missing:
        raise BaseImageError(
            f"the base image has no {' and no '.join(missing)} in {LIBRARIES}, so it is not a llama.cpp container; "
            "build on one that is (BASE_IMAGE)"
        )


def check_build(wanted: str, *, commit: str | None) -> None:
    """Refuse a base whose llama.cpp is another build than the one that was announced.

    Args:
        wanted: The build, such as b10433.
        commit: Its commit; None where that is not known.
    """
    found = set(builds_of_base())
    if not found:
        raise BaseImageError(
            f"the base image does not say which llama.cpp it has: no line of it in {RECORD_OF_SOURCES}, and no "
            f"llama-server in {LIBRARIES} that can be asked"
        )
    tags = {each for each in found if each.startswith("b") and len(each) < COMMIT_DIGITS}
    commits = found - tags
    if tags - {wanted} or (commit and commits - {commit}):
        raise BaseImageError(
            f"the base image has llama.cpp {' and '.join(sorted(found))}, but LLAMA_CPP_BUILD says {wanted}; "
            "give the build that the base has"
        )
    if not tags and not commit:
        (said, *_) = sorted(commits)
        raise BaseImageError(
            f"the base image names the commit of its llama.cpp only, {said}, and that of {wanted} is not known; if it "
            f'is that one, write commit = "{said}" into its row of engine/abi.toml'
        )


def builds_of_base() -> Iterator[str]:
    """The base's own words on its llama.cpp, in each place where they may be."""
    if RECORD_OF_SOURCES.is_file():
        listed = RECORD_OF_SOURCES.read_text(encoding="utf-8")
        yield from re.findall(r"^llama\.cpp (b[0-9]+|[0-9a-f]{40})(?=\s)", listed, re.MULTILINE)
    server = LIBRARIES / "llama-server"
    if server.exists():
        done = subprocess.run([server, "--version"], capture_output=True, text=True, check=False)  # noqa: S603
        said = done.stdout + done.stderr
        # "version: 10075 (COMMIT)" of older builds, "version: 0.1.0 (build 10435, commit COMMIT)" of newer ones.
        match = re.search(r"\(build ([0-9]+),", said) or re.search(r"^version: ([0-9]+) \(", said, re.MULTILINE)
        if match and match.group(1) != "0":
            yield f"b{match.group(1)}"


def check_interface(runtime: Path, *, build: str, wanted: str) -> str | None:
    """Refuse a build whose llama.h nobody has read, or another interface than the label will name.

    Returns:
        The build's commit, where the table has it.
    """
    sys.path.insert(0, str(runtime))
    from steelyard_runtime.engine import builds

    try:
        known = builds.find(build)
    except builds.AbiError as error:
        raise BaseImageError(str(error)) from None
    if known.interface != wanted:
        raise BaseImageError(f"llama.cpp {build} has the interface {known.interface}, but INTERFACE says {wanted}")
    return known.commit


def tidy(packages: Path) -> None:
    """Remove what no server needs, and compile the rest the same way every time."""
    for folder in [*packages.rglob("tests")]:
        shutil.rmtree(folder)
    for source in [*packages.rglob("*.[ch]"), *packages.rglob("*.a")]:
        source.unlink()
    python = HOME / "bin" / "python"
    compile_all = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", packages]
    run(python, "-I", *compile_all, environment={"PYTHONHASHSEED": "0"})
    for script in (HOME / "bin").iterdir():
        if not script.name.startswith("python"):
            script.unlink()


def set_times(folder: Path, epoch: int) -> None:
    """Give every file the same time."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def run(*command: object, environment: dict[str, str] | None = None) -> None:
    """Run a step.

    Raises:
        BaseImageError: It failed; what it wrote is above.
    """
    step = [str(part) for part in command]
    done = subprocess.run(step, check=False, env={**os.environ, **(environment or {})})  # noqa: S603
    if done.returncode:
        raise BaseImageError(f"this step ended with {done.returncode}, see above: {' '.join(step)}")


def output(*command: object) -> str:
    """The output of a command."""
    step = [str(part) for part in command]
    return subprocess.run(step, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603


if __name__ == "__main__":
    sys.exit(main())
