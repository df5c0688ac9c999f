"""Options of a local cloud."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path

DEFAULT_ACCOUNT = "000000000000"
DEFAULT_REGION = "us-east-1"
PUBLISHED_ACCOUNT = "763104351884"
"""The account of AWS's published containers in most regions."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of one local cloud.

    Attributes:
        home: Folder for everything it writes: certificates, logs, endpoints' model folders, ``cloud.json``.
        port: Port of the AWS endpoint on 127.0.0.1; 0 picks a free one.
        region: Region of callers that name none.
        account: Account that the administrator's key belongs to.
        server_python: Interpreter that starts the decision server, with ``steelyard_runtime`` installed.
        llama_server: A ``llama-server`` binary that runs in place of the published chat container; None runs ours.
        invocation_timeout_s: Longest synchronous invocation, in seconds. AWS: 60.
        stream_timeout_s: Longest streamed invocation, in seconds. AWS: 480.
        longest_wait_s: Cap on the waits of a deployment policy (canary, linear steps, termination), in seconds. AWS
            waits as long as the policy says; minutes of it would only slow a local deploy down.
        longest_startup_s: Cap on ``ContainerStartupHealthCheckTimeoutInSeconds``, in seconds.
        interfaces_linger_s: Time for which the network interfaces of an endpoint in a VPC outlive it, in seconds. On
            AWS these are minutes.
        published_accounts: Accounts of AWS whose container registries exist here too, empty until something is
            published to them.
        quotas: Instances of a type that the endpoints of an account may have, where that is not a new account's number:
            20 of a CPU type, none with an accelerator.
        types_without_capacity: Instance types that AWS has no machines of at the moment.
        repositories: Folders that stand for the repositories of connections, by ``owner/name``; a pipeline's source.
        environment: Variables set in every endpoint's process, over those of its container.
    """

    home: Path
    port: int = 0
    region: str = DEFAULT_REGION
    account: str = DEFAULT_ACCOUNT
    server_python: str = sys.executable
    llama_server: str | None = None
    invocation_timeout_s: float = 60.0
    stream_timeout_s: float = 480.0
    longest_wait_s: float = 2.0
    longest_startup_s: float = 3600.0
    interfaces_linger_s: float = 3.0
    published_accounts: list[str] = field(default_factory=lambda: [PUBLISHED_ACCOUNT])
    quotas: dict[str, int] = field(default_factory=dict)
    types_without_capacity: list[str] = field(default_factory=list)
    repositories: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> str:
        """The options as JSON, for the emulator's process."""
        return json.dumps({**asdict(self), "home": str(self.home)})

    @classmethod
    def from_json(cls, text: str) -> Options:
        """The options that ``to_json`` wrote."""
        values = json.loads(text)
        return cls(**{**values, "home": Path(values["home"])})
