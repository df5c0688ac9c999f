"""The projects that fetch models and build images, and the registry of the environment's images."""

from __future__ import annotations

from pathlib import Path

import aws_cdk as cdk
from aws_cdk import aws_kms as kms
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_s3_assets as s3_assets

from stacks.environment_stack import EnvironmentStack
from steelyard.environments.schema import Environment
from steelyard.releases.bases import Bases, base_for
from steelyard.releases.plan import image_project, model_project
from steelyard.releases.source import ASSET_EXCLUDE
from steelyard_constructs.build_project import BuildProps
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.image_build import ImageBuild
from steelyard_constructs.image_repository import ImageRepository
from steelyard_constructs.model_build import ModelBuild

ROOT = Path(__file__).resolve().parent.parent
BUILDSPECS = ROOT / "images"


class BuildStack(EnvironmentStack):
    """CodeBuild projects, started by people or by the command line; the registry, where images are built here.

    Args:
        environment: The environment.
        bases: The published containers that our images are built on.
        artifacts: Where models are published to.
        encryption_key: The environment's key.

    Attributes:
        repository: The registry of our image; None where another account's is used.
    """

    def __init__(
        self,
        scope: cdk.App,
        environment: Environment,
        *,
        bases: Bases,
        artifacts: s3.IBucket,
        encryption_key: kms.IKey | None,
    ) -> None:
        super().__init__(scope, "Build", environment=environment, description="models and images")
        self.repository = self._repository(encryption_key)
        if not (environment.builds.models or environment.builds.images):
            return
        self._encryption_key = encryption_key
        self._source = s3_assets.Asset(
            self,
            "Source",
            path=str(ROOT),
            ignore_mode=cdk.IgnoreMode.GIT,
            exclude=list(ASSET_EXCLUDE),
        )
        for model in environment.builds.models:
            build = ModelBuild(
                self,
                f"Model-{model}",
                artifacts=artifacts,
                model=model,
                props=self._props("model.buildspec.yml"),
            )
            self.output(model_project(model), build.project_name, f"Project that fetches {model}")
        if self.repository is not None:
            for hardware in environment.builds.images:
                published = base_for(bases, hardware)
                base = published.published(account=environment.images.chat_account)
                image = ImageBuild(
                    self,
                    f"Image-{hardware.value}",
                    repository=self.repository.repository,
                    artifacts=artifacts,
                    base=base,
                    llama_cpp=published.llama_cpp,
                    dockerfile=f"images/{'cuda' if hardware is Hardware.CUDA else 'cpu'}.Dockerfile",
                    props=self._props("image.buildspec.yml"),
                )
                self.output(image_project(hardware), image.project_name, f"Project that builds for {hardware.value}")

    def _props(self, buildspec: str) -> BuildProps:
        return BuildProps(
            source=self._source,
            buildspec=BUILDSPECS / buildspec,
            encryption_key=self._encryption_key,
            log_retention=self.log_retention,
            removal_policy=self.removal_policy,
        )

    def _repository(self, encryption_key: kms.IKey | None) -> ImageRepository | None:
        images = self.settings.images
        if images.account is not None:
            return None
        made = ImageRepository(
            self,
            "Repository",
            removal_policy=self.removal_policy,
            repository_name=self.settings.repository_name,
            pull_accounts=images.pull_accounts,
            keep_images=images.keep_images,
            encryption_key=encryption_key,
        )
        self.output("RepositoryUri", made.repository.repository_uri, "Registry of our images")
        return made
