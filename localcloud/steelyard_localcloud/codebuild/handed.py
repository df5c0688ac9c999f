"""Artifacts that a pipeline hands to a build, and takes from it."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from steelyard_localcloud.codebuild.source import bring
from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.role_client import role_client
from steelyard_localcloud.service_role import Credentials

Place = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class Handed:
    """Artifacts in the pipeline's bucket, read and written with the rights of the project's role.

    Attributes:
        inputs: Bucket and key of each input, by its name.
        primary: The input that commands start in; ``CODEBUILD_SRC_DIR_NAME`` names the folder of each other one.
        output: Bucket and key of what the build leaves; None where nothing is taken.
    """

    inputs: Mapping[str, Place]
    primary: str
    output: Place | None

    def variables(self, folder: Path) -> dict[str, str]:
        """Return the variables that name the folders of the inputs beside the primary one."""
        return {f"CODEBUILD_SRC_DIR_{name}": str(folder / name) for name in self.inputs if name != self.primary}

    def bring(self, folder: Path, *, cloud: CloudDetails, region: str, credentials: Credentials) -> None:
        """Unpack the inputs: the primary one into ``folder/source``, each other into a folder of its name.

        Raises:
            ServiceError: The role may not read one, or it is not there.
        """
        for name, (bucket, key) in self.inputs.items():
            into = folder / ("source" if name == self.primary else name)
            bring(
                {"type": "S3", "location": f"{bucket}/{key}"}, into, cloud=cloud, region=region, credentials=credentials
            )

    def take(self, artifacts: Any, source: Path, *, cloud: CloudDetails, region: str, credentials: Credentials) -> None:
        """Put what the build left into the bucket.

        Args:
            artifacts: The ``artifacts`` of the build specification; None where it has none.
            source: The folder that its commands started in.
            cloud: The local cloud.
            region: The project's region.
            credentials: Those of its role.

        Raises:
            ServiceError: Nothing matches, or the role may not write.
        """
        if self.output is None:
            return
        if artifacts is None:
            raise ServiceError("The build has an output artifact, and its build specification has no artifacts")
        base = source / artifacts.base_directory
        found = sorted({each for pattern in artifacts.files for each in base.glob(pattern) if each.is_file()})
        if not found:
            raise ServiceError(f"no matching artifact paths found: {', '.join(artifacts.files)} in {base.name}")
        archive = source.with_name("artifacts.zip")
        with zipfile.ZipFile(archive, "w") as opened:
            for path in found:
                opened.write(path, str(path.relative_to(base)))
        bucket, key = self.output
        try:
            role_client(cloud, "s3", credentials, region=region).upload_file(str(archive), bucket, key)
        except (BotoCoreError, ClientError) as error:
            raise ServiceError(f"The artifacts could not be put into s3://{bucket}/{key}: {error}") from error
