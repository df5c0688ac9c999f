"""The choices that the CDK's command line passes to the app as context, such as ``-c environment=prod``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from steelyard.environments.files import DEFAULT
from steelyard.releases.bases import FILE
from steelyard.releases.manifest import SAMPLE
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_runtime.settings import instead_of, shown

ALIASES = {"env": "environment"}
KEYS = ("environment", "release", "bases", "pipeline")
PAGE = "docs/how-to/deploy.md"

CDK_PREFIXES = (
    "@aws-cdk",
    "acknowledged-issue-numbers",
    "ami:",
    "availability-zones:",
    "aws:",
    "aws-cdk:",
    "cc-api-provider:",
    "cli-",
    "endpoint-service-availability-zones:",
    "hosted-zone:",
    "key-provider:",
    "load-balancer:",
    "load-balancer-listener:",
    "plugin:",
    "security-group:",
    "ssm:",
    "vpc-provider:",
)
"""The prefixes of keys that the CDK sets itself: feature flags, metadata, and what it has looked up in an account."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """The environment, release and bases to synthesize; or a pipeline instead of them.

    Attributes:
        environment: Name of an environment, or ``all``.
        release: A release's id, the first digits of one, or a path.
        bases: File of the containers that images are built on.
        pipeline: File of a pipeline; None for an environment.
    """

    environment: str
    release: str
    bases: Path
    pipeline: Path | None = None


def choices(context: Mapping[str, Any]) -> Choices:
    """Read the choices in the context of an app.

    Args:
        context: All of it, with the CDK's own keys.

    Raises:
        CommandError: A key is unknown, two keys disagree, or a value is empty or no text: it would otherwise be the
            default that is deployed.
    """
    given: dict[str, str] = {}
    for key, value in context.items():
        if key.startswith(CDK_PREFIXES):
            continue
        name = ALIASES.get(key, key)
        if name not in KEYS:
            raise CommandError(
                f"the context key {shown(key)} is unknown: "
                f"{instead_of(key.lower(), (*KEYS, *ALIASES), 'remove it', page=PAGE)}",
                code=ExitCode.USAGE,
                hint="It was given with -c, or stands under context in cdk.json or ~/.cdk.json.",
            )
        if not isinstance(value, str) or not value:
            raise CommandError(
                f"the context key {key!r} is {shown(value)}; it must be a text", code=ExitCode.USAGE, hint=_hint(name)
            )
        if given.setdefault(name, value) != value:
            others = " and ".join(repr(each) for each in (name, *(k for k, v in ALIASES.items() if v == name)))
            raise CommandError(
                f"the context keys {others} disagree: {shown(given[name])} and {shown(value)}",
                code=ExitCode.USAGE,
                hint="They mean the same; give one.",
            )
    if "pipeline" in given and len(given) > 1:
        raise CommandError(
            f"the context key 'pipeline' is given with {', '.join(sorted(set(given) - {'pipeline'}))}",
            code=ExitCode.USAGE,
            hint="A pipeline is deployed by itself: its file names its environments, and it builds its release.",
        )
    return Choices(
        environment=given.get("environment", DEFAULT),
        release=given.get("release", SAMPLE),
        bases=Path(given.get("bases", FILE)),
        pipeline=Path(given["pipeline"]) if "pipeline" in given else None,
    )


def _hint(name: str) -> str:
    examples = {
        "environment": "prod",
        "release": "0123456789abcdef",
        "bases": "bases.toml",
        "pipeline": "pipeline.toml",
    }
    return f"Write it as: -c {name}={examples[name]}"
