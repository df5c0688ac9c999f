"""IAM for the services that ministack does not know: which action a request is, and on which resource."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ministack.core import iam_actions
from ministack.core.responses import get_account_id, get_region
from ministack.services import iam as accounts

from steelyard_localcloud import wire
from steelyard_localcloud.sagemaker.names import arn

SAGEMAKER = "sagemaker"
RUNTIME = "sagemaker-runtime"
SCALING = "application-autoscaling"
LOGS = "logs"
ECR = "ecr"
CODEBUILD = "codebuild"
QUOTAS = "servicequotas"
PIPELINES = "codepipeline"

_STREAM_SUFFIX = "-response-stream"
_STREAM_OPERATIONS = ("CreateLogStream", "DeleteLogStream", "DescribeLogStreams", "GetLogEvents", "PutLogEvents")
_KINDS = {"Model": "model", "EndpointConfig": "endpoint-config", "Endpoint": "endpoint"}


def extend() -> None:
    """Teach ministack's enforcement the added services."""
    iam_actions.SERVICE_TO_IAM_NAMESPACE.update(
        {SAGEMAKER: SAGEMAKER, RUNTIME: SAGEMAKER, SCALING: SCALING, QUOTAS: QUOTAS, PIPELINES: PIPELINES}
    )
    action, resource = iam_actions.extract_iam_action, iam_actions.extract_resource_arn

    def extract_action(service: str, method: str, path: str, headers: Any, body: bytes, query: Any) -> Any:
        if service == RUNTIME:
            streamed = path.endswith(_STREAM_SUFFIX)
            return f"sagemaker:InvokeEndpoint{'WithResponseStream' if streamed else ''}"
        if service in (SAGEMAKER, SCALING, QUOTAS, PIPELINES):
            return f"{service}:{wire.operation(headers)}"
        return action(service, method, path, headers, body, query)

    def extract_resource(
        service: str, method: str, path: str, headers: Any, body: bytes, query: Any, region: str, account: str
    ) -> Any:
        if service == RUNTIME:
            return arn("endpoint", path.strip("/").split("/")[1])
        if service == SAGEMAKER:
            return sagemaker_resource(wire.operation(headers), _members(body))
        if service == SCALING:
            return scaling_resource(_members(body))
        if service == QUOTAS:
            return "*"
        if service == PIPELINES:
            return pipeline_resource(_members(body), region=region, account=account)
        if service == CODEBUILD:
            return build_resource(wire.operation(headers), _members(body), region=region, account=account)
        if service == ECR and isinstance(owner := _members(body).get("registryId"), str):
            account = owner
        found = resource(service, method, path, headers, body, query, region, account)
        if service == ECR and found == "*":
            return repository_resource(_members(body), region=region, account=account)
        return log_resource(found, wire.operation(headers), _members(body)) if service == LOGS else found

    s3_context = iam_actions.s3_service_context

    def extract_s3_context(iam_action: str, query: Any, path: str = "", headers: Any = None) -> dict[str, Any]:
        context: dict[str, Any] = s3_context(iam_action, query, path, headers)
        return context | write_conditions(query or {}, headers or {}) if iam_action == "s3:PutObject" else context

    simulate = accounts._IAM_HANDLERS["SimulatePrincipalPolicy"]

    def simulate_without_path(parameters: Any) -> Any:
        # Ministack looks for a role by all that follows "role/".
        source = accounts._p(parameters, "PolicySourceArn")
        kind, _, rest = source.rpartition(":")[2].partition("/")
        short = f"{source.rpartition(':')[0]}:{kind}/{rest.rpartition('/')[2]}"
        return simulate({**parameters, "PolicySourceArn": [short]} if rest else parameters)

    accounts._IAM_HANDLERS["SimulatePrincipalPolicy"] = simulate_without_path
    iam_actions.extract_iam_action = extract_action
    iam_actions.extract_resource_arn = extract_resource
    iam_actions.s3_service_context = extract_s3_context


def sagemaker_resource(operation: str, members: Mapping[str, Any]) -> str:
    """The resource that a policy must allow for an operation of the SageMaker API; ``*`` for lists."""
    if operation in ("AddTags", "DeleteTags", "ListTags"):
        return str(members.get("ResourceArn", "*"))
    if operation.startswith("List"):
        return "*"
    noun = operation
    for verb in ("Create", "Describe", "Update", "Delete"):
        noun = noun.removeprefix(verb)
    noun = noun.removesuffix("WeightsAndCapacities")
    if noun in _KINDS and isinstance(name := members.get(f"{noun}Name"), str):
        return arn(_KINDS[noun], name)
    return "*"


def scaling_resource(members: Mapping[str, Any]) -> str:
    """The scalable target that a policy must allow; Application Auto Scaling's descriptions take ``*``."""
    if isinstance(members.get("ResourceId"), str):
        return f"arn:aws:application-autoscaling:{get_region()}:{get_account_id()}:scalable-target/*"
    return "*"


def build_resource(operation: str, members: Mapping[str, Any], *, region: str, account: str) -> str:
    """The project that a policy must allow for an operation of CodeBuild; ``*`` for lists, and for several projects."""
    if operation in ("BatchGetBuilds", "BatchDeleteBuilds", "BatchGetProjects"):
        named = members.get("ids") or members.get("names") or []
    else:
        named = [members.get("projectName") or members.get("id") or members.get("name")]
    last = {str(name).rpartition("/")[2].partition(":")[0] for name in named if name}
    return f"arn:aws:codebuild:{region}:{account}:project/{last.pop()}" if len(last) == 1 else "*"


def pipeline_resource(members: Mapping[str, Any], *, region: str, account: str) -> str:
    """The pipeline, or the action of it, that a policy must allow for an operation of CodePipeline."""
    named = [members.get("pipelineName") or members.get("name"), members.get("stageName"), members.get("actionName")]
    return f"arn:aws:codepipeline:{region}:{account}:{'/'.join(str(each) for each in named if each)}"


def repository_resource(members: Mapping[str, Any], *, region: str, account: str) -> str:
    """The repository of an operation that takes several names; ``*`` unless it is given exactly one."""
    named = members.get("repositoryNames")
    if isinstance(named, list) and len(named) == 1:
        return f"arn:aws:ecr:{region}:{account}:repository/{named[0]}"
    return "*"


def log_resource(found: str, operation: str, members: Mapping[str, Any]) -> str:
    """Return the ARN that CloudWatch Logs checks: for streams, one below the group's, which ``LOG-GROUP:*`` allows."""
    if operation not in _STREAM_OPERATIONS or not found.endswith(f":log-group:{members.get('logGroupName')}"):
        return found
    return f"{found}:log-stream:{members.get('logStreamName', '')}"


def write_conditions(query: Mapping[str, Any], headers: Mapping[str, str]) -> dict[str, str]:
    """The condition keys of S3 that tell conditional writes from those that may replace an object."""
    creates = "partNumber" not in query and "uploads" not in query
    conditions = {"s3:ObjectCreationOperation": "true" if creates else "false"}
    if (expected := headers.get("if-none-match")) is not None:
        conditions["s3:if-none-match"] = expected
    return conditions


def _members(body: bytes) -> Mapping[str, Any]:
    try:
        members = json.loads(body or b"{}")
    except ValueError:
        return {}
    return members if isinstance(members, dict) else {}
