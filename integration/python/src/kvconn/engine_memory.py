"""What an engine registers: where its KV memory is, and how the daemon learns that a call's work is done."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from kvconn.fence import FencePage


class Calls(Protocol):
    """The numbers of a registration's calls, which a device writes in order. For any thread."""

    def announce(self) -> None:
        """Have the device write the next call's number, after all that the engine has queued on it before.

        Raises NotAnnounced where the call cannot be made now and no number was used up, EngineMemoryError where the
        device cannot write numbers.
        """

    def close(self) -> None:
        """End with the registration. The page is closed once the device writes to it no more."""


class EngineMemory(Protocol):
    """Memory that can be registered, several times one after the other."""

    @property
    def timeout(self) -> float | None:
        """The seconds that a registration may take; None for those of any call.

        With a time of its own a registration runs beside the engine, whose steps never wait for it.
        """

    def hand_over(self) -> AbstractContextManager[Sequence[int]]:
        """Yield the descriptors of the regions, and keep them open for the length of a registration."""

    def calls(self, page: FencePage) -> Calls | None:
        """Return the numbers of the calls of a registration with that page. None where a call finds its work done."""


class EngineMemoryError(Exception):
    """The engine's memory cannot be registered, or its device cannot say how far it is."""


class NotAnnounced(EngineMemoryError):
    """A call cannot be made now. Later calls can."""


class SharedFiles:
    """Host memory in files that the daemon maps. The descriptors stay open as long as it is registered."""

    timeout = None

    def __init__(self, fds: Sequence[int]) -> None:
        self._fds = tuple(fds)

    def hand_over(self) -> AbstractContextManager[Sequence[int]]:
        """Yield the descriptors."""
        return nullcontext(self._fds)

    def calls(self, page: FencePage) -> Calls | None:
        """Return nothing: what the engine computes on a processor is there when it makes a call."""
        return None
