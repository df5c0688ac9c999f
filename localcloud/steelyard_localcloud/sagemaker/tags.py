"""Tags of SageMaker's resources, by ARN."""

from __future__ import annotations

from ministack.core.responses import AccountRegionScopedDict

from steelyard_localcloud.wire import Parameters

Tags = list[dict[str, str]]


class TagStore:
    """The tags of one service's resources in every account and region."""

    def __init__(self) -> None:
        self._by_arn = AccountRegionScopedDict()

    def put(self, arn: str, tags: Tags) -> None:
        """Make ``tags`` the resource's tags."""
        self._by_arn[arn] = {tag["Key"]: tag["Value"] for tag in tags}

    def drop(self, arn: str) -> None:
        """Forget a resource."""
        self._by_arn.pop(arn, None)

    def add(self, parameters: Parameters) -> Parameters:
        """``AddTags``."""
        arn = parameters["ResourceArn"]
        self._by_arn[arn] = self._of(arn) | {tag["Key"]: tag["Value"] for tag in parameters["Tags"]}
        return {"Tags": self._listed(arn)}

    def remove(self, parameters: Parameters) -> Parameters:
        """``DeleteTags``."""
        arn = parameters["ResourceArn"]
        self._by_arn[arn] = {key: value for key, value in self._of(arn).items() if key not in parameters["TagKeys"]}
        return {}

    def list(self, parameters: Parameters) -> Parameters:
        """``ListTags``."""
        return {"Tags": self._listed(parameters["ResourceArn"])}

    def _of(self, arn: str) -> dict[str, str]:
        found: dict[str, str] = self._by_arn.get(arn, {})
        return found

    def _listed(self, arn: str) -> Tags:
        return [{"Key": key, "Value": value} for key, value in sorted(self._of(arn).items())]
