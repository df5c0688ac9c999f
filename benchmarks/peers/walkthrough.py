"""The walkthrough's scorer, written anew from its description, as a small HTTP server: one peer of the benchmarks.

It has one context, cleared for each request, and one request in flight; every other is answered with a 503. The prompt
is the model's chat template around a short instruction and a user message that is one JSON object: the state, the
question, and the options as letter and description. It is tokenized once, once more per letter to check that the letter
is one token at that place, and once again for evaluation. It is decoded in chunks of 512; the answer is a softmax over
the letters' logits at the last position. For ``decisions`` the tokens up to the end of the state are evaluated once,
saved, and restored before each question.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from benchmarks.peers.bare import Bare, Logits

LETTERS = "ABCDEFGHIJKLMNOP"
CONTEXT_TOKENS = 4096
INSTRUCTION = (
    "You choose between options. Read the JSON object, answer its question about its state, and reply with the letter "
    "of the best option only."
)


@dataclass(frozen=True)
class Prompt:
    """A decision's tokens, and how many of them lie before the end of the state."""

    tokens: list[int]
    state_tokens: int
    letters: list[int]


class Scorer:
    """Scores decisions one after another."""

    def __init__(self, model: Path, *, threads: int) -> None:
        self._llama = Bare(model, threads=threads, context_tokens=CONTEXT_TOKENS)
        environment = jinja2.Environment(trim_blocks=True, lstrip_blocks=True)
        self._template = environment.from_string(self._llama.template())
        self._name = model.name
        self.evaluated = 0

    def score(self, decisions: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The results of ``decisions``, which share one state."""
        prompts = [self._prompt(decision) for decision in decisions]
        if len(prompts) == 1:
            return [self._result(decisions[0], prompts[0], shared=None, position=0)]
        shared = _common(prompts)
        self._llama.clear()
        self._evaluate(prompts[0].tokens[:shared], position=0)
        saved = self._llama.save()
        results = [
            self._result(decision, prompt, shared=saved, position=shared)
            for decision, prompt in zip(decisions, prompts, strict=True)
        ]
        results[0]["tokens"] = {"evaluated": len(prompts[0].tokens), "reused": 0}
        return results

    def _result(self, decision: dict[str, Any], prompt: Prompt, *, shared: Any, position: int) -> dict[str, Any]:
        started = time.perf_counter()
        if shared is None:
            self._llama.clear()
        else:
            self._llama.restore(shared)
        logits = self._evaluate(prompt.tokens[position:], position=position)
        allowed = logits[prompt.letters].astype(np.float64)
        everything = logits.astype(np.float64)
        top = everything.max()
        weights = np.exp(allowed - allowed.max())
        mass = np.exp(allowed - top).sum() / np.exp(everything - top).sum()
        return {
            "id": decision["id"],
            "option_ids": [option["id"] for option in decision["options"]],
            "probabilities": (weights / weights.sum()).tolist(),
            "option_logits": allowed.tolist(),
            "answer_token_ids": prompt.letters,
            "input_tokens": len(prompt.tokens),
            "allowed_token_mass": float(mass),
            "prompt_sha256": hashlib.sha256(json.dumps(prompt.tokens).encode()).hexdigest(),
            "model": self._name,
            "timing": {"score_ms": (time.perf_counter() - started) * 1000},
            "tokens": {"evaluated": len(prompt.tokens) - position, "reused": position},
        }

    def _evaluate(self, tokens: list[int], *, position: int) -> Logits:
        self.evaluated += len(tokens)
        return self._llama.evaluate(tokens, position=position)

    def _prompt(self, decision: dict[str, Any]) -> Prompt:
        letters = LETTERS[: len(decision["options"])]
        described = [
            {"letter": letter, "description": option["description"]}
            for letter, option in zip(letters, decision["options"], strict=True)
        ]
        user = {"state": decision["state"], "question": decision["question"], "options": described}
        text = self._rendered(json.dumps(user, ensure_ascii=False))
        checked = self._llama.tokenize(text, special=True)
        ids = []
        for letter in letters:
            longer = self._llama.tokenize(text + letter, special=True)
            if longer[:-1] != checked:
                raise ValueError(f"the letter {letter} is not one token after the prompt")
            ids.append(longer[-1])
        tokens = self._llama.tokenize(text, special=True)
        head = self._rendered(json.dumps({"state": decision["state"]}, ensure_ascii=False)[:-1] + "\0")
        return Prompt(tokens, len(self._llama.tokenize(head.split("\0")[0], special=True)), ids)

    def _rendered(self, user: str) -> str:
        messages = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": user}]
        return self._template.render(messages=messages, add_generation_prompt=True, enable_thinking=False)


def _common(prompts: list[Prompt]) -> int:
    """Tokens that all prompts share, at most up to the end of the state, and fewer than any prompt has."""
    limit = min(min(prompt.state_tokens, len(prompt.tokens) - 1) for prompt in prompts)
    for i in range(limit):
        if any(prompt.tokens[i] != prompts[0].tokens[i] for prompt in prompts):
            return i
    return limit


class Handler(BaseHTTPRequestHandler):
    """``GET /ping`` and ``POST /invocations``."""

    protocol_version = "HTTP/1.1"
    scorer: Scorer
    busy = threading.Lock()

    def do_GET(self) -> None:
        """Ready once it listens."""
        self._send(200, {"status": "ok", "evaluated_tokens": self.scorer.evaluated})

    def do_POST(self) -> None:
        """Score, or refuse while another request is in flight."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.busy.acquire(blocking=False):
            self._send(503, {"error": "another request is in flight", "retryable": True})
            return
        try:
            started = time.perf_counter()
            results = self.scorer.score([body["decision"]] if "decision" in body else body["decisions"])
            timing = {"total_ms": (time.perf_counter() - started) * 1000}
            self._send(200, {"result": results[0]} if "decision" in body else {"results": results, "timing": timing})
        except (KeyError, ValueError) as error:
            self._send(400, {"error": f"{type(error).__name__}: {error}", "retryable": False})
        finally:
            self.busy.release()

    def _send(self, status: int, body: dict[str, Any]) -> None:
        encoded = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(encoded)))
        self.end_headers()
        self.wfile.write(encoded)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class Server(ThreadingHTTPServer):
    """Takes bursts without refusing connections."""

    daemon_threads = True
    request_queue_size = 1024


def main() -> None:
    """Serve until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--threads", type=int, required=True)
    given = parser.parse_args()
    Handler.scorer = Scorer(given.model, threads=given.threads)
    Server(("127.0.0.1", given.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
