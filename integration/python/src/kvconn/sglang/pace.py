"""How fast an engine prefills, by the times of its questions and saves."""

from __future__ import annotations

from collections import deque

_LEARNT_TOKENS = 256
"""The fewest tokens that are measured: with fewer, other work counts for more."""
_REMEMBERED = 32
_NEAR = 0.8


class Pace:
    """Picks the times that show how fast prefill is.

    Between the question for a prompt and the save of its pages the engine has computed them, but it may have
    done other work first. So only speeds near the best of the last ones count: they had no queue. For one thread.
    """

    def __init__(self) -> None:
        self._speeds: deque[float] = deque(maxlen=_REMEMBERED)

    def counts(self, tokens: int, seconds: float) -> bool:
        """Note that tokens were computed within that many seconds. Returns whether that shows the speed."""
        if tokens < _LEARNT_TOKENS or seconds <= 0:
            return False
        speed = tokens / seconds
        self._speeds.append(speed)
        return speed >= _NEAR * max(self._speeds)
