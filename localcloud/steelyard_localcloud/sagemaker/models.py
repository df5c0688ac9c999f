"""``AWS::SageMaker::Model``: what CreateModel checks and keeps."""

from __future__ import annotations

import time

from ministack.core.responses import AccountRegionScopedDict

from steelyard_localcloud import shapes
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.sagemaker.images import parse_image, resolve
from steelyard_localcloud.sagemaker.listing import page
from steelyard_localcloud.sagemaker.model_data import model_data_of
from steelyard_localcloud.sagemaker.names import arn
from steelyard_localcloud.sagemaker.tags import TagStore
from steelyard_localcloud.service_role import ServiceRole
from steelyard_localcloud.wire import Parameters

SERVICE_PRINCIPAL = "sagemaker.amazonaws.com"
_EMULATED = {
    "ModelName",
    "PrimaryContainer",
    "Containers",
    "ExecutionRoleArn",
    "Tags",
    "VpcConfig",
    "EnableNetworkIsolation",
}
_EMULATED_CONTAINER = {
    "ContainerHostname",
    "Image",
    "ImageConfig",
    "Mode",
    "ModelDataUrl",
    "ModelDataSource",
    "Environment",
}


class Models:
    """The models of every account and region."""

    def __init__(self, tags: TagStore) -> None:
        self._models = AccountRegionScopedDict()
        self._tags = tags

    def create(self, parameters: Parameters) -> Parameters:
        """``CreateModel``. The image must exist, and the role must let SageMaker in."""
        shapes.validate("sagemaker", "CreateModel", parameters)
        name = parameters["ModelName"]
        if unknown := sorted(set(parameters) - _EMULATED):
            raise not_emulated(f"{', '.join(unknown)} of a model")
        if name in self._models:
            raise ServiceError(f'Cannot create already existing model "{arn("model", name)}".')
        container = _container(parameters)
        if unknown := sorted(set(container) - _EMULATED_CONTAINER):
            raise not_emulated(f"{', '.join(unknown)} of a container")
        if "ExecutionRoleArn" not in parameters:
            raise ServiceError("ExecutionRoleArn is required.")
        resolve(parse_image(container["Image"]))
        model_data_of(container)
        role_of(parameters).assume("SageMaker")
        self._models[name] = {**parameters, "ModelArn": arn("model", name), "CreationTime": time.time()}
        self._tags.put(arn("model", name), parameters.get("Tags", []))
        return {"ModelArn": arn("model", name)}

    def describe(self, parameters: Parameters) -> Parameters:
        """``DescribeModel``."""
        model = self.get(parameters["ModelName"])
        return {key: value for key, value in model.items() if key != "Tags"}

    def delete(self, parameters: Parameters) -> Parameters:
        """``DeleteModel``."""
        self.get(parameters["ModelName"])
        self._models.pop(parameters["ModelName"])
        self._tags.drop(arn("model", parameters["ModelName"]))
        return {}

    def list(self, parameters: Parameters) -> Parameters:
        """``ListModels``."""
        keys = ("ModelName", "ModelArn", "CreationTime")
        summaries = [{key: model[key] for key in keys} for model in list(self._models.values())]
        return page("ListModels", summaries, parameters, key="Models", name="ModelName")

    def get(self, name: str) -> Parameters:
        """The model of that name.

        Raises:
            ServiceError: There is none.
        """
        model: Parameters | None = self._models.get(name)
        if model is None:
            raise ServiceError(f'Could not find model "{arn("model", name)}".')
        return model


def container_of(model: Parameters) -> Parameters:
    """The one container of a model that ``Models.create`` took."""
    return _container(model)


def role_of(model: Parameters) -> ServiceRole:
    """The model's execution role, as SageMaker uses it."""
    return ServiceRole(model["ExecutionRoleArn"], SERVICE_PRINCIPAL, arn("model", model["ModelName"]))


def _container(model: Parameters) -> Parameters:
    containers = [*([model["PrimaryContainer"]] if "PrimaryContainer" in model else []), *model.get("Containers", [])]
    if len(containers) != 1:
        raise not_emulated(f"a model with {len(containers)} containers; it takes exactly one")
    container: Parameters = containers[0]
    if "Image" not in container or container.get("Mode") == "MultiModel":
        raise not_emulated("model packages and multi-model containers; name an Image")
    return container
