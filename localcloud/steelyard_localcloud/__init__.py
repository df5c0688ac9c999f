"""A local AWS cloud for Steelyard: ministack, with SageMaker endpoints as real processes.

``LocalCloud(home)`` starts one as a context manager; ``python -m steelyard_localcloud --home DIR`` from a shell. A
program reaches it with ``{**os.environ, **cloud.environment()}``: plain boto3, plain ``cdk``. What it emulates, what it
does otherwise than AWS, and what it refuses is in ``docs/explanation/local-cloud.md``.
"""

from steelyard_localcloud.cloud import (
    LocalCloud,
    client,
    endpoint_processes,
    publish_base,
    register_image,
    running_cloud,
    stop_cloud,
)
from steelyard_localcloud.details import CloudDetails, read_details

__all__ = [
    "CloudDetails",
    "LocalCloud",
    "client",
    "endpoint_processes",
    "publish_base",
    "read_details",
    "register_image",
    "running_cloud",
    "stop_cloud",
]
