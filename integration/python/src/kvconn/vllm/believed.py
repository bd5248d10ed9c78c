"""What those who follow vLLM's KV events believe is stored, after what was announced to them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from itertools import islice
from typing import Generic, TypeVar

BELIEVED_S = 600.0
"""How long a thing is believed in that no look-up has found since."""
_EXPIRED_AT_ONCE = 1024

T = TypeVar("T", bound=Hashable)


class Believed(Generic[T]):
    """The things that followers believe in, oldest first. For one thread.

    The process that announces hears of no eviction, so each belief ends by itself. What `expired` and `too_many`
    return is still believed in: the caller passes it to `forget`, and announces the end of what that returns.
    """

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        """`most` things are believed in at one time; the clock is in seconds."""
        self.most = most
        self._clock = clock
        self._since: OrderedDict[T, float] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are believed in."""
        return len(self._since)

    def __contains__(self, thing: object) -> bool:
        """Whether followers believe in a thing."""
        return thing in self._since

    def everything(self) -> list[T]:
        """Return all that is believed in."""
        return list(self._since)

    def believe(self, things: Sequence[T]) -> list[T]:
        """Note things that are stored now. Returns those that followers have not heard of."""
        new = [thing for thing in things if thing not in self._since]
        now = self._clock()
        for thing in things:
            self._since[thing] = now
            self._since.move_to_end(thing)
        return new

    def too_many(self) -> list[T]:
        """Return the oldest of those that are more than the most."""
        return list(islice(self._since, max(0, len(self._since) - self.most)))

    def expired(self) -> list[T]:
        """Return those that nothing has found for too long, not too many at a time."""
        end = self._clock() - BELIEVED_S
        old: list[T] = []
        for thing, at in self._since.items():
            if at > end or len(old) == _EXPIRED_AT_ONCE:
                break
            old.append(thing)
        return old

    def forget(self, things: Sequence[T]) -> list[T]:
        """Believe in things no longer. Returns those that were believed in."""
        return [thing for thing in things if self._since.pop(thing, None) is not None]
