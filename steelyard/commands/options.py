"""The options that several commands share; each is declared here once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from steelyard.commands import completion
from steelyard_runtime.settings import Settings

MOST_CONNECTIONS = 64

# Environments and releases.
EnvironmentName = Annotated[
    str, typer.Option("--env", help="Name of a file in environments/.", autocompletion=completion.environments)
]
ReleaseName = Annotated[
    str | None,
    typer.Option(
        "--release",
        help="Id of a release, its first digits, or a path ending in .json.",
        autocompletion=completion.releases,
    ),
]
Local = Annotated[bool, typer.Option("--local", help="In the local cloud instead of AWS.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
BasesFile = Annotated[Path, typer.Option("--bases", help="File of the containers that images are built on.")]
Bootstrap = Annotated[
    bool, typer.Option("--bootstrap", help="Bootstrap the CDK where that is missing, without asking.")
]
AllowDirty = Annotated[bool, typer.Option("--allow-dirty", help="Also from changes that no commit has; it says so.")]
AllowCritical = Annotated[
    bool, typer.Option("--allow-critical", help="Accept critical findings of our images' scan; the release says so.")
]
Why = Annotated[str | None, typer.Option("--why", help="The reason, for the environment's record.")]

Prices = Annotated[
    Path | None,
    typer.Option("--prices", help="TOML file with USD per hour by instance type; without it, AWS's Price List."),
]

# The local cloud.
Home = Annotated[Path, typer.Option("--home", envvar="STEELYARD_CLOUD", help="Folder of the local cloud.")]
Port = Annotated[int, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1; 0 picks a free one.")]

# Servers and decisions.
Url = Annotated[str, typer.Option("--url", envvar="STEELYARD_URL", help="Address of the server.")]
Timeout = Annotated[
    float,
    typer.Option("--timeout", min=0.1, max=86400, help="Longest a call may take, retries included, in seconds."),
]
AsJson = Annotated[
    bool, typer.Option("--json", help="Print the answers as JSON, one per line; rows carry the whole result.")
]

ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        envvar="STEELYARD_MODEL",
        help="A name of the catalogue, or a GGUF file.",
        autocompletion=completion.models,
    ),
]
DEFAULT_MODEL: str = Settings.model_fields["model"].default
"""The server's own default: the embedded model."""
Concurrency = Annotated[
    int, typer.Option("--concurrency", min=1, max=MOST_CONNECTIONS, help="Requests under way together.")
]
ChosenLayout = Annotated[
    Literal["state-first", "options-first"] | None,
    typer.Option("--layout", help="What comes first in the prompt; unless given the file's, else the server's own."),
]
ChosenReadout = Annotated[
    str | None,
    typer.Option(
        "--readout",
        help="The way to read the answer, such as letters-raw; unless given the file's, else the server's own.",
    ),
]

# Chats.
System = Annotated[str | None, typer.Option("--system", help="Instructions for the model.")]
MaxTokens = Annotated[int | None, typer.Option("--max-tokens", min=1, help="Longest answer, in tokens.")]
Temperature = Annotated[float | None, typer.Option("--temperature", min=0.0, max=2.0, help="0 is greedy.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Makes sampling repeatable.")]
