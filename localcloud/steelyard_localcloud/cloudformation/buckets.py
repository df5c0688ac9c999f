"""``AWS::S3::Bucket``: the properties that ministack passes over, and a bucket with objects that cannot be deleted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import botocore.serialize
from ministack.services import s3
from ministack.services.cloudformation import provisioners

from steelyard_localcloud import shapes
from steelyard_localcloud.cloudformation.handler import Provisioned, only
from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.wire import Parameters

_TYPE = "AWS::S3::Bucket"
_BY_MINISTACK = {
    "AccessControl",
    "BucketName",
    "CorsConfiguration",
    "NotificationConfiguration",
    "PublicAccessBlockConfiguration",
    "VersioningConfiguration",
    "WebsiteConfiguration",
}


def extend() -> None:
    """Wrap ministack's handler."""
    handler = provisioners._RESOURCE_HANDLERS[_TYPE]
    create, update = handler["create"], handler["update"]

    def create_configured(logical_id: str, properties: Parameters, stack_name: str) -> Provisioned:
        only(properties, _BY_MINISTACK | set(_CONFIGURATIONS), _TYPE)
        name, attributes = create(logical_id, properties, stack_name)
        _configure(name, {}, properties)
        return name, attributes

    def update_configured(physical_id: str, old: Parameters, new: Parameters, stack_name: str) -> Provisioned:
        only(new, _BY_MINISTACK | set(_CONFIGURATIONS), _TYPE)
        name, attributes = update(physical_id, old, new, stack_name)
        _configure(name, old, new)
        return name, attributes

    def delete_empty(physical_id: str, _properties: Parameters) -> None:
        if physical_id in s3._buckets:
            status, _, body = s3._delete_bucket(physical_id)
            if status >= 400:
                raise ServiceError(f"{physical_id} cannot be deleted: {bytes(body).decode()}")

    provisioners._RESOURCE_HANDLERS[_TYPE] = {
        **handler,
        "create": create_configured,
        "update": update_configured,
        "delete": delete_empty,
    }
    provisioners._STACK_TAG_PROPERTY[_TYPE] = ("Tags", "list")


def _configure(name: str, old: Parameters, new: Parameters) -> None:
    for key, (operation, convert, put, remove) in _CONFIGURATIONS.items():
        if key in new:
            _check(put(name, _xml(operation, {"Bucket": name, **convert(new[key])})), key)
        elif key in old:
            remove(name)


def _xml(operation: str, parameters: Parameters) -> bytes:
    """Return the body that an SDK would send."""
    model = shapes.service_model("s3")
    shapes.validate("s3", operation, parameters)
    serializer = botocore.serialize.create_serializer("rest-xml", include_validation=False)
    body = serializer.serialize_to_request(parameters, model.operation_model(operation))["body"]
    return bytes(body)


def _check(answer: tuple[int, Any, bytes], key: str) -> None:
    if answer[0] >= 400:
        raise ServiceError(f"{key} of {_TYPE} is refused: {bytes(answer[2]).decode()}")


def _encryption(value: Parameters) -> Parameters:
    rules = [
        {
            ("ApplyServerSideEncryptionByDefault" if key == "ServerSideEncryptionByDefault" else key): part
            for key, part in rule.items()
        }
        for rule in value["ServerSideEncryptionConfiguration"]
    ]
    return {"ServerSideEncryptionConfiguration": {"Rules": rules}}


def _lifecycle(value: Parameters) -> Parameters:
    return {"LifecycleConfiguration": {"Rules": [_lifecycle_rule(rule) for rule in value["Rules"]]}}


def _lifecycle_rule(rule: Parameters) -> Parameters:
    given = dict(rule)
    result: Parameters = {"Status": given.pop("Status"), "Filter": _filter(given)}
    if "Id" in given:
        result["ID"] = given.pop("Id")
    expiration = {}
    if "ExpirationInDays" in given:
        expiration["Days"] = int(given.pop("ExpirationInDays"))
    if "ExpiredObjectDeleteMarker" in given:
        expiration["ExpiredObjectDeleteMarker"] = str(given.pop("ExpiredObjectDeleteMarker")).lower() == "true"
    if expiration:
        result["Expiration"] = expiration
    if "NoncurrentVersionExpirationInDays" in given:
        result["NoncurrentVersionExpiration"] = {"NoncurrentDays": int(given.pop("NoncurrentVersionExpirationInDays"))}
    for key in ("NoncurrentVersionExpiration", "AbortIncompleteMultipartUpload"):
        if key in given:
            result[key] = {name: int(number) for name, number in given.pop(key).items()}
    transitions = [
        {"Days": int(step["TransitionInDays"]), "StorageClass": step["StorageClass"]}
        for step in given.pop("Transitions", [])
    ]
    if transitions:
        result["Transitions"] = transitions
    if given:
        only(given, set(), f"a lifecycle rule of {_TYPE}")
    return result


def _filter(rule: Parameters) -> Parameters:
    """The rule's filter; takes its members out of the rule."""
    tags = [{"Key": tag["Key"], "Value": tag["Value"]} for tag in rule.pop("TagFilters", [])]
    parts: Parameters = {"Prefix": rule.pop("Prefix")} if "Prefix" in rule else {}
    for key in ("ObjectSizeGreaterThan", "ObjectSizeLessThan"):
        if key in rule:
            parts[key] = int(rule.pop(key))
    if tags and not parts and len(tags) == 1:
        return {"Tag": tags[0]}
    if tags or len(parts) > 1:
        return {"And": {**parts, **({"Tags": tags} if tags else {})}}
    return parts or {"Prefix": ""}


def _logging(value: Parameters) -> Parameters:
    target = {"TargetBucket": value["DestinationBucketName"], "TargetPrefix": value.get("LogFilePrefix", "")}
    only(value, {"DestinationBucketName", "LogFilePrefix"}, f"LoggingConfiguration of {_TYPE}")
    return {"BucketLoggingStatus": {"LoggingEnabled": target}}


def _ownership(value: Parameters) -> Parameters:
    return {"OwnershipControls": {"Rules": value["Rules"]}}


def _tags(value: list[dict[str, str]]) -> Parameters:
    return {"Tagging": {"TagSet": [{"Key": tag["Key"], "Value": tag["Value"]} for tag in value]}}


_Configuration = tuple[str, Callable[[Any], Parameters], Callable[[str, bytes], Any], Callable[[str], Any]]
_CONFIGURATIONS: dict[str, _Configuration] = {
    "BucketEncryption": ("PutBucketEncryption", _encryption, s3._put_bucket_encryption, s3._delete_bucket_encryption),
    "LifecycleConfiguration": (
        "PutBucketLifecycleConfiguration",
        _lifecycle,
        s3._put_bucket_lifecycle,
        s3._delete_bucket_lifecycle,
    ),
    "LoggingConfiguration": (
        "PutBucketLogging",
        _logging,
        s3._put_bucket_logging,
        lambda name: s3._bucket_logging_config.pop(name, None),
    ),
    "OwnershipControls": (
        "PutBucketOwnershipControls",
        _ownership,
        s3._put_bucket_ownership_controls,
        s3._delete_bucket_ownership_controls,
    ),
    "Tags": ("PutBucketTagging", _tags, s3._put_bucket_tagging, s3._delete_bucket_tagging),
}
