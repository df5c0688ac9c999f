"""From a model's container without a real image to the process that stands in for it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from steelyard_localcloud.errors import ServiceError
from steelyard_localcloud.options import Options
from steelyard_localcloud.ports import HOST
from steelyard_localcloud.sagemaker import llama_flags
from steelyard_localcloud.sagemaker.images import Image, command_of
from steelyard_localcloud.sagemaker.launch import MODEL_FOLDER, Launch, variables

_SERVER = ("-m", "steelyard_runtime.http.serve")
_HUB_VARIABLES = ("HF_REPO", "HF_FILE", "HF_MODEL_ID", "SM_LLAMA_CPP_HF_REPO", "SM_LLAMA_CPP_HF_FILE")
# What a program needs to run on this machine; nothing of the caller's credentials or settings.
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "SYSTEMROOT")


def plan(
    image: Image, environment: Mapping[str, str], *, model_folder: Path | None, port: int, options: Options
) -> Launch:
    """Plan the start of the stand-in for a container.

    Args:
        image: Its image.
        environment: Its variables, as the model names them.
        model_folder: Where the model's files lie here, in place of ``/opt/ml/model``; None without model data.
        port: Port to listen on, in place of 8080.
        options: The local cloud's.

    Raises:
        ServiceError: The container needs what the local cloud does not have.
    """
    notes = [f"the local cloud runs a process of this machine in place of {image.uri}"]
    mapped = {name: _map_path(value, model_folder) for name, value in environment.items()}
    base = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    base |= {"PYTHONUNBUFFERED": "1", "SAGEMAKER_BIND_TO_PORT": str(port)}
    if image.is_chat:
        return _chat(mapped, base, model_folder=model_folder, port=port, options=options, notes=notes)
    command = command_of(image)
    if command is not None:
        notes.append(f"its manifest names the command {command}")
        return Launch(command, {**base, **mapped, **options.environment}, "/ping", "/invocations", notes)
    own = {"STEELYARD_MODEL": str(model_folder or MODEL_FOLDER), **mapped}
    return _our_server(own, base, port=port, options=options, notes=notes, paths=("/ping", "/invocations"))


def _chat(
    environment: dict[str, str],
    base: dict[str, str],
    *,
    model_folder: Path | None,
    port: int,
    options: Options,
    notes: list[str],
) -> Launch:
    hub = [name for name in _HUB_VARIABLES if name in environment]
    if hub or model_folder is None:
        raise ServiceError(
            f"The chat container would take its model from a hub ({', '.join(hub) or 'it has no model data'}); the "
            "local cloud reaches no hub. Give the model as data in S3."
        )
    flags = llama_flags.flags_of(environment)
    paths = ("/health", "/v1/chat/completions")
    if options.llama_server is not None:
        notes.append(f"the chat container's flags go to {options.llama_server}")
        model = flags.pop("model", "") or str(_only_model(model_folder))
        words = ["--host", HOST, "--port", str(port), "--model", model, *llama_flags.arguments(flags)]
        return Launch([options.llama_server, *words], {**base, **environment, **options.environment}, *paths, notes)
    notes.append("the chat container is not available here: our server's chat answers in its place")
    model = flags.pop("model", "") or str(model_folder)
    own = {name: value for name, value in environment.items() if not name.startswith(llama_flags.PREFIX)}
    # llama-server answers whatever model a request names.
    own |= {
        "STEELYARD_MODEL": model,
        "STEELYARD_ACCEPT_ANY_MODEL": "true",
        **llama_flags.settings(flags, say=notes.append),
    }
    return _our_server(own, base, port=port, options=options, notes=notes, paths=paths)


def _our_server(
    environment: dict[str, str],
    base: dict[str, str],
    *,
    port: int,
    options: Options,
    notes: list[str],
    paths: tuple[str, str],
) -> Launch:
    fixed = {"STEELYARD_HOST": HOST, "STEELYARD_PORT": str(port)}
    merged = {**base, **variables(environment, options, notes), **fixed}
    return Launch([options.server_python, *_SERVER], merged, *paths, notes)


def _map_path(value: str, model_folder: Path | None) -> str:
    if model_folder is None or not (value == MODEL_FOLDER or value.startswith(f"{MODEL_FOLDER}/")):
        return value
    return str(model_folder) + value.removeprefix(MODEL_FOLDER)


def _only_model(folder: Path) -> Path:
    files = sorted(path for path in folder.rglob("*.gguf") if len(path.relative_to(folder).parts) <= 2)
    if not files:
        raise ServiceError(f"The model data holds no *.gguf file at most two levels deep: {folder}.")
    return files[0]
