"""Samplers, which choose tokens from logits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from steelyard_runtime.engine.interface import Logits
from steelyard_runtime.engine.llama.library import L

COLDEST = 1e-6
"""A temperature below this is greedy: dividing by less leaves no number."""
SEEDS = 0xFFFFFFFF
"""llama.cpp takes a seed below this; this very one makes it draw its own."""


class Sampler:
    """Chooses tokens of one choice from logits; keeps the state that penalties and seeds need.

    Args:
        size: Tokens of the vocabulary.
        temperature: 0 is greedy.
        top_p: 1 switches it off.
        top_k: 0 switches it off.
        min_p: 0 switches it off.
        seed: Less than ``SEEDS``.
        presence_penalty: Taken once from the logit of every token that was chosen.
        frequency_penalty: Taken as often as the token was chosen.
        logit_bias: Added to the logits of tokens, all of the vocabulary.
    """

    def __init__(
        self,
        size: int,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        top_k: int = 0,
        min_p: float = 0.0,
        seed: int = 0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = (),
    ) -> None:
        self._chain = L.llama_sampler_chain_init(L.llama_sampler_chain_default_params())
        try:
            self._array = (L.llama_token_data * size)()
            self._view = np.frombuffer(self._array, dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)])
            self._all = np.arange(size, dtype=np.int32)
            if logit_bias:
                items = (L.llama_logit_bias * len(logit_bias))(*[L.llama_logit_bias(t, b) for t, b in logit_bias])
                self._add(L.llama_sampler_init_logit_bias(size, len(logit_bias), items))
            if presence_penalty or frequency_penalty:
                window = 1 << 16  # everything generated so far, as OpenAI counts it
                self._add(L.llama_sampler_init_penalties(size, window, 1.0, frequency_penalty, presence_penalty))
            self._add_choice(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p, seed=seed)
        except BaseException:
            self.close()
            raise

    def _add_choice(self, *, temperature: float, top_p: float, top_k: int, min_p: float, seed: int) -> None:
        if temperature < COLDEST:
            self._add(L.llama_sampler_init_greedy())
            return
        if top_k:
            self._add(L.llama_sampler_init_top_k(top_k))
        if top_p < 1:
            self._add(L.llama_sampler_init_top_p(top_p, 1))
        if min_p > 0:
            self._add(L.llama_sampler_init_min_p(min_p, 1))
        self._add(L.llama_sampler_init_temp(temperature))
        self._add(L.llama_sampler_init_dist(seed))

    def _add(self, step: Any) -> None:
        L.llama_sampler_chain_add(self._chain, step)

    def sample(self, logits: Logits, *, allowed: npt.NDArray[np.bool_] | None = None) -> int:
        """The next token, one of those that are ``allowed``; shapes ``(vocabulary,)``."""
        tokens = self._all if allowed is None else np.flatnonzero(allowed).astype(np.int32)
        view = self._view[: len(tokens)]
        view["id"] = tokens
        view["logit"] = logits if allowed is None else logits[tokens]
        view["p"] = 0
        candidates = L.llama_token_data_array(self._array, len(tokens), -1, False)
        L.llama_sampler_apply(self._chain, ctypes.byref(candidates))
        token = int(candidates.data[candidates.selected].id)
        L.llama_sampler_accept(self._chain, token)
        return token

    def close(self) -> None:
        """Free the chain."""
        if self._chain:
            L.llama_sampler_free(self._chain)
            self._chain = None
