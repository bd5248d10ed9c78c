"""Which waiting requests may have rows of vLLM's host region filled."""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import dataclass


@dataclass
class _Promise:
    rows: int
    until: float | None = None
    """When it ends by itself: only a promise whose load has ended does."""


class Promises:
    """Bounds the rows that are filled for requests that wait: at most half of a region, all together.

    Rows that were filled for a request can be evicted until it runs. Were more promised than fit,
    requests would evict each other's rows, and all would be read again and again. A request that
    does not fit waits for those before it, at most `patience` seconds: then it gets nothing. For one
    thread.
    """

    def __init__(self, rows: int, patience: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = max(1, rows // 2)
        self._patience = patience
        self._clock = clock
        self._held: dict[str, _Promise] = {}
        self._total = 0
        self._line: dict[str, float] = {}
        """Who waits, in the order of their first questions, and since when."""

    def ask(self, request: str, rows: int) -> int | None:
        """Promise up to `rows` rows to a request that has none. None: ask again in the next step."""
        self.release(request)
        first = next(iter(self._line), request)
        if first == request and self._fits(rows):
            self._line.pop(request, None)
            granted = min(rows, self._limit)
            self._held[request] = _Promise(granted)
            self._total += granted
            return granted
        now = self._clock()
        if now - self._line.setdefault(request, now) < self._patience:
            return None
        del self._line[request]
        return 0

    def waits(self, request: str, rows: int) -> bool:
        """Whether a request that was told to ask again would be told so again."""
        since = self._line.get(request)
        if since is None or self._clock() - since >= self._patience:
            return False
        return next(iter(self._line)) != request or not self._fits(rows)

    def loaded(self, request: str) -> None:
        """Note that a request's rows are filled: it runs soon."""
        if promise := self._held.get(request):
            promise.until = self._clock() + self._patience

    def release(self, request: str) -> None:
        """End a request's promise: it runs, has ended, or its load has failed."""
        if promise := self._held.pop(request, None):
            self._total -= promise.rows

    def _fits(self, rows: int) -> bool:
        return self._total + rows <= self._limit or not self._total

    def forget(self, request: str) -> None:
        """Forget a request."""
        self.release(request)
        self._line.pop(request, None)

    def ran(self, running: Container[str]) -> None:
        """Forget the requests that run: they wait no more, and the engine has taken what was loaded for them."""
        if self._held or self._line:
            for request in [r for r in (*self._held, *self._line) if r in running]:
                self.forget(request)

    def expire(self) -> None:
        """End the promises of requests that did not run although their rows have been filled for long."""
        if not self._held:
            return
        now = self._clock()
        for request in [r for r, p in self._held.items() if p.until is not None and p.until <= now]:
            self.release(request)
