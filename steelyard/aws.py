"""The operator's way to AWS: boto3 clients, what they raise told to a person, and what the stacks say about themselves.

Credentials, profile and endpoint come from where boto3 always takes them, so everything here reaches AWS and the local
cloud alike: ``AWS_PROFILE`` or keys for the one, ``eval "$(steelyard cloud env)"`` for the other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

from steelyard.environment import Environment
from steelyard.exit_codes import CommandError, ExitCode

CONNECT_S = 5.0
READ_S = 60.0
LIVE = "COMPLETE"

_NO_ACCESS = ("AccessDenied", "AccessDeniedException", "UnauthorizedOperation")
_NO_LOGIN = (
    "ExpiredToken",
    "ExpiredTokenException",
    "IncompleteSignature",
    "InvalidAccessKeyId",
    "InvalidClientTokenId",
    "SignatureDoesNotMatch",
    "UnrecognizedClientException",
)
_LOGIN_HINT = (
    'Name a profile with AWS_PROFILE (aws configure lists them), or for the local cloud: eval "$(steelyard cloud env)"'
)


class Aws:
    """Clients of one region, with the caller's own credentials; each is made when it is first needed.

    Args:
        region: The region of an environment.
    """

    def __init__(self, region: str) -> None:
        with told():
            self._session = _boto3().Session(region_name=region)
        self.region = region
        self._clients: dict[str, Any] = {}

    def client(self, service: str) -> Any:
        """A boto3 client, such as ``cloudformation``."""
        if service not in self._clients:
            with told():
                self._clients[service] = self._session.client(service, config=_config(READ_S))
        return self._clients[service]

    def runtime(self, timeout_s: float, *, connections: int = 1) -> Any:
        """Return a boto3 client for invocations.

        Args:
            timeout_s: How long it waits for a word of the answer, in seconds.
            connections: Calls that may be under way together.
        """
        with told():
            return self._session.client("sagemaker-runtime", config=_config(timeout_s, connections=connections))

    def account(self) -> str:
        """The account that the credentials belong to.

        Raises:
            CommandError: There are no credentials, or AWS does not accept them.
        """
        with told():
            return str(self.client("sts").get_caller_identity()["Account"])


def _boto3() -> Any:
    try:
        import boto3
    except ImportError as error:
        raise CommandError(
            "boto3 is not installed in this Python environment",
            code=ExitCode.USAGE,
            hint="Run make setup, or install the extra: pip install 'steelyard[infra]'.",
        ) from error
    return boto3


def _config(read_s: float, *, connections: int = 10) -> Any:
    from botocore.config import Config

    # A read that timed out is not repeated: the model may still be at work on it.
    retries = {"mode": "standard", "total_max_attempts": 3}
    return Config(connect_timeout=CONNECT_S, read_timeout=read_s, retries=retries, max_pool_connections=connections)


@contextmanager
def told() -> Iterator[None]:
    """Tell what botocore raises as a ``CommandError`` with a sentence and what to do."""
    from botocore import exceptions as raised

    try:
        yield
    except (raised.NoCredentialsError, raised.PartialCredentialsError, raised.ProfileNotFound) as error:
        raise CommandError(f"no AWS credentials: {error}", code=ExitCode.USAGE, hint=_LOGIN_HINT) from error
    except raised.ClientError as error:
        raise _refused(error) from error
    except (raised.ReadTimeoutError, raised.ConnectTimeoutError) as error:
        message = f"AWS did not answer in time: {error}"
        raise CommandError(message, code=ExitCode.UNREACHABLE, hint="Try again, or raise --timeout.") from error
    except (raised.HTTPClientError, raised.ConnectionError) as error:
        raise CommandError(f"AWS cannot be reached: {error}", code=ExitCode.UNREACHABLE, hint=_REACH_HINT) from error
    except raised.BotoCoreError as error:
        raise CommandError(f"the AWS SDK cannot do this: {error}") from error


_REACH_HINT = "Check the network and AWS_ENDPOINT_URL; for the local cloud: steelyard cloud status"


def error_code(error: Any) -> str:
    """The code of a botocore ``ClientError``, such as ``ValidationError``."""
    return str(error.response.get("Error", {}).get("Code", ""))


def _refused(error: Any) -> CommandError:
    code = error_code(error)
    message = str(error.response.get("Error", {}).get("Message") or error)
    said = f"AWS refused {error.operation_name} ({code}): {message}"
    if code in _NO_LOGIN:
        return CommandError(said, code=ExitCode.REFUSED, hint=_LOGIN_HINT)
    if code in _NO_ACCESS:
        hint = "Your credentials work, but their policies do not allow this. Ask whoever manages them."
        return CommandError(said, code=ExitCode.REFUSED, hint=hint)
    return CommandError(said, code=ExitCode.REFUSED)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """A CloudFormation stack that exists.

    Attributes:
        name: Its name.
        status: Such as ``UPDATE_COMPLETE``.
        outputs: Its outputs by name.
        protected: Whether AWS refuses to delete it.
    """

    name: str
    status: str
    outputs: Mapping[str, str]
    protected: bool = False

    @property
    def stands(self) -> bool:
        """Whether the last thing that was done to it worked, or was taken back."""
        return self.status in ("CREATE_COMPLETE", "UPDATE_COMPLETE", "UPDATE_ROLLBACK_COMPLETE", "IMPORT_COMPLETE")

    @property
    def lived(self) -> bool:
        """Whether a deployment of it ever worked."""
        return self.status not in ("ROLLBACK_COMPLETE", "ROLLBACK_FAILED", "CREATE_FAILED", "REVIEW_IN_PROGRESS")


def find_stack(aws: Aws, name: str) -> Stack | None:
    """The stack called ``name``; None when there is none.

    Raises:
        CommandError: AWS cannot be asked.
    """
    from botocore.exceptions import ClientError

    with told():
        try:
            found = aws.client("cloudformation").describe_stacks(StackName=name)["Stacks"]
        except ClientError as error:
            if error_code(error) == "ValidationError" and "does not exist" in str(error):
                return None
            raise
    return _stack(found[0]) if found else None


def stacks_of(aws: Aws, environment: Environment) -> dict[str, Stack]:
    """The stacks of an environment that exist, by name.

    Raises:
        CommandError: AWS cannot be asked.
    """
    prefix = environment.stack_name("")
    with told():
        pages = aws.client("cloudformation").get_paginator("describe_stacks").paginate()
        found = [_stack(each) for page in pages for each in page["Stacks"] if each["StackName"].startswith(prefix)]
    # Parts have capitals and environments have none: Steelyard-dev-eu-Build is of dev-eu, not of dev.
    ours = [stack for stack in found if stack.name.removeprefix(prefix)[:1].isupper()]
    return {stack.name: stack for stack in ours if stack.status != "DELETE_COMPLETE"}


def delete_stack(aws: Aws, stack: Stack, *, poll_s: float = 5.0, longest_s: float = 3600.0) -> None:
    """Delete a stack and wait until it is gone.

    Raises:
        CommandError: AWS refuses (it is protected), something in it cannot be deleted, or it takes too long.
    """
    until = time.monotonic() + longest_s
    with told():
        aws.client("cloudformation").delete_stack(StackName=stack.name)
    while (now := find_stack(aws, stack.name)) is not None and now.status != "DELETE_COMPLETE":
        if now.status == "DELETE_FAILED" or time.monotonic() >= until:
            raise CommandError(
                f"the stack {stack.name} could not be deleted: it is {now.status}",
                hint="CloudFormation's reason: aws cloudformation describe-stack-events "
                f"--stack-name {stack.name} --region {aws.region}",
            )
        time.sleep(poll_s)


def _stack(described: Mapping[str, Any]) -> Stack:
    outputs = {each["OutputKey"]: each["OutputValue"] for each in described.get("Outputs", ())}
    return Stack(
        name=described["StackName"],
        status=described["StackStatus"],
        outputs=outputs,
        protected=bool(described.get("EnableTerminationProtection")),
    )


Kind = Literal["chat", "decision"]


@dataclass(frozen=True, kw_only=True)
class DeployedEndpoint:
    """What an endpoint's stack says about it.

    Attributes:
        name: What SageMaker calls it.
        kind: Which contract it answers.
        release: Identifier of the release that it runs.
        log_group: Where its containers write.
    """

    name: str
    kind: Kind
    release: str
    log_group: str


def deployed_endpoint(aws: Aws, environment: Environment, name: str) -> DeployedEndpoint:
    """The endpoint ``name`` of ``environment``, from the outputs of its stack.

    Args:
        aws: Where to ask.
        environment: The environment.
        name: Its name in the environment file.

    Raises:
        CommandError: It is not in the environment file, or not deployed.
    """
    if name not in environment.endpoints:
        known = ", ".join(sorted(environment.endpoints)) or "none"
        raise CommandError(
            f"there is no endpoint {name!r} in the environment {environment.name!r}; it has {known}",
            code=ExitCode.USAGE,
        )
    stack_name = environment.stack_name(f"Endpoint-{name}")
    stack = find_stack(aws, stack_name)
    if stack is None or "EndpointName" not in stack.outputs:
        state = "does not exist" if stack is None else f"is {stack.status} and names no endpoint"
        raise CommandError(
            f"the endpoint {name!r} is not deployed in {environment.name!r}: the stack {stack_name} {state}",
            hint=f"Deploy it: steelyard up --env {environment.name} (make run for the local cloud).",
        )
    said = stack.outputs
    kind: Kind = "chat" if said.get("Kind") == "chat" else "decision"
    return DeployedEndpoint(
        name=said["EndpointName"], kind=kind, release=said.get("Release", ""), log_group=said.get("LogGroup", "")
    )
