"""An endpoint that answers decisions, with our own container."""

from __future__ import annotations

from constructs import Construct

from steelyard_constructs.container_variables import decision_port_faults, decision_variables
from steelyard_constructs.declared_endpoint import check_gpu_layers
from steelyard_constructs.endpoint import Endpoint, EndpointProps
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_constructs.refusal import Refused


class DecisionEndpoint(Endpoint):
    """Decisions (and chat) from one GGUF model, on x86 processors, Graviton or GPUs.

    Args:
        model: The model, in S3.
        props: Its properties. The server refuses to start with fewer ``gpu_layers`` than given.

    Raises:
        Refused: A value, or a combination, that SageMaker would refuse or with which the container would not
            serve.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.decision_endpoint import DecisionEndpoint
        >>> from steelyard_constructs.endpoint import EndpointProps
        >>> from steelyard_constructs.hardware import Hardware, PooledInstance
        >>> from steelyard_constructs.images import ImageReference
        >>> from steelyard_constructs.model_artifact import ModelArtifact
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example", env=cdk.Environment(region="eu-west-1"))
        >>> decisions = DecisionEndpoint(
        ...     stack,
        ...     "Decisions",
        ...     model=ModelArtifact(bucket="models", key="qwen3.5-4b/0123abcd/", bytes=2_700_000_000),
        ...     props=EndpointProps(
        ...         endpoint_name="support-decisions",
        ...         image=ImageReference(repository="steelyard", digest="sha256:" + "0" * 64, cuda="13.0"),
        ...         hardware=Hardware.CUDA,
        ...         instance_pool=(PooledInstance("ml.g6e.xlarge", 1), PooledInstance("ml.g6.xlarge", 2)),
        ...         gpu_layers=-1,
        ...     ),
        ... )
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    def __init__(self, scope: Construct, id: str, *, model: ModelArtifact, props: EndpointProps) -> None:
        check_gpu_layers(props.gpu_layers, props.hardware, needed=True)
        for fault in decision_port_faults(props.environment):
            raise Refused(fault)
        own = decision_variables(endpoint_name=props.endpoint_name, gpu_layers=props.gpu_layers, threads=props.threads)
        super().__init__(scope, id, props=props, source=model, own_environment=own)
