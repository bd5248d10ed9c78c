"""Which prompt a page was asked for with: SGLang names no request."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

_KEPT = 64


@dataclass
class Prompt:
    """A prompt whose pages were asked for. `name` is its request's name for the daemon."""

    name: str
    hashes: Sequence[bytes]
    members: frozenset[bytes] = field(init=False)
    failed: bool = False
    """Whether a load of it has failed: the daemon offers it nothing more until the request ends."""

    def __post_init__(self) -> None:
        self.members = frozenset(self.hashes)

    def parent(self, page: bytes) -> bytes:
        """Return the hash before that of a page, empty for the first."""
        at = self.hashes.index(page)
        return self.hashes[at - 1] if at else b""


class Recent:
    """The prompts that were asked for last, by the pages that they have. For any thread."""

    def __init__(self, kept: int = _KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._prompts: OrderedDict[str, Prompt] = OrderedDict()

    def asked(self, hashes: Sequence[bytes]) -> tuple[Prompt, list[Prompt]]:
        """Note the pages of a prompt. Returns it, and those that are forgotten for it."""
        name = hashes[-1].hex()
        with self._lock:
            prompt = self._prompts.pop(name, None)
            if prompt is None or len(prompt.hashes) < len(hashes):
                failed = prompt is not None and prompt.failed
                prompt = Prompt(name, hashes)
                prompt.failed = failed
            self._prompts[name] = prompt
            over = []
            while len(self._prompts) > self._kept:
                over.append(self._prompts.popitem(last=False)[1])
        return prompt, over

    def of(self, page: bytes) -> Prompt | None:
        """Return the prompt that was asked for last of those that have a page."""
        with self._lock:
            for prompt in reversed(self._prompts.values()):
                if page in prompt.members:
                    return prompt
        return None

    def ended(self, prompt: Prompt) -> bool:
        """Forget a prompt. Returns whether it was known."""
        with self._lock:
            if self._prompts.get(prompt.name) is not prompt:
                return False
            del self._prompts[prompt.name]
        return True
