"""What the tests of real images need of the machine. Without it they are left out, and the summary says so.

``STEELYARD_TEST_CONTAINERS=required`` makes a failure of that; the continuous integration sets it.
"""

from __future__ import annotations

import os
import shutil

VARIABLE = "STEELYARD_TEST_CONTAINERS"
REQUIRED = os.environ.get(VARIABLE) == "required"  # read before the tests clear the environment
PACKAGES = {
    "buildah": "buildah",
    "cmake": "cmake",
    "mmdebstrap": "mmdebstrap",
    "podman": "podman",
    "runc": "runc",
    "slirp4netns": "slirp4netns",
}


def why_not() -> str:
    """Why the tests of real images cannot run here, and what to do; "" when they can."""
    packages = sorted(package for command, package in PACKAGES.items() if shutil.which(command) is None)
    if packages:
        return f"they need what is not installed here: apt-get install {' '.join(packages)}"
    return "" if os.geteuid() == 0 else "they need root, which builds and runs containers here"
