"""What SGLang does not tell a storage backend: that its weights are exchanged.

There is no seam for it, and an update need not change any name that the engine shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

_METHODS = (
    *("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor"),
    *("update_weights_from_ipc", "begin_weight_update", "release_memory_occupation", "resume_memory_occupation"),
)
"""Methods after which the weights may be others. What releases their memory is one: they are loaded again after it."""
_WATCHERS = "_kvconn_watchers"


class Watcher(Protocol):
    """Hears of weight updates. Its method must not raise."""

    def weights_exchanged(self, by: str) -> None:
        """Note that the weights may be different from now on."""


def watch(manager: Any, watcher: Watcher) -> list[str]:
    """Have a watcher hear of the updates of a manager class, as long as it lives. Returns the methods that were found.

    The watcher hears before the update begins.
    """
    watchers: weakref.WeakSet[Watcher] | None = manager.__dict__.get(_WATCHERS)
    if watchers is None:
        watchers = weakref.WeakSet()
        setattr(manager, _WATCHERS, watchers)
        for name in _METHODS:
            if (method := getattr(manager, name, None)) is not None:
                setattr(manager, name, _telling(name, method, watchers))
    watchers.add(watcher)
    return [name for name in _METHODS if hasattr(manager, name)]


def _telling(name: str, method: Callable[..., Any], watchers: weakref.WeakSet[Watcher]) -> Callable[..., Any]:
    @wraps(method)
    def told(*args: Any, **kwargs: Any) -> Any:
        for watcher in list(watchers):
            watcher.weights_exchanged(name)
        return method(*args, **kwargs)

    return told
