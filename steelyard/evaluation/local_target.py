"""A server of this machine for the time of an evaluation, with one decision registered or none."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from steelyard.client.http import Client
from steelyard.evaluation.subject import Subject
from steelyard.models import storage
from steelyard.serving.server_process import free_port, running_server

HOST = "127.0.0.1"
DEADLINE_S = 3600
"""No person waits for one answer: a slow machine takes its time."""


@contextmanager
def local_server(
    model: Path,
    subject: Subject,
    *,
    threads: int,
    context_tokens: int,
    timeout_s: float,
    waiting: Callable[[float], None] = lambda _s: None,
) -> Iterator[Client]:
    """Serve a model file until the block ends.

    Args:
        model: The file.
        subject: Registered there, if it is asked by name.
        threads: For llama.cpp; 0 chooses.
        context_tokens: Longest prompt; 0 for the server's default.
        timeout_s: Longest a call may take.
        waiting: Receives the seconds waited until it is ready.

    Raises:
        CommandError: It does not start, such as for a head of another model; the end of its log is quoted.
    """
    port = free_port(HOST, 0)
    url = f"http://{HOST}:{port}"
    with tempfile.TemporaryDirectory(prefix="steelyard-evaluate-") as folder:
        if subject.registered and subject.folder is not None:
            (Path(folder) / subject.name).symlink_to(subject.folder.resolve(), target_is_directory=True)
        arguments = ["--model", str(model), "--decisions", folder, "--host", HOST, "--port", str(port)]
        arguments += ["--threads", str(threads), "--log-level", "warning", "--deadline-s", str(DEADLINE_S)]
        if context_tokens:
            arguments += ["--context-tokens", str(context_tokens)]
        log = storage.cache_folder() / "logs" / f"evaluate-{port}.log"
        with running_server(arguments, url=url, log=log, waiting=waiting), Client(url, timeout_s=timeout_s) as client:
            yield client
