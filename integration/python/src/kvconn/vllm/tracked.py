"""What the scheduler's side follows of a request, and which requests it follows."""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kvconn.client import Span
from kvconn.frames import MAX_ID_BYTES, MAX_SCOPE_BYTES, MAX_SPAN_ID_BYTES, MAX_SPANS, MAX_TOKENS, MAX_TRACE_BYTES
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.wishes import Wishes, WishReader

if TYPE_CHECKING:
    from vllm.v1.request import Request

_CONTENT_ID = re.compile(r"(.*:)?[0-9a-f]{64,128}", re.DOTALL)
"""How vLLM names images and the like by content, after the name of an adapter of the encoder, if any."""


@dataclass(slots=True)
class Tracked:
    """What is known of a request, and what the leader was told of it in `session`."""

    request: Request
    salt: str
    adapter: str
    """The name of its LoRA adapter, empty without one."""
    lora: str
    """What separates the adapter's KV from others'."""
    spans: list[Span]
    load: bool
    save: bool
    max_load: int | None = None
    """The most tokens to load at a time."""
    session: int = 0
    tokens_told: int = 0
    blocks_told: list[int] = field(default_factory=list)
    """Blocks of each group's current block table that were told, empty where the tables are new."""
    computed_told: int = 0
    """End of the tokens that the leader knows to be in those blocks."""
    followed: int = 0
    """Steps that are told whatever they fill: from the two after a step the leader learns how long it took."""
    asked_at: int = 0
    """Tokens that the engine held when it asked last."""
    offered: bool = False
    asked_for: int = 0
    """Tokens that the last load was to bring, if it began with the first; else 0."""
    stored: int = 0
    """Tokens from the first on whose blocks need no saving in the next step: a load has just brought them."""
    loading: list[int] = field(default_factory=list)
    """Blocks being loaded, of all groups."""
    invalid: set[int] = field(default_factory=set)
    """Those of them that have failed on some rank."""


class Admission:
    """Decides which requests are loaded or saved, by what their KV depends on. For one thread."""

    def __init__(self, block_size: int, logger: logging.Logger, adapters: Adapters, images_by_content: bool) -> None:
        self._block_size = block_size
        self._logger = logger
        self._adapters = adapters
        self._wishes = WishReader(logger)
        self._images_by_content = images_by_content
        self._images_named = False

    def admit(self, request: Request) -> Tracked | None:
        """Return the state of a new request, None where it is neither loaded nor saved, or not yet."""
        lora, scope = request.lora_request, ""
        if lora is not None:
            known = self._adapters.scope(lora)
            if known is None:
                return None
            scope = known
        if not self._tells_images(request):
            return None
        wishes = self._wishes.read(request.kv_transfer_params)
        return _admit(request, wishes, self._block_size, lora.lora_name if lora is not None else "", scope)

    def _tells_images(self, request: Request) -> bool:
        """Whether the content that placeholders stand for is known by itself, not by a name that a client gave it."""
        if knows_images(request, self._images_by_content):
            return True
        if not self._images_named:
            self._images_named = True
            self._logger.warning(
                "kvconn: requests whose images or the like are known by a name or a number, not by their content, are"
                " neither loaded nor saved"
            )
        return False


def knows_images(request: Request, by_content: bool) -> bool:
    """Whether images and the like in a request are known by their content, if vLLM names any by it."""
    images = request.mm_features or ()
    return not images or (by_content and all(_CONTENT_ID.fullmatch(f.identifier) for f in images))


def can_be_told(request: Request) -> bool:
    """Whether a request's names fit into a call, and its tokens stay as they are while it is served."""
    return (
        not request.resumable
        and len(request.request_id.encode()) <= MAX_ID_BYTES
        and len((request.cache_salt or "").encode()) <= MAX_SCOPE_BYTES
    )


def _admit(request: Request, wishes: Wishes, block_size: int, adapter: str, lora: str) -> Tracked | None:
    """Return the state of a new request, None where it is neither loaded nor saved."""
    load = wishes.load and wishes.max_load_tokens != 0
    embedded = 0 if request.prompt_embeds is None else -(-len(request.prompt_embeds) // block_size)
    too_many_spans = len(request.mm_features or ()) + embedded > MAX_SPANS
    if not can_be_told(request) or request.num_tokens > MAX_TOKENS or too_many_spans or not (load or wishes.save):
        return None
    spans = _spans(request, block_size)
    return Tracked(request, request.cache_salt or "", adapter, lora, spans, load, wishes.save, wishes.max_load_tokens)


def _spans(request: Request, block_size: int) -> list[Span]:
    """Return what the prompt's placeholder tokens stand for: images and the like, or embeddings."""
    spans = [
        Span(f.mm_position.offset, f.mm_position.offset + f.mm_position.length, _span_id(f.identifier))
        for f in request.mm_features or ()
        if f.mm_position.length > 0
    ]
    embeds = request.prompt_embeds
    if embeds is not None:
        # Block by block, so that prompts share what they have in common.
        for start in range(0, len(embeds), block_size):
            part = embeds[start : start + block_size]
            spans.append(Span(start, start + len(part), _digest(part)))
    return sorted(spans)


def trace(request: Request) -> str:
    """Return a request's W3C traceparent, empty without tracing."""
    trace = (getattr(request, "trace_headers", None) or {}).get("traceparent", "")
    return trace if isinstance(trace, str) and trace.isascii() and len(trace) <= MAX_TRACE_BYTES else ""


def _span_id(identifier: str) -> bytes:
    encoded = identifier.encode()
    return encoded if len(encoded) <= MAX_SPAN_ID_BYTES else hashlib.sha256(encoded).digest()


def _digest(embeds: Any) -> bytes:
    import torch

    rows = embeds.detach().cpu().contiguous()
    shape = f"{rows.dtype} {tuple(rows.shape[1:])} ".encode()
    return hashlib.sha256(shape + rows.flatten().view(torch.uint8).numpy().tobytes()).digest()
