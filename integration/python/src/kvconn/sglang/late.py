"""Calls that took longer than they may."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

_TOLERANCE = 1.5
"""How many deadlines a call may take before it is told of: a busy interpreter lets a thread wait, too."""
_SILENT_S = 60.0
_OVERLOADED = "the machine is overloaded"
_STOOD_STILL = "kvconnd stood still in the middle of a copy, which had to be waited for"


class LateCalls:
    """Warns of calls that missed their deadline, once a minute. For any thread."""

    def __init__(self, logger: logging.Logger, deadline: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger, self._deadline, self._clock = logger, deadline, clock
        self._lock = threading.Lock()
        self._untold = 0
        self._told_at: float | None = None

    def note(self, call: str, seconds: float, held_s: float = 0.0) -> None:
        """Note that a call took `seconds`, `held_s` of them in the middle of a copy by a daemon that stood still."""
        if seconds <= self._deadline * _TOLERANCE:
            return
        now = self._clock()
        with self._lock:
            self._untold += 1
            if self._told_at is not None and now - self._told_at < _SILENT_S:
                return
            count, self._untold, self._told_at = self._untold, 0, now
        self._logger.warning(
            "kvconn: %s took %.1f s, its deadline is %.1f s (%d late calls since the last line): %s",
            *(call, seconds, self._deadline, count),
            _STOOD_STILL if seconds - held_s <= self._deadline * _TOLERANCE else _OVERLOADED,
        )
