"""``steelyard invoke``: ask a deployed endpoint through boto3, on AWS or in the local cloud."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from steelyard.aws.session import Aws
from steelyard.client.decision_file import usage
from steelyard.client.sagemaker import EndpointClient
from steelyard.commands import completion, options
from steelyard.commands.decision_flags import DecisionFlags, with_decision_flags
from steelyard.deploy.endpoints import deployed_endpoint
from steelyard.environments.files import DEFAULT, load_environment
from steelyard.terminal import chats, decisions


@with_decision_flags
def command(
    endpoint: Annotated[
        str, typer.Argument(help="Name of the endpoint in the environment file.", autocompletion=completion.endpoints)
    ],
    request: Annotated[
        str | None,
        typer.Argument(
            help="For decisions: a JSON file with a decision or a list of them. For chat: the message. - reads it from "
            "standard input.",
        ),
    ] = None,
    *,
    env: options.EnvironmentName = DEFAULT,
    kind: Annotated[
        Literal["chat", "decision"] | None,
        typer.Option("--kind", help="What to ask for. Unless given, the stack is asked, which takes a right to do so."),
    ] = None,
    flags: DecisionFlags,
    system: options.System = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    timeout: options.Timeout = 60.0,
    as_json: options.AsJson = False,
) -> None:
    """Ask a deployed endpoint for decisions, or chat with it.

    Credentials, profile and endpoint are boto3's: AWS_PROFILE for AWS; for the local cloud: eval "$(steelyard cloud
    env)".
    """
    environment = load_environment(env)
    aws = Aws(environment.region)
    if kind is None:
        found = deployed_endpoint(aws, environment, endpoint)
        name, kind = found.name, found.kind
    else:
        name = environment.endpoint_name(endpoint)
    client = EndpointClient(name, runtime=aws.runtime(timeout, connections=flags.concurrency), timeout_s=timeout)
    for_chat = {"--system": system, "--max-tokens": max_tokens, "--temperature": temperature, "--seed": seed}
    if kind == "decision":
        _refuse(for_chat, "chat", endpoint)
        asked = flags.asked(None if request is None else Path(request))
        decisions.answer(lambda: nullcontext(client), asked, flags.many, as_json=as_json)
        return
    _refuse(flags.given(), "decisions", endpoint)
    messages = [{"role": "system", "content": system}] if system else []
    messages.append({"role": "user", "content": _message(request)})
    chosen = {"max_tokens": max_tokens, "temperature": temperature, "seed": seed}
    given = {name: value for name, value in chosen.items() if value is not None}
    chats.answer(client, messages, given, as_json=as_json)


def _refuse(flags: dict[str, Any], contract: str, endpoint: str) -> None:
    if given := [name for name, value in flags.items() if value not in (None, [])]:
        raise usage(f"{', '.join(given)}: for {contract}, and {endpoint!r} is asked for something else")


def _message(request: str | None) -> str:
    if request == "-" or (request is None and not sys.stdin.isatty()):
        return sys.stdin.read()
    if request is None:
        raise usage("there is no message", "Write it behind the endpoint's name, or on standard input.")
    return request
