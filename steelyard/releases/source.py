"""The code that a release is built from."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from steelyard.releases.manifest import ReleaseSource
from steelyard_base.exit_codes import CommandError, ExitCode

ROOT = Path(__file__).resolve().parents[2]

ROOMS = ("__init__.py", "aws", "build_programs", "data", "models")
"""Of ``steelyard/``: what the programs of the builds import, and no command of the command line."""

INPUTS = (
    *("pyproject.toml", "requirements.txt", "README.md", "LICENSE", "NOTICE"),
    *("base", "examples", "images", "models", "runtime"),
    *(f"steelyard/{room}" for room in ROOMS),
)
"""The files that the builds need. Everything else would make a new source, and so new builds, for nothing."""

ASSET_EXCLUDE = (
    "/*",
    *(f"!/{name}" for name in (*INPUTS, "steelyard") if name.count("/") == 0),
    "/steelyard/*",
    *(f"!/steelyard/{room}" for room in ROOMS),
    *("__pycache__", "*.egg-info"),
)
"""Patterns of files that the CDK leaves out of the archive that builds start from, as git writes them."""


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """A checkout that is to be built.

    Attributes:
        source: The commit.
        asset: What the CDK calls the archive of it.
    """

    source: ReleaseSource
    asset: str


def read_checkout(root: Path = ROOT, *, allow_dirty: bool = False) -> Checkout:
    """Read the checkout before anything of it is deployed.

    Args:
        root: The checkout.
        allow_dirty: Take changes that no commit has.

    Raises:
        CommandError: As in :func:`read_source` and :func:`check_committed`, or the files change under our hands.
    """
    source = read_source(root)
    if not allow_dirty:
        check_committed(source, root)
    asset = asset_hash(root)
    if (now := read_source(root)) != source:
        raise CommandError(
            f"what the builds are made of has changed while it was read: it was {_named(source)}, and is {_named(now)}",
            hint="Wait until this checkout is no longer being changed, then run this again.",
        )
    return Checkout(source=source, asset=asset)


def asset_hash(root: Path = ROOT) -> str:
    """Return the CDK's name of the archive of the builds' source, as it lies here: a hash of all files in it."""
    from steelyard.cdk.nodejs import use_packaged_node

    use_packaged_node()
    import aws_cdk as cdk

    return cdk.FileSystem.fingerprint(str(root), exclude=list(ASSET_EXCLUDE), ignore_mode=cdk.IgnoreMode.GIT)


def _named(source: ReleaseSource) -> str:
    return f"commit {source.commit[:12]}{' with changes' if source.dirty else ''}"


def read_source(root: Path = ROOT) -> ReleaseSource:
    """The last commit that changed what the builds are made of, and whether anything there is not committed.

    Not the newest commit: a release that is itself committed would otherwise be out of date at once.

    Raises:
        CommandError: This is not a clone, git is not there, or nothing is committed yet.
    """
    commit = _git(root, "log", "-1", "--format=%H", "--", *INPUTS).strip()
    if not commit:
        raise CommandError(
            f"no commit in {root} has what the builds are made of ({', '.join(INPUTS)})",
            code=ExitCode.USAGE,
            hint="A release names the commit that it was built from: commit first.",
        )
    return ReleaseSource(commit=commit, dirty=bool(changes(root)))


def changes(root: Path = ROOT) -> list[str]:
    """Files of the builds that differ from the last commit, or that git does not know; in alphabetical order."""
    lines = _git(root, "status", "--porcelain", "--untracked-files=all", "--", *INPUTS).splitlines()
    return sorted(line[3:] for line in lines)


def input_files(root: Path = ROOT) -> list[str]:
    """Return the files of the builds' source that git knows or would take, relative to ``root``."""
    listed = _git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *INPUTS)
    return sorted({name for name in listed.split("\0") if name and (root / name).exists()})


def check_committed(source: ReleaseSource, root: Path = ROOT) -> None:
    """Refuse a source with changes that no commit has.

    Raises:
        CommandError: It has some; the message names them.
    """
    if source.dirty:
        files = "\n".join(f"- {name}" for name in changes(root))
        raise CommandError(
            f"what the builds are made of has changes that no commit has:\n{files}",
            code=ExitCode.USAGE,
            hint="A release that others can trace names a commit. Commit these files, or say --allow-dirty: the "
            "release then says so.",
        )


def _git(root: Path, *words: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603 - fixed words
            ["git", "-C", str(root), *words],  # noqa: S607 - the git of this machine
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError as error:
        raise CommandError("git is not installed, and a release names the commit that it is built from") from error
    if done.returncode:
        raise CommandError(
            f"git cannot say from which commit this is built: {done.stderr.strip()}",
            code=ExitCode.USAGE,
            hint="Run this in a clone of the repository.",
        )
    return done.stdout
