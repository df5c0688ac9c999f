"""Write the lock files.

Called by ``make lock``: of everything, of what ``make run`` imports, of what the images carry, of the clients. The
second and the third are subsets of the first, version by version. The third has no llama-cpp-python: an image has the
libllama of its base.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = "uv==0.13.9"
RUN_EXTRAS = ("runtime", "models", "infra", "local")
"""The extras that ``make run`` imports."""
NOT_IN_IMAGES = "llama-cpp-python"
COMPILE = [
    *("-m", "uv", "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"),
    *("--no-emit-index-url", "--no-emit-find-links", "--custom-compile-command", "make lock"),
]


def main() -> None:
    """Resolve them, from what is on the package index today."""
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", UV], check=True)  # noqa: S603
    everything = ROOT / "requirements.txt"
    _compile("--upgrade", "--all-extras", "pyproject.toml", "--output-file", everything.name)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"]
    _compile(
        *("--constraint", everything.name, *(f"--extra={extra}" for extra in RUN_EXTRAS), "pyproject.toml", "-"),
        *("--output-file", "requirements-run.txt"),
        text="\n".join(project["build-system"]["requires"]),
    )
    # From standard input, because an extra of pyproject.toml would bring the command line's packages along.
    _compile(
        *("--constraint", everything.name, "-"),
        *("--output-file", "runtime/requirements.txt"),
        text="\n".join(each for each in extras["runtime"] if not each.startswith(NOT_IN_IMAGES)),
    )
    for wanted in sorted((ROOT / "tests" / "clients" / "environments").glob("*.in")):
        chosen, lock = wanted.relative_to(ROOT), wanted.with_suffix(".txt").relative_to(ROOT)
        _compile("--upgrade", str(chosen), "--output-file", str(lock))


def _compile(*arguments: str, text: str | None = None) -> None:
    subprocess.run([sys.executable, *COMPILE, *arguments], check=True, cwd=ROOT, input=text, text=True)  # noqa: S603


if __name__ == "__main__":
    main()
