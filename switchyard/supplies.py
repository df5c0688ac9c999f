"""Where the local cloud gets the models and images of a sample release: from this machine, without any build."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchyard import console, local_cloud
from switchyard.aws import Aws, told
from switchyard.exit_codes import CommandError, ExitCode
from switchyard.models.catalogue import find
from switchyard.models.pull import pull
from switchyard.releases.manifest import ReleasedModel

if TYPE_CHECKING:
    from switchyard_localcloud import CloudDetails


@dataclass(frozen=True)
class FromThisMachine:
    """For a local cloud: models are fetched here and uploaded; an image is a name for our server's process.

    Attributes:
        cloud: The local cloud.
    """

    cloud: CloudDetails

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:
        """Fetch the model of the catalogue, verify it, and upload it.

        Raises:
            CommandError: It cannot be fetched, or the catalogue has another model under the release's name.
        """
        from switchyard.models.publisher import publish

        entry = find(model.name)
        with console.pull_bar(entry.name) as bar:
            pull(entry, bar)
        with told():
            key, _ = publish(entry.name, bucket=bucket, s3=aws.client("s3"))
        if key != model.key:
            raise CommandError(
                f"the catalogue's {entry.name} is not the release's: it lies at {key}, and the release has {model.key}",
                code=ExitCode.MODEL,
                hint="Name a release that was made from this catalogue: --release",
            )

    def provide_image(self, digest: str, *, repository: str) -> None:
        """Register the digest; the local cloud runs our server of this checkout behind it."""
        local_cloud.package().register_image(self.cloud, repository, digest)
