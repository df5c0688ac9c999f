"""An ``Engine`` with everything but the forward pass: logits are a deterministic function of the token ids.

Tests of whatever lies above the engine use it. It has one worker thread like the real one, a byte-level vocabulary in
which every letter, pair of letters and number up to 255 is one token (with and without a leading space), and handles
to make it slow, busy or dead.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any, Literal

import numpy as np

from steelyard_runtime.decision import TokenCounts
from steelyard_runtime.engine.interface import (
    Cancel,
    Counters,
    Delta,
    Done,
    EmbeddingJob,
    EngineIdentity,
    Event,
    Failed,
    Finished,
    GenerationJob,
    Health,
    Logits,
    ModelInfo,
    Piece,
    Probe,
    Score,
    ScoreJob,
    Segment,
    Tokenizing,
    TokenLogprob,
    Tokens,
)
from steelyard_runtime.errors import Kind, Problem, over_budget
from steelyard_runtime.settings import Settings

CONTROL = ("<bos>", "<eos>", "<|im_start|>", "<|im_end|>", "<start_of_turn>", "<end_of_turn>")
_LABELS = [*ascii_uppercase, *(a + b for a in ascii_uppercase for b in ascii_uppercase), *map(str, range(256))]
_WORDS = [*_LABELS, *(f" {label}" for label in _LABELS)]
BYTES = 256
BOS = BYTES
EOS = BYTES + 1
END_ODDS = 12


class Vocabulary:
    """Token ids: 256 bytes, then control tokens, then words of several bytes (longest match wins)."""

    def __init__(self) -> None:
        words = sorted({word.encode() for word in _WORDS if len(word) > 1})
        self.control = {text: BYTES + i for i, text in enumerate(CONTROL)}
        self.first_word = BYTES + len(CONTROL)
        self.words = words
        self.ids = {word: self.first_word + i for i, word in enumerate(words)}
        self.longest = max(map(len, words))
        self.size = self.first_word + len(words)

    def encode_text(self, text: str) -> list[int]:
        data = text.encode("utf-8")
        out, at = [], 0
        while at < len(data):
            for length in range(min(self.longest, len(data) - at), 1, -1):
                found = self.ids.get(data[at : at + length])
                if found is not None:
                    break
            else:
                length, found = 1, data[at]
            out.append(found)
            at += length
        return out

    def encode_control(self, text: str) -> list[int]:
        for spelling, token in self.control.items():
            before, found, after = text.partition(spelling)
            if found:
                return [*self.encode_control(before), token, *self.encode_control(after)]
        return self.encode_text(text)

    def bytes_of(self, token: int) -> bytes:
        if token < BYTES:
            return bytes([token])
        return self.words[token - self.first_word] if token >= self.first_word else b""


@dataclass(frozen=True)
class StubGrammar:
    """Says that a schema was given; the stub answers with JSON then, and has nothing begun with it."""

    schema: str


class StubEngine:
    """Implements ``Engine``. Attributes to steer it: ``delay_s``, ``token_delay_s``, ``refuse_with``, ``gate``."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        context_tokens: int = 65536,
        chat_template: str | None = None,
        pooling: Literal["none", "mean", "cls", "last", "rank"] = "mean",
    ) -> None:
        self.settings = settings or Settings()
        self.vocabulary = Vocabulary()
        self.delay_s = 0.0
        self.token_delay_s = 0.0
        self.refuse_with: Problem | None = None
        self.never_ends = False
        self.gate = threading.Event()
        self.gate.set()
        self.cancelled_jobs = 0
        self._counters = Counters()
        self._health = Health(ready=True)
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="stub-engine")
        self._pending: set[Future[Any]] = set()
        self._identity = EngineIdentity(
            model=ModelInfo(
                path="/models/stub.gguf",
                file_name="stub.gguf",
                sha256="5" * 64,
                size_bytes=1,
                architecture="stub",
                description="stub",
                parameters=1,
                vocabulary=self.vocabulary.size,
                trained_context=context_tokens,
                context_tokens=context_tokens,
                chat_template=chat_template,
                bos_text="<bos>",
                eos_text="<eos>",
                pooling=pooling,
                embedding_size=16,
            ),
            probe=Probe(memory="dense", prefix_sharing=True, exact=True, noise_floor=0.0, comparisons=0),
            llama_cpp="b0",
            binding="stub 0",
            system_info="none",
            device="cpu",
            threads=1,
            gpu_layers=0,
            sequences=self.settings.chats + 1,
            batch_tokens=self.settings.batch_tokens,
        )

    @property
    def identity(self) -> EngineIdentity:
        return self._identity

    @property
    def start_seconds(self) -> dict[str, float]:
        return {"load": 0.1}

    @property
    def counters(self) -> Counters:
        self._counters.queue_depth = len(self._pending)
        return self._counters

    def health(self) -> Health:
        return self._health

    def encode(self, pieces: Sequence[Piece], *, start: bool) -> list[int]:
        ids = [BOS] if start else []
        for piece in pieces:
            more = self.vocabulary.encode_control(piece.text) if piece.control else None
            ids += self.vocabulary.encode_text(piece.text) if more is None else more
        if start and ids[1:2] == [BOS]:
            ids = ids[1:]
        return ids

    @property
    def max_text_bytes(self) -> int:
        return self.vocabulary.longest * self._identity.model.context_tokens

    def tokenize(self, pieces: Sequence[Piece], *, start: bool, work: Tokenizing) -> Tokens:
        work.take(sum(len(piece.text.encode()) for piece in pieces))
        return Tokens([tuple(self.encode(pieces, start=start))])

    def token_bytes(self, token_id: int) -> bytes:
        return self.vocabulary.bytes_of(token_id)

    def is_text(self, token_id: int) -> bool:
        return bool(self.vocabulary.bytes_of(token_id))

    def logits(self, tokens: Sequence[int]) -> Logits:
        """The replaced forward pass: a function of the token ids alone."""
        digest = hashlib.sha256(np.asarray(tokens, dtype=np.int32).tobytes()).digest()
        generator = np.random.Generator(np.random.PCG64(int.from_bytes(digest[:16], "little")))
        return generator.standard_normal(self.vocabulary.size, dtype=np.float32) * np.float32(3.0)

    def submit_score(self, job: ScoreJob) -> Future[list[Score]]:
        for prompt in job.prompts:
            self._admit(len(prompt), job.deadline)
        return self._submit(self._score, job)

    @property
    def pending_jobs(self) -> int:
        """Jobs that were submitted and are not done."""
        return len(self._pending)

    def keep_warm(self, shared: tuple[Segment, ...]) -> Future[None]:
        return self._submit(lambda: None)

    def submit_generation(self, job: GenerationJob, on_event: Callable[[Event], None]) -> Cancel:
        self._admit(len(job.prompt) + 1, job.deadline)
        stopped = threading.Event()

        def cancel() -> None:
            if not stopped.is_set():
                stopped.set()
                self.cancelled_jobs += 1
                self._counters.cancelled += 1

        self._submit(self._generate, job, on_event, stopped)
        return cancel

    def submit_embedding(self, job: EmbeddingJob) -> Future[list[Logits]]:
        for tokens in job.inputs:
            self._admit(len(tokens), job.deadline)
        return self._submit(self._embed, job)

    def grammar(self, schema: dict[str, Any] | None) -> Any:
        return StubGrammar(str(schema))

    def start_draining(self) -> None:
        self.refuse_with = Problem(Kind.DRAINING, "the server is stopping", retry_after_ms=1000)
        self._health = Health(ready=False, reason="draining")

    def close(self, *, timeout_s: float) -> None:
        self.start_draining()
        deadline = time.monotonic() + timeout_s
        while self._pending and time.monotonic() < deadline:
            time.sleep(0.01)
        self._fail_pending(Problem(Kind.DRAINING, "the server stopped before this was finished", retry_after_ms=1000))
        self.gate.set()
        self._worker.shutdown(wait=False, cancel_futures=True)

    def die(self) -> None:
        """What a crash of the real engine's thread looks like from outside."""
        self._health = Health(ready=False, reason="the engine thread ended", dead=True)
        self.refuse_with = Problem(Kind.ENGINE_FAILED, "the engine failed", retry_after_ms=1000)
        self._fail_pending(Problem(Kind.ENGINE_FAILED, "the engine failed", retry_after_ms=1000))

    def _fail_pending(self, problem: Problem) -> None:
        for future in list(self._pending):
            self._pending.discard(future)
            if not future.done():
                future.set_exception(problem)

    def _admit(self, tokens: int, deadline: float) -> None:
        if self.refuse_with is not None:
            self._counters.rejected += 1
            raise self.refuse_with
        if tokens > self._identity.model.context_tokens:
            raise over_budget(counted=tokens, allowed=self._identity.model.context_tokens)
        if time.monotonic() > deadline:
            raise Problem(Kind.DEADLINE, "too late", retry_after_ms=1000)

    def _submit(self, work: Callable[..., Any], *args: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._pending.add(future)

        def run() -> None:
            self.gate.wait()
            if self.delay_s:
                time.sleep(self.delay_s)
            try:
                if not future.cancelled():
                    result = work(*args)
                    self._pending.discard(future)  # first: whoever has the answer finds the queue empty
                    if not future.done():
                        future.set_result(result)
                else:
                    self.cancelled_jobs += 1
            except Exception as error:
                self._pending.discard(future)
                if not future.done():
                    future.set_exception(error)
            finally:
                self._pending.discard(future)

        self._worker.submit(run)
        return future

    def _score(self, job: ScoreJob) -> list[Score]:
        scores: list[Score] = []
        seen = set[tuple[Segment, ...]]()
        for prompt in job.prompts:
            tokens = [token for segment in prompt.shared for token in segment.tokens] + list(prompt.tail)
            reused = len(tokens) - len(prompt.tail) if prompt.shared in seen else 0
            seen.add(prompt.shared)
            counts = TokenCounts(prompt=len(tokens), evaluated=len(tokens) - reused, reused=reused)
            self._counters.decisions += 1
            self._counters.decoded_tokens += counts.evaluated
            self._counters.reused_tokens += counts.reused
            logits = self.logits(tokens)
            hidden = logits[: self._identity.model.embedding_size] if prompt.hidden else None
            scores.append(Score(logits=logits, tokens=counts, queue_ms=0.0, engine_ms=0.1, hidden=hidden))
        return scores

    def _generate(self, job: GenerationJob, on_event: Callable[[Event], None], stopped: threading.Event) -> None:
        total = 0
        try:
            for index in range(job.n):
                total += self._choice(job, index, on_event, stopped)
                if stopped.is_set():
                    return
        except Exception as error:
            on_event(Failed(error))
            raise
        self._counters.generations += 1
        self._counters.generated_tokens += total
        self._counters.decoded_tokens += len(job.prompt) + total
        on_event(
            Done(
                tokens=TokenCounts(prompt=len(job.prompt), evaluated=len(job.prompt), reused=0),
                generated_tokens=total,
                queue_ms=0.0,
                prefill_ms=0.1,
                generate_ms=0.1,
            )
        )

    def _choice(
        self, job: GenerationJob, index: int, on_event: Callable[[Event], None], stopped: threading.Event
    ) -> int:
        tokens, text, sent = list(job.prompt), "", 0
        canned = b'{"a": 1}' if job.sampling.grammar else None
        reason: Literal["stop", "length"] = "length"
        self._counters.active_generations += 1
        try:
            for step in range(job.sampling.max_tokens):
                if stopped.is_set():
                    return step
                if self.token_delay_s:
                    time.sleep(self.token_delay_s)
                token = self._next_token(tokens, job, index, step, canned)
                if token == EOS:
                    reason = "stop"
                    break
                tokens.append(token)
                text += self.token_bytes(token).decode("ascii")
                cuts = [at for at in (text.find(stop) for stop in job.sampling.stop) if at >= 0]
                if cuts:
                    reason, text = "stop", text[: min(cuts)]
                    sent += 1
                    break
                on_event(Delta(index=index, text=chr(token), logprobs=self._logprobs(tokens, job)))
                sent += 1
        finally:
            self._counters.active_generations -= 1
        on_event(Finished(index=index, reason=reason, generated_tokens=sent))
        return sent

    def _next_token(self, tokens: list[int], job: GenerationJob, index: int, step: int, canned: bytes | None) -> int:
        if canned is not None:
            return canned[step] if step < len(canned) else EOS
        seed = [*tokens, index, job.sampling.seed or 0] if job.sampling.temperature else tokens
        draw = int.from_bytes(hashlib.sha256(repr(seed).encode()).digest()[:4], "little")
        if draw % END_ODDS == 0 and not self.never_ends:
            return EOS
        return ord("a") + draw % 26

    def _logprobs(
        self, tokens: list[int], job: GenerationJob
    ) -> tuple[tuple[TokenLogprob, tuple[TokenLogprob, ...]], ...]:
        wanted = job.sampling.top_logprobs
        if wanted is None:
            return ()
        chosen = TokenLogprob(token_id=tokens[-1], bytes=self.token_bytes(tokens[-1]), logprob=-0.5)
        others = tuple(
            TokenLogprob(token_id=ord("a") + i, bytes=bytes([ord("a") + i]), logprob=-1.0 - i) for i in range(wanted)
        )
        return ((chosen, others),)

    def _embed(self, job: EmbeddingJob) -> list[Logits]:
        vectors = [self.logits(tokens)[: self._identity.model.embedding_size] for tokens in job.inputs]
        self._counters.embeddings += len(vectors)
        self._counters.decoded_tokens += sum(map(len, job.inputs))
        return [np.asarray(vector / np.linalg.norm(vector), dtype=np.float32) for vector in vectors]
