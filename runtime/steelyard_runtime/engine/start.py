"""From settings to a running engine: find the file, load and hash it, read back what was set, test it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from steelyard_runtime.engine import abi, builds, cores, llama, memory, model_files, trial
from steelyard_runtime.engine.core import LlamaEngine
from steelyard_runtime.engine.executor import Contexts, Execution
from steelyard_runtime.engine.interface import EngineIdentity, Memory, ModelInfo, Probe
from steelyard_runtime.engine.meter import Meter
from steelyard_runtime.engine.scheduler import Scheduler
from steelyard_runtime.engine.turns import Turns
from steelyard_runtime.settings import Settings

log = logging.getLogger(__name__)

DEFAULT_CONTEXT_TOKENS = 8192
SELF_TEST_TIMEOUT_S = 600.0
LEAST_CHUNK = 16
"""Tokens of a chat's prompt for which a decode needs room beside a token of each other chat; as chat_chunk_tokens."""


class EngineStartError(RuntimeError):
    """The engine cannot start; the message says what to change."""


def start_engine(settings: Settings, *, turns: Turns | None = None) -> LlamaEngine:
    """Load the model that ``settings.model`` names (a path) and start its engine; returns when the self-test passed.

    Args:
        settings: The settings.
        turns: Decides between decisions and chats; by default by time.

    Raises:
        EngineStartError: A libllama of another build, no such file, a broken one, too little memory,
            no GPU, or a self-test that failed. All but the first name the file.
    """
    watch = Stopwatch()
    try:
        build = abi.prove()
        watch.lap("library")
        files = model_files.resolve(settings.model_path)
    except (builds.AbiError, model_files.ModelFileError) as error:
        raise EngineStartError(str(error)) from error
    with _naming(files.first):
        return _start(settings, turns, build=build, files=files, watch=watch)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Make every reason an EngineStartError that names the file."""
    try:
        yield
    except (EngineStartError, model_files.ModelFileError, llama.LlamaError, trial.TrialError) as error:
        said = str(error)
        raise EngineStartError(said if path.name in said else f"{path} cannot be served: {said}") from error


def _start(
    settings: Settings,
    turns: Turns | None,
    *,
    build: builds.Build,
    files: model_files.ModelFiles,
    watch: Stopwatch,
) -> LlamaEngine:
    with ThreadPoolExecutor(1, thread_name_prefix="model-sha256") as pool:
        hashing = pool.submit(model_files.sha256, files)  # beside the loading, which reads the same pages
        threads = settings.threads or cores.threads()
        note = _try_out(settings, files, threads=threads)
        watch.lap("trial")
        model = llama.Model(files.first, gpu_layers=settings.gpu_layers)
        watch.lap("load")
        try:
            if not model.generates:
                raise EngineStartError(
                    f"{files.first.name} is a {model.architecture} model without next-token logits; "
                    "it can neither decide nor chat"
                )
            allowed = _context_tokens(settings.context_tokens, trained=model.trained_context, name=files.first.name)
            shape = llama.ContextShape(
                sequence_tokens=allowed,
                sequences=settings.decisions_together,
                batch_tokens=_batch_tokens(settings, allowed=allowed),
                threads=threads,
                flash_attention=settings.flash_attention,
                cache_type=settings.cache_type,
            )
            context = llama.Context(model, shape)
            # On a GPU a chunk takes no longer than a decision, and stopping costs more.
            chat_shape = replace(shape, sequences=settings.chats)
            chat_context = llama.Context(model, chat_shape, interruptible=not model.offloaded)
            embedder = _embedder(model, shape)
            watch.lap("context")
            sha256 = hashing.result()
            watch.lap("hash")
        except BaseException:
            model.close()
            raise
    identity = EngineIdentity(
        model=_model_info(files, model, sha256=sha256, allowed=allowed),
        probe=_untested(model.memory, note=note),
        llama_cpp=build.name,
        binding=llama.BINDING,
        system_info=llama.system_info(),
        device="gpu" if model.offloaded else "cpu",
        threads=shape.threads,
        gpu_layers=model.offloaded,
        sequences=shape.sequences + chat_shape.sequences,
        batch_tokens=shape.batch_tokens,
    )
    meter = Meter()
    engine = LlamaEngine(
        Contexts(decisions=context, chats=chat_context, embeddings=embedder),
        identity,
        meter=meter,
        scheduler=Scheduler(meter, queue_limit=settings.queue_limit, unnamed_share=settings.unnamed_share, turns=turns),
        settings=Execution(
            chat_chunk_tokens=settings.chat_chunk_tokens,
            reuse_prefixes=settings.reuse_prefixes,
            reuse_states=settings.reuse_states,
            prefix_cache_bytes=settings.prefix_cache_mib << 20,
        ),
        probing=settings.probe,
        decode_timeout_s=settings.decode_timeout_s,
    )
    engine.start()
    try:
        engine.wait_ready(timeout_s=SELF_TEST_TIMEOUT_S)
    except llama.LlamaError:
        engine.close(timeout_s=0)
        raise
    watch.lap("self_test")
    engine.started(watch.laps)
    log.info("engine ready after %.1f s: %s; %s", watch.total, watch, memory.used() or "memory is unknown here")
    return engine


class Stopwatch:
    """Seconds by stage."""

    def __init__(self) -> None:
        self._last = time.monotonic()
        self.laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """End a stage."""
        now = time.monotonic()
        self.laps[stage], self._last = now - self._last, now

    @property
    def total(self) -> float:
        """Seconds so far."""
        return sum(self.laps.values())

    def __str__(self) -> str:
        return ", ".join(f"{stage} {seconds:.2f} s" for stage, seconds in self.laps.items())


def _context_tokens(asked: int, *, trained: int, name: str) -> int:
    if trained <= 0:
        raise EngineStartError(
            f"{name} says that it was trained on {trained} positions; fetch it again or convert it anew"
        )
    if asked > trained:
        raise EngineStartError(
            f"context_tokens={asked} but {name} was trained on {trained} positions; set context_tokens to {trained} "
            "or less, or 0 to choose"
        )
    return asked or min(DEFAULT_CONTEXT_TOKENS, trained)


def _batch_tokens(settings: Settings, *, allowed: int) -> int:
    """Tokens in one decode; a longer one than the context holds takes memory for nothing."""
    batch = min(settings.batch_tokens, allowed)
    if batch < (least := max(settings.chats + LEAST_CHUNK, settings.decisions_together)):
        cut = "" if batch == settings.batch_tokens else f", of which a context of {allowed} tokens leaves {batch},"
        low = {"batch_tokens": settings.batch_tokens, "context_tokens": allowed}
        names = " and ".join(name for name, value in low.items() if value < least)
        raise EngineStartError(
            f"batch_tokens={settings.batch_tokens}{cut} is too small for chats={settings.chats} and "
            f"decisions_together={settings.decisions_together}: a decode holds a token of each chat and {LEAST_CHUNK} "
            "of a prompt, or the ends of all decisions together. Set "
            f"{names} to {least} or more, or lower chats or decisions_together"
        )
    return batch


def _embedder(model: llama.Model, shape: llama.ContextShape) -> llama.Context | None:
    """Make the context that embeds, if the model gives embeddings; at the start, so that too little memory shows there.

    llama.cpp has logits of all tokens of a batch that it pools, twice: of 2,000 tokens and 152,000 words 2.4 GB. So the
    pieces of a text are batches as of decisions; only what looks in both directions must have the text whole.
    """
    if model.pooling in ("none", "rank"):
        return None
    batch = shape.batch_tokens if model.causal else shape.sequence_tokens
    return llama.Context(
        model, replace(shape, sequences=1, batch_tokens=batch, cache_type="f16", pooling=model.pooling)
    )


def _try_out(settings: Settings, files: model_files.ModelFiles, *, threads: int) -> str:
    """Use the model in a child process; why snapshots must not be used in this one, or ""."""
    shape = llama.ContextShape(
        sequence_tokens=trial.SEQUENCE_TOKENS,
        sequences=2,
        batch_tokens=settings.batch_tokens,
        threads=threads,
        flash_attention=settings.flash_attention,
        cache_type=settings.cache_type,
    )
    note = trial.try_out(
        files.first,
        shape,
        architecture=files.architecture,
        gpu_layers=settings.gpu_layers,
        within=trial.limits(files.size_bytes, gpu_layers=settings.gpu_layers),
        snapshots=settings.probe,
    )
    if not settings.probe:
        return "the probe was switched off; prefixes are recomputed and exactness was not measured"
    return note


def _untested(kind: Memory, *, note: str) -> Probe:
    return Probe(memory=kind, prefix_sharing=False, exact=False, noise_floor=float("nan"), comparisons=0, note=note)


def _model_info(files: model_files.ModelFiles, model: llama.Model, *, sha256: str, allowed: int) -> ModelInfo:
    vocabulary = model.vocabulary
    return ModelInfo(
        path=str(files.first),
        file_name=files.first.name,
        sha256=sha256,
        size_bytes=files.size_bytes,
        architecture=model.architecture,
        description=model.description,
        parameters=model.parameters,
        vocabulary=vocabulary.size,
        trained_context=model.trained_context,
        context_tokens=allowed,
        chat_template=model.chat_template,
        named_templates=model.named_templates,
        bos_text=vocabulary.text_of(vocabulary.bos),
        eos_text=vocabulary.text_of(vocabulary.eos),
        pooling=model.pooling,
        embedding_size=model.embedding_size,
    )
