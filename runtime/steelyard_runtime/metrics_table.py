"""The one table of metrics: names, units, meanings, labels, and where CloudWatch has them.

``/metrics``, the metrics in the log, the dashboard, the alarms and ``docs/reference/metrics.md`` are made from it.
Every label's value comes from a fixed set (route templates, contract names, outcome names, statuses, registered
decisions), so that no caller can make the number of time series grow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

from steelyard_runtime.errors import Kind

NAMESPACE = "Steelyard"
"""CloudWatch's namespace of all of them."""
ENDPOINT, DECISION = "EndpointName", "Decision"
"""Dimensions: every series has the first, and one by decision has both, too."""

OK, CLIENT_LEFT = "ok", "client_left"
"""Outcomes besides the kinds of problems."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 60.0, 240.0)
_TOKEN_SECONDS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 2.5, 5.0)


class Type(StrEnum):
    """Prometheus' types of metrics."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    INFO = "info"


class Unit(StrEnum):
    """CloudWatch's names of units."""

    COUNT = "Count"
    MILLISECONDS = "Milliseconds"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A limit of a series, beyond which an alarm goes off.

    Attributes:
        above: Threshold for the sum of a minute, or for its share.
        percent_of: Name of the series of which it is a share in percent; None for the sum itself.
        message: What it means, for the person who gets the mail.
        minutes: How many minutes must be above it, of how many.
    """

    above: float
    percent_of: str | None = None
    message: str
    minutes: tuple[int, int] = (2, 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A metric of CloudWatch: the part of a metric of ours that has certain values of labels.

    Attributes:
        name: In CloudWatch.
        meaning: One sentence.
        where: Values of labels, of which each must be one; every one where it is empty.
        unit: Of its values.
        by_decision: Whether it is also kept for each registered decision.
        alert: Its alarm; None where it is for the dashboard only.
    """

    name: str
    meaning: str
    where: Mapping[str, frozenset[str]] = field(default_factory=dict)
    unit: Unit = Unit.COUNT
    by_decision: bool = False
    alert: Alert | None = None

    def holds(self, labels: Mapping[str, str]) -> bool:
        """Tell whether what has these labels belongs to it."""
        return all(labels[label] in values for label, values in self.where.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of Prometheus.

    Attributes:
        name: Without the suffixes that Prometheus adds, such as ``_total``.
        type: Its type.
        meaning: One sentence, with the unit.
        labels: Names of its labels.
        buckets: Upper limits of a histogram's buckets, in seconds.
        series: Metrics of CloudWatch that are counted with it.
    """

    name: str
    type: Type
    meaning: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    series: tuple[Series, ...] = ()


def _outcomes(*kinds: Kind) -> Mapping[str, frozenset[str]]:
    return {"outcome": frozenset(kind.value for kind in kinds)}


def _share_of_requests(above: float, message: str) -> Alert:
    return Alert(above=above, percent_of="Requests", message=message)


def _share_of_decisions(above: float, message: str) -> Alert:
    return Alert(above=above, percent_of="RegisteredDecisions", message=message)


FAILURES = (
    Series(
        name="Malformed",
        meaning="Bodies that are not what their contract says.",
        where=_outcomes(Kind.MALFORMED_JSON, Kind.INVALID, Kind.UNSUPPORTED, Kind.MEDIA_TYPE, Kind.REPEATED_HEADER),
        alert=_share_of_requests(20, "Callers send bodies that are not what their contract says."),
    ),
    Series(
        name="UnknownContract",
        meaning="Bodies at /invocations with the shape of no contract.",
        where=_outcomes(Kind.UNKNOWN_SHAPE),
        alert=_share_of_requests(20, "Callers send bodies with the shape of no contract to /invocations."),
    ),
    Series(
        name="UnknownName",
        meaning="Requests for a path, a method or a model that is not served.",
        where=_outcomes(Kind.NOT_FOUND, Kind.METHOD_NOT_ALLOWED, Kind.MODEL_NOT_FOUND),
    ),
    Series(
        name="OverBudget",
        meaning="Requests with more tokens or bytes than are allowed.",
        where=_outcomes(Kind.OVER_BUDGET, Kind.BODY_TOO_LARGE),
        alert=_share_of_requests(20, "Callers send more tokens or bytes than the server allows."),
    ),
    Series(
        name="SlowClient",
        meaning="Bodies that did not arrive in time, and streams that nobody read.",
        where=_outcomes(Kind.UPLOAD_TIMEOUT, Kind.UNREAD),
    ),
    Series(
        name="ClientLeft",
        meaning="Requests whose clients closed the connection.",
        where={"outcome": frozenset({CLIENT_LEFT})},
    ),
    Series(
        name="Busy",
        meaning="Requests that found the queue full.",
        where=_outcomes(Kind.BUSY),
        alert=_share_of_requests(5, "Requests find the queue full: more come than the instances can answer."),
    ),
    Series(
        name="Deadline",
        meaning="Requests that could not be finished in time.",
        where=_outcomes(Kind.DEADLINE),
        alert=_share_of_requests(2, "Requests are not finished in time."),
    ),
    Series(
        name="NotReady",
        meaning="Requests that came while the model was loading, or the server stopped.",
        where=_outcomes(Kind.NOT_READY, Kind.DRAINING),
    ),
    Series(
        name="EngineFault",
        meaning="Requests that the engine or the server failed on.",
        where=_outcomes(Kind.REQUEST_FAILED, Kind.ENGINE_FAILED, Kind.INTERNAL),
        alert=Alert(above=0, message="The engine or the server fails on requests; the log says where."),
    ),
)
"""The classes of failures; every outcome but "ok" is in one of them."""

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "probability": "LowProbability",
        "margin": "LowMargin",
        "distance": "FarFromCases",
        "uncalibrated": "Uncalibrated",
        "never": "NeverAutomated",
    }
)
"""Requirement of a policy that kept an answer from being automated, and its series."""

REQUESTS = Metric(
    name="steelyard_http_requests",
    type=Type.COUNTER,
    meaning="Requests by outcome.",
    labels=("route", "contract", "outcome", "status"),
    series=(
        Series(name="Requests", meaning="Requests with a body, whatever became of them."),
        *FAILURES,
        Series(
            name="BrokenStream",
            meaning="Streams that ended with an error after they had begun.",
            where={"status": frozenset({"200"}), "outcome": frozenset(kind.value for kind in Kind)},
            alert=Alert(above=0, message="Streamed answers break off in the middle; their status is 200."),
        ),
    ),
)
DURATION = Metric(
    name="steelyard_http_request_duration_seconds",
    type=Type.HISTOGRAM,
    meaning="Seconds from the request's headers to the end of its answer.",
    labels=("route", "contract"),
    buckets=_SECONDS,
    series=(
        Series(
            name="Latency",
            meaning="From the request's headers to the end of its answer.",
            unit=Unit.MILLISECONDS,
        ),
    ),
)
WAIT = Metric(
    name="steelyard_queue_seconds",
    type=Type.HISTOGRAM,
    meaning="Seconds of waiting for the engine.",
    labels=("contract",),
    buckets=_SECONDS,
    series=(Series(name="Wait", meaning="Waiting for the engine.", unit=Unit.MILLISECONDS),),
)
ENGINE_TIME = Metric(
    name="steelyard_engine_seconds",
    type=Type.HISTOGRAM,
    meaning="Seconds inside the engine.",
    labels=("contract",),
    buckets=_SECONDS,
    series=(Series(name="EngineTime", meaning="Time inside the engine.", unit=Unit.MILLISECONDS),),
)
FIRST_TOKEN = Metric(
    name="steelyard_time_to_first_token_seconds",
    type=Type.HISTOGRAM,
    meaning="Seconds from the request's headers to the first generated token of a chat or completion.",
    labels=("contract",),
    buckets=_SECONDS,
)
TOKEN_TIME = Metric(
    name="steelyard_time_per_output_token_seconds",
    type=Type.HISTOGRAM,
    meaning="Seconds for each generated token after the first, of one choice.",
    labels=("contract",),
    buckets=_TOKEN_SECONDS,
)
TOKENS = Metric(
    name="steelyard_prompt_tokens",
    type=Type.COUNTER,
    meaning="Tokens of prompts: evaluated, or reused from a kept prefix.",
    labels=("contract", "how"),
    series=(
        Series(
            name="TokensEvaluated",
            meaning="Prompt tokens that were evaluated.",
            where={"how": frozenset({"evaluated"})},
        ),
        Series(
            name="TokensReused",
            meaning="Prompt tokens that were in a kept prefix.",
            where={"how": frozenset({"reused"})},
        ),
    ),
)
RULINGS = Metric(
    name="steelyard_registered_decisions",
    type=Type.COUNTER,
    meaning="Answers to registered decisions, by what their policies did with them.",
    labels=("decision", "action"),
    series=(
        Series(name="RegisteredDecisions", meaning="Answers to registered decisions.", by_decision=True),
        Series(
            name="Automated",
            meaning="Answers that their policy lets be acted on without a person.",
            where={"action": frozenset({"automate"})},
            by_decision=True,
        ),
        Series(
            name="Reviewed",
            meaning="Answers that a person has to confirm.",
            where={"action": frozenset({"review"})},
            by_decision=True,
        ),
        Series(
            name="Abstained",
            meaning="States for which the policy gives no answer.",
            where={"action": frozenset({"abstain"})},
            by_decision=True,
            alert=_share_of_decisions(50, "Most states get no answer of their policy: they may have changed."),
        ),
    ),
)
_CAUSE_MEANINGS = {
    "probability": "Answers kept from a person's or a program's hands by a low probability.",
    "margin": "Answers whose two likeliest options were too close.",
    "distance": "States that lie far from the labelled cases.",
    "uncalibrated": "Answers that were not automated, because their probabilities are not calibrated.",
    "never": "Answers that the policy never automates.",
}
_CAUSE_ALERTS = {
    "distance": _share_of_decisions(20, "States lie far from the labelled cases: the head was not fitted for them."),
    "margin": _share_of_decisions(30, "Many answers have two likeliest options that are close."),
}
HELD_BACK = Metric(
    name="steelyard_held_back_decisions",
    type=Type.COUNTER,
    meaning="Answers to registered decisions that were not automated, by the requirement that they missed first.",
    labels=("decision", "cause"),
    series=tuple(
        Series(
            name=name,
            meaning=_CAUSE_MEANINGS[cause],
            where={"cause": frozenset({cause})},
            by_decision=True,
            alert=_CAUSE_ALERTS.get(cause),
        )
        for cause, name in CAUSES.items()
    ),
)
SHADOWS = Metric(
    name="steelyard_shadow_decisions",
    type=Type.COUNTER,
    meaning="Versions of decisions that were only recorded, by whether they agree with the one that answered.",
    labels=("decision", "shadow", "outcome"),
)
SHADOW_TOKENS = Metric(
    name="steelyard_shadow_tokens",
    type=Type.COUNTER,
    meaning="Tokens that were evaluated for versions that were only recorded.",
    labels=("shadow",),
)
FEEDBACK = Metric(
    name="steelyard_feedback",
    type=Type.COUNTER,
    meaning="Answers to registered decisions of which people said what was right: as answered, another, or not known.",
    labels=("decision", "verdict"),
    series=(
        Series(name="Feedback", meaning="Answers of which people said what was right.", by_decision=True),
        Series(
            name="Overridden",
            meaning="Answers of which people said that another option was right.",
            where={"verdict": frozenset({"overridden"})},
            by_decision=True,
            alert=Alert(above=30, percent_of="Feedback", message="People find another option right than was answered."),
        ),
    ),
)
STARTS_REFUSED = Metric(
    name="steelyard_starts_refused",
    type=Type.COUNTER,
    meaning="Starts that failed, by reason. The process ends with them, so that only CloudWatch sees them.",
    labels=("reason",),
    series=(
        Series(
            name="MismatchedHead",
            meaning="Starts refused, because a head was fitted on another model, prompt, contract or build.",
            where={"reason": frozenset({"mismatched_head"})},
            alert=Alert(
                above=0, message="A container does not start: a head belongs to another model or build.", minutes=(1, 1)
            ),
        ),
        Series(
            name="FailedStart",
            meaning="Starts that failed for another reason.",
            where={"reason": frozenset({"other"})},
            alert=Alert(above=0, message="A container does not start; its log says why.", minutes=(1, 1)),
        ),
    ),
)
MEASURED = (
    REQUESTS,
    DURATION,
    WAIT,
    ENGINE_TIME,
    FIRST_TOKEN,
    TOKEN_TIME,
    TOKENS,
    RULINGS,
    HELD_BACK,
    FEEDBACK,
    SHADOWS,
    SHADOW_TOKENS,
    STARTS_REFUSED,
)
"""Counted while requests are answered."""

ENGINE_COUNTERS = {
    "decoded_tokens": "Tokens that went through llama_decode, with the few that fill up its rows.",
    "reused_tokens": "Prompt tokens that were already in a kept prefix.",
    "generated_tokens": "Tokens generated for chats and completions.",
    "decodes": "Calls of llama_decode.",
    "decisions": "Prompts scored: one for a question, more where its options are new.",
    "generations": "Chats and completions finished.",
    "embeddings": "Texts embedded.",
    "rejected": "Requests refused at admission.",
    "cancelled": "Requests cancelled, because their clients left.",
    "faults": "Requests that the engine failed on and gave up alone.",
    "joined": "Requests that shared the evaluation of an exact duplicate.",
    "interruptions": "Times that a chat's decode was stopped in the middle for what goes first.",
    "prefix_hits": "Prompts whose beginning was found among the kept prefixes.",
    "prefix_misses": "Prompts whose beginning had to be evaluated.",
    "prefix_evictions": "Kept prefixes dropped to make room.",
    "busy_seconds": "Seconds that the engine's thread spent working.",
}
"""Attributes of the engine's ``Counters`` that only grow."""
ENGINE_GAUGES = {
    "prefix_bytes": "Bytes of kept prefixes.",
    "prefixes": "Kept prefixes.",
    "queue_depth": "Requests waiting for the engine.",
    "active_generations": "Chats and completions being generated.",
}
"""Attributes of the engine's ``Counters`` that go up and down."""
ENGINE = "steelyard_engine_"
"""Before the names of these."""

QUEUE_DEPTH = f"{ENGINE}queue_depth"
READY = "steelyard_ready"
START_SECONDS = "steelyard_start_seconds"
MEMORY = "steelyard_memory_bytes"
IDENTITY = "steelyard_identity"
CONNECTIONS = "steelyard_http_connections"
CONNECTIONS_LIMIT = "steelyard_http_connections_limit"
CONNECTIONS_OPENED = "steelyard_http_connections_opened"
CONNECTIONS_CLOSED = "steelyard_http_connections_closed"
ACCEPT_ERRORS = "steelyard_http_accept_errors"
MALFORMED_REQUESTS = "steelyard_http_malformed_requests"
LINES_DROPPED = "steelyard_log_lines_dropped"
RECORDS_DROPPED = "steelyard_decision_records_dropped"

_SAMPLED_SERIES = {
    QUEUE_DEPTH: Series(name="QueueDepth", meaning="Requests waiting for the engine, every ten seconds."),
    LINES_DROPPED: Series(
        name="LogLinesDropped",
        meaning="Lines of the log, records among them, that were not written.",
        alert=Alert(above=0, message="Lines of the log are lost, records among them: it is not read fast enough."),
    ),
    RECORDS_DROPPED: Series(
        name="RecordsDropped",
        meaning="Decision records that were not written to their file.",
        alert=Alert(above=0, message="Decision records are lost: their file is full, or the disk is slow or full."),
    ),
}


def _read(name: str, type_: Type, meaning: str, labels: tuple[str, ...] = ()) -> Metric:
    series = (_SAMPLED_SERIES[name],) if name in _SAMPLED_SERIES else ()
    return Metric(name=name, type=type_, meaning=meaning, labels=labels, series=series)


READ = (
    _read(READY, Type.GAUGE, "1 when /ping answers 200."),
    *(_read(ENGINE + name, Type.COUNTER, meaning) for name, meaning in ENGINE_COUNTERS.items()),
    *(_read(ENGINE + name, Type.GAUGE, meaning) for name, meaning in ENGINE_GAUGES.items()),
    _read(START_SECONDS, Type.GAUGE, "Seconds that the start took.", ("stage",)),
    _read(MEMORY, Type.GAUGE, "Bytes of the process's memory.", ("kind",)),
    _read(
        IDENTITY,
        Type.INFO,
        "What is being served.",
        ("model_id", "model_sha256", "llama_cpp", "binding", "device", "threads", "exact"),
    ),
    _read(CONNECTIONS, Type.GAUGE, "Open connections.", ("state",)),
    _read(CONNECTIONS_LIMIT, Type.GAUGE, "Most open connections, besides a few for GET; 0 where they are not limited."),
    _read(CONNECTIONS_OPENED, Type.COUNTER, "Connections accepted."),
    _read(CONNECTIONS_CLOSED, Type.COUNTER, "Connections closed before their clients did.", ("reason",)),
    _read(ACCEPT_ERRORS, Type.COUNTER, "Connections that the system would not hand over."),
    _read(MALFORMED_REQUESTS, Type.COUNTER, "Requests that are not HTTP as it should be.", ("status",)),
    _read(
        RECORDS_DROPPED,
        Type.COUNTER,
        "Decision records that were not written to their file: it is as long as may be, or the disk is slow or full.",
    ),
    _read(LINES_DROPPED, Type.COUNTER, "Log lines that were not written, because they were not read fast enough."),
)
"""Read from the engine and the connections when somebody asks."""

TABLE: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in (*MEASURED, *READ)})
"""All of them, by name."""


def all_series() -> Iterator[tuple[Metric, Series]]:
    """Every metric of CloudWatch with the one that it is counted with, in the table's order."""
    for metric in TABLE.values():
        for series in metric.series:
            yield metric, series


SERIES: Mapping[str, Series] = MappingProxyType({series.name: series for _, series in all_series()})
"""CloudWatch's metrics, by name."""
