"""The one error of the local cloud's own services: what AWS would answer, with its code."""

from __future__ import annotations


class ServiceError(Exception):
    """A request that AWS would refuse.

    Args:
        message: The sentence for the caller.
        code: AWS's error code, such as ``ValidationException``.
        status: HTTP status.
    """

    def __init__(self, message: str, *, code: str = "ValidationException", status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.status = status


def not_emulated(what: str) -> ServiceError:
    """The loud answer to everything the local cloud does not do."""
    return ServiceError(f"The local cloud does not emulate {what}.", code="UnknownOperationException")
