"""A release of the same images and models with the decisions of now: nothing is built."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from steelyard.aws.session import Aws
from steelyard.environments.schema import Environment
from steelyard.releases.assemble import put_in_place
from steelyard.releases.manifest import FOLDER, Release, parse_release, sealed, write_release
from steelyard.releases.packing import check_heads, for_builds, pack
from steelyard.releases.served import serving_builds


def decide_again(
    aws: Aws,
    environment: Environment,
    release: Release,
    names: Sequence[str],
    *,
    bucket: str,
    note: str | None = None,
    folder: Path = FOLDER,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[Release, Path]:
    """Write a release that differs from another one in its decisions alone, and put these beside the models.

    Args:
        aws: Where the release's images and models are.
        environment: The environment whose endpoints serve it first.
        release: The other release.
        names: Its decisions, each as ``NAME@VERSION``; none means those of the other release. Those that endpoints name
            are in it anyway.
        bucket: The environment's bucket of artifacts.
        note: What a person should know about it.
        folder: Where the manifest goes.
        say: Receives each step.

    Returns:
        The release, and its file.

    Raises:
        CommandError: A decision is not in ``decisions/``, or has no head for a build of llama.cpp or a model of the
            release; or a part of the release is not there. Nothing is written then.
    """
    wanted = {*(names or (each.name for each in release.decision_contracts))}
    packed = pack(wanted.union(*(each.decisions or () for each in environment.endpoints.values())))
    builds = serving_builds(release)
    check_heads(packed, builds=builds, models={each.name: each.weights_sha256 for each in release.models.values()})
    decisions = for_builds(packed, set(builds.values()))
    content = release.model_dump(mode="json", exclude_unset=True, exclude={"id", "note"})
    data = sealed(
        {
            **content,
            "note": note,
            "decision_contracts": [each.released.model_dump(mode="json") for each in decisions],
        }
    )
    decided = parse_release(data, source="that was decided again")
    put_in_place(aws, environment, decided, decisions, bucket=bucket, say=say)
    return write_release(data, folder=folder)
