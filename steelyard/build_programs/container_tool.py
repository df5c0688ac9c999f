"""The ``docker`` command: what builds, runs and pushes images."""

from __future__ import annotations

import json
import subprocess

from steelyard_base.exit_codes import CommandError, ExitCode

SINGLE = "application/vnd.docker.distribution.manifest.v2+json"
"""Media types of a single image. SageMaker takes no index."""


def docker(*words: str, stdin: str | None = None, check: bool = True, quiet: bool = False) -> None:
    """Run ``docker``; what it says goes where our own output goes.

    Raises:
        CommandError: It failed, or there is none.
    """
    silent = subprocess.DEVNULL if quiet else None
    try:
        done = subprocess.run(  # noqa: S603
            ["docker", *words],  # noqa: S607
            input=stdin,
            text=True,
            stdout=silent,
            check=False,
        )
    except FileNotFoundError:
        raise CommandError("docker is not installed, or not on PATH", code=ExitCode.USAGE) from None
    if check and done.returncode:
        raise CommandError(f"docker {words[0]} failed with {done.returncode}; see above")


def output(*words: str) -> str:
    """Run a ``docker`` command and return its output."""
    done = subprocess.run(["docker", *words], capture_output=True, text=True, check=False)  # noqa: S603, S607
    if done.returncode:
        raise CommandError(f"docker {words[0]} failed: {done.stderr.strip()}")
    return done.stdout


def has_locally(reference: str) -> bool:
    """Return whether ``docker`` has an image here."""
    words = ["docker", "image", "inspect", reference]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603


def first_local(*references: str) -> str:
    """The first of the references that is here, else the last."""
    return next((each for each in references if has_locally(each)), references[-1])


def kept_type(tag: str) -> str:
    """The media type under which ``docker`` keeps an image here: Docker's own, unless its store is containerd's."""
    (found,) = json.loads(output("image", "inspect", tag))
    return str((found.get("Descriptor") or {}).get("mediaType") or SINGLE)
