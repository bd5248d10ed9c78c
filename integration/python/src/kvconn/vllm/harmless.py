"""Methods that only show what happens: they may fail, and cost nothing else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast


class Shows(Protocol):
    """An object that shows something."""

    enabled: bool
    """Whether it shows anything. Unset by the first failure."""
    shown: str
    """What it shows, for the log."""
    logger: logging.Logger


F = TypeVar("F", bound=Callable[..., Any])


def harmless(otherwise: Any = None) -> Callable[[F], F]:
    """Have a method of Shows do nothing unless it is enabled; if it fails, it is not from then on."""

    def decorate(method: F) -> F:
        @wraps(method)
        def guarded(self: Shows, *args: Any) -> Any:
            if not self.enabled:
                return otherwise
            try:
                return method(self, *args)
            except Exception:
                self.enabled = False
                self.logger.exception("kvconn: no more %s", self.shown)
                return otherwise

        return cast(F, guarded)

    return decorate
