"""Which prompt a page was asked for with: SGLang names no request."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

_KEPT = 64
_MAX_PAGES = 256 << 10
"""How many pages the prompts have together that are kept: a page takes 200 bytes. The last prompt is kept always."""
_FAILED_S = 10.0
"""A prompt that is asked for so long after its load has failed is another request's: SGLang asks again sooner."""


@dataclass(eq=False)
class Prompt:
    """A prompt whose pages were asked for."""

    name: str
    """The name of its request for the daemon. It begins with the last page's hash."""
    pages: dict[bytes, int]
    """The place of each page among those that were asked for."""
    asked_at: float
    """When it was asked for first."""
    held: int = 0
    """How many of the pages can be loaded."""
    failed_at: float | None = None
    """When a load of it failed: the daemon offers its request nothing more."""

    @property
    def last(self) -> bytes:
        """The last page that was asked for."""
        return next(reversed(self.pages))


class Recent:
    """The prompts that were asked for last, by the pages that they have. For any thread."""

    def __init__(self, kept: int = _KEPT, max_pages: int = _MAX_PAGES) -> None:
        self._kept, self._max_pages = kept, max_pages
        self._pages = 0
        self._lock = threading.Lock()
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        self._numbers = itertools.count(1)

    def asked(self, hashes: Sequence[bytes], now: float) -> Prompt:
        """Note a question for the pages of a prompt, which may be a repeated one of the same request."""
        last = hashes[-1]
        prompt = Prompt(last.hex(), {page: i for i, page in enumerate(hashes)}, now)
        with self._lock:
            before = self._drop(last)
            if before is not None and (before.failed_at is None or now - before.failed_at < _FAILED_S):
                prompt.name, prompt.failed_at, prompt.asked_at = before.name, before.failed_at, before.asked_at
            elif before is not None:
                prompt.name += f"-{next(self._numbers)}"
            self._prompts[last] = prompt
            self._pages += len(prompt.pages)
            while len(self._prompts) > 1 and (len(self._prompts) > self._kept or self._pages > self._max_pages):
                self._drop(next(iter(self._prompts)))
        return prompt

    def _drop(self, last: bytes) -> Prompt | None:
        prompt = self._prompts.pop(last, None)
        if prompt is not None:
            self._pages -= len(prompt.pages)
        return prompt

    def asked_at(self, page: bytes, otherwise: float) -> float:
        """Return when a page was asked for first, by the prompts that are kept."""
        with self._lock:
            return min((p.asked_at for p in self._prompts.values() if page in p.pages), default=otherwise)

    def failed(self, prompt: Prompt, now: float) -> None:
        """Note that a load of a prompt has failed."""
        with self._lock:
            prompt.failed_at = now
            if (current := self._prompts.get(prompt.last)) is not None and current.name == prompt.name:
                current.failed_at = now

    def of(self, page: bytes) -> Prompt | None:
        """Return the prompt that was asked for last of those that have a page."""
        with self._lock:
            for prompt in reversed(self._prompts.values()):
                if page in prompt.pages:
                    return prompt
        return None

    def ended(self, prompt: Prompt) -> None:
        """Forget a prompt, unless it was asked for again."""
        with self._lock:
            if self._prompts.get(prompt.last) is prompt:
                self._drop(prompt.last)
