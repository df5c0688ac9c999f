"""Make the environment in .venv, or find that it is already as it should be. Only the standard library is needed.

Called by ``make setup``, which installs all that is locked, and with ``--run`` by ``make run``, ``down`` and ``serve``,
which need neither the tests' packages nor those that fit decisions and build images. It runs on any Python 3, so that
an old one gets a clear message instead of a syntax error.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
STAMP = os.path.join(VENV, "steelyard-setup.json")
LOCK = os.path.join(ROOT, "requirements.txt")
RUN_LOCK = os.path.join(ROOT, "requirements-run.txt")
PROJECT = os.path.join(ROOT, "pyproject.toml")
NODE_LOCK = os.path.join(ROOT, "package-lock.json")
CDK = os.path.join(ROOT, "node_modules", "aws-cdk")

OLDEST, NEWEST = (3, 11), (3, 13)
BINDING = "llama-cpp-python"
DEFAULT_CMAKE_ARGS = "-DLLAVA_BUILD=OFF -DGGML_NATIVE=ON"


def main() -> int:
    """Do what is missing; returns an exit code."""
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        return use_another_python()
    lock = RUN_LOCK if "--run" in sys.argv[1:] else LOCK
    found = read_stamp()
    wanted = {"inputs": inputs_hash(), "cmake_args": os.environ.get("CMAKE_ARGS"), "lock": os.path.basename(lock)}
    if wanted["cmake_args"] is None:
        # Arguments that it was built with once need not be repeated every time.
        wanted["cmake_args"] = found.get("cmake_args") or DEFAULT_CMAKE_ARGS
    # An environment with everything has what a run needs.
    enough = (wanted, dict(wanted, lock=os.path.basename(LOCK)))
    if found in enough and works() and os.path.isdir(CDK):
        return 0
    rebuild = bool(found) and found.get("cmake_args") != wanted["cmake_args"]
    return install(wanted, lock, rebuild=rebuild)


def use_another_python() -> int:
    """Hand over to a Python of the right version, if there is one."""
    for minor in range(NEWEST[1], OLDEST[1] - 1, -1):
        path = shutil.which("python3." + str(minor))
        if path:
            os.execv(path, [path, *sys.argv])  # noqa: S606 - no shell is wanted
    return refuse(
        "Python 3.11, 3.12 or 3.13 is needed, and this is " + sys.version.split()[0] + " (" + sys.executable + ").",
        "Install one, or name one: make setup PYTHON=/path/to/python3.12",
    )


def inputs_hash() -> str:
    """The inputs of the environment: the locks, the project file, the Python and the place."""
    digest = hashlib.sha256()
    for path in (LOCK, RUN_LOCK, PROJECT, NODE_LOCK, __file__):
        with open(path, "rb") as file:
            digest.update(file.read())
    digest.update(repr((sys.version_info[:3], ROOT)).encode())
    return digest.hexdigest()


def read_stamp() -> dict[str, str | None]:
    """The inputs that the environment was made from; empty when it was not made, or not to the end."""
    try:
        with open(STAMP, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def works() -> bool:
    """Tell whether the environment's Python can still be started."""
    return os.path.exists(PYTHON) and subprocess.run([PYTHON, "-c", ""], check=False).returncode == 0  # noqa: S603


def install(wanted: dict[str, str | None], lock: str, *, rebuild: bool) -> int:
    """Create what is missing, then write the stamp."""
    try:
        import ensurepip  # noqa: F401
    except ImportError:
        return refuse("This Python has no venv module.", "On Debian and Ubuntu: apt-get install python3-venv")
    if not compiler_found() and not binding_installed():
        return refuse(
            "A C++ compiler is needed to build llama.cpp, and there is none.",
            "On Debian and Ubuntu: apt-get install build-essential. On macOS: xcode-select --install",
        )
    if os.path.exists(STAMP):
        os.remove(STAMP)
    if not works() or not same_version():
        say("creating .venv with Python " + sys.version.split()[0])
        run([sys.executable, "-m", "venv", "--clear", VENV])
    environment = dict(os.environ, CMAKE_ARGS=str(wanted["cmake_args"]), PIP_DISABLE_PIP_VERSION_CHECK="1")
    building = rebuild or not binding_installed()
    if building:
        say("installing; llama.cpp is built from source, which takes about seven minutes on two cores, once")
        say("its build options: CMAKE_ARGS='" + str(wanted["cmake_args"]) + "'")
    else:
        say("updating .venv")
    pip = [PYTHON, "-m", "pip", "install", "--no-input", "--progress-bar", "on" if sys.stdout.isatty() else "off"]
    if not building:
        pip.append("--quiet")
    if rebuild:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as only:
            only.write(locked(BINDING))
            only.flush()
            # pip's cache of built wheels does not look at CMAKE_ARGS.
            options = ["--no-cache-dir", "--force-reinstall", "--no-deps", "--require-hashes", "-r", only.name]
            run([*pip, *options], environment)
    run([*pip, "--require-hashes", "-r", lock], environment)
    run([*pip, "--quiet", "--no-deps", "--no-build-isolation", "-e", ROOT], environment)
    # The CDK's command line, as package-lock.json has it, on the Node.js that pip has just installed.
    npm = "from steelyard.cdk.nodejs import npm_command; print(chr(10).join(npm_command()))"
    found = subprocess.run([PYTHON, "-c", npm], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S603
    node, npm_cli = found.stdout.splitlines()
    run([node, npm_cli, "ci", "--no-audit", "--no-fund", "--silent", "--prefix", ROOT])
    # In an activated environment, `cdk` is the pinned one.
    for name, target in (("node", node), ("cdk", os.path.join(CDK, "bin", "cdk"))):
        link = os.path.join(VENV, "bin", name)
        if os.path.lexists(link):
            os.remove(link)
        os.symlink(target, link)
    with open(STAMP, "w", encoding="utf-8") as file:
        json.dump(wanted, file)
    say("the environment is ready; the command is .venv/bin/steelyard")
    return 0


def compiler_found() -> bool:
    """Tell whether CMake will find a C++ compiler."""
    return any(shutil.which(name) for name in (os.environ.get("CXX", ""), "c++", "g++", "clang++") if name)


def binding_installed() -> bool:
    """Tell whether the environment has the locked llama.cpp binding, so that nothing needs to be built."""
    if not os.path.exists(PYTHON):
        return False
    code = "import importlib.metadata as m; print('" + BINDING + "==' + m.version('" + BINDING + "'))"
    answer = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.split() == locked(BINDING).split()[:1]


def locked(package: str) -> str:
    """The lines of ``package`` in the lock, hashes included."""
    with open(LOCK, encoding="utf-8") as file:
        lines = file.read().splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(package + "=="))
    end = start + 1
    while end < len(lines) and lines[end].startswith("    --hash"):
        end += 1
    return "\n".join(lines[start:end]).rstrip("\\ ") + "\n"


def same_version() -> bool:
    """Tell whether the environment was made by this version of Python."""
    code = "import sys; print(sys.version.split()[0])"
    answer = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)  # noqa: S603
    return answer.stdout.strip() == sys.version.split()[0]


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a step; its failure ends the set-up with its exit code."""
    done = subprocess.run(command, env=environment, check=False)  # noqa: S603
    if done.returncode:
        refuse(
            "This step failed: " + " ".join(command), "See above; then run make setup again, it continues from here."
        )
        sys.exit(1)


def say(text: str) -> None:
    """One line of progress."""
    sys.stdout.write("setup: " + text + "\n")
    sys.stdout.flush()


def refuse(what: str, advice: str) -> int:
    """Say what is wrong and what to do; returns the exit code."""
    sys.stderr.write("setup: " + what + "\nsetup: " + advice + "\n")
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.stderr.write("setup: interrupted; run it again, it continues from here\n")
        sys.exit(130)
