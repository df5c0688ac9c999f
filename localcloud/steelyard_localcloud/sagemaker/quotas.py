"""Quotas of instances behind endpoints, as a new account has them, and the Service Quotas API that tells them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

from ministack.core.responses import get_account_id, get_region

from steelyard_localcloud import shapes
from steelyard_localcloud.errors import ServiceError, not_emulated
from steelyard_localcloud.sagemaker.instance_types import instance_types
from steelyard_localcloud.wire import Parameters

DEFAULT_CPU_QUOTA = 20
"""Instances of a CPU type; new accounts on AWS have other numbers for each type."""

_ACCELERATED = re.compile(r"ml\.(g[0-9]|p[0-9]|inf[0-9]|trn[0-9]|dl[0-9])")
_PAGE = 100


class Quotas:
    """Limits on the instances of each type that the endpoints of an account may have.

    Args:
        applied: Quotas that were raised or lowered, by instance type.
    """

    def __init__(self, applied: Mapping[str, int]) -> None:
        self._applied = dict(applied)
        if unknown := sorted(set(self._applied) - set(instance_types())):
            raise ValueError(f"there are no instance types {', '.join(unknown)} on SageMaker, so no quotas for them")

    def value(self, instance_type: str) -> int:
        """The quota that is in force, in instances."""
        return self._applied.get(instance_type, default_quota(instance_type))

    def check(self, instance_type: str, *, used: int, wanted: int) -> None:
        """Refuse more instances than the quota allows, in AWS's words.

        Args:
            instance_type: Such as ``ml.g5.xlarge``.
            used: Instances that the account's endpoints have.
            wanted: Further ones.

        Raises:
            ServiceError: There would be too many.
        """
        allowed = self.value(instance_type)
        if used + wanted > allowed:
            raise ServiceError(
                f"The account-level service limit '{quota_name(instance_type)}' is {allowed} Instances, with current "
                f"utilization of {used} Instances and a request delta of {wanted} Instances. Please use AWS Service "
                "Quotas to request an increase for this quota. If AWS Service Quotas is not available, contact AWS "
                "support to request an increase for this quota.",
                code="ResourceLimitExceeded",
            )

    def perform(self, operation: str, parameters: Parameters) -> Parameters:
        """Answer a request to Service Quotas.

        Raises:
            ServiceError: AWS would refuse it, or the local cloud does not emulate the operation.
        """
        answers = {
            "ListServiceQuotas": self._list_applied,
            "ListAWSDefaultServiceQuotas": self._list_defaults,
            "GetServiceQuota": self._get,
        }
        if operation not in answers:
            raise not_emulated(f"servicequotas:{operation}")
        shapes.validate("service-quotas", operation, parameters)
        if parameters["ServiceCode"] != "sagemaker":
            raise not_emulated(f"the quotas of {parameters['ServiceCode']}")
        return answers[operation](parameters)

    def _list_applied(self, parameters: Parameters) -> Parameters:
        # AWS lists a quota here only where it has a value of the account's own.
        return _page([_quota(each, value) for each, value in sorted(self._applied.items())], parameters)

    def _list_defaults(self, parameters: Parameters) -> Parameters:
        return _page([_quota(each, default_quota(each)) for each in instance_types()], parameters)

    def _get(self, parameters: Parameters) -> Parameters:
        for instance_type in instance_types():
            if quota_code(instance_type) == parameters["QuotaCode"] and instance_type in self._applied:
                return {"Quota": _quota(instance_type, self.value(instance_type))}
        raise ServiceError("The request failed because the specified resource does not exist.", code=_NO_SUCH)


_NO_SUCH = "NoSuchResourceException"


def default_quota(instance_type: str) -> int:
    """A new account's quota: none of what has an accelerator."""
    return 0 if _ACCELERATED.match(instance_type) else DEFAULT_CPU_QUOTA


def quota_name(instance_type: str) -> str:
    """The quota's name, as Service Quotas has it."""
    return f"{instance_type} for endpoint usage"


def quota_code(instance_type: str) -> str:
    """A code in the form of AWS's; AWS's own are not published in a list, so it is made of the name."""
    return "L-" + hashlib.sha256(quota_name(instance_type).encode()).hexdigest()[:8].upper()


def _quota(instance_type: str, value: int) -> Parameters:
    code = quota_code(instance_type)
    return {
        "ServiceCode": "sagemaker",
        "ServiceName": "Amazon SageMaker",
        "QuotaArn": f"arn:aws:servicequotas:{get_region()}:{get_account_id()}:sagemaker/{code}",
        "QuotaCode": code,
        "QuotaName": quota_name(instance_type),
        "Value": float(value),
        "Unit": "None",
        "Adjustable": True,
        "GlobalQuota": False,
        "QuotaAppliedAtLevel": "ACCOUNT",
    }


def _page(found: list[Parameters], parameters: Parameters) -> Parameters:
    start, size = int(parameters.get("NextToken", 0)), parameters.get("MaxResults", _PAGE)
    answer: Parameters = {"Quotas": found[start : start + size]}
    if start + size < len(found):
        answer["NextToken"] = str(start + size)
    return answer
