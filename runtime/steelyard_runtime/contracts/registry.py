"""The contracts that are served. A new one is a file beside these, and a line here."""

from __future__ import annotations

from steelyard_runtime.contracts import chat, completions, decide, embeddings, feedback, openai_decisions, systemone
from steelyard_runtime.contracts.contract import AnyContract

CONTRACTS: tuple[AnyContract, ...] = (
    decide.CONTRACT,
    systemone.CONTRACT,
    openai_decisions.CONTRACT,
    chat.CONTRACT,
    completions.CONTRACT,
    embeddings.CONTRACT,
    feedback.CONTRACT,
)
