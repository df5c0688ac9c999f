"""The instance types that SageMaker runs endpoints on. Imports nothing of ministack, so that the command line may."""

from __future__ import annotations

from functools import cache

from steelyard_localcloud import shapes


@cache
def instance_types() -> tuple[str, ...]:
    """All types, from botocore's model of SageMaker."""
    return tuple(shapes.service_model("sagemaker").shape_for("ProductionVariantInstanceType").enum)
