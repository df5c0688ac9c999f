"""The registry before the emulated ECR: real container tools push and pull, and ECR's own operations see the same."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import ssl
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import botocore.exceptions
import httpx
import pytest
from endpoint_template import ACCOUNT, REGION, delete, deploy

from conftest import Furnished
from steelyard_localcloud.cloud import LocalCloud
from steelyard_localcloud.registry.manifests import DOCKER, INDEXES, OCI

pytestmark = pytest.mark.containers

HOST = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com"
PUBLISHED = f"763104351884.dkr.ecr.{REGION}.amazonaws.com"
DOCKER_COMMAND = [sys.executable, "-I", "-m", "steelyard_localcloud.containers.docker_on_buildah"]

Login = tuple[str, str]


def token(cloud: LocalCloud, **keys: str) -> Login:
    """A login with the token of a caller."""
    [data] = cloud.client("ecr", **keys).get_authorization_token()["authorizationData"]
    assert data["proxyEndpoint"] == f"https://{HOST}"
    user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
    return user, password


@dataclass(frozen=True)
class Docker:
    """The ``docker`` command of one test, with logins of its own."""

    environment: dict[str, str]

    def __call__(self, *words: str, fails: bool = False, **options: Any) -> str:
        """Run it; what it printed."""
        ran = subprocess.run(
            [*DOCKER_COMMAND, *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **options,
        )
        assert (ran.returncode != 0) == fails, ran.stdout
        return ran.stdout

    def login(self, login: Login, host: str = HOST, **options: Any) -> str:
        """Log in."""
        return self("login", "--username", login[0], "--password-stdin", host, input=login[1], **options)


@pytest.fixture
def docker(furnished: Furnished, tmp_path: Path) -> Docker:
    logins = {"REGISTRY_AUTH_FILE": str(tmp_path / "auth.json")}
    return Docker({**os.environ, **furnished.cloud.environment(), **logins})


@pytest.fixture
def repository(furnished: Furnished) -> Iterator[str]:
    """A repository whose tags cannot be moved."""
    ecr, name = furnished.cloud.client("ecr"), f"team/image-{uuid.uuid4().hex[:8]}"
    ecr.create_repository(repositoryName=name, imageTagMutability="IMMUTABLE")
    yield name
    ecr.delete_repository(repositoryName=name, force=True)


def build(docker: Docker, folder: Path, reference: str, content: str) -> None:
    """An image of one file."""
    (folder / "context").mkdir(exist_ok=True)
    (folder / "context" / "file").write_text(content, encoding="utf-8")
    (folder / "context" / "Dockerfile").write_text('FROM scratch\nCOPY file /file\nCMD ["/file"]\n', encoding="utf-8")
    docker(
        *("buildx", "build", "--file", str(folder / "context" / "Dockerfile"), "--provenance=false", "--sbom=false"),
        *("--pull", "--load", "--tag", reference, str(folder / "context")),
    )


def files(cloud: LocalCloud, repository: str, account: str = ACCOUNT) -> list[Path]:
    """What a repository has on disk."""
    folder = cloud.options.home / "registry" / account / REGION / repository.replace("/", "%")
    return sorted(folder.iterdir()) if folder.is_dir() else []


def test_a_pushed_image_is_in_ecr_and_comes_back(
    furnished: Furnished, docker: Docker, repository: str, tmp_path: Path
) -> None:
    ecr = furnished.cloud.client("ecr")
    docker.login(token(furnished.cloud))
    build(docker, tmp_path, f"{HOST}/{repository}:first", "content")
    said = docker("push", f"{HOST}/{repository}:first")

    [detail] = ecr.describe_images(repositoryName=repository)["imageDetails"]
    digest = detail["imageDigest"]
    assert f"first: digest: {digest}" in said
    assert detail["imageTags"] == ["first"]
    assert detail["imageManifestMediaType"] == DOCKER
    assert detail["artifactMediaType"] == "application/vnd.docker.container.image.v1+json"
    [image] = ecr.batch_get_image(repositoryName=repository, imageIds=[{"imageTag": "first"}])["images"]
    assert image["imageId"] == {"imageDigest": digest, "imageTag": "first"}
    assert image["imageManifestMediaType"] == DOCKER
    manifest = json.loads(image["imageManifest"])
    assert f"sha256:{hashlib.sha256(image['imageManifest'].encode()).hexdigest()}" == digest
    assert detail["imageSizeInBytes"] == manifest["config"]["size"] + sum(each["size"] for each in manifest["layers"])
    assert len(files(furnished.cloud, repository)) == 1 + len(manifest["layers"])

    docker("rmi", "--force", f"{HOST}/{repository}:first")
    docker("pull", f"{HOST}/{repository}@{digest}")
    docker("save", "--output", str(tmp_path / "image.tar"), f"{HOST}/{repository}@{digest}")
    listed = subprocess.run(["tar", "-tf", tmp_path / "image.tar"], capture_output=True, text=True, check=True).stdout
    assert manifest["config"]["digest"].removeprefix("sha256:") in listed
    docker("pull", f"{HOST}/{repository}:second", fails=True)

    scan = ecr.describe_image_scan_findings(repositoryName=repository, imageId={"imageDigest": digest})
    assert scan["imageScanStatus"]["status"] == "COMPLETE"
    assert "scans nothing" in scan["imageScanStatus"]["description"]
    assert scan["imageScanFindings"]["findings"] == []


def test_a_tag_cannot_be_moved(furnished: Furnished, docker: Docker, repository: str, tmp_path: Path) -> None:
    docker.login(token(furnished.cloud))
    reference = f"{HOST}/{repository}:fixed"
    build(docker, tmp_path, reference, "one")
    docker("push", reference)
    docker("push", reference)  # the same again
    build(docker, tmp_path, reference, "two")
    said = docker("push", reference, fails=True)
    assert "tag invalid" in said
    assert "cannot be overwritten because the tag is immutable" in said
    ecr = furnished.cloud.client("ecr")
    with pytest.raises(ecr.exceptions.ImageTagAlreadyExistsException):
        ecr.put_image(repositoryName=repository, imageManifest="{}", imageTag="fixed")
    assert len(ecr.describe_images(repositoryName=repository)["imageDetails"]) == 1


def test_deleting_leaves_nothing(furnished: Furnished, docker: Docker, tmp_path: Path) -> None:
    ecr, name = furnished.cloud.client("ecr"), "passing"
    ecr.create_repository(repositoryName=name)
    docker.login(token(furnished.cloud))
    for tag in ("one", "two"):
        build(docker, tmp_path, f"{HOST}/{name}:{tag}", tag)
        docker("push", f"{HOST}/{name}:{tag}")
    docker("tag", f"{HOST}/{name}:two", f"{HOST}/{name}:again")
    docker("push", f"{HOST}/{name}:again")
    assert len(ecr.list_images(repositoryName=name)["imageIds"]) == 3
    two = [path.name for path in files(furnished.cloud, name)]
    ecr.batch_delete_image(repositoryName=name, imageIds=[{"imageTag": "again"}])
    assert [path.name for path in files(furnished.cloud, name)] == two
    [one] = ecr.batch_get_image(repositoryName=name, imageIds=[{"imageTag": "one"}])["images"]
    ecr.batch_delete_image(repositoryName=name, imageIds=[{"imageDigest": one["imageId"]["imageDigest"]}])
    assert len(files(furnished.cloud, name)) == 2  # a configuration and a layer
    with pytest.raises(ecr.exceptions.RepositoryNotEmptyException):
        ecr.delete_repository(repositoryName=name)
    ecr.delete_repository(repositoryName=name, force=True)
    assert files(furnished.cloud, name) == []


def test_a_stack_takes_its_images_with_it(furnished: Furnished, docker: Docker, name: str, tmp_path: Path) -> None:
    properties = {"RepositoryName": f"{name}-images", "EmptyOnDelete": True}
    resources = {"Images": {"Type": "AWS::ECR::Repository", "Properties": properties}}
    assert deploy(furnished.cloudformation, name, json.dumps({"Resources": resources})) == "CREATE_COMPLETE"
    docker.login(token(furnished.cloud))
    build(docker, tmp_path, f"{HOST}/{name}-images:one", "one")
    docker("push", f"{HOST}/{name}-images:one")
    assert files(furnished.cloud, f"{name}-images")
    assert delete(furnished.cloudformation, name) == "DELETE_COMPLETE"
    assert files(furnished.cloud, f"{name}-images") == []


def test_a_base_is_pulled_from_the_registry_of_aws(furnished: Furnished, docker: Docker, tmp_path: Path) -> None:
    build(docker, tmp_path, "localhost/base:1", "base")
    digest = furnished.cloud.publish_base("localhost/base:1", "llama-cpp", tag="cpu")
    docker("rmi", "--force", "localhost/base:1")
    reference = f"{PUBLISHED}/llama-cpp@{digest}"
    docker("pull", reference, fails=True)  # not logged in
    docker.login(token(furnished.cloud), PUBLISHED)
    docker("pull", reference)
    docker("tag", reference, f"{PUBLISHED}/llama-cpp:mine")
    assert "not authorized to perform: ecr:PutImage" in docker("push", f"{PUBLISHED}/llama-cpp:mine", fails=True)
    with pytest.raises(RuntimeError, match="could not be pushed"):
        furnished.cloud.publish_base("localhost/missing:1", "llama-cpp")


@pytest.fixture
def user(furnished: Furnished) -> Iterator[Callable[..., dict[str, str]]]:
    """Makes users with a policy; their keys."""
    iam, made = furnished.cloud.client("iam"), []

    def make(*actions: str, resource: str) -> dict[str, str]:
        name = f"puller-{uuid.uuid4().hex[:8]}"
        iam.create_user(UserName=name)
        statements = [
            {"Effect": "Allow", "Action": "ecr:GetAuthorizationToken", "Resource": "*"},
            {"Effect": "Allow", "Action": list(actions), "Resource": resource},
        ]
        policy = {"Version": "2012-10-17", "Statement": statements}
        iam.put_user_policy(UserName=name, PolicyName="it", PolicyDocument=json.dumps(policy))
        key = iam.create_access_key(UserName=name)["AccessKey"]
        made.append((name, key["AccessKeyId"]))
        return {"aws_access_key_id": key["AccessKeyId"], "aws_secret_access_key": key["SecretAccessKey"]}

    yield make
    for name, key in made:
        iam.delete_access_key(UserName=name, AccessKeyId=key)
        iam.delete_user_policy(UserName=name, PolicyName="it")
        iam.delete_user(UserName=name)


def test_a_token_opens_what_its_callers_policy_opens(
    furnished: Furnished,
    docker: Docker,
    repository: str,
    user: Callable[..., dict[str, str]],
    tmp_path: Path,
) -> None:
    reference = f"{HOST}/{repository}:1"
    docker.login(token(furnished.cloud))
    build(docker, tmp_path, reference, "guarded")
    docker("push", reference)
    docker("rmi", "--force", reference)
    arn = f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/{repository}"
    pull = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")
    docker.login(token(furnished.cloud, **user(*pull, resource=arn)))
    docker("pull", reference)
    docker("tag", reference, f"{HOST}/{repository}:2")
    assert "not authorized to perform: ecr:" in docker("push", f"{HOST}/{repository}:2", fails=True)
    docker("rmi", "--force", reference)
    docker.login(token(furnished.cloud, **user(*pull, resource=f"{arn}-another")))
    assert "not authorized to perform: ecr:BatchGetImage" in docker("pull", reference, fails=True)


@dataclass(frozen=True)
class Raw:
    """The registry by plain requests."""

    client: httpx.Client
    prefix: str

    def blob(self, content: bytes) -> str:
        """Push a blob; its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        place = self.client.post(f"{self.prefix}/blobs/uploads/").headers["location"]
        assert self.client.put(place, params={"digest": digest}, content=content).status_code == 201
        return digest

    def manifest(self, reference: str, document: object, media_type: str = DOCKER) -> httpx.Response:
        """Push a manifest."""
        content = document if isinstance(document, bytes) else json.dumps(document).encode()
        place = f"{self.prefix}/manifests/{reference}"
        return self.client.put(place, content=content, headers={"content-type": media_type})


def code(response: httpx.Response) -> tuple[int, str]:
    """The status and the protocol's code of a refusal."""
    return response.status_code, response.json()["errors"][0]["code"]


@pytest.fixture
def raw(furnished: Furnished, repository: str) -> Iterator[Raw]:
    address = f"http://{furnished.cloud.details.registry}"
    with httpx.Client(base_url=address, auth=token(furnished.cloud), trust_env=False) as client:
        yield Raw(client, f"/v2/{HOST}/{repository}")


def image_of(raw: Raw, media_type: str = DOCKER) -> dict[str, Any]:
    """The manifest of an image whose blobs are there."""
    config, layer = b"{}", b"a layer"
    return {
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": {"mediaType": "application/x", "size": len(config), "digest": raw.blob(config)},
        "layers": [{"mediaType": "application/y", "size": len(layer), "digest": raw.blob(layer)}],
    }


def test_a_blob_comes_in_parts_and_goes_out_whole(raw: Raw) -> None:
    content = os.urandom(3 << 20)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    assert raw.client.head(f"{raw.prefix}/blobs/{digest}").status_code == 404
    begun = raw.client.post(f"{raw.prefix}/blobs/uploads/")
    assert begun.status_code == 202
    place, half = begun.headers["location"], len(content) // 2
    for start, part in ((0, content[:half]), (half, content[half:])):
        sent = raw.client.patch(place, content=part, headers={"content-range": f"{start}-{start + len(part) - 1}"})
        assert sent.status_code == 202
        assert sent.headers["range"] == f"0-{start + len(part) - 1}"
    assert raw.client.get(place).headers["range"] == f"0-{len(content) - 1}"
    again = raw.client.patch(place, content=b"x", headers={"content-range": "5-5"})
    assert code(again) == (416, "BLOB_UPLOAD_INVALID")
    assert raw.client.put(place, params={"digest": digest}).status_code == 201
    assert raw.client.head(f"{raw.prefix}/blobs/{digest}").headers["content-length"] == str(len(content))
    assert raw.client.get(f"{raw.prefix}/blobs/{digest}").content == content


def test_a_wrong_digest_is_refused_and_nothing_stays(raw: Raw, furnished: Furnished, repository: str) -> None:
    place = raw.client.post(f"{raw.prefix}/blobs/uploads/").headers["location"]
    wrong = f"sha256:{'0' * 64}"
    assert code(raw.client.put(place, params={"digest": wrong}, content=b"bytes")) == (400, "DIGEST_INVALID")
    assert code(raw.client.get(place)) == (404, "BLOB_UPLOAD_UNKNOWN")
    place = raw.client.post(f"{raw.prefix}/blobs/uploads/").headers["location"]
    assert code(raw.client.put(place, params={"digest": "md5:1"})) == (400, "DIGEST_INVALID")
    assert raw.client.delete(place).status_code == 204
    assert code(raw.manifest(wrong, image_of(raw))) == (400, "DIGEST_INVALID")
    assert list((furnished.cloud.options.home / "registry" / "uploads").iterdir()) == []
    ecr = furnished.cloud.client("ecr")
    assert ecr.describe_images(repositoryName=repository)["imageDetails"] == []


def test_an_image_without_its_layers_is_refused(raw: Raw) -> None:
    document = image_of(raw)
    missing = {"mediaType": "application/y", "size": 1, "digest": f"sha256:{'1' * 64}"}
    refused = raw.manifest("a", {**document, "layers": [missing]})
    assert code(refused) == (400, "MANIFEST_BLOB_UNKNOWN")
    assert "1" * 64 in refused.text
    index = {"schemaVersion": 2, "mediaType": INDEXES[0], "manifests": [missing]}
    assert code(raw.manifest("a", index, INDEXES[0])) == (400, "MANIFEST_BLOB_UNKNOWN")


@pytest.mark.parametrize(
    ("document", "media_type"),
    [
        (b"no json", DOCKER),
        (b"[]", DOCKER),
        ({"schemaVersion": 1}, DOCKER),
        ({"schemaVersion": 2, "mediaType": OCI}, DOCKER),
        ({"schemaVersion": 2, "config": None, "layers": []}, DOCKER),
        ({"schemaVersion": 2}, INDEXES[1]),
        ({"schemaVersion": 2}, "application/json"),
    ],
)
def test_what_is_no_manifest_is_refused(raw: Raw, document: object, media_type: str) -> None:
    assert code(raw.manifest("a", document, media_type)) == (400, "MANIFEST_INVALID")


@pytest.mark.parametrize("media_type", INDEXES)
def test_an_index_keeps_its_media_type(raw: Raw, furnished: Furnished, repository: str, media_type: str) -> None:
    """SageMaker does not take one, and whoever checks that must be able to see it."""
    digest = raw.manifest("part", image_of(raw, OCI), OCI).headers["docker-content-digest"]
    entry = {"mediaType": OCI, "size": 1, "digest": digest}
    index = {"schemaVersion": 2, "mediaType": media_type, "manifests": [entry]}
    assert raw.manifest("whole", index, media_type).status_code == 201
    answer = raw.client.get(f"{raw.prefix}/manifests/whole")
    assert answer.headers["content-type"] == media_type
    assert answer.json() == index
    ecr = furnished.cloud.client("ecr")
    [image] = ecr.batch_get_image(repositoryName=repository, imageIds=[{"imageTag": "whole"}])["images"]
    assert image["imageManifestMediaType"] == media_type
    assert raw.client.get(f"{raw.prefix}/tags/list").json()["tags"] == ["part", "whole"]


def test_a_moved_tag_is_refused_in_the_protocol(raw: Raw) -> None:
    document = image_of(raw)
    assert raw.manifest("a", document).status_code == 201
    assert raw.manifest("a", document).status_code == 201
    assert code(raw.manifest("a", {**document, "layers": []})) == (400, "TAG_INVALID")


def test_a_blob_is_mounted_from_a_repository_that_has_it(raw: Raw, furnished: Furnished) -> None:
    digest = raw.blob(b"shared")
    furnished.cloud.client("ecr").create_repository(repositoryName="borrower")
    source, target = raw.prefix.removeprefix("/v2/"), f"/v2/{HOST}/borrower"
    asked = {"mount": digest, "from": source}
    assert raw.client.post(f"{target}/blobs/uploads/", params=asked).status_code == 201
    assert raw.client.get(f"{target}/blobs/{digest}").content == b"shared"
    for unknown in ({**asked, "mount": f"sha256:{'2' * 64}"}, {**asked, "from": f"{HOST}/nothing"}):
        begun = raw.client.post(f"{target}/blobs/uploads/", params=unknown)
        assert begun.status_code == 202  # an upload instead, as the protocol says
        assert raw.client.delete(begun.headers["location"]).status_code == 204
    furnished.cloud.client("ecr").delete_repository(repositoryName="borrower")


@pytest.mark.parametrize("login", [None, ("AWS", "wrong"), ("somebody", "else"), ("AWS", "")], ids=str)
def test_nobody_gets_in_without_a_token(raw: Raw, login: Login | None) -> None:
    with httpx.Client(base_url=raw.client.base_url, auth=login, trust_env=False) as client:
        for path in ("/v2/", f"{raw.prefix}/tags/list", f"{raw.prefix}/manifests/a"):
            refused = client.get(path)
            assert code(refused) == (401, "UNAUTHORIZED")
            assert refused.headers["www-authenticate"].startswith("Basic ")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"/v2/{HOST}/nothing/manifests/a", (404, "NAME_UNKNOWN")),
        (f"/v2/{PUBLISHED}/nothing/manifests/a", (404, "NAME_UNKNOWN")),
        ("/v2/docker.io/library/manifests/a", (404, "NAME_INVALID")),
        (f"/v2/{HOST}/../../etc/manifests/a", (404, "NAME_INVALID")),
        ("/v2/_catalog", (404, "NAME_INVALID")),
    ],
)
def test_what_ecr_does_not_have_cannot_be_asked_for(raw: Raw, path: str, expected: tuple[int, str]) -> None:
    assert code(raw.client.get(raw.client.base_url.copy_with(raw_path=path.encode()))) == expected


def test_methods_that_are_not_known(raw: Raw) -> None:
    assert code(raw.client.delete(f"{raw.prefix}/manifests/a")) == (405, "UNSUPPORTED")
    assert code(raw.client.get(f"{raw.prefix}/blobs/sha256:1")) == (404, "BLOB_UNKNOWN")
    assert code(raw.client.get(f"{raw.prefix}/manifests/-a")) == (400, "TAG_INVALID")


def test_the_other_registry_of_ministack_is_closed(furnished: Furnished, raw: Raw) -> None:
    details = furnished.cloud.details
    repository = raw.prefix.removeprefix(f"/v2/{HOST}/")
    trusted = ssl.create_default_context(cafile=details.ca_bundle)
    answer = httpx.get(f"{details.url}/v2/{repository}/tags/list", verify=trusted, trust_env=False)
    assert answer.status_code == 403


def test_repositories_are_described_by_who_may(
    furnished: Furnished, repository: str, user: Callable[..., dict[str, str]]
) -> None:
    arn = f"arn:aws:ecr:{REGION}:{ACCOUNT}:repository/{repository}"
    ecr = furnished.cloud.client("ecr", **user("ecr:DescribeRepositories", resource=arn))
    [found] = ecr.describe_repositories(repositoryNames=[repository])["repositories"]
    assert found["imageTagMutability"] == "IMMUTABLE"
    for asked in ({}, {"repositoryNames": [repository, "other"]}, {"repositoryNames": ["other"]}):
        with pytest.raises(botocore.exceptions.ClientError, match="not authorized to perform: ecr:Describe"):
            ecr.describe_repositories(**asked)


def test_operations_on_layers_and_images_that_are_not_there(furnished: Furnished, repository: str) -> None:
    ecr = furnished.cloud.client("ecr")
    with pytest.raises(ecr.exceptions.ImageNotFoundException):
        ecr.describe_images(repositoryName=repository, imageIds=[{"imageTag": "a"}])
    with pytest.raises(ecr.exceptions.ImageNotFoundException):
        ecr.describe_image_scan_findings(repositoryName=repository, imageId={"imageTag": "a"})
    with pytest.raises(ecr.exceptions.RepositoryNotFoundException):
        ecr.describe_images(repositoryName="nothing")
    with pytest.raises(botocore.exceptions.ClientError, match="does not emulate InitiateLayerUpload"):
        ecr.initiate_layer_upload(repositoryName=repository)
