"""What vLLM does not tell its connector: when it loads adapters, and when it exchanges weights.

There is no seam for either. Both go through methods of the engine core, in the scheduler's process.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any, Protocol

_HARMLESS = re.compile(
    r"(get|compute|list|check|report|save|is|has|determine|measure)_.*"
    r"|(start_|stop_)?profile|synchronize_device|update_max_model_len|release_late_interaction_query_cache"
    r"|checkpoint_(prepare|restore)|execute_dummy_batch"
)
"""What may be called in the workers and leaves the weights as they are."""


class Watcher(Protocol):
    """Hears of what an engine core does. Its methods must not raise."""

    def adapter_loads(self, lora: Any, load: Callable[[], Any]) -> Any:
        """Load an adapter by calling load, and return what that returns."""

    def weights_exchanged(self, by: str) -> None:
        """Note that the weights may be different from now on."""


def watch(core: Any, watcher: Watcher) -> bool:
    """Have a watcher hear of what an engine core class does. Returns whether it hears of all loads of adapters."""
    if hasattr(core, "collective_rpc"):
        _wrap(core, "collective_rpc", lambda call, args: _called(watcher, call, args))
    if hasattr(core, "set_weight_version"):
        _wrap(core, "set_weight_version", lambda call, args: _called(watcher, call, ["set_weight_version"]))
    if hasattr(core, "add_lora"):
        _wrap(core, "add_lora", lambda call, args: watcher.adapter_loads(args[0], call))
        return True
    return False


def _called(watcher: Watcher, call: Callable[[], Any], args: list[Any]) -> Any:
    # Trainers bring methods of their own, under any name (`update_named_param`): one that is not
    # known to be harmless is taken for an exchange.
    method = args[0]
    name = method if isinstance(method, str) else ""
    if not _HARMLESS.fullmatch(name):
        watcher.weights_exchanged(name or str(getattr(method, "__name__", "a function")))
    return call()


def _wrap(core: Any, name: str, around: Callable[[Callable[[], Any], list[Any]], Any]) -> None:
    """Put a function around a method. It gets the call to make, and its arguments without the engine core."""
    method = getattr(core, name)

    @wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return around(lambda: method(*args, **kwargs), [*args[1:], *kwargs.values()])

    setattr(core, name, wrapped)
