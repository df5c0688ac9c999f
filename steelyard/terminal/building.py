"""A release in the making, with the logs of its builds."""

from __future__ import annotations

from pathlib import Path

from steelyard.aws.session import Aws
from steelyard.releases.assemble import Order, build_release
from steelyard.releases.manifest import FOLDER, Release
from steelyard.terminal import console
from steelyard.terminal.build_log import build_log


def build_with_log(aws: Aws, order: Order, *, here: bool, to: Path = FOLDER) -> tuple[Release, Path]:
    """Build a release and show the builds while they run.

    Raises:
        CommandError: The projects have other source than the checkout, a build failed, or what it made is not there.
    """
    where = "on this machine" if here else "in CodeBuild"
    parts = [*sorted(set(order.plan.models.values())), *(f"the image for {each.value}" for each in order.plan.images)]
    console.step(f"{', '.join(parts)}: built {where}, from commit {order.checkout.source.commit[:12]}")
    with build_log() as log:
        return build_release(aws, order, log, here=here, folder=to, say=console.note)
