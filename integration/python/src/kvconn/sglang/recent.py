"""Which prompt a page was asked for with: SGLang names no request."""

from __future__ import annotations

import itertools
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

_KEPT = 64
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

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._prompts: OrderedDict[bytes, Prompt] = OrderedDict()
        self._numbers = itertools.count(1)

    def asked(self, hashes: Sequence[bytes], now: float) -> Prompt:
        """Note a question for the pages of a prompt, which may be a repeated one of the same request."""
        last = hashes[-1]
        with self._lock:
            before = self._prompts.pop(last, None)
            prompt = Prompt(last.hex(), {page: i for i, page in enumerate(hashes)}, now)
            if before is not None and (before.failed_at is None or now - before.failed_at < _FAILED_S):
                prompt.name, prompt.failed_at = before.name, before.failed_at
            elif before is not None:
                prompt.name += f"-{next(self._numbers)}"
            self._prompts[last] = prompt
            while len(self._prompts) > self._kept:
                self._prompts.popitem(last=False)
        return prompt

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
                del self._prompts[prompt.last]
