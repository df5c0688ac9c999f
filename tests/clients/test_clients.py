"""Other people's clients, unchanged, against a real server: each feature works, or is refused for a known reason.

``docs/reference/clients.md`` is made from what ran here: ``make clients`` writes it, and a test compares it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import tiny_models
from client_environments import python_of
from live_server import ServerProcess

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "reference" / "clients.md"
HOW_TO = ROOT / "docs" / "how-to"
SERVED = "http://127.0.0.1:8080"

# Program -> its environment, and what a reader calls the client.
CLIENTS = {
    "openai": ("openai-3", "openai"),
    "langchain": ("openai-3", "LangChain (langchain-openai)"),
    "litellm": ("openai-3", "LiteLLM"),
    "pydantic_ai": ("openai-3", "pydantic-ai"),
    "typesafe": ("openai-3", "typesafe-sdk"),
    "llama_index": ("openai-2", "LlamaIndex (OpenAILike)"),
    "instructor": ("openai-2", "instructor"),
    "strands": ("openai-2", "Strands Agents"),
}
FEATURES = [
    "chat", "stream", "async", "structured output", "empty tools", "tools", "completions", "embeddings", "decisions",
    "System One", "models", "wrong model",
]  # fmt: skip
REFUSED = {"tools": "refused: this server calls no tools"}
NOTES = """\
What each feature is:

- **chat** sends an answer back as history where the client has messages of its own; **stream** asks for the usage where
  the client does; **async** is the client's asynchronous interface.
- **structured output** is a JSON schema in `response_format`: LangChain's `method="json_schema"`, pydantic-ai's
  `NativeOutput`, instructor's `Mode.JSON_SCHEMA`, Strands' `structured_output`. The forms that make a tool of the
  schema (instructor's default, `Mode.TOOLS`) are refused like all tools.
- **empty tools** is `tools: []`; Strands sends it with every request, so it is part of its chat.
- **embeddings** need a model that gives them. LangChain's `OpenAIEmbeddings` needs `check_embedding_ctx_length=False`:
  else it sends token ids of another model's vocabulary, which are refused.
- **decisions** are OpenAI's, by `OpenAIDecisions` of LangChain and `decisions()` of LiteLLM; **System One** is
  `systemone()` of LiteLLM, and the SDK's own.
- **wrong model** is a request that names a model which is not served: the client raises its own "not found".

Clients that need `openai` 2 are tried in an environment of their own, with that version.
"""


@pytest.fixture(scope="module")
def embedding_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    model = tiny_models.write("llama-pooling", tmp_path_factory.mktemp("clients") / "tiny.gguf")
    with ServerProcess(model=model, threads=1, deadline_s=300).running() as process:
        yield process


@pytest.fixture(scope="module")
def pythons() -> dict[str, Path]:
    names = sorted({environment for environment, _ in CLIENTS.values()})
    with ThreadPoolExecutor(len(names)) as pool:
        return dict(zip(names, pool.map(python_of, names), strict=True))


def run(python: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run in a client's environment, with nothing of this one's."""
    environment = {name: os.environ[name] for name in ("HOME", "LANG", "PATH", "TMPDIR") if name in os.environ}
    quiet = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LANGSMITH_TRACING": "false", "PYDANTIC_AI_NO_TELEMETRY": "1"}
    return subprocess.run(
        [str(python), *arguments], capture_output=True, text=True, timeout=600, env=environment | quiet
    )


@pytest.fixture(scope="module")
def outcomes(
    server: ServerProcess, embedding_server: ServerProcess, pythons: dict[str, Path]
) -> dict[str, dict[str, Any]]:
    """What each program printed."""

    def outcome(client: str) -> dict[str, Any]:
        program = Path(__file__).with_name("programs") / f"{client}_client.py"
        done = run(pythons[CLIENTS[client][0]], str(program), server.url, embedding_server.url)
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CLIENTS, pool.map(outcome, CLIENTS), strict=True))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("client", CLIENTS)
def test_every_feature_works_or_is_refused_for_a_known_reason(outcomes: dict[str, dict[str, Any]], client: str) -> None:
    found = outcomes[client]["features"]
    assert set(found) <= set(FEATURES)
    assert found == {name: REFUSED.get(name, "works") for name in found}


@pytest.mark.timeout(1200)
def test_the_table_is_what_ran(outcomes: dict[str, dict[str, Any]], request: pytest.FixtureRequest) -> None:
    page = table(outcomes)
    if request.config.getoption("--write-table", default=False):
        PAGE.write_text(page, encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == page, "run make clients"


def table(outcomes: dict[str, dict[str, Any]]) -> str:
    """The page."""
    heads = ["", *(f"{CLIENTS[name][1]} {outcomes[name]['version']}" for name in CLIENTS)]
    rows = [[feature, *(cell(outcomes[name]["features"].get(feature)) for name in CLIENTS)] for feature in FEATURES]
    lines = [heads, ["---"] * len(heads), *rows]
    grid = "".join("| " + " | ".join(line) + " |\n" for line in lines)
    return (
        "# Clients\n\n<!-- Made by `make clients` from tests/clients. Change that, not this page. -->\n\n"
        "Each client ran unchanged against a real server, outside of this project's environment. An empty cell is a\n"
        f"feature that the client does not have, or that was not tried.\n\n{grid}\n{NOTES}"
    )


def cell(outcome: str | None) -> str:
    """One outcome in a few words."""
    return {None: "", "works": "yes"}.get(outcome, outcome or "")


def examples() -> Iterator[Any]:
    """Each fenced block whose info string is ``python clients``."""
    for path in sorted(HOW_TO.glob("*.md")):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```python clients\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
            yield pytest.param(match[1], id=f"{path.name}:{text.count(chr(10), 0, match.start()) + 1}")


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("code", list(examples()))
def test_the_how_tos_run(server: ServerProcess, pythons: dict[str, Path], code: str) -> None:
    done = run(pythons["openai-3"], "-c", code.replace(SERVED, server.url))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip()
