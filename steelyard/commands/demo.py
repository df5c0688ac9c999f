"""``steelyard demo``: from nothing to a printed answer, with one server and no cloud."""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from steelyard.client.http import Client
from steelyard.commands.options import DEFAULT_MODEL, ModelName
from steelyard.models import storage
from steelyard.models.catalogue import catalogue, example
from steelyard.models.pull import pull
from steelyard.serving.server_process import free_port, running_server, tail
from steelyard.terminal import console, examples
from steelyard_base.exit_codes import CommandError


def command(
    *,
    model: ModelName = DEFAULT_MODEL,
    host: Annotated[str, typer.Option("--host", envvar="STEELYARD_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", envvar="STEELYARD_PORT", min=0, max=65535, help="Port; a free one when it is taken."),
    ] = 8080,
    once: Annotated[bool, typer.Option("--once", help="Stop after the answers.")] = False,
) -> None:
    """Fetch the model, start a server, ask a decision and a chat, and keep serving until Ctrl-C."""
    entry = catalogue().get(model)
    if entry is not None:
        with console.pull_bar(entry.name) as bar:
            pull(entry, bar)
    taken = free_port(host, port)
    if port not in (0, taken):
        console.note(f"port {port} is taken; using {taken}")
    url = f"http://{f'[{host}]' if ':' in host else host}:{taken}"
    log = storage.cache_folder() / "logs" / f"demo-{taken}.log"
    arguments = ["--model", model, "--host", host, "--port", str(taken)]
    with ExitStack() as stack:
        stack.callback(console.note, "the server has stopped")
        with console.err.status(f"loading {model}") as status:

            def waiting(seconds: float) -> None:
                status.update(f"loading {model}, {seconds:.0f} s")

            process = stack.enter_context(running_server(arguments, url=url, log=log, waiting=waiting))
        ask(url)
        examples.notice(model)
        if not once:
            keep_serving(process, url, log=log)


def ask(url: str) -> None:
    """The example decision and a chat, printed."""
    with Client(url, timeout_s=120.0) as client:
        examples.ask_decision(client)
        examples.ask_chat(client)


def keep_serving(process: subprocess.Popen[bytes], url: str, *, log: Path) -> None:
    """Wait for Ctrl-C, or for the server to die.

    Raises:
        CommandError: The server stopped by itself.
    """
    body = "@" + os.path.relpath(example("ticket.json").resolve())
    console.heading("serving")
    console.out.print(f"{url}   log: {log}", highlight=False, markup=False, soft_wrap=True)
    line = f"curl -H 'Content-Type: application/json' -d {shlex.quote(body)} {url}/invocations"
    console.out.print(f"Try: {line}", highlight=False, markup=False, soft_wrap=True)
    console.out.print("Ctrl-C stops it.")
    code = process.wait()
    raise CommandError(f"the server stopped by itself with exit code {code}. It said:\n{tail(log)}")
