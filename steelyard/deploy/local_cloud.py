"""The local cloud of this checkout: where it lives, and how a command reaches it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steelyard.cdk.nodejs import ROOT
from steelyard_base.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from steelyard_localcloud.details import CloudDetails

HOME = ROOT / ".run" / "cloud"
"""Everything that it writes, and nothing else is in there: logs, certificates, models of endpoints."""

SHARING = {"OMP_WAIT_POLICY": "passive"}
"""For the endpoints' processes, which share this machine's cores: threads that wait sleep instead of spinning."""


def package() -> Any:
    """Return the module that starts and stops local clouds.

    Raises:
        CommandError: It, or what it needs, is not installed.
    """
    try:
        import steelyard_localcloud.cloud
    except ImportError as error:
        raise CommandError(
            f"the local cloud is not installed in this Python environment: {error}",
            code=ExitCode.USAGE,
            hint="Run make setup, or install the extra: pip install 'steelyard[local]'.",
        ) from error
    return steelyard_localcloud.cloud


def running(home: Path) -> CloudDetails | None:
    """The local cloud that runs in ``home``; None when none does."""
    found: CloudDetails | None = package().running_cloud(home)
    return found


def require(home: Path) -> CloudDetails:
    """The local cloud that runs in ``home``.

    Raises:
        CommandError: None does.
    """
    if (details := running(home)) is None:
        raise CommandError(
            f"no local cloud runs in {home}",
            code=ExitCode.UNREACHABLE,
            hint="Start one with everything in it: make run. An empty one: steelyard cloud start",
        )
    return details


def start(home: Path, *, port: int = 0) -> CloudDetails:
    """Start a local cloud that outlives this process.

    Args:
        home: Its folder.
        port: Its port on 127.0.0.1; 0 picks a free one.

    Raises:
        CommandError: It does not start; the message has the end of its log.
    """
    try:
        details: CloudDetails = package().LocalCloud(home, port, environment=SHARING).start(detached=True)
    except RuntimeError as error:
        raise CommandError(str(error)) from error
    return details


def stop(home: Path) -> bool:
    """Stop the local cloud in ``home`` with all that runs in it, and remove the folder; whether one ran."""
    ran: bool = package().stop_cloud(home)
    shutil.rmtree(home, ignore_errors=True)
    return ran


@contextmanager
def reached(variables: Mapping[str, str]) -> Iterator[None]:
    """Send boto3 and child processes to where ``variables`` say, for the length of the block.

    Args:
        variables: What ``CloudDetails.environment`` gives; empty for AWS itself.
    """
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
