"""The base of every endpoint: a model, a configuration, the endpoint, its role and its logs.

Use :class:`~steelyard_constructs.decision_endpoint.DecisionEndpoint` or
:class:`~steelyard_constructs.chat_endpoint.ChatEndpoint`; this module is what the two share.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aws_cdk import Annotations, ArnFormat, RemovalPolicy, Stack, Token, region_info
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_ec2 as ec2
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_logs as logs
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from steelyard_constructs.container_variables import container_variables
from steelyard_constructs.declared_endpoint import (
    DeclaredEndpoint,
    check_endpoint_image,
    endpoint_checks,
    instance_types,
)
from steelyard_constructs.endpoint_metrics import EndpointMetrics
from steelyard_constructs.environment_key import LOG_KEY_ACTIONS
from steelyard_constructs.execution_role import ExecutionRole
from steelyard_constructs.images import ImageReference, publisher_account
from steelyard_constructs.model_artifact import HubModel, ModelArtifact, timeout, volume_gib
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused
from steelyard_constructs.rollout import deployment_config

#: The one variant of every endpoint. Constant, because a renamed variant loses its scaling.
VARIANT_NAME = "primary"

# Of every instance and GPU, as often as SageMaker offers it, so that an alarm of a minute has six values.
_METRICS = sagemaker.CfnEndpointConfig.MetricsConfigProperty(
    enable_enhanced_metrics=True, enable_detailed_observability=True, metric_publish_frequency_in_seconds=10
)

# SageMaker's own rule: the API reference of CreateEndpoint.
_ENDPOINT_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*")


@dataclass(frozen=True, kw_only=True)
class EndpointProps(DeclaredEndpoint):
    """Properties of an endpoint: the declared fields, and what the stack adds.

    Attributes:
        endpoint_name: Name of the endpoint; letters, digits and hyphens between them, at most 63.
        image: The container, by digest.
        vpc: VPC of the containers; none unless set.
        subnets: Which subnets of it; the private ones unless set.
        security_group: Security group of the containers, needed with ``vpc``, of a stack that outlives the endpoint's;
            see :class:`~steelyard_constructs.endpoint_security_group.EndpointSecurityGroup`.
        encryption_key: Key of the model's bucket, the logs and the instances' volumes; keys of AWS unless set.
            Instances with disks of their own encrypt these in hardware.
        network_isolation: Whether the container is without any network.
        provision_timeout_s: Longest that SageMaker looks for capacity in the pool, in seconds, 300 to 3600.
        log_retention: How long logs are kept.
        removal_policy: Whether the logs go with the stack.
        rollback_alarms: Makes the alarms that undo an update while it is rolled out, at most 10, of the metrics of the
            instances that the update brings; see :class:`~steelyard_constructs.rollback_alarms.RollbackAlarms`.
        drain_s: How long the old instances finish what they are streaming after an update, in seconds, 0 to 3600; 480,
            unless set, is the longest that the server lets a stream last.
    """

    endpoint_name: str
    image: ImageReference
    vpc: ec2.IVpc | None = None
    subnets: ec2.SubnetSelection | None = None
    security_group: ec2.ISecurityGroup | None = None
    encryption_key: kms.IKey | None = None
    network_isolation: bool = True
    provision_timeout_s: int = 1200
    log_retention: logs.RetentionDays = logs.RetentionDays.ONE_MONTH
    removal_policy: RemovalPolicy = RemovalPolicy.DESTROY
    rollback_alarms: Callable[[EndpointMetrics], Sequence[cloudwatch.IAlarm]] | None = None
    drain_s: int = 480


class Endpoint(Construct):
    """A SageMaker endpoint with one variant. Base of the two kinds.

    Model and configuration have no names, so CloudFormation replaces them when anything in them changes (none of their
    properties can be changed in place) and moves the endpoint, whose name stays, from the old to the new. The instance
    count that scaling has reached is kept (``RetainAllVariantProperties``); without scaling, a new count is set.

    Args:
        props: Its properties.
        source: Where the model comes from.
        own_environment: Variables that the kind of endpoint sets; ``environment`` may not repeat them.

    Raises:
        Refused: A value, or a combination, that SageMaker would refuse or with which the container would not
            serve.

    Attributes:
        model: The model.
        config: The endpoint configuration.
        endpoint: The endpoint.
        endpoint_name: Its name, as props. For alarms, which can exist before it. Use
            ``endpoint.attr_endpoint_name`` for what needs the endpoint to exist, such as scaling.
        endpoint_arn: Its ARN.
        variant_name: ``primary``.
        role: The execution role.
        log_group: ``/aws/sagemaker/Endpoints/NAME``.
        instance_types: Its instance types, first choice first.
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        props: EndpointProps,
        source: ModelArtifact | HubModel,
        own_environment: Mapping[str, str],
    ) -> None:
        super().__init__(scope, id)
        _check_name(props.endpoint_name)
        region = _known(Stack.of(self).region)
        for check in endpoint_checks(props, region=region):
            check()
        self._ami = check_endpoint_image(props, props.image, region=region)
        self.instance_types = instance_types(props, region=region)

        self.endpoint_name = props.endpoint_name
        self.variant_name = VARIANT_NAME
        self.log_group = self._make_log_group(props)
        self._security_group = props.security_group
        self._subnets = self._chosen_subnets(props)
        execution = ExecutionRole(
            self,
            "ExecutionRole",
            repository_arn=self._repository_arn(props.image),
            log_group=self.log_group,
            model=source if isinstance(source, ModelArtifact) else None,
            subnets=self._subnets,
            security_group=self._security_group,
            encryption_key=props.encryption_key,
        )
        self.role = execution.role
        self.model = self._make_model(props, source, container_variables(own_environment, props.environment))
        # SageMaker checks the role's access while it makes the model.
        self.model.node.add_dependency(*execution.policies)
        self.config = self._make_config(props, source)
        alarms = self._rollback_alarms(props)
        self.endpoint = sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=props.endpoint_name,
            endpoint_config_name=self.config.attr_endpoint_config_name,
            retain_all_variant_properties=props.scaling is not None,
            deployment_config=deployment_config(
                alarms=alarms,
                canary=props.canary,
                rolling=props.rolling,
                drain_s=props.drain_s,
                instances=props.instances,
            ),
        )
        self.endpoint.node.add_dependency(self.log_group)
        if alarms:
            # An update is refused, or unguarded, where the role may not read the alarms that it names.
            self.endpoint.node.add_dependency(execution.let_read(alarms))
        self.endpoint_arn = self.endpoint.ref

    def grant_invoke(self, grantee: iam.IGrantable) -> iam.Grant:
        """Let ``grantee`` call this endpoint, whole answers and streams, and no other."""
        return iam.Grant.add_to_principal(
            grantee=grantee,
            actions=["sagemaker:InvokeEndpoint", "sagemaker:InvokeEndpointWithResponseStream"],
            resource_arns=[self.endpoint_arn],
        )

    def _rollback_alarms(self, props: EndpointProps) -> Sequence[cloudwatch.IAlarm]:
        if props.rollback_alarms is None:
            return ()
        return props.rollback_alarms(
            EndpointMetrics(props.endpoint_name, VARIANT_NAME, self.config.attr_endpoint_config_name)
        )

    def _make_log_group(self, props: EndpointProps) -> logs.LogGroup:
        name = f"/aws/sagemaker/Endpoints/{props.endpoint_name}"
        group = logs.LogGroup(
            self,
            "Logs",
            log_group_name=name,
            retention=props.log_retention,
            removal_policy=props.removal_policy,
            encryption_key=props.encryption_key,
        )
        if props.encryption_key is not None:
            stack = Stack.of(self)
            arn = stack.format_arn(
                service="logs", resource="log-group", resource_name=name, arn_format=ArnFormat.COLON_RESOURCE_NAME
            )
            props.encryption_key.add_to_resource_policy(
                iam.PolicyStatement(
                    principals=[iam.ServicePrincipal(f"logs.{stack.region}.amazonaws.com")],
                    # Not grant_encrypt_decrypt, whose actions have stars.
                    actions=list(LOG_KEY_ACTIONS),
                    # In a key's own policy the star is the key.
                    resources=["*"],
                    conditions={"ArnEquals": {"kms:EncryptionContext:aws:logs:arn": arn}},
                )
            )
        return group

    def _chosen_subnets(self, props: EndpointProps) -> Sequence[ec2.ISubnet]:
        if props.vpc is None:
            if props.subnets is not None or props.security_group is not None:
                raise Refused(
                    f"endpoint {self.endpoint_name!r} has subnets or a security_group but no vpc; set vpc too, or "
                    "none of them"
                )
            return ()
        if props.security_group is None:
            raise Refused(
                f"endpoint {self.endpoint_name!r} has a vpc but no security_group; take an EndpointSecurityGroup of "
                "another stack: in the endpoint's own, CloudFormation would fail to delete it"
            )
        chosen = props.vpc.select_subnets(**_arguments(props.subnets)) if props.subnets else props.vpc.select_subnets()
        return chosen.subnets

    def _make_model(
        self, props: EndpointProps, source: ModelArtifact | HubModel, environment: Mapping[str, str]
    ) -> sagemaker.CfnModel:
        return sagemaker.CfnModel(
            self,
            "Model",
            execution_role_arn=self.role.role_arn,
            enable_network_isolation=props.network_isolation,
            primary_container=sagemaker.CfnModel.ContainerDefinitionProperty(
                image=self._image_uri(props.image),
                environment=environment,
                model_data_source=_data_source(source),
            ),
            vpc_config=sagemaker.CfnModel.VpcConfigProperty(
                security_group_ids=[self._security_group.security_group_id],
                subnets=[subnet.subnet_id for subnet in self._subnets],
            )
            if self._security_group
            else None,
        )

    def _make_config(self, props: EndpointProps, source: ModelArtifact | HubModel) -> sagemaker.CfnEndpointConfig:
        pool = sorted(props.instance_pool, key=lambda place: place.priority)
        variant = sagemaker.CfnEndpointConfig.ProductionVariantProperty(
            variant_name=VARIANT_NAME,
            model_name=self.model.attr_model_name,
            initial_instance_count=props.instances,
            initial_variant_weight=1,
            routing_config=sagemaker.CfnEndpointConfig.RoutingConfigProperty(
                routing_strategy="LEAST_OUTSTANDING_REQUESTS"
            ),
            instance_type=props.instance_type,
            instance_pools=[
                sagemaker.CfnEndpointConfig.InstancePoolProperty(
                    instance_type=place.instance_type, priority=place.priority
                )
                for place in pool
            ]
            or None,
            variant_instance_provision_timeout_in_seconds=_provision_timeout(props),
            inference_ami_version=self._ami.name if self._ami else None,
            volume_size_in_gb=None if self._any_has_disks else volume_gib(source),
            model_data_download_timeout_in_seconds=timeout(
                "download_timeout_s", given=props.download_timeout_s, derived=source.download_seconds()
            ),
            container_startup_health_check_timeout_in_seconds=timeout(
                "startup_timeout_s", given=props.startup_timeout_s, derived=source.startup_seconds()
            ),
        )
        return sagemaker.CfnEndpointConfig(
            self,
            "Config",
            kms_key_id=self._volume_key(props.encryption_key),
            production_variants=[variant],
            metrics_config=_METRICS,
        )

    @property
    def _any_has_disks(self) -> bool:
        return any(each.family.local_storage for each in self.instance_types)

    def _volume_key(self, key: kms.IKey | None) -> str | None:
        """SageMaker refuses a key where any instance type has disks of its own, which it encrypts in hardware."""
        if key is None or not self._any_has_disks:
            return key.key_arn if key else None
        if without := [each.name for each in self.instance_types if not each.family.local_storage]:
            raise Refused(
                f"the instance pool mixes types with disks of their own and types without ({', '.join(without)}): "
                "SageMaker would not encrypt the latter with encryption_key; pool one sort, or leave out the key"
            )
        return None

    def _registry(self, image: ImageReference) -> tuple[str, str]:
        """Account and region of the image's registry."""
        stack = Stack.of(self)
        region = _known(stack.region)
        if image.region is not None and region is not None and image.region != region:
            raise Refused(
                f"image {image.repository!r} is in {image.region}, but the endpoint is in {region} and SageMaker pulls "
                "from its own region only; copy the image there"
            )
        account = image.account
        if account is None and image.published:
            account = self._publisher(image, region)
        return account or stack.account, image.region or stack.region

    @staticmethod
    def _publisher(image: ImageReference, region: str | None) -> str:
        if region is None:
            raise Refused(
                f"image {image.repository!r} is published by AWS in a registry of each region, but the stack has no "
                "region; give the stack env=Environment(region=...), or the image an account"
            )
        return publisher_account(region)

    def _image_uri(self, image: ImageReference) -> str:
        account, region = self._registry(image)
        suffix = region_info.RegionInfo.get(region).domain_suffix if _known(region) else None
        return f"{account}.dkr.ecr.{region}.{suffix or Stack.of(self).url_suffix}/{image.repository}@{image.digest}"

    def _repository_arn(self, image: ImageReference) -> str:
        account, region = self._registry(image)
        return Stack.of(self).format_arn(
            service="ecr", account=account, region=region, resource="repository", resource_name=image.repository
        )

    def _warn(self, code: str, message: str) -> None:
        Annotations.of(self).add_warning_v2(f"steelyard:{code}", message)


def _known(value: str) -> str | None:
    return None if Token.is_unresolved(value) else value


def _check_name(name: str) -> None:
    if not Token.is_unresolved(name) and (len(name) > 63 or not _ENDPOINT_NAME.fullmatch(name)):
        raise Refused(
            f"endpoint name {name!r} ({len(name)} characters) is one that SageMaker refuses: use letters, digits and "
            "hyphens, a letter or digit at both ends, at most 63"
        )


def _data_source(source: ModelArtifact | HubModel) -> sagemaker.CfnModel.ModelDataSourceProperty | None:
    if isinstance(source, HubModel):
        return None
    return sagemaker.CfnModel.ModelDataSourceProperty(
        s3_data_source=sagemaker.CfnModel.S3DataSourceProperty(
            s3_uri=source.uri,
            s3_data_type="S3Object" if source.compressed else "S3Prefix",
            compression_type="Gzip" if source.compressed else "None",
        )
    )


def _provision_timeout(props: EndpointProps) -> int | None:
    check_whole("provision_timeout_s", props.provision_timeout_s)
    if not 300 <= props.provision_timeout_s <= 3600:
        raise Refused(f"provision_timeout_s is {props.provision_timeout_s} s; SageMaker takes 300 to 3600 s")
    return props.provision_timeout_s if props.instance_pool else None


def _arguments(selection: ec2.SubnetSelection) -> dict[str, Any]:
    """The arguments of ``select_subnets``, which takes a selection apart."""
    names = ("availability_zones", "one_per_az", "subnet_filters", "subnet_group_name", "subnets", "subnet_type")
    return {name: getattr(selection, name) for name in names}
