"""Hooks that an engine calls, and that must not raise: it would die of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Guarded(Protocol):
    """An object with hooks that an engine calls."""

    _broken: set[str]
    """The hooks that have failed once."""


def guarded(logger: logging.Logger, otherwise: Callable[..., Any]) -> Callable[[F], F]:
    """Keep exceptions from the engine: log, and return the answer for "no cache", given the hook's arguments."""

    def decorate(hook: F) -> F:
        @wraps(hook)
        def run(self: Guarded, *args: Any, **kwargs: Any) -> Any:
            try:
                return hook(self, *args, **kwargs)
            except Exception:
                level = logging.DEBUG if hook.__name__ in self._broken else logging.ERROR
                self._broken.add(hook.__name__)
                logger.log(level, "kvconn: %s failed, going on without", hook.__name__, exc_info=True)
                return otherwise(*args, **kwargs)

        return cast(F, run)

    return decorate
