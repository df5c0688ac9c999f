"""The source of a build: an archive in S3, read with the rights of the project's role."""

from __future__ import annotations

import stat
import zipfile
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.role_client import role_client
from steelyard_localcloud.service_role import Credentials


def bring(source: dict[str, Any], folder: Path, *, cloud: CloudDetails, region: str, credentials: Credentials) -> None:
    """Unpack a project's source into a new folder.

    Raises:
        ServiceError: The role may not read it, it is not there, or it is no archive.
    """
    folder.mkdir()
    if source.get("type") == "NO_SOURCE":
        return
    location = str(source.get("location", ""))
    bucket, _, key = location.removeprefix("arn:aws:s3:::").partition("/")
    archive = folder.with_suffix(".zip")
    s3 = role_client(cloud, "s3", credentials, region=region)
    try:
        s3.download_file(bucket, key, str(archive))
        _unpack(archive, folder)
    except (BotoCoreError, ClientError) as error:
        raise ServiceError(f"The source {location} could not be downloaded: {error}") from error
    except zipfile.BadZipFile as error:
        raise ServiceError(f"The source {location} is not a ZIP archive: {error}") from error
    finally:
        archive.unlink(missing_ok=True)


def _unpack(archive: Path, folder: Path) -> None:
    """Unpack with the files' permissions, which ``zipfile`` alone forgets."""
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            mode = member.external_attr >> 16
            if mode and not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or not stat.S_IFMT(mode)):
                raise ServiceError(f"The source holds {member.filename}, which is neither a file nor a folder.")
            path = Path(opened.extract(member, folder))
            if stat.S_IMODE(mode):
                path.chmod(stat.S_IMODE(mode) | stat.S_IRUSR | stat.S_IWUSR)
