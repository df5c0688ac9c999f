"""Configuration of container tools: one file that maps the registries of AWS to this machine."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.registry.names import host_of


def write_registries(path: Path, *, address: str, accounts: Iterable[str], region: str) -> None:
    """Write the file for ``CONTAINERS_REGISTRIES_CONF``.

    Args:
        path: The file.
        address: ``HOST:PORT`` of the registry.
        accounts: The accounts whose registries are mapped to it.
        region: The region of those registries.
    """
    parts = ["unqualified-search-registries = []", _entry(address, address)]
    parts += [_entry(host, f"{address}/{host}") for host in (host_of(account, region) for account in accounts)]
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def empty_storage(cloud: CloudDetails) -> None:
    """Remove all containers of a cloud's storage: the folder of one that is mounted cannot be removed."""
    if not (cloud.containers / "graph").is_dir():
        return
    environment = {**os.environ, **cloud.environment()}
    for words in (["podman", "rm", "--all", "--force", "--time", "0"], ["buildah", "rm", "--all"]):
        with contextlib.suppress(FileNotFoundError):
            subprocess.run(words, env=environment, capture_output=True, check=False)  # noqa: S603


def _entry(prefix: str, location: str) -> str:
    # Insecure: plain HTTP, which never leaves this machine.
    return f'[[registry]]\nprefix = "{prefix}"\nlocation = "{location}"\ninsecure = true'
