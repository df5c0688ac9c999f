"""Storage of container tools: a folder of ours, never the system's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

VARIABLE = "CONTAINERS_STORAGE_CONF"
"""The variable with which podman and buildah find the configuration."""


def write_storage(folder: Path) -> Path:
    """Write the configuration of a container storage below ``folder``.

    Layers are overlays where the kernel mounts them, which needs root, and plain copies otherwise.

    Returns:
        The configuration's path, for ``CONTAINERS_STORAGE_CONF``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "storage.conf"
    if path.is_file():
        return path
    # What an earlier storage in the same place left.
    shutil.rmtree(_run_root(folder), ignore_errors=True)
    driver = "overlay" if _overlays(folder) else "vfs"
    part = folder / f"storage.conf.{os.getpid()}.part"
    part.write_text(
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{folder / "graph"}"\nrunroot = "{_run_root(folder)}"\n'
        # Without this, the folder would be mounted on itself and could not be removed.
        '\n[storage.options.overlay]\nskip_mount_home = "true"\n',
        encoding="utf-8",
    )
    part.replace(path)
    return path


def own_storage() -> Path:
    """The configuration of the storage in the user's cache, for builds outside a local cloud."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return write_storage(cache / "steelyard" / "containers")


def _run_root(folder: Path) -> Path:
    """Return the folder for what is lost with a restart.

    Short: with a path of more than 50 characters podman does not clean up after a container, and takes 20 seconds to
    see that it has ended.
    """
    if os.geteuid() != 0:
        return folder / "run"
    return Path("/run/steelyard") / hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def _overlays(folder: Path) -> bool:
    """Return whether a layer can be mounted over another in this folder."""
    with tempfile.TemporaryDirectory(dir=folder) as trial:
        parts = {name: Path(trial) / name for name in ("lower", "upper", "work", "merged")}
        for part in parts.values():
            part.mkdir()
        options = f"lowerdir={parts['lower']},upperdir={parts['upper']},workdir={parts['work']}"
        words = ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["merged"])]
        try:
            mounted = subprocess.run(words, capture_output=True, check=False).returncode == 0  # noqa: S603
        except FileNotFoundError:
            return False
        if mounted:
            subprocess.run(["umount", str(parts["merged"])], capture_output=True, check=True)  # noqa: S603, S607
    return mounted
