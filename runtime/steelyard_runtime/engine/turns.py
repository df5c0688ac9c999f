"""Turns of decisions and chats: decisions go first, and the chats get their share of the time all the same."""

from __future__ import annotations

CHATS_SHARE = 0.2
"""Of the engine's time, that chats have at least while decisions wait."""
IN_A_ROW = 4
"""Number of waiting decisions that run before chats that had their share so far."""
OWED_PER_SECOND = CHATS_SHARE / (1 - CHATS_SHARE)


class Turns:
    """Counts what decisions owe the chats. Used on the engine's thread only."""

    def __init__(self) -> None:
        self._owed_s = float("-inf")

    @property
    def decision_goes_first(self) -> bool:
        """Tell whether a waiting decision runs before the chats."""
        return self._owed_s <= 0

    def charge_decision(self, seconds: float, *, usual_s: float) -> None:
        """Charge a decision the time that it had the engine.

        Args:
            seconds: How long it had the engine.
            usual_s: How long one usually has it; 0 before the first, and then it is what counts. Nobody is ahead by
                more than ``IN_A_ROW`` of these give: neither decisions, however long the chats were alone, nor chats,
                however long one job was.
        """
        most_s = (IN_A_ROW - 0.5) * (usual_s or seconds) * OWED_PER_SECOND
        self._owed_s = min(max(self._owed_s, -most_s) + seconds * OWED_PER_SECOND, most_s)

    def charge_chats(self, seconds: float) -> None:
        """Charge the chats the time that they had the engine."""
        self._owed_s -= seconds

    def reset(self) -> None:
        """Forget what is owed: no chat is running."""
        self._owed_s = float("-inf")
