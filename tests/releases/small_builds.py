"""What CodeBuild runs in these tests: real uploads and pushes, of a model and an image that take no time to make.

Run as a program by the buildspecs of ``accounts.py``; it prints what a build exports.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
from typing import Any

import boto3
import httpx

DOCKER = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG = "application/vnd.docker.container.image.v1+json"


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def model_manifest(name: str, file: bytes) -> bytes:
    """A manifest as ``steelyard model push`` writes it."""
    from steelyard.models.manifest import ModelManifest

    return ModelManifest.model_validate(
        {
            "format": "steelyard-model/2",
            "name": name,
            "licence": {"name": "none", "url": "https://example.com/licence"},
            "claims": {},
            "files": [{"role": "weights", "name": "tiny.gguf", "size": len(file), "sha256": sha256(file)}],
            "source": {"kind": "file"},
        }
    ).encode()


def publish_model(s3: Any, *, bucket: str, name: str, file: bytes) -> dict[str, str]:
    manifest = model_manifest(name, file)
    key = f"models/{name}/{sha256(manifest)}/"
    for path, content in ((f"{key}tiny.gguf", file), (f"{key}model-manifest.json", manifest)):
        s3.put_object(Bucket=bucket, Key=path, Body=content, Metadata={"sha256": sha256(content)})
    return {"MODEL_KEY": key, "MODEL_MANIFEST_SHA256": sha256(manifest)}


def push_image(registry: str, repository: str, *, login: tuple[str, str], labels: dict[str, str]) -> str:
    """Push an image with one small layer; its digest."""
    config = json.dumps({"architecture": "amd64", "os": "linux", "config": {"Labels": labels}}).encode()
    layer = b"a layer"
    address = f"http://{registry}/v2/{repository}"
    with httpx.Client(auth=login, trust_env=False) as client:
        for blob in (config, layer):
            client.post(
                f"{address}/blobs/uploads/", params={"digest": f"sha256:{sha256(blob)}"}, content=blob
            ).raise_for_status()
        manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": DOCKER,
                "config": {"mediaType": CONFIG, "size": len(config), "digest": f"sha256:{sha256(config)}"},
                "layers": [
                    {
                        "mediaType": "application/vnd.docker.image.rootfs.diff.tar.gzip",
                        "size": len(layer),
                        "digest": f"sha256:{sha256(layer)}",
                    }
                ],
            }
        ).encode()
        digest = f"sha256:{sha256(manifest)}"
        client.put(
            f"{address}/manifests/{digest}", content=manifest, headers={"Content-Type": DOCKER}
        ).raise_for_status()
    return digest


def build_image(environment: dict[str, str]) -> dict[str, str]:
    base = environment["BASE_IMAGE"].rpartition("@")[2]
    token = boto3.client("ecr").get_authorization_token()["authorizationData"][0]["authorizationToken"]
    user, _, password = base64.b64decode(token).decode().partition(":")
    labels = {
        "org.opencontainers.image.base.digest": environment.get("LABELLED_BASE", base),
        "org.opencontainers.image.revision": environment["SOURCE_REVISION"],
        "steelyard.llama-cpp": "b10433",
        "steelyard.llama-cpp-interface": "b10429",
    }
    digest = push_image(environment["REGISTRY"], environment["REPOSITORY_PATH"], login=(user, password), labels=labels)
    sbom = json.dumps({"bomFormat": "CycloneDX", "of": digest}).encode()
    key = f"images/{digest.removeprefix('sha256:')}/sbom.cdx.json"
    boto3.client("s3").put_object(Bucket=environment["ARTIFACT_BUCKET"], Key=key, Body=sbom)
    return {
        "IMAGE_DIGEST": digest,
        "IMAGE_MEDIA_TYPE": DOCKER,
        "IMAGE_BASE_DIGEST": base,
        "IMAGE_LLAMA_CPP": "b10433",
        "IMAGE_INTERFACE": "b10429",
        "IMAGE_SBOM_KEY": key,
        "IMAGE_SBOM_SHA256": sha256(sbom),
    }


def main() -> None:
    environment = dict(os.environ)
    if sys.argv[1] == "model":
        exported = publish_model(
            boto3.client("s3"),
            bucket=environment["ARTIFACT_BUCKET"],
            name=environment["MODEL"],
            file=environment["MODEL"].encode(),
        )
    else:
        exported = build_image(environment)
    for name, value in exported.items():
        sys.stdout.write(f"export {name}='{value}'\n")


if __name__ == "__main__":
    main()
