"""How fast an engine prefills, as its scheduler's steps show."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping

_LEARNT_TOKENS = 256
"""The smallest step, in tokens, that is measured: in smaller ones other work counts for more."""


class Pace:
    """Measures prefill by the time between steps.

    A step is over when the next is scheduled, or, where steps are scheduled ahead (`ahead`), from
    the next to the one after it. Steps that have no request in common with those after them are left
    out: the engine may have been idle. For one thread.
    """

    def __init__(self, ahead: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._followers = 2 if ahead else 1
        self._steps: deque[tuple[float, Mapping[str, int]]] = deque(maxlen=self._followers + 1)
        self._tokens, self._seconds = 0, 0.0

    def step(self, scheduled: Mapping[str, int]) -> None:
        """Note a step, by the tokens that each request computes in it."""
        self._steps.append((self._clock(), scheduled))
        if len(self._steps) <= self._followers:
            return
        first = self._steps[0][1]
        tokens = sum(first.values())
        if tokens < _LEARNT_TOKENS or any(first.keys().isdisjoint(s.keys()) for _, s in list(self._steps)[1:]):
            return
        self._tokens += tokens
        self._seconds += self._steps[-1][0] - self._steps[-2][0]

    def take(self) -> tuple[int, float]:
        """Return the tokens and the seconds that were measured since the last call."""
        taken = self._tokens, self._seconds
        self._tokens, self._seconds = 0, 0.0
        return taken
