"""The operator's way to AWS: boto3 clients, and their errors as sentences.

Credentials, profile and endpoint come from where boto3 always takes them, so everything here reaches AWS and the local
cloud alike: ``AWS_PROFILE`` or keys for the one, ``eval "$(steelyard cloud env)"`` for the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from steelyard_base.exit_codes import CommandError, ExitCode

CONNECT_S = 5.0
READ_S = 60.0

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
        profile: A profile of AWS's configuration files; what the environment variables say unless given.
    """

    def __init__(self, region: str, *, profile: str | None = None) -> None:
        with aws_errors():
            self._session = _boto3().Session(region_name=region, profile_name=profile)
        self.region = region
        self._clients: dict[tuple[str, str], Any] = {}

    def client(self, service: str, *, region: str | None = None) -> Any:
        """A boto3 client, such as ``cloudformation``; of another region for services that are in few."""
        key = (service, region or self.region)
        if key not in self._clients:
            with aws_errors():
                self._clients[key] = self._session.client(service, region_name=key[1], config=_config(READ_S))
        return self._clients[key]

    def runtime(self, timeout_s: float, *, connections: int = 1) -> Any:
        """Return a boto3 client for invocations.

        Args:
            timeout_s: How long it waits for a word of the answer, in seconds.
            connections: Calls that may be under way together.
        """
        with aws_errors():
            return self._session.client("sagemaker-runtime", config=_config(timeout_s, connections=connections))

    def partition(self) -> str:
        """The partition of the region, such as ``aws`` or ``aws-us-gov``."""
        return str(self._session.get_partition_for_region(self.region))

    def account(self) -> str:
        """The account that the credentials belong to.

        Raises:
            CommandError: There are no credentials, or AWS does not accept them.
        """
        with aws_errors():
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
def aws_errors() -> Iterator[None]:
    """Re-raise errors of botocore as ``CommandError`` with a sentence and what to do."""
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
        hint = "Your credentials work, but their policies do not allow this. Ask their administrator."
        return CommandError(said, code=ExitCode.REFUSED, hint=hint)
    return CommandError(said, code=ExitCode.REFUSED)
