"""An endpoint that answers decisions, with our own container."""

from __future__ import annotations

from typing import Unpack

from constructs import Construct

from steelyard_constructs.container_variables import decision_port_faults, decision_variables
from steelyard_constructs.endpoint import Endpoint, EndpointProps
from steelyard_constructs.hardware import Hardware
from steelyard_constructs.model_artifact import ModelArtifact
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused


class DecisionEndpoint(Endpoint):
    """Decisions (and chat) from one GGUF model, on x86 processors, Graviton or GPUs.

    Example:
        >>> import aws_cdk as cdk
        >>> from steelyard_constructs.decision_endpoint import DecisionEndpoint
        >>> from steelyard_constructs.hardware import Hardware, PooledInstance
        >>> from steelyard_constructs.images import ImageReference
        >>> from steelyard_constructs.model_artifact import ModelArtifact
        >>> app = cdk.App()
        >>> stack = cdk.Stack(app, "Example", env=cdk.Environment(region="eu-west-1"))
        >>> decisions = DecisionEndpoint(
        ...     stack,
        ...     "Decisions",
        ...     endpoint_name="support-decisions",
        ...     model=ModelArtifact(bucket="models", key="qwen3.5-4b/0123abcd/", bytes=2_700_000_000),
        ...     image=ImageReference(repository="steelyard", digest="sha256:" + "0" * 64, cuda="13.0"),
        ...     hardware=Hardware.CUDA,
        ...     instance_pool=[PooledInstance("ml.g6e.xlarge", 1), PooledInstance("ml.g6.xlarge", 2)],
        ...     gpu_layers=-1,
        ... )
        >>> template = app.synth().get_stack_by_name("Example").template
    """

    def __init__(
        self,
        scope: Construct,
        id: str,
        *,
        model: ModelArtifact,
        gpu_layers: int = 0,
        **props: Unpack[EndpointProps],
    ) -> None:
        """Make the endpoint.

        Args:
            scope: Parent.
            id: Name within it.
            model: The model, in S3.
            gpu_layers: Layers of the model on the GPU, -1 for all. The server refuses to start with fewer.
            **props: See :class:`~steelyard_constructs.endpoint.EndpointProps`.

        Raises:
            Refused: A value, or a combination, that SageMaker would refuse or with which the container would not
                serve.
        """
        _check_gpu_layers(gpu_layers, props["hardware"])
        for fault in decision_port_faults(props.get("environment", {})):
            raise Refused(fault)
        own = decision_variables(gpu_layers=gpu_layers, threads=props.get("threads"))
        super().__init__(scope, id, source=model, own_environment=own, **props)


def _check_gpu_layers(gpu_layers: int, hardware: Hardware) -> None:
    check_whole("gpu_layers", gpu_layers)
    if gpu_layers < -1:
        raise Refused(f"gpu_layers is {gpu_layers}; set -1 for all layers, or how many")
    if hardware is Hardware.CUDA and gpu_layers == 0:
        raise Refused(
            "gpu_layers is 0 on a 'cuda' endpoint, so the GPU would be paid for and stay idle; set -1 for all layers, "
            "or choose hardware without a GPU"
        )
    if hardware is not Hardware.CUDA and gpu_layers != 0:
        raise Refused(
            f"gpu_layers is {gpu_layers} on a {hardware.value!r} endpoint, which has no GPU, so the server would not "
            "start; set 0, or choose hardware 'cuda'"
        )
