"""From settings to a running engine: find the file, load it, probe it, read back what was set, test it."""

from __future__ import annotations

import logging
import time

from switchyard_runtime.engine import abi, cores, llama, model_files, probe
from switchyard_runtime.engine.core import LlamaEngine
from switchyard_runtime.engine.interface import EngineIdentity, ModelInfo, Probe
from switchyard_runtime.settings import Settings

log = logging.getLogger(__name__)

DEFAULT_CONTEXT_TOKENS = 8192
SELF_TEST_TIMEOUT_S = 600.0


class EngineStartError(RuntimeError):
    """The engine cannot start; the message says what to change."""


def start_engine(settings: Settings) -> LlamaEngine:
    """Load the model that ``settings.model`` names (a path) and start its engine; returns when the self-test passed.

    Raises:
        EngineStartError: A libllama that the binding was not made for, no such file, a broken one, too little memory,
            no GPU, or a self-test that failed.
    """
    try:
        return _start(settings)
    except (abi.AbiError, model_files.ModelFileError, llama.LlamaError) as error:
        raise EngineStartError(str(error)) from error


def _start(settings: Settings) -> LlamaEngine:
    began = time.monotonic()
    abi.prove()
    proven = time.monotonic()
    files = model_files.resolve(settings.model_path)
    sha256 = model_files.sha256(files)
    hashed = time.monotonic()
    model = llama.Model(files.first, gpu_layers=settings.gpu_layers)
    try:
        if not model.generates:
            raise EngineStartError(
                f"{files.first.name} is a {model.architecture} model without next-token logits; "
                "it can neither decide nor chat"
            )
        allowed = _context_tokens(settings.context_tokens, trained=model.trained_context, name=files.first.name)
        shape = llama.ContextShape(
            sequence_tokens=allowed,
            sequences=settings.sequences,
            batch_tokens=min(settings.batch_tokens, allowed),
            threads=settings.threads or cores.usable(),
            flash_attention=settings.flash_attention,
        )
        finding = _probe(settings, files, shape, model)
        probed = time.monotonic()
        context = llama.Context(model, shape)
    except BaseException:
        model.close()
        raise
    identity = EngineIdentity(
        model=_model_info(files, model, sha256=sha256, allowed=allowed),
        probe=finding,
        llama_cpp=llama.llama_version(),
        binding=llama.BINDING,
        system_info=llama.system_info(),
        device="gpu" if model.offloaded else "cpu",
        threads=shape.threads,
        gpu_layers=model.offloaded,
        sequences=shape.sequences,
        batch_tokens=shape.batch_tokens,
    )
    engine = LlamaEngine(
        context,
        identity,
        chats=settings.chats,
        chat_chunk_tokens=settings.chat_chunk_tokens,
        reuse_prefixes=settings.reuse_prefixes,
        queue_limit=settings.queue_limit,
        decode_timeout_s=settings.decode_timeout_s,
    )
    engine.start()
    engine.wait_ready(timeout_s=SELF_TEST_TIMEOUT_S)
    log.info(
        "engine ready: library %.2f s, hash %.1f s, load and probe %.1f s, self-test %.1f s",
        proven - began,
        hashed - proven,
        probed - hashed,
        time.monotonic() - probed,
    )
    return engine


def _context_tokens(asked: int, *, trained: int, name: str) -> int:
    if asked > trained:
        raise EngineStartError(
            f"context_tokens={asked} but {name} was trained on {trained} positions; set context_tokens to {trained} "
            "or less, or 0 to choose"
        )
    return asked or min(DEFAULT_CONTEXT_TOKENS, trained)


def _probe(settings: Settings, files: model_files.ModelFiles, shape: llama.ContextShape, model: llama.Model) -> Probe:
    if not settings.probe:
        return Probe(
            memory=model.memory,
            prefix_sharing=False,
            exact=False,
            noise_floor=float("nan"),
            comparisons=0,
            note="the probe was switched off; prefixes are recomputed and exactness was not measured",
        )
    return probe.run(files.first, shape, gpu_layers=settings.gpu_layers, memory=model.memory)


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
        bos_text=vocabulary.text_of(vocabulary.bos),
        eos_text=vocabulary.text_of(vocabulary.eos),
        pooling=model.pooling,
        embedding_size=model.embedding_size,
    )
