"""Names that a shell completes: models, environments, endpoints, releases, decisions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import typer

from steelyard.environments.files import DEFAULT, environment_names, load_environment
from steelyard.models.catalogue import catalogue
from steelyard.releases.manifest import release_names
from steelyard_base.exit_codes import CommandError


def models(incomplete: str) -> list[str]:
    """Names of the catalogue."""
    return _beginning(incomplete, catalogue)


def environments(incomplete: str) -> list[str]:
    """Names of the files in ``environments/``."""
    return _beginning(incomplete, environment_names)


def releases(incomplete: str) -> list[str]:
    """Ids of the releases in ``releases/``."""
    return _beginning(incomplete, release_names)


def endpoints(ctx: typer.Context, incomplete: str) -> list[str]:
    """Names of the endpoints of the environment on the command line."""
    chosen = ctx.params.get("env") or DEFAULT
    return _beginning(incomplete, lambda: load_environment(chosen).endpoints)


def decision_names(incomplete: str) -> list[str]:
    """Names of the folders in ``decisions/``."""
    from steelyard.decisions.folder import names_within  # needs numpy, which not every installation has

    return _beginning(incomplete, names_within)


def _beginning(incomplete: str, names: Callable[[], Iterable[str]]) -> list[str]:
    """The names that begin with ``incomplete``; none where a file cannot be read: this is no place for a message."""
    try:
        return [name for name in names() if name.startswith(incomplete)]
    except (CommandError, OSError):
        return []
