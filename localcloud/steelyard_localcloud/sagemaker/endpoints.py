"""``AWS::SageMaker::Endpoint``: its life, and the operations on it."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future

from ministack.core.responses import AccountRegionScopedDict

from steelyard_localcloud import shapes
from steelyard_localcloud.details import CloudDetails
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.options import Options
from steelyard_localcloud.sagemaker.deployment import Deployment
from steelyard_localcloud.sagemaker.endpoint import Endpoint
from steelyard_localcloud.sagemaker.endpoint_configs import EndpointConfigs
from steelyard_localcloud.sagemaker.fleet import Fleet
from steelyard_localcloud.sagemaker.listing import page
from steelyard_localcloud.sagemaker.models import Models
from steelyard_localcloud.sagemaker.names import arn
from steelyard_localcloud.sagemaker.quotas import Quotas
from steelyard_localcloud.sagemaker.tags import TagStore
from steelyard_localcloud.sagemaker.traffic import policy_of
from steelyard_localcloud.wire import Parameters

_SETTLED = ("InService", "Failed", "OutOfService")


class Endpoints:
    """The endpoints of every account and region.

    ``create``, ``update`` and ``delete`` answer at once, as SageMaker does, and continue in a thread; ``wait`` waits.
    """

    def __init__(
        self, models: Models, configs: EndpointConfigs, tags: TagStore, *, cloud: CloudDetails, options: Options
    ) -> None:
        self._endpoints = AccountRegionScopedDict()
        self._running: dict[str, Future[None]] = {}
        self._models = models
        self._configs = configs
        self._tags = tags
        self._cloud = cloud
        self._options = options
        self.quotas = Quotas(options.quotas)
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self.is_scaled: Callable[[str, str], bool] = lambda _endpoint, _variant: False
        """Tell whether Application Auto Scaling has a variant, by endpoint and name; set by the latter."""

    def create(self, parameters: Parameters) -> Parameters:
        """``CreateEndpoint``."""
        shapes.validate("sagemaker", "CreateEndpoint", parameters)
        name = parameters["EndpointName"]
        fleet, count = self._fleet(name, parameters["EndpointConfigName"])
        endpoint = Endpoint(
            name=name,
            arn=arn("endpoint", name),
            config_name=fleet.config_name,
            instances=count,
            weight=fleet.variant.get("InitialVariantWeight", 1.0),
            deployment_config=parameters.get("DeploymentConfig"),
        )
        policy_of(endpoint.deployment_config, instances=count)
        with self._lock:
            if name in self._endpoints:
                raise ServiceError(f'Cannot create already existing endpoint "{endpoint.arn}".')
            self._check_quota(fleet.placed, count)
            endpoint.arriving = (fleet.placed, count)
            self._endpoints[name] = endpoint
        self._tags.put(endpoint.arn, parameters.get("Tags", []))
        self._run(endpoint, lambda: self._deployment(endpoint, fleet).create())
        return {"EndpointArn": endpoint.arn}

    def update(self, parameters: Parameters) -> Parameters:
        """``UpdateEndpoint``: the old fleet serves until the new one has passed its health check and its policy."""
        shapes.validate("sagemaker", "UpdateEndpoint", parameters)
        endpoint = self.get(parameters["EndpointName"])
        fleet, count = self._fleet(endpoint.name, parameters["EndpointConfigName"])
        excluded = {entry["VariantPropertyType"] for entry in parameters.get("ExcludeRetainedVariantProperties", [])}
        retains = parameters.get("RetainAllVariantProperties", False)
        weight = fleet.variant.get("InitialVariantWeight", 1.0)
        if retains and "DesiredInstanceCount" not in excluded:
            count = endpoint.instances
        if retains and "DesiredWeight" not in excluded:
            weight = endpoint.weight
        config = parameters.get("DeploymentConfig")
        if config is None and parameters.get("RetainDeploymentConfig"):
            config = endpoint.deployment_config
        policy = policy_of(config, instances=count)
        fleet.check_may_read(policy.alarms)
        self._check_scaled_type(endpoint, fleet)
        # The old fleet serves until the new one has taken over: both are there for a while.
        self._check_quota(fleet.placed, count)
        self._begin(endpoint, "Updating")
        endpoint.arriving = (fleet.placed, count)
        endpoint.deployment_config = config
        deployment = self._deployment(endpoint, fleet)
        self._run(endpoint, lambda: deployment.update(policy, instances=count, weight=weight))
        return {"EndpointArn": endpoint.arn}

    def scale(self, parameters: Parameters) -> Parameters:
        """``UpdateEndpointWeightsAndCapacities``; also how Application Auto Scaling changes a count."""
        shapes.validate("sagemaker", "UpdateEndpointWeightsAndCapacities", parameters)
        endpoint = self.get(parameters["EndpointName"])
        for wanted in parameters["DesiredWeightsAndCapacities"]:
            if endpoint.router.main is None or wanted["VariantName"] != endpoint.router.main.name:
                raise ServiceError(f"Endpoint {endpoint.name} has no variant {wanted['VariantName']}.")
            if wanted.get("DesiredInstanceCount", 1) < 1:
                raise ServiceError(
                    "DesiredInstanceCount must be at least 1 for an endpoint without inference components."
                )
            more = wanted.get("DesiredInstanceCount", endpoint.instances) - endpoint.instances
            if more > 0:
                self._check_quota(endpoint.router.main.placed, more)
        self._begin(endpoint, "Updating")
        for wanted in parameters["DesiredWeightsAndCapacities"]:
            endpoint.instances = wanted.get("DesiredInstanceCount", endpoint.instances)
            endpoint.weight = wanted.get("DesiredWeight", endpoint.weight)
        endpoint.finish("InService", endpoint.failure)
        return {"EndpointArn": endpoint.arn}

    def delete(self, parameters: Parameters) -> Parameters:
        """``DeleteEndpoint``."""
        endpoint = self.get(parameters["EndpointName"])
        self._begin(endpoint, "Deleting")

        def remove() -> None:
            endpoint.router.close()
            self._endpoints.pop(endpoint.name)
            self._tags.drop(endpoint.arn)

        self._run(endpoint, remove)
        return {}

    def describe(self, parameters: Parameters) -> Parameters:
        """``DescribeEndpoint``."""
        return self.get(parameters["EndpointName"]).description()

    def list(self, parameters: Parameters) -> Parameters:
        """``ListEndpoints``."""
        summaries = [endpoint.summary() for endpoint in list(self._endpoints.values())]
        return page("ListEndpoints", summaries, parameters, key="Endpoints", name="EndpointName")

    def get(self, name: str) -> Endpoint:
        """The endpoint of that name.

        Raises:
            ServiceError: There is none.
        """
        endpoint: Endpoint | None = self._endpoints.get(name)
        if endpoint is None:
            raise ServiceError(f'Could not find endpoint "{arn("endpoint", name)}".')
        return endpoint

    def wait(self, name: str) -> None:
        """Wait until the change of an endpoint that runs is over."""
        if (change := self._running.get(arn("endpoint", name))) is not None:
            change.result()

    def close(self) -> None:
        """Stop every process of every account and region."""
        self._closing.set()
        routers = [endpoint.router for endpoint in self._endpoints.all_values()]
        stoppers = [threading.Thread(target=router.close) for router in routers]
        for stopper in stoppers:
            stopper.start()
        for stopper in stoppers:
            stopper.join()

    def _check_scaled_type(self, endpoint: Endpoint, fleet: Fleet) -> None:
        """Refuse other instance types for a variant that is scaled, in the words that people report.

        Developer guide, "Update or delete endpoints that use automatic scaling".
        """
        if endpoint.instance_types in ((), fleet.instance_types) or not self.is_scaled(endpoint.name, fleet.name):
            return
        raise ServiceError(
            f'The variant(s) "[{fleet.name}]" must be deregistered as scalable targets with AWS Auto Scaling before '
            "they can be removed or have their instance type updated."
        )

    def _check_quota(self, instance_type: str, wanted: int) -> None:
        used = sum(endpoint.held(instance_type) for endpoint in list(self._endpoints.values()))
        self.quotas.check(instance_type, used=used, wanted=wanted)

    def _fleet(self, endpoint: str, config_name: str) -> tuple[Fleet, int]:
        config = self._configs.get(config_name)
        variant = config["ProductionVariants"][0]
        model = self._models.get(variant["ModelName"])
        fleet = Fleet(endpoint, config, model, cloud=self._cloud, options=self._options)
        return fleet, variant["InitialInstanceCount"]

    def _deployment(self, endpoint: Endpoint, fleet: Fleet) -> Deployment:
        return Deployment(endpoint, fleet, longest_wait_s=self._options.longest_wait_s, cancelled=self._closing.is_set)

    def _begin(self, endpoint: Endpoint, status: str) -> None:
        with self._lock:
            if endpoint.status not in _SETTLED or (status == "Updating" and endpoint.status == "Failed"):
                raise ServiceError(f'Cannot update in-progress or failed endpoint "{endpoint.arn}": {endpoint.status}.')
            endpoint.status = status

    def _run(self, endpoint: Endpoint, change: Callable[[], None]) -> None:
        done: Future[None] = Future()
        context = contextvars.copy_context()

        def work() -> None:
            try:
                context.run(change)
            except BaseException as error:
                endpoint.finish("Failed", f"The local cloud failed: {error!r}")
                done.set_exception(error)
            else:
                done.set_result(None)

        self._running[endpoint.arn] = done
        threading.Thread(target=work, name=f"endpoint-{endpoint.name}").start()
