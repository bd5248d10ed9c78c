"""What a request wishes of the cache: its `kv_transfer_params`, below the key "kvconn"."""

from __future__ import annotations

import logging
from typing import Any, NamedTuple

_OWN = "kvconn"
_KNOWN = ("load", "max_load_tokens", "save")
_MAX_REPORTED = 16
"""Names that are reported. Clients choose them, and a log has an end."""
_MAX_SHOWN = 64


class Wishes(NamedTuple):
    """What one request wishes."""

    load: bool = True
    save: bool = True
    max_load_tokens: int | None = None
    """The most tokens to load at a time, None without a bound."""


class WishReader:
    """Reads wishes. What it does not understand it reports, each name once, and serves the request by the rest.

    A `load` or `save` that is neither true nor false counts as false: less than was asked for does no harm.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._reported: set[str] = set()

    def read(self, params: Any) -> Wishes:
        """Return the wishes in a request's kv_transfer_params, whatever these are."""
        asked = params.get(_OWN) if isinstance(params, dict) else None
        if asked is None:
            return Wishes()
        if not isinstance(asked, dict):
            self._report(_OWN, "kv_transfer_params: %r is no object", _OWN)
            return Wishes()
        for name in asked:
            if name not in _KNOWN:
                shown = str(name)[:_MAX_SHOWN]
                self._report(shown, "kv_transfer_params: unknown key %r below %r, known are %s", shown, _OWN, _KNOWN)
        return Wishes(self._switch(asked, "load"), self._switch(asked, "save"), self._most(asked))

    def _switch(self, asked: dict[str, Any], name: str) -> bool:
        value = asked.get(name, True)
        if isinstance(value, bool):
            return value
        self._report(name, "kv_transfer_params: %r is neither true nor false, and counts as false", name)
        return False

    def _most(self, asked: dict[str, Any]) -> int | None:
        name = "max_load_tokens"
        value = asked.get(name)
        if value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0):
            return value
        self._report(name, "kv_transfer_params: %r is no number of tokens, and does not count", name)
        return None

    def _report(self, name: str, message: str, *values: object) -> None:
        if name in self._reported or len(self._reported) > _MAX_REPORTED:
            return
        self._reported.add(name)
        if len(self._reported) > _MAX_REPORTED:
            message, values = "kv_transfer_params: more of the kind, which is not reported any more", ()
        self._logger.warning("kvconn: " + message, *values)
