"""Page hashes and KV events made by SGLang's own code: test data of the router, which computes the same.

Run it with the interpreter of SGLang's environment, and write what it prints to router/blockkey/testdata/sglang.json.
The first run compiles SGLang's hash extension.
"""

from __future__ import annotations

import json
import random
import sys
from array import array
from types import SimpleNamespace
from typing import Any

import msgspec
from sglang.srt.disaggregation.kv_events import KVEventBatch
from sglang.srt.mem_cache.events import KVCacheEventRecorder, KvEventLoraNames
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.utils import get_storage_hash_str

import sglang

PAGES = 5
ADAPTER_ID = "0123456789abcdef0123456789abcdef"


def tokens(seed: int, count: int) -> list[int]:
    """Return token ids, with the smallest and the largest that fit in 32 bits."""
    ids = random.Random(seed)
    return [0, 2**32 - 1, *(ids.randrange(128_000) for _ in range(count - 2))]


def key(ids: list[int], **namespace: str | None) -> RadixKey:
    """Return tokens in the form that the tree has them."""
    return RadixKey(array("q", ids), **namespace)


def node(of: RadixKey, parent: Any) -> SimpleNamespace:
    """Return what the recorder of events looks at in a node of the tree."""
    return SimpleNamespace(key=of, parent=parent, hash_value=None, event_hash_value=None)


def case(page: int, salt: str | None, adapter: str | None, *, dynamo: bool) -> dict[str, Any]:
    """Return the hashes of a prompt's pages, and the events of its two halves: stored, and the second one removed."""
    ids = tokens(page, PAGES * page)
    extra = ADAPTER_ID if adapter else None
    names = KvEventLoraNames()
    if adapter:
        names.register(SimpleNamespace(extra_key=extra, lora_id=ADAPTER_ID), adapter)
        names.register(lora_id=ADAPTER_ID, lora_name=adapter)
    recorder = KVCacheEventRecorder(enabled=True, page_size=page, dynamo_format=dynamo, lora_names=names)
    root = SimpleNamespace(key=key([]), parent=None, hash_value=[], event_hash_value=None)
    half = 2 * page
    first = node(key(ids[:half], extra_key=extra, cache_salt=salt), root)
    second = node(key(ids[half:], extra_key=extra, cache_salt=salt), first)
    batches = []
    for record in (lambda: recorder.record_store(first), lambda: recorder.record_store(second)):
        record()
    batches.append(encoded(recorder))
    recorder.record_remove(second)
    batches.append(encoded(recorder))
    whole = key(ids, extra_key=extra, cache_salt=salt)
    return {
        "page": page,
        "salt": salt or "",
        "adapter": adapter or "",
        "format": "dynamo" if dynamo else "default",
        "tokens": ids,
        "hashes": get_storage_hash_str(whole, page_size=page),
        "batches": batches,
    }


def encoded(recorder: KVCacheEventRecorder) -> str:
    """Return the recorded events as the publisher sends them, in hexadecimal."""
    return msgspec.msgpack.encode(KVEventBatch(ts=1.5, events=recorder.take(), attn_dp_rank=0)).hex()


def main() -> None:
    """Print the test data."""
    cases = [
        case(page, salt, adapter, dynamo=dynamo)
        for page in (1, 16, 64)
        for salt, adapter, dynamo in (
            (None, None, False),
            ("tenant \u00e4", None, False),
            ("tenant", None, True),
            (None, "adapter", False),
            ("tenant", "adapter", False),
        )
    ]
    lines = ",\n".join(json.dumps(c) for c in cases)
    sys.stdout.write(f'{{"sglang": "{sglang.__version__}", "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
