"""ECR's images: what the registry pushes into ministack's ECR, and the operations that ministack only sketches.

The manifests are ministack's records; the blobs are files. An image that ``register_image`` put there has no blobs: it
can be described, and not pulled.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Callable
from typing import Any

import ministack.app as ministack
from ministack.core import router
from ministack.core.responses import get_account_id, get_region, request_scope
from ministack.services import ecr

from steelyard_localcloud import wire
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.registry.access import Access
from steelyard_localcloud.registry.blobs import Blobs
from steelyard_localcloud.registry.manifests import DOCKER, InvalidManifestError, Manifest, read_manifest
from steelyard_localcloud.registry.names import Repository, host_of
from steelyard_localcloud.wire import Parameters, Response

Record = dict[str, Any]

_NOT_SCANNED = "The local cloud scans nothing: these findings are empty because nothing was looked for."
_LAYERS = ("BatchCheckLayerAvailability",)
_UPLOADS = ("CompleteLayerUpload", "InitiateLayerUpload", "UploadLayerPart")


class Images:
    """The images of all repositories.

    Args:
        blobs: Where their layers are.
        access: Who may do what.
    """

    def __init__(self, blobs: Blobs, access: Access) -> None:
        self.blobs = blobs
        self.access = access

    def exists(self, repository: Repository) -> bool:
        """Return whether a repository exists."""
        with request_scope(repository.account, repository.region):
            return repository.name in ecr._repositories

    def publish(self, repository: Repository) -> None:
        """Make a repository of AWS's that anybody may pull from."""
        with request_scope(repository.account, repository.region):
            ecr._create_repository({"repositoryName": repository.name})
            actions = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]
            statement = {"Effect": "Allow", "Principal": "*", "Action": actions}
            policy = {"Version": "2012-10-17", "Statement": [statement]}
            ecr._set_repository_policy({"repositoryName": repository.name, "policyText": json.dumps(policy)})

    def find(self, repository: Repository, reference: str) -> Record | None:
        """An image by tag or digest."""
        key = "imageDigest" if reference.startswith("sha256:") else "imageTag"
        with request_scope(repository.account, repository.region):
            found: Record | None = ecr._find_image(repository.name, {key: reference})
            return found

    def tags(self, repository: Repository) -> list[str]:
        """All tags, sorted."""
        with request_scope(repository.account, repository.region):
            return sorted(tag for image in ecr._images.get(repository.name, []) for tag in image["imageTags"])

    def put(self, repository: Repository, *, content: str, media_type: str, digest: str, tag: str | None) -> None:
        """Add an image, or a tag to it.

        Raises:
            ServiceError: Its tag is another image's, and tags cannot be moved here.
        """
        with request_scope(repository.account, repository.region):
            images: list[Record] = ecr._images[repository.name]
            holder = next((image for image in images if tag in image["imageTags"]), None) if tag else None
            if holder is not None and holder["imageDigest"] != digest:
                if ecr._repositories[repository.name].get("imageTagMutability") == "IMMUTABLE":
                    raise ServiceError(
                        f"The image tag '{tag}' already exists in the '{repository.name}' repository and cannot be "
                        "overwritten because the tag is immutable.",
                        code="ImageTagAlreadyExistsException",
                    )
                holder["imageTags"].remove(tag)
            image = next((image for image in images if image["imageDigest"] == digest), None)
            if image is None:
                image = {
                    "registryId": repository.account,
                    "repositoryName": repository.name,
                    "imageId": {"imageDigest": digest},
                    "imageDigest": digest,
                    "imageManifest": content,
                    "imageManifestMediaType": media_type,
                    "imageTags": [],
                    "imagePushedAt": int(time.time()),
                }
                images.append(image)
            if tag and tag not in image["imageTags"]:
                image["imageTags"].append(tag)

    def remove(self, repository: Repository, image: Record) -> None:
        """Remove an image with the blobs that no other one of its repository needs."""
        with request_scope(repository.account, repository.region):
            images: list[Record] = ecr._images[repository.name]
            images.remove(image)
            needed = {digest for other in images for digest in _blobs(other)}
        self.blobs.keep(repository, needed, of=_blobs(image))

    def install(self) -> None:
        """Replace ministack's operations on images, and its own registry, which asks nobody for a token."""
        ecr._describe_images = _in_repository(self._describe, of_any=True)
        ecr._list_images = _in_repository(_list)
        ecr._batch_get_image = _in_repository(_get, of_any=True)
        ecr._batch_delete_image = _in_repository(self._delete)
        scan_findings = _in_repository(_scan_findings, of_any=True)
        start_scan = _in_repository(_start_scan)
        delete_repository = ecr._delete_repository

        def delete(parameters: Parameters) -> Response:
            answer: Response = delete_repository(parameters)
            if answer[0] == 200:
                self.blobs.forget(_here(parameters["repositoryName"]))
            return answer

        ecr._delete_repository = delete
        plain = ministack.SERVICE_HANDLERS["ecr"]

        async def handle(method: str, path: str, headers: dict[str, str], body: bytes, query: Any) -> Response:
            operation = wire.operation(headers)
            if operation == "GetAuthorizationToken":
                return self._token(router.extract_access_key_id(headers, query))
            if operation in (*_LAYERS, *_UPLOADS):
                return wire.refuse(
                    not_emulated(f"{operation}: layers go through the registry, by docker push and pull")
                )
            if operation == "GetDownloadUrlForLayer":
                token, _ = self.access.token(router.extract_access_key_id(headers, query), get_account_id())
                return _in_repository(lambda name, given: self._layer_url(name, given, token), of_any=True)(
                    wire.read(body)
                )
            if operation in ("DescribeImageScanFindings", "StartImageScan"):
                try:
                    chosen = scan_findings if operation.startswith("Describe") else start_scan
                    return chosen(wire.read(body))
                except ServiceError as error:
                    return wire.refuse(error)
            answer: Response = await plain(method, path, headers, body, query)
            return answer

        ministack.SERVICE_HANDLERS["ecr"] = handle

        async def refuse(*_request: Any) -> Response:
            return 404, {"Content-Type": "text/plain"}, b"the registry is at another address; see cloud.json\n"

        ecr.handle_registry_request = refuse

    def _token(self, access_key_id: str) -> Response:
        token, end = self.access.token(access_key_id, get_account_id())
        encoded = base64.b64encode(f"AWS:{token}".encode()).decode()
        endpoint = f"https://{host_of(get_account_id(), get_region())}"
        data = {"authorizationToken": encoded, "expiresAt": int(end), "proxyEndpoint": endpoint}
        return wire.answer({"authorizationData": [data]})

    def _layer_url(self, name: str, parameters: Parameters, token: str) -> Parameters:
        """An address that gives a layer to every client that has it, for as long as a login lasts."""
        path = f"{host_of(get_account_id(), get_region())}/{name}/blobs/{parameters['layerDigest']}"
        address = self.access.registry
        return {
            "downloadUrl": f"http://{address}/v2/{path}?token={token}",
            "layerDigest": parameters["layerDigest"],
        }

    def _describe(self, name: str, parameters: Parameters) -> Parameters:
        images = ecr._images.get(name, [])
        if "imageIds" in parameters:
            images = [_known(name, wanted) for wanted in parameters["imageIds"]]
        status = parameters.get("filter", {}).get("tagStatus", "ANY")
        kept = [image for image in images if status == "ANY" or bool(image["imageTags"]) == (status == "TAGGED")]
        return {"imageDetails": [_detail(image) for image in kept]}

    def _delete(self, name: str, parameters: Parameters) -> Parameters:
        deleted, failures = [], []
        for wanted in parameters.get("imageIds", []):
            image = ecr._find_image(name, wanted)
            if image is None:
                failures.append(_failure(wanted))
                continue
            digest, tag = image["imageDigest"], wanted.get("imageTag")
            if "imageDigest" not in wanted and len(image["imageTags"]) > 1:
                image["imageTags"].remove(tag)
            else:
                self.remove(_here(name), image)
            deleted.append({"imageDigest": digest, **({"imageTag": tag} if tag else {})})
        return {"imageIds": deleted, "failures": failures}


def manifest_of(image: Record) -> Manifest | None:
    """Read an image's manifest; None for one that was only registered and is none."""
    try:
        return read_manifest(image.get("imageManifest", ""), image.get("imageManifestMediaType", DOCKER))
    except InvalidManifestError:
        return None


def _blobs(image: Record) -> set[str]:
    found = manifest_of(image)
    return set(found.blobs) if found is not None else set()


def _here(name: str) -> Repository:
    return Repository(get_account_id(), get_region(), name)


def _in_repository(
    perform: Callable[[str, Parameters], Parameters], *, of_any: bool = False
) -> Callable[[Parameters], Response]:
    """An operation of ministack's table that needs a repository.

    Args:
        perform: Answers for a repository that exists.
        of_any: Whether it reads repositories of other accounts too, where ``registryId`` names one.
    """

    def work(parameters: Parameters) -> Response:
        name = parameters.get("repositoryName", "")
        account = parameters.get("registryId") or get_account_id()
        try:
            with request_scope(account if of_any else get_account_id(), get_region()):
                if name not in ecr._repositories:
                    raise ServiceError(
                        f"The repository with name '{name}' does not exist in the registry with id '{account}'",
                        code="RepositoryNotFoundException",
                    )
                return wire.answer(perform(name, parameters))
        except ServiceError as error:
            return wire.refuse(error)

    return work


def _known(name: str, wanted: Parameters) -> Record:
    found: Record | None = ecr._find_image(name, wanted)
    if found is None:
        said = ", ".join(f"{key}:'{value}'" for key, value in sorted(wanted.items()))
        raise ServiceError(
            f"The image with imageId {{{said}}} does not exist within the repository with name '{name}' in the "
            f"registry with id '{get_account_id()}'",
            code="ImageNotFoundException",
        )
    return found


def _failure(wanted: Parameters) -> Parameters:
    return {"imageId": wanted, "failureCode": "ImageNotFound", "failureReason": "Requested image not found"}


def _detail(image: Record) -> Parameters:
    found = manifest_of(image)
    detail = {
        "registryId": image["registryId"],
        "repositoryName": image["repositoryName"],
        "imageDigest": image["imageDigest"],
        "imageSizeInBytes": found.size if found is not None else len(image.get("imageManifest", "")),
        "imagePushedAt": image["imagePushedAt"],
        "imageManifestMediaType": image["imageManifestMediaType"],
    }
    if found is not None:
        detail["artifactMediaType"] = found.artifact
    if image["imageTags"]:
        detail["imageTags"] = list(image["imageTags"])
    return detail


def _list(name: str, parameters: Parameters) -> Parameters:
    status = parameters.get("filter", {}).get("tagStatus", "ANY")
    found = []
    for image in ecr._images.get(name, []):
        digest = image["imageDigest"]
        if image["imageTags"] and status in ("ANY", "TAGGED"):
            found += [{"imageDigest": digest, "imageTag": tag} for tag in image["imageTags"]]
        if not image["imageTags"] and status in ("ANY", "UNTAGGED"):
            found.append({"imageDigest": digest})
    return {"imageIds": found}


def _get(name: str, parameters: Parameters) -> Parameters:
    images, failures = [], []
    for wanted in parameters.get("imageIds", []):
        image = ecr._find_image(name, wanted)
        if image is None:
            failures.append(_failure(wanted))
            continue
        tag = wanted.get("imageTag")
        images.append(
            {
                "registryId": get_account_id(),
                "repositoryName": name,
                "imageId": {"imageDigest": image["imageDigest"], **({"imageTag": tag} if tag else {})},
                "imageManifest": image["imageManifest"],
                "imageManifestMediaType": image["imageManifestMediaType"],
            }
        )
    return {"images": images, "failures": failures}


def _scan_findings(name: str, parameters: Parameters) -> Parameters:
    image = _known(name, parameters.get("imageId", {}))
    return {
        "registryId": get_account_id(),
        "repositoryName": name,
        "imageId": {"imageDigest": image["imageDigest"]},
        "imageScanStatus": {"status": "COMPLETE", "description": _NOT_SCANNED},
        "imageScanFindings": {
            "imageScanCompletedAt": image["imagePushedAt"],
            "findings": [],
            "findingSeverityCounts": {},
        },
    }


def _start_scan(name: str, parameters: Parameters) -> Parameters:
    found = _scan_findings(name, parameters)
    return {key: found[key] for key in ("registryId", "repositoryName", "imageId", "imageScanStatus")}
