"""The environment variables of an endpoint's container: which it may be given, and which are the endpoint's own.

Nothing here needs the CDK, so configuration files can be checked without it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from steelyard_constructs.model_artifact import MODEL_FOLDER
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused

# SageMaker's own rules: the API reference of ContainerDefinition.
_VARIABLE = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,1023}")
_MAX_VARIABLES, _MAX_VALUE = 100, 1024

#: Names that our server takes its port from, in any case.
PORT_NAMES = frozenset({"PORT", "STEELYARD_PORT", "SAGEMAKER_BIND_TO_PORT"})


def decision_variables(*, endpoint_name: str, gpu_layers: int | None, threads: int | None) -> dict[str, str]:
    """Return the variables that a decision endpoint sets itself.

    Args:
        endpoint_name: Its name, under which the server reports metrics.
        gpu_layers: Layers on the GPU, -1 for all.
        threads: Threads of llama.cpp; None leaves them to the server.

    Raises:
        Refused: A number is not whole.
    """
    layers = gpu_layers or 0
    check_whole("gpu_layers", layers)
    if threads is not None:
        check_whole("threads", threads)
    return {
        # The server listens on the loopback address by itself, where SageMaker's health check cannot reach it.
        "STEELYARD_HOST": "0.0.0.0",  # noqa: S104 - inside the container, behind SageMaker
        "STEELYARD_MODEL": MODEL_FOLDER,
        "STEELYARD_ENDPOINT_NAME": endpoint_name,
        "STEELYARD_GPU_LAYERS": str(layers),
        **({"STEELYARD_THREADS": str(threads)} if threads is not None else {}),
    }


def container_variables(own: Mapping[str, str], given: Mapping[str, str]) -> dict[str, str]:
    """The variables of the container, in alphabetical order.

    Args:
        own: What the endpoint sets itself.
        given: What its deployment sets.

    Raises:
        Refused: ``given`` repeats one of ``own``, or SageMaker or Linux would not take a name, a value or their number.
    """
    for fault in variable_faults(own, given):
        raise Refused(fault)
    return dict(sorted({**own, **given}.items()))


def decision_port_faults(given: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each variable that would move our server away from the port that SageMaker asks on."""
    for name in given:
        if name.upper() in PORT_NAMES:
            yield f"the environment sets {name}, but SageMaker reaches the server on port 8080 only; remove it"


def variable_faults(own: Mapping[str, str], given: Mapping[str, str]) -> Iterator[str]:
    """A sentence for each reason why :func:`container_variables` would refuse."""
    for name in given:
        if name in own:
            yield f"the environment sets {name}, which the endpoint sets itself; use the endpoint's own setting"
        elif not _VARIABLE.fullmatch(name):
            yield f"{name!r} is not a name of an environment variable: letters, digits and _, no digit first"
    variables = {**own, **given}
    for name, value in variables.items():
        if len(value) > _MAX_VALUE:
            yield f"environment variable {name} has {len(value)} characters; SageMaker takes at most {_MAX_VALUE}"
        if (at := value.find("\0")) >= 0:
            yield (
                f"environment variable {name} has the character U+0000 at position {at}, with which no program can be "
                "started; remove it"
            )
    if len(variables) > _MAX_VARIABLES:
        yield f"the container has {len(variables)} environment variables; SageMaker takes {_MAX_VARIABLES}"
