"""The environment's bucket of model artifacts, and the key that encrypts what it stores."""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_kms as kms

from stacks.environment_stack import EnvironmentStack
from steelyard.environments.schema import CreatedKey, Environment, ExistingKey
from steelyard_constructs.artifact_store import ArtifactStore
from steelyard_constructs.environment_key import EnvironmentKey


class ArtifactStack(EnvironmentStack):
    """The bucket and the key that every other stack of the environment builds on.

    Args:
        environment: The environment.

    Attributes:
        encryption_key: The environment's KMS key; None where AWS's own keys are used.
        store: The artifacts.
        bucket_name: The bucket's name as other stacks import it.
    """

    def __init__(self, scope: cdk.App, environment: Environment) -> None:
        super().__init__(scope, "Artifacts", environment=environment, description="model artifacts and their key")
        self.encryption_key = self._encryption_key()
        self.store = ArtifactStore(
            self,
            "Store",
            removal_policy=self.removal_policy,
            bucket_name=environment.artifacts.bucket_name,
            encryption_key=self.encryption_key,
            noncurrent_days=environment.artifacts.noncurrent_days,
            access_log_days=environment.artifacts.access_log_days,
        )
        self.bucket_name = self.export_value(self.store.bucket.bucket_name)
        self.output("BucketName", self.store.bucket.bucket_name, "Bucket of model artifacts")

    def _encryption_key(self) -> kms.IKey | None:
        match self.settings.encryption:
            case CreatedKey():
                description = f"Everything that Steelyard stores in environment {self.settings.name}"
                return EnvironmentKey(self, "Key", removal_policy=self.removal_policy, description=description).key
            case ExistingKey(key_arn=arn):
                return kms.Key.from_key_arn(self, "Key", arn)
            case _:
                return None
