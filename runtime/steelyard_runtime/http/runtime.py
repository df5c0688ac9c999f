"""The things that routes work with: the settings, and the services once the model is loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from steelyard_runtime.chat_template import choose
from steelyard_runtime.contracts.model_names import ModelNames
from steelyard_runtime.decision import Question
from steelyard_runtime.decisions.registry import (
    Registry,
    RegistryError,
    check_content,
    folder_of,
    load_registry,
    with_shadows,
)
from steelyard_runtime.engine.interface import Engine, Health
from steelyard_runtime.errors import Kind, Problem
from steelyard_runtime.http.connections import Connections
from steelyard_runtime.identity import Identity, identify
from steelyard_runtime.scoring.strategies import STRATEGIES, Strategies
from steelyard_runtime.services.chat import ChatService
from steelyard_runtime.services.decisions import DecisionService
from steelyard_runtime.services.embeddings import EmbeddingService
from steelyard_runtime.services.preparation import Preparation
from steelyard_runtime.settings import Settings

LOADING_RETRY_MS = 2000

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Everything that needs a loaded model.

    Attributes:
        engine: The engine.
        identity: What every answer depends on besides the request.
        names: Names of the model.
        registered: The registered decisions' questions, by the names that requests may use.
        decisions: Answers decisions.
        chat: Answers chats and completions.
        embeddings: Answers embeddings.
    """

    engine: Engine
    identity: Identity
    names: ModelNames
    registered: Mapping[str, Question]
    decisions: DecisionService
    chat: ChatService
    embeddings: EmbeddingService


@dataclass(slots=True, kw_only=True)
class Runtime:
    """One server's settings and services.

    Attributes:
        settings: The settings of this process.
        services: None until the model is loaded; the socket listens earlier, so that ``/ping`` can say why not yet.
        reason: Why there are no services yet, for ``/ping`` and for refusals.
        dropped_lines: How many log lines could not be written.
        dropped_records: How many decision records could not be written to their file.
        connections: The open connections; none are counted where the application is called without a socket.
        preparation: Admits requests whose bodies have arrived.
    """

    settings: Settings
    services: Services | None = None
    reason: str = "the model is loading"
    connections: Connections = field(default_factory=Connections)
    dropped_lines: Callable[[], int] = lambda: 0
    dropped_records: Callable[[], int] = lambda: 0
    preparation: Preparation = field(init=False)

    def __post_init__(self) -> None:
        self.preparation = Preparation(
            places=self.settings.queue_limit,
            large_bytes=self.settings.max_waiting_mib << 20,
            unnamed_share=self.settings.unnamed_share,
        )

    def require(self) -> Services:
        """The services.

        Raises:
            Problem: ``not_ready`` while the model is loading.
        """
        if self.services is None:
            raise Problem(Kind.NOT_READY, f"The server is not ready: {self.reason}.", retry_after_ms=LOADING_RETRY_MS)
        return self.services

    def health(self) -> Health:
        """The engine's health; not ready, with the reason, while there is no engine."""
        if self.services is None:
            return Health(ready=False, reason=self.reason)
        return self.services.engine.health()


def build_services(settings: Settings, engine: Engine, *, strategies: Strategies = STRATEGIES) -> Services:
    """The services over a running engine.

    Args:
        settings: The settings of this process.
        engine: The engine.
        strategies: How decisions may be read, by name; the first one reads what names none.

    Raises:
        ValueError: The model cannot serve decisions at all.
        BadTemplateError: The model's chat template does not compile, or there is none as ``chat_template`` wants it.
        RegistryError: A registered decision is wrong, or was fitted for another server.
    """
    model = engine.identity.model
    template, note = choose(
        settings.chat_template,
        default=model.chat_template,
        named=model.named_templates,
        bos_text=model.bos_text,
        eos_text=model.eos_text,
    )
    folder = folder_of(settings.decisions, model=Path(model.path))
    registry = Registry() if folder is None else load_registry(folder, llama_cpp=engine.identity.llama_cpp)
    check_content(registry, settings.decisions_sha256, folder=folder)
    registry = with_shadows(registry, settings.shadows)
    decisions = DecisionService(engine, settings, template, strategies=strategies, registry=registry)
    try:
        decisions.keep_warm()
    except (Problem, TimeoutError) as error:
        raise RegistryError(f"the words before registered decisions cannot be kept: {error or 'no answer'}") from error
    for warning in filter(None, (note, decisions.refusal)):
        log.warning("%s", warning)
    identity = identify(
        engine.identity,
        model_id=settings.model_id,
        template=(template.name, template.sha256),
        slots=decisions.most_options,
        strategies=decisions.strategies,
        decisions=tuple(each.described(shadow=name in registry.shadows) for name, each in registry.decisions.items()),
        template_note=note,
        answer_position=template.answer_position,
        refusal=decisions.refusal,
    )
    return Services(
        engine=engine,
        identity=identity,
        names=ModelNames(model_id=identity.model_id, aliases=settings.aliases, accept_any=settings.accept_any_model),
        registered=registry.questions,
        decisions=decisions,
        chat=ChatService(engine, settings, identity, template),
        embeddings=EmbeddingService(engine, settings, identity),
    )
