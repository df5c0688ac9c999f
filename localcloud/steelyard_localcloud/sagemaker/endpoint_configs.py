"""``AWS::SageMaker::EndpointConfig``: what CreateEndpointConfig checks and keeps."""

from __future__ import annotations

import time

from ministack.core.responses import AccountRegionScopedDict

from steelyard_localcloud import shapes
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.sagemaker.listing import page
from steelyard_localcloud.sagemaker.models import Models
from steelyard_localcloud.sagemaker.names import arn
from steelyard_localcloud.sagemaker.tags import TagStore
from steelyard_localcloud.wire import Parameters

_EMULATED = {"EndpointConfigName", "ProductionVariants", "KmsKeyId", "MetricsConfig", "Tags"}
_EMULATED_VARIANT = {
    "VariantName",
    "ModelName",
    "InitialInstanceCount",
    "InstanceType",
    "InstancePools",
    "VariantInstanceProvisionTimeoutInSeconds",
    "InitialVariantWeight",
    "VolumeSizeInGB",
    "ModelDataDownloadTimeoutInSeconds",
    "ContainerStartupHealthCheckTimeoutInSeconds",
    "RoutingConfig",
    "InferenceAmiVersion",
}


class EndpointConfigs:
    """The endpoint configurations of every account and region."""

    def __init__(self, models: Models, tags: TagStore) -> None:
        self._configs = AccountRegionScopedDict()
        self._models = models
        self._tags = tags

    def create(self, parameters: Parameters) -> Parameters:
        """``CreateEndpointConfig``."""
        shapes.validate("sagemaker", "CreateEndpointConfig", parameters)
        name = parameters["EndpointConfigName"]
        if unknown := sorted(set(parameters) - _EMULATED):
            raise not_emulated(f"{', '.join(unknown)} of an endpoint configuration")
        if name in self._configs:
            raise ServiceError(
                f'Cannot create already existing endpoint configuration "{arn("endpoint-config", name)}".'
            )
        if len(parameters["ProductionVariants"]) != 1:
            raise not_emulated("endpoints with several production variants; it takes exactly one")
        variant = parameters["ProductionVariants"][0]
        _check_variant(variant)
        self._models.get(variant["ModelName"])
        self._configs[name] = {
            **parameters,
            "EndpointConfigArn": arn("endpoint-config", name),
            "CreationTime": time.time(),
        }
        self._tags.put(arn("endpoint-config", name), parameters.get("Tags", []))
        return {"EndpointConfigArn": arn("endpoint-config", name)}

    def describe(self, parameters: Parameters) -> Parameters:
        """``DescribeEndpointConfig``."""
        config = self.get(parameters["EndpointConfigName"])
        return {key: value for key, value in config.items() if key != "Tags"}

    def delete(self, parameters: Parameters) -> Parameters:
        """``DeleteEndpointConfig``."""
        self.get(parameters["EndpointConfigName"])
        self._configs.pop(parameters["EndpointConfigName"])
        self._tags.drop(arn("endpoint-config", parameters["EndpointConfigName"]))
        return {}

    def list(self, parameters: Parameters) -> Parameters:
        """``ListEndpointConfigs``."""
        keys = ("EndpointConfigName", "EndpointConfigArn", "CreationTime")
        summaries = [{key: config[key] for key in keys} for config in list(self._configs.values())]
        return page("ListEndpointConfigs", summaries, parameters, key="EndpointConfigs", name="EndpointConfigName")

    def get(self, name: str) -> Parameters:
        """The configuration of that name.

        Raises:
            ServiceError: There is none.
        """
        config: Parameters | None = self._configs.get(name)
        if config is None:
            raise ServiceError(f'Could not find endpoint configuration "{arn("endpoint-config", name)}".')
        return config


def _check_variant(variant: Parameters) -> None:
    if unknown := sorted(set(variant) - _EMULATED_VARIANT):
        raise not_emulated(f"{', '.join(unknown)} of a production variant")
    capacity = [name for name in ("InstanceType", "InstancePools") if name in variant]
    if len(capacity) != 1:
        raise ServiceError(
            f"Production variant {variant['VariantName']} must name exactly one of InstanceType and InstancePools; "
            f"it names {' and '.join(capacity) or 'neither'}."
        )
    for member in ("ModelName", "InitialInstanceCount"):
        if member not in variant:
            raise ServiceError(f"Production variant {variant['VariantName']} needs {member}.")
    if "InstancePools" in variant:
        _check_pools(variant)


def _check_pools(variant: Parameters) -> None:
    pools = variant["InstancePools"]
    if unknown := sorted({name for pool in pools for name in pool} - {"InstanceType", "Priority"}):
        raise not_emulated(f"{', '.join(unknown)} of an instance pool")
    priorities = [pool["Priority"] for pool in pools]
    if len(set(priorities)) != len(priorities):
        raise ServiceError(f"InstancePools must have different priorities; they have {priorities}.")
    routing = variant.get("RoutingConfig", {}).get("RoutingStrategy")
    if routing != "LEAST_OUTSTANDING_REQUESTS":
        raise ServiceError(f"InstancePools needs RoutingStrategy LEAST_OUTSTANDING_REQUESTS; it is {routing}.")
