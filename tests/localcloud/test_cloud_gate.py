"""The gate: a request is answered when a key of this cloud signed it, or when CloudFormation waits for it; no other."""

from __future__ import annotations

import hashlib
import inspect
import io
import json
import re
import ssl
import stat
import uuid
import zipfile
from pathlib import Path
from typing import Any

import botocore.exceptions
import httpx
import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from endpoint_template import ACCOUNT, BUCKET, REGION, deploy, template, trust

from conftest import Furnished
from steelyard_localcloud.details import own_folder

METHODS = ("GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH")
# Addresses that ministack makes from parts, or tells by their ends, beside those that its source spells out.
MORE = (
    "/_ministack/lambda-code/steelyard",
    "/_ministack/lambda-layers/layer/1/content",
    "/_ministack/cfn-response/unknown",
    "/_ministack/cfn-signal/unknown",
    "/_ministack/eks-auth/000000000000/us-east-1/cluster/0123456789abcdef0123",
    "/_aws/execute-api/abc/stage/path",
    "/_aws/lambda-url/abc/path",
    "/_alb/balancer/path",
    "/restapis/abc/stage/_user_request_/path",
    "/us-east-1_abc/.well-known/jwks.json",
    "/oauth2/authorize",
    "/v2/steelyard/tags/list",
    "/login",
    "/",
    f"/{BUCKET}",
    f"/{BUCKET}/small/a.txt",
    "/2015-03-31/functions",
)


def routes() -> list[str]:
    """Every path in the source of ministack's web application, so that a new version's new ones are tried, too."""
    import ministack.app

    found = set(re.findall(r"""["'](/[A-Za-z_@][A-Za-z0-9_./@-]*)["']""", inspect.getsource(ministack.app)))
    assert {"/_ministack/reset", "/_ministack/config", "/_ministack/health", "/oauth2/token"} <= found
    return sorted(found | set(MORE))


@pytest.fixture
def raw(furnished: Furnished) -> httpx.Client:
    """A client of the cloud's address that signs nothing."""
    trusted = ssl.create_default_context(cafile=furnished.cloud.details.ca_bundle)
    return httpx.Client(base_url=furnished.cloud.details.url, verify=trusted, trust_env=False)


def signed(furnished: Furnished, method: str, path: str, *, host: str = "") -> dict[str, str]:
    """Headers of a request that the administrator signs."""
    details = furnished.cloud.details
    request = AWSRequest(method=method, url=f"{details.url}{path}", data=b"")
    if host:
        request.headers["Host"] = host
    SigV4Auth(Credentials(details.access_key_id, details.secret_access_key), "s3", REGION).add_auth(request)
    return dict(request.headers.items())


def test_without_a_signature_every_route_is_refused_and_nothing_changes(
    furnished: Furnished, raw: httpx.Client
) -> None:
    answered = {
        (method, path): raw.request(method, path, content=b"{}" if method in ("POST", "PUT", "PATCH") else None)
        for path in routes()
        for method in METHODS
    }
    statuses = {request: answer.status_code for request, answer in answered.items() if answer.status_code != 403}
    assert statuses == {}
    assert furnished.s3.get_object(Bucket=BUCKET, Key="small/a.txt")["Body"].read() == b"a"
    assert furnished.cloud.client("sts").get_caller_identity()["Account"] == ACCOUNT


def test_not_even_the_administrator_is_served_the_emulators_own_routes(furnished: Furnished, raw: httpx.Client) -> None:
    for path in (path for path in routes() if path.startswith("/_")):
        for method in ("GET", "POST", "PUT"):
            assert raw.request(method, path, headers=signed(furnished, method, path)).status_code == 403, path
    assert furnished.s3.get_object(Bucket=BUCKET, Key="small/a.txt")["Body"].read() == b"a"


def test_a_signature_counts_for_its_own_request_only(furnished: Furnished, raw: httpx.Client) -> None:
    headers = signed(furnished, "GET", f"/{BUCKET}/small/a.txt")
    assert raw.get(f"/{BUCKET}/small/a.txt", headers=headers).content == b"a"
    assert raw.get(f"/{BUCKET}/small/sub/b.txt", headers=headers).status_code == 403
    assert raw.delete(f"/{BUCKET}/small/a.txt", headers=headers).status_code == 403
    altered = {**headers, "Authorization": headers["Authorization"][:-1] + "g"}
    assert raw.get(f"/{BUCKET}/small/a.txt", headers=altered).status_code == 403


@pytest.mark.parametrize("host", ["evil.example", f"{BUCKET}.s3.localhost", "abc.execute-api.localhost"])
def test_a_name_that_was_made_to_point_here_is_refused(furnished: Furnished, raw: httpx.Client, host: str) -> None:
    headers = signed(furnished, "GET", f"/{BUCKET}/small/a.txt", host=host)
    assert raw.get(f"/{BUCKET}/small/a.txt", headers={**headers, "Host": host}).status_code == 403


def test_a_body_is_covered_by_its_signature(furnished: Furnished, raw: httpx.Client) -> None:
    details = furnished.cloud.details
    body = json.dumps({"NameContains": "a"}).encode()
    request = AWSRequest(
        method="POST",
        url=f"{details.url}/",
        data=body,
        headers={"X-Amz-Target": "SageMaker.ListModels", "Content-Type": "application/x-amz-json-1.1"},
    )
    SigV4Auth(Credentials(details.access_key_id, details.secret_access_key), "sagemaker", REGION).add_auth(request)
    headers = dict(request.headers.items())
    assert raw.post("/", content=body, headers=headers).status_code == 200
    assert raw.post("/", content=body.replace(b"a", b"b"), headers=headers).status_code == 403


def test_its_folder_and_what_holds_keys_are_the_owners_alone(furnished: Furnished) -> None:
    home = furnished.cloud.options.home
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert stat.S_IMODE((home / "cloud.json").stat().st_mode) == 0o600


def test_a_folder_that_others_can_read_is_closed_or_refused(tmp_path: Path) -> None:
    empty, full = tmp_path / "empty", tmp_path / "full"
    for folder in (empty, full):
        folder.mkdir()
        folder.chmod(0o755)
    (full / "something").write_text("", encoding="utf-8")
    own_folder(empty)
    assert stat.S_IMODE(empty.stat().st_mode) == 0o700
    with pytest.raises(RuntimeError, match="holds other things and is open to other users"):
        own_folder(full)
    assert stat.S_IMODE(full.stat().st_mode) == 0o755


def test_functions_keys_are_not_made_from_what_everyone_knows(furnished: Furnished) -> None:
    function = _function(furnished, trust("lambda.amazonaws.com"))
    told = [json.loads(furnished.cloud.client("lambda").invoke(FunctionName=function)["Payload"].read())]
    keys = {"aws_access_key_id": told[0][0], "aws_secret_access_key": told[0][1], "aws_session_token": told[0][2]}
    identity = furnished.cloud.client("sts", **keys).get_caller_identity()
    assert f":assumed-role/{function}/" in identity["Arn"]
    role = f"arn:aws:iam::{ACCOUNT}:role/{function}"
    arn = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{function}"
    digest = hashlib.sha256(f"{arn}:{role}".encode()).hexdigest()
    assert told[0][1] != hashlib.sha256(f"secret:{digest}".encode()).hexdigest()


@pytest.mark.parametrize("account", [ACCOUNT, "999999999999"])
@pytest.mark.parametrize("way", ["api", "template"])
def test_lambda_assumes_a_role_for_the_account_that_its_trust_policy_names(
    furnished: Furnished, account: str, way: str
) -> None:
    trusting = trust("lambda.amazonaws.com")
    trusting["Statement"][0]["Condition"] = {"StringEquals": {"aws:SourceAccount": account}}
    if way == "template":
        name = f"function-{uuid.uuid4().hex[:8]}"
        resources = {
            "Role": {"Type": "AWS::IAM::Role", "Properties": {"AssumeRolePolicyDocument": trusting}},
            "Function": {
                "Type": "AWS::Lambda::Function",
                "Properties": {
                    "Runtime": "python3.12",
                    "Handler": "index.handler",
                    "Role": {"Fn::GetAtt": ["Role", "Arn"]},
                    "Code": {"ZipFile": "def handler(event, context): return 1"},
                },
            },
        }
        status = deploy(furnished.cloudformation, name, template(resources))
        assert status == ("CREATE_COMPLETE" if account == ACCOUNT else "ROLLBACK_COMPLETE")
        return
    if account == ACCOUNT:
        assert _function(furnished, trusting)
        return
    with pytest.raises(botocore.exceptions.ClientError, match="cannot be assumed by Lambda"):
        _function(furnished, trusting)


def _function(furnished: Furnished, trusting: dict[str, Any]) -> str:
    """A function that tells the keys it was given."""
    name = f"function-{uuid.uuid4().hex[:8]}"
    role = furnished.cloud.client("iam").create_role(RoleName=name, AssumeRolePolicyDocument=json.dumps(trusting))
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
        archive.writestr(
            "index.py", f"import os\ndef handler(event, context):\n    return [os.environ[n] for n in {names}]\n"
        )
    furnished.cloud.client("lambda").create_function(
        FunctionName=name,
        Runtime="python3.12",
        Handler="index.handler",
        Role=role["Role"]["Arn"],
        Code={"ZipFile": packed.getvalue()},
    )
    return name
