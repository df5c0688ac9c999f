"""The record of an environment: who deployed which release to it, when, why, and on what evidence.

Each event is one object in the environment's bucket, under ``releases/ENVIRONMENT/``. It is written on the condition
that there is none of that name: nothing is overwritten, and of two that write at once the later takes the next number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError

from steelyard.aws.session import Aws, aws_errors, error_code
from steelyard.environments.schema import Environment
from steelyard.releases.manifest import Release, parse_release
from steelyard_base.exit_codes import CommandError, ExitCode
from steelyard_base.faults import first_fault
from steelyard_base.strict import Listed, Strict

FORMAT: Literal["steelyard-record/1"] = "steelyard-record/1"
MOST_WHY = 500
"""Characters of a reason."""

_TAKEN = ("PreconditionFailed", "ConditionalRequestConflict")
_TRIES = 20

Action = Literal["deploy", "promote", "rollback"]
Outcome = Literal["begun", "done", "failed"]


class Evidence(Strict):
    """An evaluation that a promotion rested on. Its answers and states stay where they are."""

    file: Annotated[str, Field(description="Name of its file.")]
    sha256: Annotated[str, Field(description="Hash of the file.")]
    decision: Annotated[str, Field(description="The decision that was asked.")]
    cases: Annotated[int, Field(ge=0, description="Answered cases.")]
    gates: Annotated[Listed[str], Field(description="Each limit with its figure.")] = ()


class Event(Strict):
    """One event of an environment."""

    format: Annotated[Literal["steelyard-record/1"], Field(description="Of this object.")] = FORMAT
    number: Annotated[int, Field(ge=1, description="Its place in the record.")]
    at: Annotated[str, Field(description="When it was written, UTC.")]
    by: Annotated[str, Field(description="ARN of the caller's identity.")]
    action: Annotated[Action, Field(description="The command.")]
    outcome: Annotated[Outcome, Field(description="`begun` before anything of an endpoint changes, then how it ended.")]
    release: Annotated[dict[str, Any], Field(description="The whole manifest of the release.")]
    previous: Annotated[
        int | None, Field(ge=1, description="The event whose release a rollback of this one returns to.")
    ] = None
    promoted_from: Annotated[str | None, Field(description="The environment that it was promoted from.")] = None
    why: Annotated[str | None, Field(description="The reason that was given.")] = None
    evidence: Annotated[Listed[Evidence], Field(description="What a promotion rested on.")] = ()
    fault: Annotated[str | None, Field(description="What failed.")] = None

    @property
    def release_id(self) -> str:
        """Id of the release."""
        return str(self.release.get("id", ""))

    def manifest(self) -> Release:
        """Return the release.

        Raises:
            CommandError: The manifest is refused by this version.
        """
        return parse_release(self.release, source=f"of event {self.number} of the record")


@dataclass(frozen=True, kw_only=True)
class Occasion:
    """The reason and the grounds of a deployment, as they are recorded.

    Attributes:
        action: The command.
        why: The reason that was given.
        promoted_from: The environment that the release comes from.
        evidence: What a promotion rests on.
        returns_to: Number of the event whose release a rollback deploys again.
    """

    action: Action = "deploy"
    why: str | None = None
    promoted_from: str | None = None
    evidence: tuple[Evidence, ...] = ()
    returns_to: int | None = None


def reason(text: str | None) -> str | None:
    """Return a reason as it is recorded.

    Raises:
        CommandError: It is too long, or has characters that cannot be printed.
    """
    if text is None:
        return None
    if not text.strip() or len(text) > MOST_WHY or not text.isprintable():
        raise CommandError(
            f"--why has {len(text)} characters; it must be one line of 1 to {MOST_WHY} that can be printed",
            code=ExitCode.USAGE,
        )
    return text


@contextmanager
def recorded(
    aws: Aws, environment: Environment, release: Release, *, bucket: str, occasion: Occasion
) -> Iterator[None]:
    """Record that a deployment begins, and how the block ends.

    Raises:
        CommandError: The record cannot be written; nothing of the block has run if its beginning cannot.
    """
    said = {
        "action": occasion.action,
        "release": release.model_dump(mode="json", exclude_unset=True),
        "promoted_from": occasion.promoted_from,
        "why": occasion.why,
        "evidence": occasion.evidence,
    }
    _append(aws, environment, bucket=bucket, said={**said, "outcome": "begun"}, occasion=occasion)
    try:
        yield
    except BaseException as error:
        # The error says what went wrong; a record that cannot be written now must not hide it.
        with suppress(CommandError):
            failed = {**said, "outcome": "failed", "fault": _fault(error)}
            _append(aws, environment, bucket=bucket, said=failed, occasion=occasion)
        raise
    _append(aws, environment, bucket=bucket, said={**said, "outcome": "done"}, occasion=occasion)


def _fault(error: BaseException) -> str:
    if isinstance(error, CommandError):
        return error.message
    return "interrupted" if isinstance(error, KeyboardInterrupt) else type(error).__name__


def _append(aws: Aws, environment: Environment, *, bucket: str, said: dict[str, Any], occasion: Occasion) -> Event:
    from botocore.exceptions import ClientError

    with aws_errors():
        by = str(aws.client("sts").get_caller_identity()["Arn"])
        for _ in range(_TRIES):
            numbers = event_numbers(aws, environment, bucket=bucket)
            event = Event(
                number=max(numbers, default=0) + 1,
                at=datetime.now(UTC).isoformat(timespec="seconds"),
                by=by,
                previous=_previous(aws, environment, numbers, bucket=bucket, said=said, occasion=occasion),
                **said,
            )
            try:
                aws.client("s3").put_object(
                    Bucket=bucket,
                    Key=_key(environment, event.number),
                    Body=json.dumps(event.model_dump(mode="json"), ensure_ascii=False).encode(),
                    ContentType="application/json",
                    ChecksumAlgorithm="SHA256",
                    IfNoneMatch="*",
                )
            except ClientError as error:
                if error_code(error) not in _TAKEN:
                    raise
            else:
                return event
    raise CommandError(
        f"the record of {environment.name} has grown under every one of {_TRIES} tries to add to it",
        hint="Others deploy this environment now. Wait until they have finished, then run this again.",
    )


def _previous(
    aws: Aws,
    environment: Environment,
    numbers: Sequence[int],
    *,
    bucket: str,
    said: dict[str, Any],
    occasion: Occasion,
) -> int | None:
    """Number of the event that a rollback of the new one returns to."""
    if occasion.returns_to is not None:
        return read_event(aws, environment, occasion.returns_to, bucket=bucket).previous
    now = deployed(aws, environment, bucket=bucket, numbers=numbers)
    if now is None:
        return None
    return now.previous if now.release_id == said["release"]["id"] else now.number


def _key(environment: Environment, number: int) -> str:
    return f"{_prefix(environment)}{number:08d}.json"


def _prefix(environment: Environment) -> str:
    return f"releases/{environment.name}/"


def event_numbers(aws: Aws, environment: Environment, *, bucket: str) -> list[int]:
    """Numbers of all events, the oldest first.

    Raises:
        CommandError: S3 cannot be asked.
    """
    prefix = _prefix(environment)
    with aws_errors():
        pages = aws.client("s3").get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        keys = [each["Key"] for page in pages for each in page.get("Contents", ())]
    names = [key.removeprefix(prefix).removesuffix(".json") for key in keys]
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def read_event(aws: Aws, environment: Environment, number: int, *, bucket: str) -> Event:
    """Read one event.

    Raises:
        CommandError: S3 cannot be asked, or the object is no event that this version knows.
    """
    key = _key(environment, number)
    with aws_errors():
        body = aws.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    try:
        return Event.model_validate_json(body)
    except ValidationError as error:
        raise CommandError(
            f"s3://{bucket}/{key} is no event of a record: {first_fault(error, whole='the object')}",
            hint="A newer version may have written it: use that one.",
        ) from error


def newest_events(aws: Aws, environment: Environment, *, bucket: str, most: int) -> list[Event]:
    """The last ``most`` events, the newest first."""
    numbers = event_numbers(aws, environment, bucket=bucket)[-most:]
    return [read_event(aws, environment, each, bucket=bucket) for each in reversed(numbers)]


def deployed(aws: Aws, environment: Environment, *, bucket: str, numbers: Sequence[int] | None = None) -> Event | None:
    """The last event by which a release was deployed; None where there is none."""
    if numbers is None:
        numbers = event_numbers(aws, environment, bucket=bucket)
    for number in reversed(numbers):
        event = read_event(aws, environment, number, bucket=bucket)
        if event.outcome == "done":
            return event
    return None


def rollback_target(aws: Aws, environment: Environment, *, bucket: str) -> Event:
    """The event whose release a rollback deploys again.

    It is the last that was deployed where a newer one has failed or was interrupted, and else the one before it.

    Raises:
        CommandError: The record has none.
    """
    numbers = event_numbers(aws, environment, bucket=bucket)
    now = deployed(aws, environment, bucket=bucket, numbers=numbers)
    if now is not None:
        newest = read_event(aws, environment, numbers[-1], bucket=bucket)
        # A rollback that did not finish is done again; anything else that did not is left behind.
        if newest.outcome != "done" and (newest.action == "rollback") == (newest.release_id == now.release_id):
            return now
        if now.previous is not None:
            return read_event(aws, environment, now.previous, bucket=bucket)
    raise CommandError(
        f"the record of {environment.name} has no release before "
        f"{now.release_id if now is not None else 'the first'}, so there is none to return to",
        code=ExitCode.USAGE,
        hint=f"Deploy one by its name: steelyard up --env {environment.name} --release ID",
    )
