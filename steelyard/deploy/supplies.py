"""Sources of the models and images that an environment lacks: this machine, or CodeBuild."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from steelyard.aws.cloudformation import find_stack
from steelyard.aws.session import Aws, aws_errors
from steelyard.deploy import local_cloud
from steelyard.environments.schema import Environment
from steelyard.models.catalogue import find
from steelyard.models.pull import Progress, pull
from steelyard.releases.codebuild import WantedBuild, Watcher, run_builds
from steelyard.releases.manifest import ReleasedModel
from steelyard.releases.plan import model_project
from steelyard_base.exit_codes import CommandError, ExitCode

if TYPE_CHECKING:
    from steelyard_localcloud.details import CloudDetails


@dataclass(frozen=True)
class FromThisMachine:
    """For a sample release in a local cloud: models are fetched here and uploaded; an image is a name for a process.

    Attributes:
        cloud: The local cloud.
        progress: Makes a view of the fetch of the model that it is given.
    """

    cloud: CloudDetails
    progress: Callable[[str], AbstractContextManager[Progress]]

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:
        """Fetch the model of the catalogue, verify it, and upload it.

        Raises:
            CommandError: It cannot be fetched, or the catalogue has another model under the release's name.
        """
        from steelyard.models.publisher import publish

        entry = find(model.name)
        with self.progress(entry.name) as bar:
            pull(entry, bar)
        with aws_errors():
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
    """For every other release: each environment fetches its models itself, and images stay where they were built.

    Attributes:
        environment: The environment.
        watch: Makes a view of running builds.
    """

    environment: Environment
    watch: Callable[[], AbstractContextManager[Watcher]]

    def provide_model(self, aws: Aws, model: ReleasedModel, *, bucket: str) -> None:  # noqa: ARG002 - the project's
        """Have the environment's project publish the model; what it publishes is compared with the release afterwards.

        Raises:
            CommandError: The build failed, or the environment has no project for the model.
        """
        output = model_project(model.name)
        stack = find_stack(aws, self.environment.stack_name("Build"))
        if stack is None or output not in stack.outputs:
            raise CommandError(
                f"the model {model.name} is not in the environment {self.environment.name!r}, which does not build it",
                code=ExitCode.MODEL,
                hint=f"Add it to models of [builds] in environments/{self.environment.name}.toml.",
            )
        label = f"model {model.name}"
        with self.watch() as log:
            run_builds(aws, [WantedBuild(label=label, project=stack.outputs[output])], log, again=frozenset({label}))

    def provide_image(self, digest: str, *, repository: str) -> None:
        """Nothing: an image that was built again would have another digest. The check that follows refuses."""
