"""The one configuration module: every setting of the server, as flag, environment variable or file entry.

Order of precedence: flags, then ``SWITCHYARD_*`` environment variables, then the TOML file named by ``--config`` or
``SWITCHYARD_CONFIG``, then the defaults here. ``docs/reference/settings.md`` is generated from this file.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, Field, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

MAX_OPTIONS = 255


class Settings(BaseSettings):
    """Settings of one server process."""

    model_config = SettingsConfigDict(
        env_prefix="SWITCHYARD_", extra="forbid", frozen=True, protected_namespaces=(), populate_by_name=True
    )

    model: str = Field("gemma-3-270m", description="Name in the model catalogue, a GGUF file, or a folder holding one.")
    model_id: str | None = Field(None, description="Name reported to callers; the catalogue or file name when unset.")
    host: str = Field("127.0.0.1", description="Address to listen on.")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8080,
        description="Port to listen on; 0 picks a free one.",
        validation_alias=AliasChoices("port", "SWITCHYARD_PORT", "SAGEMAKER_BIND_TO_PORT"),
    )

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
        512, description="Tokens in one llama_decode; decisions are cut into decodes of this size."
    )
    chat_chunk_tokens: Annotated[int, Field(ge=16, le=8192)] = Field(
        256,
        description="Most tokens of a chat's prompt in one llama_decode. Decisions interrupt it; on a GPU they do not, "
        "and while they come a chunk takes at most three times as long as one of them.",
    )
    flash_attention: Literal["auto", "on", "off"] = Field("auto", description="Flash attention in llama.cpp.")
    cache_type: Literal["f16", "q8_0"] = Field(
        "f16", description="Number format of the cells. q8_0 takes half the memory and changes the answers a little."
    )
    layout: Literal["state-first", "options-first"] = Field(
        "state-first",
        description="What comes first in the prompt of decisions that do not say. state-first decides better on "
        "small models; options-first makes new states cheap.",
    )
    reuse_prefixes: bool = Field(True, description="Keep evaluated prefixes between requests.")
    reuse_states: bool = Field(
        True,
        description="Keep those that hold a caller's text too (states, chats), each for the same caller. Without it "
        "only instructions and questions are kept.",
    )
    prefix_cache_mib: Annotated[int, Field(ge=0, le=1 << 20)] = Field(
        512, description="Most memory for kept prefixes, in MiB."
    )
    answer_cache_entries: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        0,
        description="Decisions whose answers are kept, to be given again to exactly the same question on the same "
        "state; 0 keeps none. Such an answer says that nothing was evaluated.",
    )
    probe: bool = Field(True, description="Run the start-up probe; without it prefixes are recomputed every time.")

    queue_limit: Annotated[int, Field(ge=1, le=100_000)] = Field(256, description="Requests waiting for the engine.")
    deadline_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        55.0, description="Longest a synchronous request may take, in seconds; SageMaker cuts at 60."
    )
    stream_deadline_s: Annotated[float, Field(gt=0, le=36000)] = Field(
        480.0, description="Longest a streamed request may take, in seconds."
    )
    decode_timeout_s: Annotated[float, Field(gt=0, le=3600)] = Field(
        30.0, description="One llama_decode longer than this turns /ping to 503."
    )
    drain_s: Annotated[float, Field(gt=0, le=600)] = Field(
        25.0, description="Seconds after SIGTERM in which accepted work is finished or failed."
    )

    max_body_bytes: Annotated[int, Field(ge=1024, le=1 << 30)] = Field(
        4 << 20, description="Largest request body, in bytes."
    )
    upload_timeout_s: Annotated[float, Field(gt=0, le=600)] = Field(
        10.0, description="Longest a request body may take to arrive, in seconds."
    )
    max_json_depth: Annotated[int, Field(ge=4, le=512)] = Field(64, description="Deepest nesting of a JSON body.")
    max_questions: Annotated[int, Field(ge=1, le=400)] = Field(
        64, description="Questions (or decisions) in one request."
    )
    max_options: Annotated[int, Field(ge=2, le=MAX_OPTIONS)] = Field(
        MAX_OPTIONS, description="Options of one question."
    )
    default_max_tokens: Annotated[int, Field(ge=1)] = Field(
        512,
        description="Tokens a chat or completion generates when the caller sets no limit; ends with reason 'length'.",
    )
    max_choices: Annotated[int, Field(ge=1, le=128)] = Field(8, description="Largest 'n' of a chat or completion.")

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="Least severe log line written."
    )
    log_raw_text: bool = Field(False, description="Log callers' text. Off unless you are allowed to store it.")

    @field_validator("model")
    @classmethod
    def _model_named(cls, value: str) -> str:
        if not value.strip():
            raise ValueError("name a model of the catalogue or a GGUF file")
        return value

    @model_validator(mode="after")
    def _cells_can_be_small(self) -> Settings:
        if self.cache_type != "f16" and self.flash_attention == "off":
            raise ValueError(
                f"cache_type={self.cache_type} needs flash attention, and flash_attention is off; set it to auto or on"
            )
        return self

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
        """Flags, environment, file; no ``.env`` and no secrets folder, so that nothing surprising is read."""
        return (init_settings, env_settings, TomlConfigSettingsSource(settings_cls))


def load_settings(*, config: Path | None = None, **flags: Any) -> Settings:
    """Settings from ``flags`` (None means unset), the environment and, if given, a TOML file.

    Raises:
        pydantic.ValidationError: A value is wrong or a name unknown; the message names it.
        FileNotFoundError: ``config`` does not exist.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    if config is None:
        return Settings(**given)
    if not config.is_file():
        raise FileNotFoundError(f"the settings file {config} does not exist")

    class _FromFile(Settings):
        model_config = SettingsConfigDict(toml_file=config)

    return _FromFile(**given)
