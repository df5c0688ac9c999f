"""Sources of an endpoint's model, and the time that it takes to arrive and to load."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Protocol

from pydantic import Field

from steelyard_base.strict import Table
from steelyard_constructs.numeric import check_whole
from steelyard_constructs.refusal import Refused

#: Where SageMaker puts the model in the container.
MODEL_FOLDER = "/opt/ml/model"

#: What SageMaker accepts for both timeouts, in seconds.
SHORTEST_TIMEOUT_S, LONGEST_TIMEOUT_S = 60, 3600

#: The least that is derived from a model's size, in seconds. The documentation of the AWS Deep Learning Containers asks
#: for 600 until a llama.cpp container is healthy.
LEAST_DOWNLOAD_S, LEAST_STARTUP_S = 300, 600

_MB = 10**6
_GIB = 2**30

# The slowest that we allow for, in bytes per second; each is about a third of what is usual.
_FROM_S3 = 50 * _MB
_UNPACKING = 50 * _MB
_FROM_HUB = 20 * _MB
_FROM_DISK = 80 * _MB

_KEY = re.compile(r"[A-Za-z0-9!_.*'()/=-]+")
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)?\.gguf")


class ModelSource(Protocol):
    """A source of a model: its size, and the time that it takes."""

    @property
    def bytes(self) -> int:
        """Size of the model's files, in bytes."""
        ...

    def download_seconds(self) -> int:
        """Longest that SageMaker's own download may take, before rounding."""
        ...

    def startup_seconds(self) -> int:
        """Longest from the container's start to its first healthy answer, before rounding."""
        ...


@dataclass(frozen=True)
class ModelArtifact:
    """A model in S3: the files below a prefix, or one ``model.tar.gz``.

    Attributes:
        bucket: Name of the bucket.
        key: The prefix, ending in ``/``, or the key of the ``.tar.gz``. It names its content (a manifest's hash), so
            that a changed model is a changed key: SageMaker does not notice other content under the same one.
        bytes: Size of all files, in bytes; of the archive, for an archive.
        file: The GGUF file to serve, relative to the prefix (or within the archive). A chat endpoint needs it.
    """

    bucket: str
    key: str
    bytes: int
    file: str | None = None

    def __post_init__(self) -> None:
        if not (self.key.endswith("/") or self.key.endswith(".tar.gz")):
            raise Refused(
                f"model key {self.key!r} is neither a prefix nor an archive; end it in '/' for the files below it, or "
                "in '.tar.gz'"
            )
        if self.key.startswith("/") or "//" in self.key or not _KEY.fullmatch(self.key):
            raise Refused(
                f"model key {self.key!r} has an empty part or a character that a policy cannot name exactly; use "
                "letters, digits and !_.'()=- with single '/' between parts"
            )
        if "*" in self.key:
            raise Refused(f"model key {self.key!r} has a '*', which a policy reads as anything; leave it out")
        check_whole(f"bytes of the model at {self.key!r}", self.bytes)
        if self.bytes < 1:
            raise Refused(f"the model at {self.key!r} has {self.bytes} bytes; give the size of its files")
        if self.file is not None and not _FILE.fullmatch(self.file):
            raise Refused(
                f"model file {self.file!r} is not a GGUF file at most one folder deep; name it relative to the prefix, "
                "such as model.gguf"
            )

    @property
    def compressed(self) -> bool:
        """Tell whether it is a ``.tar.gz``."""
        return self.key.endswith(".tar.gz")

    @property
    def uri(self) -> str:
        """Its ``s3://`` address."""
        return f"s3://{self.bucket}/{self.key}"

    def download_seconds(self) -> int:
        """2 minutes, and the time to fetch the files (and to unpack an archive) at 50 MB/s; 5 minutes at the least."""
        needed = 120 + self.bytes // _FROM_S3 + (self.bytes // _UNPACKING if self.compressed else 0)
        return max(needed, LEAST_DOWNLOAD_S)

    def startup_seconds(self) -> int:
        """3 minutes, and the time to read the files twice at 80 MB/s: the start-up probe loads the model too.

        10 minutes at the least: what a healthy container does not use costs nothing.
        """
        return max(180 + 2 * self.bytes // _FROM_DISK, LEAST_STARTUP_S)


@dataclass(frozen=True)
class HubModel(Table):
    """A model that the published chat container fetches from a hub itself. Network isolation is off then.

    What is fetched can change under the same name, and each new instance fetches it again: it is for trying things.
    """

    repository: Annotated[str, Field(description="Repository on the hub, OWNER/NAME.")]
    file: Annotated[str, Field(description="The GGUF file in it.")]
    bytes: Annotated[int, Field(description="Its size in bytes, from which the timeouts are derived.")]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*/[A-Za-z0-9][A-Za-z0-9_.-]*", self.repository):
            raise Refused(f"hub repository {self.repository!r} is not written as OWNER/NAME")
        if not _FILE.fullmatch(self.file):
            raise Refused(f"hub file {self.file!r} is not a GGUF file; name one of the repository's .gguf files")
        check_whole(f"bytes of the hub file {self.file!r}", self.bytes)
        if self.bytes < 1:
            raise Refused(f"the hub file {self.file!r} has {self.bytes} bytes; give its size")

    def download_seconds(self) -> int:
        """The least: SageMaker itself has nothing to fetch."""
        return SHORTEST_TIMEOUT_S

    def startup_seconds(self) -> int:
        """3 minutes, the time to fetch the file at 20 MB/s, and to read it at 80 MB/s; 10 at the least."""
        return max(180 + self.bytes // _FROM_HUB + self.bytes // _FROM_DISK, LEAST_STARTUP_S)


def timeout(name: str, *, given: int | None, derived: int) -> int:
    """A timeout in seconds: ``given``, or ``derived`` rounded up to a whole minute.

    Raises:
        Refused: It is outside what SageMaker accepts.
    """
    if given is not None:
        check_timeout(name, given)
        return given
    seconds = -(-derived // 60) * 60
    check_timeout(name, seconds, source=", derived from the model's size,")
    return seconds


def check_timeout(name: str, seconds: int | None, *, source: str = "") -> None:
    """Refuse a timeout that SageMaker does not accept; None is for the one that follows from the model's size.

    Args:
        name: What the message calls it.
        seconds: The timeout.
        source: Where it comes from, for the message.

    Raises:
        Refused: With the limits.
    """
    if seconds is None:
        return
    check_whole(name, seconds)
    if not SHORTEST_TIMEOUT_S <= seconds <= LONGEST_TIMEOUT_S:
        raise Refused(
            f"{name} of {seconds} s{source} is outside the {SHORTEST_TIMEOUT_S} to {LONGEST_TIMEOUT_S} s that "
            "SageMaker accepts; set it within, or use a smaller model"
        )


def volume_gib(model: ModelSource) -> int:
    """Size of the instance's volume in GiB: three times the model, and at least the 30 that SageMaker gives anyway.

    Raises:
        Refused: The model does not fit the largest volume, 512 GiB.
    """
    needed = max(30, -(-3 * model.bytes // _GIB))
    if needed > 512:
        raise Refused(
            f"the model of {model.bytes} bytes needs a volume of {needed} GiB; SageMaker gives at most 512: use a "
            "smaller quantization, or an instance type with its own disks"
        )
    return needed
