"""From a model's container with a real image to the command that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.options import Options
from steelyard_localcloud.sagemaker import podman
from steelyard_localcloud.sagemaker.launch import Launch, variables


def plan(
    image: str,
    given: Mapping[str, str],
    *,
    name: str,
    folder: Path,
    model_folder: Path | None,
    isolated: bool,
    cloud: CloudDetails,
    options: Options,
) -> Launch:
    """Plan the start of a container.

    Args:
        image: The image's URI by digest, pulled.
        given: The container's variables, as the model names them.
        name: Name for the container, which no other one has.
        folder: The fleet's folder.
        model_folder: Where the model's files lie; None without model data.
        isolated: Whether the model's containers have no network.
        cloud: The local cloud.
        options: Its settings.

    Raises:
        ServiceError: This machine cannot run it.
    """
    podman.require()
    notes = [f"the container {name} of {image} starts, {'isolated' if isolated else 'with a way outside'}"]
    if not isolated:
        podman.require_outside()
    pid_file = folder / "container.pid"
    pid_file.unlink(missing_ok=True)
    command = podman.run(
        image,
        name=name,
        variables=variables(dict(given), options, notes),
        model_folder=model_folder,
        isolated=isolated,
        pid_file=pid_file,
    )
    return Launch(
        command,
        podman.environment(cloud),
        "/ping",
        "/invocations",
        notes,
        pid_file=pid_file,
        afterwards=podman.remove(name),
    )
