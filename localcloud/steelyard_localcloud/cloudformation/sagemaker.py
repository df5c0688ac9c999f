"""``AWS::SageMaker::Model``, ``AWS::SageMaker::EndpointConfig`` and ``AWS::SageMaker::Endpoint``.

Models and configurations are replaced when anything but their tags changes. An endpoint is updated in place:
CloudFormation waits until it serves the new configuration, or fails and rolls back.
"""

from __future__ import annotations

from collections.abc import Callable

from steelyard_localcloud import shapes
from steelyard_localcloud.cloudformation.handler import Handler, Provisioned, ignore_missing, physical_name
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.sagemaker.control import SageMaker
from steelyard_localcloud.sagemaker.names import arn
from steelyard_localcloud.wire import Parameters

_LONGEST_NAME = 63
_MODEL = "AWS::SageMaker::Model"
_CONFIG = "AWS::SageMaker::EndpointConfig"
_ENDPOINT = "AWS::SageMaker::Endpoint"
_UPDATE_ONLY = ("RetainAllVariantProperties", "ExcludeRetainedVariantProperties", "RetainDeploymentConfig")


def handlers(sagemaker: SageMaker) -> list[Handler]:
    """The three handlers."""
    return [
        _described(sagemaker, _MODEL, "model", "Model", "ModelName"),
        _described(sagemaker, _CONFIG, "endpoint-config", "EndpointConfig", "EndpointConfigName"),
        _endpoint(sagemaker),
    ]


def _described(sagemaker: SageMaker, resource_type: str, kind: str, noun: str, name_property: str) -> Handler:
    """A resource that never changes: the handler of models and of configurations."""
    members = set(shapes.input_shape("sagemaker", f"Create{noun}").members)

    def create(logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
        parameters = shapes.from_template("sagemaker", f"Create{noun}", properties)
        parameters.setdefault(name_property, physical_name(logical_id, stack_name, longest=_LONGEST_NAME))
        sagemaker.perform(f"Create{noun}", parameters)
        name = parameters[name_property]
        return arn(kind, name), {name_property: name}

    def update(physical_id: str, _old: Parameters, new: Parameters) -> Provisioned:
        name = _name_of(sagemaker, f"List{noun}s", f"{noun}s", name_property, physical_id)
        _retag(sagemaker, physical_id, new)
        return physical_id, {name_property: name}

    def delete(physical_id: str, _properties: Parameters) -> None:
        def remove() -> None:
            name = _name_of(sagemaker, f"List{noun}s", f"{noun}s", name_property, physical_id)
            sagemaker.perform(f"Delete{noun}", {name_property: name})

        ignore_missing(remove)

    return Handler(
        type=resource_type,
        create=create,
        update=update,
        delete=delete,
        replacing=tuple(sorted(members - {"Tags"})),
        name_property=name_property,
        tagged=True,
    )


def _endpoint(sagemaker: SageMaker) -> Handler:
    endpoints = sagemaker.endpoints

    def create(logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
        given = {name: value for name, value in properties.items() if name not in _UPDATE_ONLY}
        parameters = shapes.from_template("sagemaker", "CreateEndpoint", _by_name(sagemaker, given))
        parameters.setdefault("EndpointName", physical_name(logical_id, stack_name, longest=_LONGEST_NAME))
        name = parameters["EndpointName"]
        endpoints.create(parameters)
        endpoints.wait(name)
        endpoint = endpoints.get(name)
        if endpoint.status != "InService":
            # CloudFormation deletes what it could not create; ministack forgets a failed resource.
            endpoints.delete({"EndpointName": name})
            endpoints.wait(name)
            raise ServiceError(f"Endpoint {name} failed: {endpoint.failure}")
        return endpoint.arn, {"EndpointName": name}

    def update(physical_id: str, _old: Parameters, new: Parameters) -> Provisioned:
        name = _name_of(sagemaker, "ListEndpoints", "Endpoints", "EndpointName", physical_id)
        _retag(sagemaker, physical_id, new)
        endpoint = endpoints.get(name)
        given = {key: value for key, value in _by_name(sagemaker, new).items() if key != "Tags"}
        parameters = shapes.from_template("sagemaker", "UpdateEndpoint", {**given, "EndpointName": name})
        if parameters["EndpointConfigName"] == endpoint.config_name:
            # A change of the policy alone deploys nothing.
            return physical_id, {"EndpointName": name}
        endpoints.update(parameters)
        endpoints.wait(name)
        if endpoint.config_name != parameters["EndpointConfigName"]:
            raise ServiceError(f"Endpoint {name} was not updated: {endpoint.failure}")
        return physical_id, {"EndpointName": name}

    def delete(physical_id: str, _properties: Parameters) -> None:
        def remove() -> None:
            name = _name_of(sagemaker, "ListEndpoints", "Endpoints", "EndpointName", physical_id)
            endpoints.delete({"EndpointName": name})
            endpoints.wait(name)

        ignore_missing(remove)

    return Handler(
        type=_ENDPOINT,
        create=create,
        update=update,
        delete=delete,
        replacing=("EndpointName",),
        name_property="EndpointName",
        tagged=True,
        slow=True,
    )


def _by_name(sagemaker: SageMaker, properties: Parameters) -> Parameters:
    """A configuration that the template names by ARN (``Ref``) as well as by name (``Fn::GetAtt``)."""
    given = properties.get("EndpointConfigName", "")
    if not str(given).startswith("arn:"):
        return properties
    name = _name_of(sagemaker, "ListEndpointConfigs", "EndpointConfigs", "EndpointConfigName", given)
    return {**properties, "EndpointConfigName": name}


def _name_of(sagemaker: SageMaker, operation: str, key: str, name_property: str, resource_arn: str) -> str:
    """The name behind an ARN, which has it in lower case."""
    arn_property = name_property.removesuffix("Name") + "Arn"
    for entry in _all(lambda page: sagemaker.perform(operation, page), key):
        if entry[arn_property] == resource_arn:
            name: str = entry[name_property]
            return name
    raise ServiceError(f'Could not find "{resource_arn}".')


def _all(read: Callable[[Parameters], Parameters], key: str) -> list[Parameters]:
    found: list[Parameters] = []
    page = read({"MaxResults": 100})
    found += page[key]
    while token := page.get("NextToken"):
        page = read({"MaxResults": 100, "NextToken": token})
        found += page[key]
    return found


def _retag(sagemaker: SageMaker, resource_arn: str, properties: Parameters) -> None:
    present = sagemaker.perform("ListTags", {"ResourceArn": resource_arn})["Tags"]
    sagemaker.perform("DeleteTags", {"ResourceArn": resource_arn, "TagKeys": [tag["Key"] for tag in present]})
    sagemaker.perform("AddTags", {"ResourceArn": resource_arn, "Tags": properties.get("Tags", [])})
