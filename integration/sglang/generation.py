"""Requests to SGLang's own HTTP API."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

PAGE_SIZE = 16
"""Tokens of a page, SGLang's unit of caching."""
MAX_TOKENS = 32
SHORT, LONG = 1000, 2700
"""Lengths of prompts, in tokens."""
TIMEOUT_S = 180.0


@dataclass(frozen=True)
class Generation:
    """An answer. `device`, `host` and `storage` are the prompt tokens that each had cached."""

    tokens: tuple[int, ...]
    device: int
    host: int
    storage: int
    storage_backend: str | None
    dp_rank: int | None
    """The data-parallel replica that answered, None where there is one."""
    total_s: float

    @property
    def cached(self) -> int:
        """Prompt tokens that were not computed."""
        return self.device + self.host + self.storage


@dataclass(frozen=True)
class Streamed:
    """An answer that came token by token. Times are in seconds from the request's sending."""

    tokens: tuple[int, ...]
    storage: int
    """Prompt tokens that the storage backend had."""
    first_s: float
    total_s: float


def prompt(rng: random.Random, length: int) -> list[int]:
    """Return a random prompt of the tiny model's byte tokens."""
    return [rng.randrange(4, 260) for _ in range(length)]


def cacheable(length: int, page_size: int = PAGE_SIZE) -> int:
    """Return how many tokens of a prompt a cache can give back: full pages, and not the last token."""
    return (length - 1) // page_size * page_size


def post(
    port: int,
    call: str,
    body: Mapping[str, Any],
    timeout_s: float = TIMEOUT_S,
    headers: Mapping[str, str] | None = None,
) -> Any:
    """Make a call and return its answer. TimeoutError where none comes for that long, RuntimeError for a failure."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        conn.request("POST", f"/{call}", json.dumps(body), {"Content-Type": "application/json"} | dict(headers or {}))
        response = conn.getresponse()
        text = response.read().decode()
    finally:
        conn.close()
    if response.status != 200:
        raise RuntimeError(f"{call}: {response.status} {text[:500]}")
    return json.loads(text)


def _body(tokens: Sequence[int], max_tokens: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True}
    return {"input_ids": list(tokens), "sampling_params": sampling, **fields}


def generate(
    port: int, tokens: Sequence[int], max_tokens: int = MAX_TOKENS, timeout_s: float = TIMEOUT_S, **fields: Any
) -> Generation:
    """Generate greedily. TimeoutError where no answer comes for that long."""
    begun = time.monotonic()
    answer = post(port, "generate", _body(tokens, max_tokens, fields), timeout_s)
    cached = answer["meta_info"].get("cached_tokens_details") or {}
    return Generation(
        tokens=tuple(answer["output_ids"]),
        device=cached.get("device", 0),
        host=cached.get("host", 0),
        storage=cached.get("storage", 0),
        storage_backend=cached.get("storage_backend"),
        dp_rank=answer["meta_info"].get("dp_rank"),
        total_s=time.monotonic() - begun,
    )


def stream(port: int, tokens: Sequence[int], max_tokens: int = MAX_TOKENS, timeout_s: float = TIMEOUT_S) -> Streamed:
    """Generate greedily, and note when the first token came. TimeoutError where nothing arrives for that long."""
    body = _body(tokens, max_tokens, {"stream": True})
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    begun, first_s, answer = time.monotonic(), 0.0, {}
    try:
        conn.request("POST", "/generate", json.dumps(body), {"Content-Type": "application/json"})
        response = conn.getresponse()
        if response.status != 200:
            raise RuntimeError(f"generate: {response.status} {response.read().decode()[:500]}")
        for line in response:
            if line.startswith(b"data: {"):
                answer = json.loads(line[len(b"data: ") :])
                first_s = first_s or time.monotonic() - begun
    finally:
        conn.close()
    cached = answer["meta_info"].get("cached_tokens_details") or {}
    return Streamed(tuple(answer["output_ids"]), cached.get("storage", 0), first_s, time.monotonic() - begun)


def generate_all(port: int, prompts: Sequence[Sequence[int]]) -> list[Generation]:
    """Generate for prompts at the same time."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda p: generate(port, p), prompts))
