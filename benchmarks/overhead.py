"""Measure the cost of HTTP, prompt, queue and readout over llama.cpp's own decode of the same tokens, in one run.

Every request is a state that the server has not seen, on a question that it has: the steady state of a decision, in
which only the state and a short end are new. Right before and right after each request this process evaluates the very
same new tokens, behind the same instructions and question, with one bare ``llama_decode`` per batch, the same threads
and the same batch size. The ratio of a request is its time over the mean of the two decodes around it, so
that a machine whose speed drifts does not blur it; reported is the median. Token counts are exact and need no clock.
Beside it stands the time of rendering a chat's template, which is done in a child process.

    python benchmarks/overhead.py [--model FILE] [--threads N] [--repeats N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from steelyard_runtime.chat_template import ChatTemplate, Message
from steelyard_runtime.decision import Option, Question
from steelyard_runtime.engine import cores
from steelyard_runtime.engine.llama import Context, ContextShape, Model, Snapshot
from steelyard_runtime.engine.segments import evaluate
from steelyard_runtime.scoring import prompt
from steelyard_runtime.scoring.slots import derive
from steelyard_runtime.services.prompts import prompt_sha256

WORKLOADS = Path(__file__).parent / "workloads"
SIZES = (40, 100, 200, 400, 800)
CONTEXT_TOKENS = 2048
BATCH_TOKENS = 512
LIMIT = 1.05
RENDERS = 200
RENDER_LIMIT_S = 0.002
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WORDS = ["order", "refund", "parcel", "login", "error", "invoice", "tablet", "plan", "quote", "urgent", "calm", "late"]
QUESTION = "Which queue should handle this ticket?"
OPTIONS = {"billing": "Payments and refunds", "shipping": "Parcels", "account": "Signing in", "technical": "Errors"}


@dataclass(frozen=True)
class Row:
    """One prompt size: evaluated tokens, median seconds of both sides, and the median of the requests' ratios."""

    tokens: int
    http_s: float
    decode_s: float
    ratio: float


class Floor:
    """llama.cpp alone: the same tokens, one sequence, whole batches."""

    def __init__(self, path: Path, *, threads: int) -> None:
        self.model = Model(path)
        vocabulary = self.model.vocabulary
        shape = ContextShape(sequence_tokens=CONTEXT_TOKENS, sequences=1, batch_tokens=BATCH_TOKENS, threads=threads)
        self._context = Context(self.model, shape)
        self._snapshot: Snapshot | None = None
        template = ChatTemplate(
            self.model.chat_template,
            bos_text=vocabulary.text_of(vocabulary.bos),
            eos_text=vocabulary.text_of(vocabulary.eos),
        )
        self._frame = prompt.frame(template)
        self._slots = derive(
            lambda pieces: vocabulary.encode(pieces, start=False),
            after=self._frame.after,
            prefix=self._frame.slot_prefix,
            wanted=len(OPTIONS),
        )

    def tokens(self, state: str) -> tuple[list[int], list[int]]:
        """Token ids of the instructions and the question, and those that the server evaluates for one decision."""
        encode = self.model.vocabulary.encode
        options = tuple(Option(id=name, text=f"{name}: {text}", name=name) for name, text in OPTIONS.items())
        parts = prompt.parts(
            "options-first",
            state=state,
            question=Question(instructions=QUESTION, options=options),
            labels=self._slots.labels,
            prompt_frame=self._frame,
        )
        kept = encode(self._frame.before, start=True) + encode(parts.shared, start=False)
        return kept, encode(parts.rest, start=False)

    def seconds(self, kept: list[int], new: list[int]) -> float:
        """Wall time of evaluating ``new`` behind ``kept``."""
        self._context.clear(0)
        if self._snapshot is None:
            evaluate(self._context, kept, sequence=0, position=0, output=False)
            self._snapshot = self._context.save(0)
        else:
            self._context.restore(self._snapshot, 0)
        started = time.perf_counter()
        evaluate(self._context, new, sequence=0, position=len(kept), output=True)
        return time.perf_counter() - started


@contextmanager
def serving(model: Path, **settings: object) -> Iterator[httpx.Client]:
    """A server process, ready."""
    environment = {f"STEELYARD_{name.upper()}": str(value) for name, value in settings.items()}
    process = subprocess.Popen(
        [sys.executable, "-m", "steelyard_runtime.http.serve"],
        env=os.environ | environment | {"STEELYARD_MODEL": str(model), "STEELYARD_PORT": "0"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    url = ""
    for line in process.stdout:
        event = json.loads(line)
        url = event.get("url", url)
        if event["event"] == "ready":
            break
    else:
        raise SystemExit("the server did not start; run it by hand to see why")
    try:
        with httpx.Client(base_url=url, timeout=300) as client:
            yield client
    finally:
        process.terminate()
        process.communicate()


def decision(state: str) -> dict[str, Any]:
    """The request body for ``state``."""
    options = [{"id": name, "description": text} for name, text in OPTIONS.items()]
    one = {"id": "d", "state": state, "question": QUESTION, "options": options}
    return {"decision": one, "layout": "options-first"}


def ask(client: httpx.Client, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds until the whole answer was here, and the answer."""
    started = time.perf_counter()
    response = client.post("/invocations", json=body)
    elapsed = time.perf_counter() - started
    response.raise_for_status()
    return elapsed, response.json()


def sized_state(floor: Floor, size: int, rng: random.Random) -> str:
    """A state with which about ``size`` tokens are new; never the same twice."""
    words: list[str] = []
    while (missing := size - len(floor.tokens(" ".join(words))[1])) > 0:
        words += rng.choices(WORDS, k=max(1, missing // 2))
    return " ".join(words)


def measure(client: httpx.Client, floor: Floor, size: int, *, repeats: int, rng: random.Random) -> Row:
    """One prompt size: each request between two bare decodes of the same tokens."""
    http, bare, ratios, counts = [], [], [], []
    ask(client, decision("The question is new."))
    for _ in range(repeats):
        state = sized_state(floor, size, rng)
        kept, new = floor.tokens(state)
        before = floor.seconds(kept, new)
        elapsed, answer = ask(client, decision(state))
        after = floor.seconds(kept, new)
        result = answer["result"]
        if result["prompt_sha256"] != prompt_sha256([*kept, *new]):
            raise SystemExit("the server scored another prompt; this comparison would mean nothing")
        if result["tokens"]["evaluated"] != len(new):
            raise SystemExit(f"the server evaluated {result['tokens']}, not the {len(new)} new tokens")
        http.append(elapsed)
        bare += [before, after]
        ratios.append(elapsed / statistics.mean((before, after)))
        counts.append(len(new))
    middle = statistics.median
    return Row(round(statistics.mean(counts)), middle(http), middle(bare), middle(ratios))


def render_s() -> float:
    """Median wall time of rendering two ChatML messages, never the same twice, in a child process that is warm."""
    template = ChatTemplate(CHATML, bos_text="", eos_text="<|im_end|>")
    taken = []
    for number in range(RENDERS):
        messages = [Message("system", "Sort tickets."), Message("user", f"{QUESTION} Ticket {number}.")]
        started = time.perf_counter()
        template.render(messages)
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def evaluated_tokens(client: httpx.Client) -> dict[str, list[int]]:
    """Tokens evaluated per decision of the two stored workloads, by the engine's own count."""
    tickets = json.loads((WORKLOADS / "ticket-routing.json").read_text())
    singly = [ask(client, {"decision": ticket})[1]["result"]["tokens"]["evaluated"] for ticket in tickets]
    questions = json.loads((WORKLOADS / "ticket-three-questions.json").read_text())
    together = ask(client, {"decisions": questions})[1]["results"]
    return {
        "ticket-routing, one by one": singly,
        "ticket-three-questions, one request": [result["tokens"]["evaluated"] for result in together],
    }


def embedded_model() -> Path:
    """The embedded model, fetched if need be."""
    from steelyard.models.catalogue import find
    from steelyard.models.pull import pull

    return pull(find("gemma-3-270m"))


def main() -> int:
    """Measure and print; the status is 1 when the overhead or a render is over its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a GGUF file (default: the embedded model)")
    parser.add_argument("--threads", type=int, default=cores.threads())
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", type=Path, help="also write the figures here")
    given = parser.parse_args()
    model = given.model or embedded_model()
    floor, rng = Floor(model, threads=given.threads), random.Random(1)
    with serving(model, threads=given.threads) as client:
        counts = evaluated_tokens(client)
        rows = [measure(client, floor, size, repeats=given.repeats, rng=rng) for size in SIZES]

    print(
        f"{model.name}, {given.threads} threads, {given.repeats} decisions of each size; "
        "HTTP / bare decode of the same tokens"
    )
    print(f"{'new tokens':>10} {'HTTP ms':>10} {'decode ms':>10} {'ratio':>7}")
    for row in rows:
        print(f"{row.tokens:>10} {row.http_s * 1000:>10.1f} {row.decode_s * 1000:>10.1f} {row.ratio:>7.3f}")
    overall = statistics.median(row.ratio for row in rows)
    print(f"median ratio {overall:.3f} (limit {LIMIT})")
    rendering = render_s()
    print(f"rendering two messages: median {rendering * 1000:.2f} ms (limit {RENDER_LIMIT_S * 1000:.0f} ms)")
    for name, values in counts.items():
        print(f"evaluated tokens, {name}: {values}")
    if given.json:
        figures = {"model": model.name, "threads": given.threads, "median_ratio": overall, "evaluated_tokens": counts}
        given.json.write_text(json.dumps(figures | {"rows": [asdict(row) for row in rows]}, indent=2))
    return 0 if overall <= LIMIT and rendering <= RENDER_LIMIT_S else 1


if __name__ == "__main__":
    sys.exit(main())
