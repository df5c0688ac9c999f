"""Where the models and images of a release come from: this machine for the local cloud, CodeBuild for AWS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from switchyard import console, local_cloud
from switchyard.aws import Aws, told
from switchyard.environment import Environment
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


@dataclass(frozen=True)
class FromCodeBuild:
    """For AWS: CodeBuild makes models and images. Nothing is built from here; what is missing is said.

    Attributes:
        environment: The environment.
    """

    environment: Environment

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:  # noqa: ARG002 - nothing is sent
        """Refuse, and name the project that publishes models.

        Raises:
            CommandError: Always.
        """
        raise self._missing(f"the model {model.name} is not at s3://{bucket}/{model.key}", "ModelProject")

    def provide_image(self, digest: str, *, repository: str) -> None:
        """Refuse, and name the project that builds images.

        Raises:
            CommandError: Always.
        """
        raise self._missing(f"the image {repository}@{digest} is not in the registry", "ImageProject")

    def _missing(self, what: str, output: str) -> CommandError:
        stack = self.environment.stack_name("Build")
        return CommandError(
            what,
            hint=f"Start the CodeBuild project that makes it (the outputs {output}* of the stack {stack} name the "
            "projects), put what it exports into a release, and run this again.",
        )
