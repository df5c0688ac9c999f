"""The CDK's command line as the project runs it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from steelyard.cdk.program import Cdk

MAKES_ONE = "from steelyard.cdk.program import Cdk; print(Cdk(environment='dev', release='sample').assembly)"


def test_two_commands_of_one_checkout_do_not_share_their_templates() -> None:
    # They did: one removed the folder that another was deploying from.
    one, other = (Cdk(environment="dev", release="sample").assembly for _ in range(2))
    assert one != other
    assert one.is_dir()
    assert other.is_dir()


def test_the_templates_go_with_the_command() -> None:
    done = subprocess.run([sys.executable, "-c", MAKES_ONE], capture_output=True, text=True, check=True)
    assert done.stdout.strip()
    assert not Path(done.stdout.strip()).exists()
