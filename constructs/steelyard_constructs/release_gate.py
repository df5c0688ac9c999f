"""Refuse a release whose image or model is missing or differs, before anything of the stack changes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from constructs import Construct, IConstruct

from steelyard_constructs.image_repository import registry_of
from steelyard_constructs.images import ImageReference
from steelyard_constructs.inline_function import inline_function
from steelyard_constructs.nag import acknowledge_wildcard
from steelyard_constructs.refusal import Refused
from steelyard_constructs.service_principal import own_account

HANDLER = Path(__file__).with_name("release_gate_handler.py")
"""The source of the function."""

INLINE_LIMIT = 4096
"""Characters of source that Lambda takes inside a template."""

_FOR_PEOPLE = re.compile(
    r'^ *""".*?"""\n|^ *#[^\n]*\n|  #[^\n]*|: (?:Any|str)(?=[,)])| -> [^\n:]+(?=:(?:\n|  #))', re.MULTILINE | re.DOTALL
)
"""Docstrings, comments and annotations; the handler has no string that looks like one."""

_INDENTED = re.compile(r"^(?: {4})+", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class GatedModel:
    """A model as a release names it, in one environment's bucket.

    Attributes:
        bucket: Name of the bucket.
        prefix: Where its files lie, ending in ``/``. Nothing else may lie there: SageMaker would fetch it too.
        manifest_sha256: Hash of ``model-manifest.json`` below the prefix.
        objects: Size in bytes and sha256 of everything else there, by its name below the prefix.
    """

    bucket: str
    prefix: str
    manifest_sha256: str
    objects: Mapping[str, tuple[int, str]]


@dataclass(frozen=True, kw_only=True)
class GatedTypes:
    """An endpoint whose instance types may not change while it is scaled.

    Attributes:
        name: Its name in SageMaker.
        instance_types: The types that it is to have, first choice first.
    """

    name: str
    instance_types: Sequence[str]


class ReleaseGate(Construct):
    """A Lambda function that CloudFormation asks before it touches anything else of a stack.

    A template names an image by digest and a model by a prefix. Whether they are there only AWS knows, and SageMaker
    finds out late: it fetches whatever lies below the prefix. This function looks that ECR has the digest and that it
    is a single image; that ``model-manifest.json`` has the named hash; and that each file has the named size and sha256
    and no other file lies beside it. If not, the deployment fails with a sentence that says what and where.

    The check is a custom resource whose logical id follows what is checked. Another release is therefore another
    resource: CloudFormation makes it first, and asks nothing again when it rolls back, when the old release may be gone
    as well. ``guard`` makes everything else wait for it.

    Where an endpoint is named, a second resource, whose logical id follows its instance types, refuses other types
    while the endpoint is scaled: AWS fails such an update when the new model and configuration have been made.

    The role may read this image's manifest, this prefix, these objects and the list of scalable targets, and nothing
    else.

    Args:
        image: The image; None where it is a placeholder, which cannot be looked for.
        model: The model; None for one that the container fetches from a hub.
        endpoint: The endpoint and its instance types; None for none.
        local_only: Refuse every account but 000000000000, which only an emulator can have.
        encryption_key: The KMS key of the model's bucket, and of the function's log; its policy has to let
            CloudWatch Logs use it.
        log_retention: How long the function's log is kept.
        removal_policy: What becomes of its log when the stack is deleted.

    Example:
        >>> import aws_cdk as cdk
        >>> from aws_cdk import aws_sns as sns
        >>> from steelyard_constructs.images import ImageReference
        >>> from steelyard_constructs.release_gate import ReleaseGate
        >>> stack = cdk.Stack(cdk.App(), "Example", env=cdk.Environment(region="eu-west-1"))
        >>> gate = ReleaseGate(stack, "Gate", image=ImageReference(repository="mine", digest="sha256:" + "0" * 64))
        >>> gate.guard(sns.Topic(stack, "MadeAfterwards", enforce_ssl=True))

    Attributes:
        resources: The custom resources.
        function: The Lambda function.
        role: Its role.
        log_group: Its log group.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        image: ImageReference | None,
        model: GatedModel | None = None,
        endpoint: GatedTypes | None = None,
        local_only: bool = False,
        encryption_key: kms.IKey | None = None,
        log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH,
        removal_policy: cdk.RemovalPolicy = cdk.RemovalPolicy.DESTROY,
    ) -> None:
        super().__init__(scope, id)
        stack = cdk.Stack.of(self)
        self.log_group = logs.LogGroup(
            self, "Log", retention=log_retention, removal_policy=removal_policy, encryption_key=encryption_key
        )
        made = inline_function(
            self,
            description="Looks whether what a release names is there",
            source=inline_source(),
            log_group=self.log_group,
            timeout_s=120,
        )
        self.role, self.function = made.role, made.function
        wanted: dict[str, Any] = {}
        if local_only:
            wanted["account"] = stack.account
        if image is not None:
            wanted["image"] = [registry_of(stack, image)[0], image.repository, image.digest]
        if model is not None:
            objects = {name: [size, sha256] for name, (size, sha256) in sorted(model.objects.items())}
            wanted["model"] = [model.bucket, model.prefix, model.manifest_sha256, objects]
        version = _version(stack.resolve(wanted))
        check = self._check(f"Check{version}", wanted)
        if statements := [*_image_statements(stack, image), *_model_statements(stack, model, encryption_key)]:
            # It changes with the release too, and must not take from the old check what a new one does not need.
            policy = iam.Policy(self, f"Release{version}", roles=[self.role], statements=statements)
            check.node.add_dependency(policy)
        self.resources = [check]
        if endpoint is not None:
            self.resources.append(self._types_check(endpoint))

    def _check(self, name: str, wanted: Mapping[str, Any], *, kind: str = "ReleaseGate") -> cdk.CustomResource:
        return cdk.CustomResource(
            self,
            name,
            resource_type=f"Custom::Steelyard{kind}",
            service_token=self.function.attr_arn,
            properties={"Wanted": cdk.Stack.of(self).to_json_string(wanted)},
            service_timeout=cdk.Duration.minutes(3),
        )

    def _types_check(self, endpoint: GatedTypes) -> cdk.CustomResource:
        check = self._check(f"Types{_version(endpoint.instance_types)}", {"scaled": endpoint.name}, kind="TypesGate")
        statement = iam.PolicyStatement(
            sid="ListTargets", actions=["application-autoscaling:DescribeScalableTargets"], resources=["*"]
        )
        policy = iam.Policy(self, "Scaling", roles=[self.role], statements=[statement])
        acknowledge_wildcard(policy, "*", reason="The list of scalable targets has no ARN.")
        check.node.add_dependency(policy)
        return check

    def guard(self, *constructs: IConstruct) -> None:
        """Let everything in ``constructs`` wait until the check has passed."""
        for construct in constructs:
            construct.node.add_dependency(*self.resources)


def _version(content: object) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:8]


def inline_source() -> str:
    """The handler as Lambda gets it: docstrings, comments, annotations and wide indents have no room in a template.

    Raises:
        Refused: It has become too long.
    """
    source = _FOR_PEOPLE.sub("", HANDLER.read_text(encoding="utf-8")).lstrip()
    source = _INDENTED.sub(lambda found: " " * (len(found[0]) // 4), source)
    if len(source) > INLINE_LIMIT:
        raise Refused(f"the handler has {len(source)} characters; Lambda takes {INLINE_LIMIT} inside a template")
    return source


def _image_statements(stack: cdk.Stack, image: ImageReference | None) -> list[iam.PolicyStatement]:
    if image is None:
        return []
    account, region = registry_of(stack, image)
    repository = stack.format_arn(
        service="ecr", account=account, region=region, resource="repository", resource_name=image.repository
    )
    return [iam.PolicyStatement(sid="ReadImage", actions=["ecr:BatchGetImage"], resources=[repository])]


def _model_statements(
    stack: cdk.Stack, model: GatedModel | None, encryption_key: kms.IKey | None
) -> list[iam.PolicyStatement]:
    if model is None:
        return []
    bucket = stack.format_arn(service="s3", region="", account="", resource=model.bucket)
    names = ["model-manifest.json", *sorted(model.objects)]
    statements: list[Any] = [
        iam.PolicyStatement(
            sid="ListModel",
            actions=["s3:ListBucket"],
            resources=[bucket],
            conditions={"StringEquals": {**own_account(stack), "s3:prefix": model.prefix}},
        ),
        iam.PolicyStatement(
            sid="ReadModel",
            actions=["s3:GetObject"],
            resources=[f"{bucket}/{model.prefix}{name}" for name in names],
            conditions={"StringEquals": own_account(stack)},
        ),
    ]
    if encryption_key is not None:
        statements.append(
            iam.PolicyStatement(sid="DecryptModel", actions=["kms:Decrypt"], resources=[encryption_key.key_arn])
        )
    return statements
