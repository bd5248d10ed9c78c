"""Requests to the OpenAI server."""

from __future__ import annotations

import http.client
import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

BLOCK_SIZE = 128
MAX_TOKENS = 32
SHORT, LONG = 1000, 2700
"""Lengths of prompts, in tokens."""
TIMEOUT_S = 600.0
"""For the next part of an answer. A request may have to wait until a daemon that is frozen for a minute goes on."""


@dataclass
class Completion:
    """An answer. Times are in seconds from the request's sending; `cached` are prompt tokens."""

    tokens: list[int] = field(default_factory=list)
    cached: int = 0
    first_token_s: float = 0.0
    total_s: float = 0.0


def prompt(rng: random.Random, length: int) -> list[int]:
    """Return a random prompt of the tiny model's byte tokens."""
    return [rng.randrange(4, 260) for _ in range(length)]


def cacheable(length: int, block_size: int = BLOCK_SIZE) -> int:
    """Return how many tokens of a prompt a cache can give back: full blocks, and not the last token."""
    return (length - 1) // block_size * block_size


def complete(
    port: int,
    tokens: Sequence[int],
    max_tokens: int = MAX_TOKENS,
    on_first_token: Callable[[], None] | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = TIMEOUT_S,
    **fields: Any,
) -> Completion:
    """Complete a prompt greedily, streaming. TimeoutError where nothing arrives for that long."""
    body = {
        "model": "m",
        "prompt": list(tokens),
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **fields,
    }
    answer = Completion()
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    begun = time.monotonic()
    try:
        conn.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})}
        )
        response = conn.getresponse()
        if response.status != 200:
            raise RuntimeError(f"completion: {response.status} {response.read().decode()[:500]}")
        for line in response:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            chunk = json.loads(line[len(b"data: ") :])
            if "error" in chunk:
                raise RuntimeError(f"completion: {chunk['error']}")
            for choice in chunk["choices"]:
                answer.tokens += choice.get("token_ids") or []
            if answer.tokens and not answer.first_token_s:
                answer.first_token_s = time.monotonic() - begun
                if on_first_token is not None:
                    on_first_token()
            if usage := chunk.get("usage"):
                answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    finally:
        conn.close()
    answer.total_s = time.monotonic() - begun
    return answer


def complete_all(port: int, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    """Complete prompts at the same time."""
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(lambda p: complete(port, p), prompts))
