"""What SGLang does not tell a storage backend: that its weights are exchanged.

There is no seam for it, and an update need not change any name that the engine shows.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, Protocol

_METHODS = (
    *("update_weights_from_disk", "update_weights_from_distributed", "update_weights_from_tensor"),
    *("update_weights_from_ipc", "begin_weight_update", "release_memory_occupation", "resume_memory_occupation"),
    "check_weights",
)
"""Methods after which the weights may be others.

What releases their memory is one: they are loaded again after it. What checks them can set them to random values.
"""
SCHEDULER_METHODS = ("record_weight_version_change",)
"""Methods of the scheduler that hear of weights which somebody else has written into the engine's memory."""
_WATCHERS = "_kvconn_watchers"
_EXCHANGED = "_kvconn_exchanged"
"""Where the class keeps the last update's name: a backend may be taken away before it, and another come after it."""


class Watcher(Protocol):
    """Hears of weight updates. Its method must not raise."""

    def weights_exchanged(self, by: str) -> None:
        """Note that the weights may be different from now on."""


def watch(manager: Any, watcher: Watcher, methods: Sequence[str] = _METHODS) -> list[str]:
    """Have a watcher hear of the updates of a class, as long as it lives. Returns the methods that were found.

    The watcher hears before the update begins, and at once of one that was before its own time.
    """
    watchers: weakref.WeakSet[Watcher] | None = manager.__dict__.get(_WATCHERS)
    if watchers is None:
        watchers = weakref.WeakSet()
        setattr(manager, _WATCHERS, watchers)
        for name in methods:
            if (method := getattr(manager, name, None)) is not None:
                setattr(manager, name, _telling(manager, name, method, watchers))
    watchers.add(watcher)
    if (earlier := manager.__dict__.get(_EXCHANGED)) is not None:
        watcher.weights_exchanged(earlier)
    return [name for name in methods if hasattr(manager, name)]


def _telling(
    manager: Any, name: str, method: Callable[..., Any], watchers: weakref.WeakSet[Watcher]
) -> Callable[..., Any]:
    @wraps(method)
    def told(*args: Any, **kwargs: Any) -> Any:
        setattr(manager, _EXCHANGED, name)
        for watcher in list(watchers):
            watcher.weights_exchanged(name)
        return method(*args, **kwargs)

    return told
