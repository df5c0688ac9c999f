"""The SageMaker API: which operation is whose."""

from __future__ import annotations

from collections.abc import Callable

from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import not_emulated
from steelyard_localcloud.options import Options
from steelyard_localcloud.sagemaker.endpoint_configs import EndpointConfigs
from steelyard_localcloud.sagemaker.endpoints import Endpoints
from steelyard_localcloud.sagemaker.models import Models
from steelyard_localcloud.sagemaker.tags import TagStore
from steelyard_localcloud.wire import Parameters

Operation = Callable[[Parameters], Parameters]


class SageMaker:
    """SageMaker's resources in this local cloud."""

    def __init__(self, *, cloud: CloudDetails, options: Options) -> None:
        tags = TagStore()
        self.models = Models(tags)
        self.configs = EndpointConfigs(self.models, tags)
        self.endpoints = Endpoints(self.models, self.configs, tags, cloud=cloud, options=options)
        self._operations: dict[str, Operation] = {
            "CreateModel": self.models.create,
            "DescribeModel": self.models.describe,
            "DeleteModel": self.models.delete,
            "ListModels": self.models.list,
            "CreateEndpointConfig": self.configs.create,
            "DescribeEndpointConfig": self.configs.describe,
            "DeleteEndpointConfig": self.configs.delete,
            "ListEndpointConfigs": self.configs.list,
            "CreateEndpoint": self.endpoints.create,
            "DescribeEndpoint": self.endpoints.describe,
            "UpdateEndpoint": self.endpoints.update,
            "UpdateEndpointWeightsAndCapacities": self.endpoints.scale,
            "DeleteEndpoint": self.endpoints.delete,
            "ListEndpoints": self.endpoints.list,
            "AddTags": tags.add,
            "DeleteTags": tags.remove,
            "ListTags": tags.list,
        }

    def perform(self, operation: str, parameters: Parameters) -> Parameters:
        """Answer one request.

        Raises:
            ServiceError: AWS would refuse it, or the local cloud does not emulate the operation.
        """
        if operation not in self._operations:
            raise not_emulated(f"sagemaker:{operation}")
        return self._operations[operation](parameters)
