"""The one configuration module: every setting of the server, as flag, environment variable or file entry.

Order of precedence: flags, then ``STEELYARD_*`` environment variables, then the TOML file named by ``--config`` or
``STEELYARD_CONFIG``, then the defaults here. ``docs/reference/settings.md`` is generated from this file.
"""

from __future__ import annotations

import difflib
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, TypeAdapter, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from steelyard_runtime.strict_toml import parse as parse_toml
from steelyard_runtime.whole_files import read_whole

LARGEST_CONFIG = 1 << 20
"""Bytes of a settings file."""
MAX_JSON_DEPTH = 512
"""Arrays and objects inside each other: the most that a server may allow, well within Python's recursion limit."""
MAX_INTEGER_DIGITS = 4300
"""Longest integer literal; converting longer ones takes quadratic time. Python's own default limit."""
MAX_OPTIONS = 255
"""Options of one question: the most that a server may allow."""
MAX_QUESTIONS = 400
"""Questions of one request: the most that a server may allow."""
MAX_CHOICES = 128
"""Answers that one request may have generated: the most that a server may allow."""

RECORDS_TO_LOG = "log"
"""The value of ``decision_records`` that means the log."""

PREFIX = "STEELYARD_"
OTHER_VARIABLES = frozenset(
    {
        "STEELYARD_BUILD_KEY",
        "STEELYARD_BUILD_STATE",
        "STEELYARD_CACHE",
        "STEELYARD_CLOUD",
        "STEELYARD_CONFIG",
        "STEELYARD_DOCKER",
        "STEELYARD_FUZZ",
        "STEELYARD_LOCALCLOUD_LIFELINE",
        "STEELYARD_MODELS",
        "STEELYARD_PYTHON",
        "STEELYARD_TEST_CONTAINERS",
        "STEELYARD_TEST_MODEL",
        "STEELYARD_URL",
    }
)
"""Every variable with our prefix that something of this project reads and that is no setting."""

# Kubernetes gives a pod such variables for each service of its namespace. A service may be called steelyard.
_SERVICE_LINK = re.compile(
    r"STEELYARD_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)",
    re.ASCII,
)
_LONGEST_SHOWN = 80
_MOST_FAULTS = 20
_MOST_ALIASES = 64


class SettingsError(ValueError):
    """Settings with which no server can start; the message is for the person who gave them."""


def _text(instead: str) -> AfterValidator:
    """Text that can be seen and sent; ``instead`` says what to set where there is none."""

    def check(value: str) -> str:
        if not any(character.isprintable() and character != " " for character in value):
            raise ValueError(f"it is blank; {instead}")
        for character in value:
            # Not isprintable(): a folder's name may well hold a wide or a narrow space, or a joiner.
            if unicodedata.category(character) in ("Cc", "Zl", "Zp"):
                raise ValueError(f"it holds the control character {character!r}; take printable characters only")
        return value

    return AfterValidator(check)


def _names(value: str) -> str:
    """Names separated by commas; white space around them does not count."""
    names = [name.strip() for name in value.split(",")]
    if len(names) > _MOST_ALIASES:
        raise ValueError(f"it has {len(names)} names; give at most {_MOST_ALIASES}")
    if "" in names:
        raise ValueError("a name between its commas is empty; separate the names by one comma each")
    return ",".join(names)


class Settings(BaseSettings):
    """Settings of one server process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="forbid", frozen=True, protected_namespaces=())

    model: Annotated[str, _text("name a model of the catalogue or a GGUF file")] = Field(
        "gemma-3-270m", description="Name in the model catalogue, a GGUF file, or a folder holding one."
    )
    model_id: Annotated[str, _text("leave it unset for the catalogue or file name")] | None = Field(
        None, description="Name reported to callers; the catalogue or file name when unset."
    )
    model_aliases: Annotated[str, _text("leave it unset for none"), AfterValidator(_names)] | None = Field(
        None,
        description="Other names by which requests may ask for the model, separated by commas; at most 64. Answers "
        "report the model's own name.",
    )
    accept_any_model: bool = Field(
        False,
        description="Answer requests whatever model they name. Without it a name that is neither the model's own, an "
        "alias nor a generic one gets a 404.",
    )
    host: Annotated[str, _text("set 127.0.0.1 for this machine only, 0.0.0.0 for all interfaces")] = Field(
        "127.0.0.1", description="Address to listen on."
    )
    port: Annotated[int, Field(ge=0, le=65535)] = Field(8080, description="Port to listen on; 0 picks a free one.")

    threads: Annotated[int, Field(ge=0, le=1024)] = Field(
        0,
        description="Threads for llama.cpp; 0 means the physical cores that this process may use, less one for the "
        "event loop where there are more than two.",
    )
    gpu_layers: Annotated[int, Field(ge=-1)] = Field(
        0, description="Layers on the GPU, -1 for all. Not 0: refuse to start without a GPU that takes them."
    )
    context_tokens: Annotated[int, Field(ge=0)] = Field(
        0,
        description="Largest prompt plus generated text of one request, in tokens; 0 means 8192, or less if the model "
        "allows less.",
    )
    chats: Annotated[int, Field(ge=1, le=254)] = Field(
        3,
        description="Chat choices generated at the same time; each has a sequence of its own.",
    )
    decisions_together: Annotated[int, Field(ge=1, le=128)] = Field(
        1,
        description="Decisions that may share one llama_decode, as far as their deadlines allow. More than 1 is for "
        "GPUs: on a CPU it gains nothing. Answers are then no longer exact, and the identity says so.",
    )
    batch_tokens: Annotated[int, Field(ge=32, le=8192)] = Field(
        512,
        description="Tokens in one llama_decode; decisions are cut into decodes of this size. At least chats + 16, and "
        "decisions_together.",
    )
    chat_chunk_tokens: Annotated[int, Field(ge=16, le=8192)] = Field(
        256,
        description="Most tokens of a chat's prompt in one llama_decode. Decisions interrupt it; on a GPU they do not, "
        "and while they come a chunk takes at most three times as long as one of them.",
    )
    flash_attention: Literal["auto", "on", "off"] = Field("auto", description="Flash attention in llama.cpp.")
    cache_type: Literal["f16", "q8_0"] = Field(
        "f16",
        description="Number format of the context's cells. q8_0 takes half the memory and changes answers a little.",
    )
    chat_template: Annotated[str, _text("leave it unset for the model's own")] | None = Field(
        None,
        description="A Jinja file, the name of one of the model file's templates, or plain for none. Unset: the file's "
        "default, else the first of its named ones, by name, that takes a message without tools, else plain.",
    )
    decisions: Annotated[str, _text("leave it unset for the folder beside the model")] | None = Field(
        None,
        description="Folder of registered decisions, one folder each. Unset: a folder called decisions beside the "
        "model file, if there is one.",
    )
    decisions_sha256: (
        Annotated[str, _text("leave it unset for whatever is there"), Field(pattern=r"^[0-9a-f]{64}$")] | None
    ) = Field(
        None,
        description="Hash of the registered decisions that must be there, over their names, contracts and heads; the "
        "server does not start with others. A release's endpoints set it. Unset: any.",
    )
    shadow_decisions: Annotated[str, _text("leave it unset for none"), AfterValidator(_names)] | None = Field(
        None,
        description="Shadows: versions of registered decisions, as NAME@VERSION, separated by commas. Each is decided "
        "beside another version of its name, does not answer, and is recorded in the log and the metrics.",
    )
    layout: Literal["state-first", "options-first"] = Field(
        "state-first",
        description="Layout of the prompt of decisions that name none. state-first decides better on small models; "
        "options-first makes new states cheap.",
    )
    readout: Literal["auto", "letters-raw"] = Field(
        "auto",
        description="Readout of decisions that name none and are not registered. auto: on models of less than a "
        "billion parameters options-as-cases, or question-as-case for yes and no; letters-raw on others, and where "
        "options are levels or have no text that a state can be like.",
    )
    reuse_prefixes: bool = Field(True, description="Keep evaluated prefixes between requests.")
    reuse_states: bool = Field(
        True,
        description="Also keep prefixes that hold a caller's text (states, chats); only the same caller reuses them. "
        "Without it only instructions and questions are kept.",
    )
    prefix_cache_mib: Annotated[int, Field(ge=0, le=1 << 20)] = Field(
        512,
        description="Most memory for kept prefixes, in MiB; one state that does not fit may be held besides.",
    )
    answer_cache_entries: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        0,
        description="Answers that are kept for exactly the same question on the same state; 0 keeps none. A kept "
        "answer says that nothing was evaluated.",
    )
    probe: bool = Field(True, description="Run the start-up probe; without it prefixes are recomputed every time.")

    queue_limit: Annotated[int, Field(ge=1, le=100_000)] = Field(
        256, description="Most waiting chats and, counted apart, most waiting decisions and embeddings."
    )
    unnamed_share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.75,
        description="Largest share of the queue and of the connections that requests without a caller's name "
        "(X-Steelyard-Caller) may hold together, at least one of each; the rest is for callers with a name. The same "
        "share of the chats' places, while a caller with a name was seen in the last ten minutes.",
    )
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        55.0, description="Longest a synchronous request may take, in seconds; SageMaker cuts at 60."
    )
    stream_deadline_s: Annotated[float, Field(gt=0, le=36000)] = Field(
        480.0, description="Longest a streamed request may take, in seconds."
    )
    decode_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        30.0, description="Seconds after which a llama_decode that still runs turns /ping to 503."
    )
    drain_s: Annotated[float, Field(gt=0, le=600)] = Field(
        25.0, description="Seconds after SIGTERM in which accepted work is finished or failed."
    )

    max_connections: Annotated[int, Field(ge=0, le=65535)] = Field(
        0,
        description="Most open connections. One more closes the longest idle one, never one with a request in "
        "progress. 0 means 1024, or fewer where the limit of open files (ulimit -n) is low.",
    )
    unread_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        30.0,
        description="How long a client may read nothing of a stream before its generation is stopped, in seconds; "
        "after twice that time the connection is closed.",
    )
    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        4 << 20, description="Largest request body, in bytes."
    )
    max_waiting_mib: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        64,
        description="Most memory for large bodies that wait to be read and tokenized, in MiB; one may be larger. Their "
        "values and texts take a few times as much, one body at a time.",
    )
    upload_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(
        10.0, description="Longest a request body may take to arrive, in seconds."
    )
    max_json_depth: Annotated[int, Field(ge=4, le=MAX_JSON_DEPTH)] = Field(
        64, description="Deepest nesting of a JSON body."
    )
    max_json_structure: Annotated[int, Field(ge=1024, le=1 << 20)] = Field(
        200_000,
        description="Most structural characters of a JSON body: [ ] { } : , outside of strings. They bound how long "
        "one request holds up all others.",
    )
    max_text_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        1 << 20,
        description="Most bytes of text that are tokenized for one request, each text counted once. A MiB takes up to "
        "a second and a half of CPU time.",
    )
    max_questions: Annotated[int, Field(ge=1, le=MAX_QUESTIONS)] = Field(
        64, description="Questions (or decisions) in one request."
    )
    max_options: Annotated[int, Field(ge=2, le=MAX_OPTIONS)] = Field(
        MAX_OPTIONS, description="Options of one question."
    )
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(
        512,
        description="Tokens a chat or completion generates when the caller sets no limit; ends with reason 'length'.",
    )
    max_choices: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = Field(
        8, description="Answers of one request: 'n' of a chat, 'n' times the prompts of a completion."
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line written."
    )
    log_format: Literal["auto", "json", "text"] = Field(
        "auto", description="How log lines are written: json for programs, text for people; auto is text on a terminal."
    )
    endpoint_name: Annotated[str, _text("leave it unset where there is none"), Field(max_length=255)] | None = Field(
        None,
        description="Name of the endpoint that this server belongs to; the CDK sets it. With it, metrics are written "
        "to the log every ten seconds, in CloudWatch's embedded metric format.",
    )
    decision_records: Annotated[str, _text("leave it unset for none")] | None = Field(
        None,
        description="Destination of decision records, one JSON line for each decision: log for the log, or a file to "
        "append to. Unset: none are written.",
    )
    decision_records_mib: Annotated[int, Field(ge=1, le=1 << 20)] = Field(
        1024, description="Largest file of decision records, in MiB; records beyond it are dropped and counted."
    )
    record_text: bool = Field(
        False,
        description="Keep callers' states, questions and options in decision records. Off unless you are allowed to "
        "store them.",
    )
    log_raw_text: bool = Field(False, description="Log callers' text. Off unless you are allowed to store it.")

    @field_validator("*", mode="before")
    @classmethod
    def _is_unicode(cls, value: Any) -> Any:
        # The environment and the command line may hold any bytes; Python hides those that are not UTF-8 in surrogates.
        if isinstance(value, str) and any(unicodedata.category(character) == "Cs" for character in value):
            raise ValueError("it holds bytes that are not UTF-8; give it in UTF-8")
        return value

    @field_validator("port", mode="before")
    @classmethod
    def _no_service_link(cls, value: Any) -> Any:
        if isinstance(value, str) and "://" in value:
            raise ValueError(
                "this is an address that Kubernetes or Docker sets for a service called steelyard, not a port; set "
                f"{PREFIX}PORT to a number of at most 65535, or turn these links off (enableServiceLinks: false)"
            )
        return value

    @model_validator(mode="after")
    def _cells_can_be_small(self) -> Settings:
        if self.cache_type != "f16" and self.flash_attention == "off":
            raise ValueError(
                f"cache_type={self.cache_type} needs flash attention, and flash_attention is off; set it to auto or on"
            )
        return self

    @property
    def aliases(self) -> tuple[str, ...]:
        """``model_aliases`` one by one."""
        return tuple(self.model_aliases.split(",")) if self.model_aliases else ()

    @property
    def shadows(self) -> tuple[str, ...]:
        """``shadow_decisions`` one by one."""
        return tuple(self.shadow_decisions.split(",")) if self.shadow_decisions else ()

    @property
    def model_path(self) -> Path:
        """``model`` as a path. Catalogue names are turned into paths by the operator's command line."""
        return Path(self.model).expanduser()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - pydantic-settings' signature
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Flags and environment; no ``.env`` and no secrets folder, so that nothing surprising is read."""
        return (init_settings, env_settings, InitSettingsSource(settings_cls, _port_of_sagemaker(os.environ)))


def load_settings(*, config: Path | None = None, **flags: Any) -> Settings:
    """Settings from ``flags`` (None means unset), the environment and, if given, a TOML file.

    Raises:
        SettingsError: A value is wrong, a name unknown, or the file cannot be read; the message names it.
    """
    _check_names(os.environ)
    chosen = Settings if config is None else _settings_above(_entries(config))
    given = {name: value for name, value in flags.items() if value is not None}
    try:
        return chosen(**given)
    except ValidationError as error:
        faults = [_told(fault) for fault in error.errors(include_url=False)]
        raise SettingsError(f"the settings are wrong: {one_per_line(faults)}") from error


def _settings_above(entries: dict[str, Any]) -> type[Settings]:
    """Settings that take from a file's ``entries`` what flags and environment leave open."""

    class _WithFile(Settings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *sources: Any, **named: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            above = super().settings_customise_sources(settings_cls, *sources, **named)
            return (*above, InitSettingsSource(settings_cls, entries))

    return _WithFile


def _port_of_sagemaker(environment: Mapping[str, str]) -> dict[str, Any]:
    port = environment.get("SAGEMAKER_BIND_TO_PORT")
    return {} if port is None else {"port": port}


def _check_names(environment: Mapping[str, str]) -> None:
    """Refuse variables with our prefix that nothing reads: their author believes that they do something."""
    settings = {PREFIX + name.upper() for name in Settings.model_fields}
    known = sorted(settings | OTHER_VARIABLES)
    unknown = [
        f"{_legible(name)} is no variable of Steelyard: {instead_of(name.upper(), known, 'unset it')}"
        for name, value in sorted(environment.items())
        # As pydantic reads settings in any case, but everything else is read in this one only.
        if name.upper().startswith(PREFIX) and name.upper() not in settings and name not in OTHER_VARIABLES
        if not _is_service_link(name, value)
    ]
    if unknown:
        raise SettingsError(f"the environment is wrong: {one_per_line(unknown)}")


def _is_service_link(name: str, value: str) -> bool:
    return _SERVICE_LINK.fullmatch(name) is not None or (name.endswith("_PORT") and "://" in value)


def _entries(config: Path) -> dict[str, Any]:
    """Read the file by the names of settings, with every value of its setting's very type."""
    where = _legible(str(config))
    try:
        written = parse_toml(read_whole(config, most=LARGEST_CONFIG, pipes=True).decode())
    except FileNotFoundError as error:
        raise SettingsError(f"the settings file {where} does not exist") from error
    except OSError as error:
        raise SettingsError(f"the settings file {where} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"the settings file {where} is not UTF-8: byte {error.start + 1} is 0x{error.object[error.start]:02x}; "
            "save it in UTF-8"
        ) from error
    except ValueError as error:
        raise SettingsError(f"the settings file {where} is not TOML: {error}") from error
    entries = InitSettingsSource(Settings, written)()
    faults = list(_file_faults(entries))
    if len(entries) < len(written):
        faults.append("it names a setting twice, in capitals and in small letters; keep one")
    if faults:
        raise SettingsError(f"the settings file {where} is wrong: {one_per_line(faults)}")
    return entries


def _file_faults(entries: Mapping[str, Any]) -> Iterator[str]:
    """A value of the file has a type, unlike the text of a variable; another one than the setting's is a mistake."""
    for name, value in entries.items():
        field = Settings.model_fields.get(name)
        if field is None:
            instead = instead_of(name, Settings.model_fields, "remove it")
            yield f"{_legible(name)} is no setting: {instead}"
            continue
        annotation: Any = field.annotation
        try:
            TypeAdapter(annotation).validate_python(value, strict=True)
        except ValidationError as error:
            yield _told(error.errors(include_url=False)[0], name)


def _told(fault: ErrorDetails, name: str = "") -> str:
    """One fault: the setting, what is wrong with it, and the value."""
    where = name or ".".join(map(str, fault["loc"])) or "settings"
    return f"{where}: {fault['msg'].removeprefix('Value error, ')} (given: {shown(fault['input'])})"


def listed(faults: Iterable[str]) -> str:
    """Return a line for each fault, none twice, and no more lines than a screen holds."""
    different = list(dict.fromkeys(faults))
    lines = [f"- {fault}" for fault in different[:_MOST_FAULTS]]
    if left := len(different) - len(lines):
        lines.append(f"- and {left} more")
    return "\n".join(lines)


def one_per_line(faults: Sequence[str]) -> str:
    """Return a single fault as it is, and several as lines that follow the sentence before them."""
    return faults[0] if len(set(faults)) == 1 else "\n" + listed(faults)


def shown(value: Any) -> str:
    """A setting's value for a message."""
    text = "several settings" if isinstance(value, dict) else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."


def instead_of(name: str, known: Iterable[str], otherwise: str, *, page: str = "docs/reference/settings.md") -> str:
    """Return what to write in place of an unknown name.

    Args:
        name: The unknown one.
        known: Those that there are.
        otherwise: What to do where none is like it.
        page: Where all names are.
    """
    # Without our prefix, which alone would make any two names alike.
    names = {each.removeprefix(PREFIX): each for each in known}
    close = difflib.get_close_matches(name.removeprefix(PREFIX), names, n=1)
    return f"did you mean {names[close[0]]}?" if close else f"{otherwise}; {page} has all names"


def _legible(text: str) -> str:
    """Text that any terminal and log takes; names of files and variables may hold bytes that are not UTF-8."""
    return text.encode("utf-8", "backslashreplace").decode()
