"""Requests through the router's proxy, and to the router itself."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from completions import TIMEOUT_S

MAX_TOKENS = 16


@dataclass
class Answer:
    """An answer of the proxy: whose it is, and what was cached, in prompt tokens."""

    status: int = 0
    error: str = ""
    rank: int = -1
    reason: str = ""
    note: str = ""
    expected: int = 0
    """What the router expected to be cached."""
    cached: int = 0
    """What the engine says was cached."""
    prompt: int = 0
    tokens: list[int] = field(default_factory=list)
    text: str = ""


def ask(port: int, path: str, body: object = None, headers: dict[str, str] | None = None) -> http.client.HTTPResponse:
    """Make one request, a POST if there is a body. The answer is still to be read."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    data = None if body is None else json.dumps(body)
    conn.request("GET" if data is None else "POST", path, data, {"Content-Type": "application/json"} | (headers or {}))
    return conn.getresponse()


def call(port: int, path: str, body: object = None) -> Any:
    """Ask the router, and return its JSON answer."""
    response = ask(port, path, body)
    text = response.read().decode()
    if response.status >= 300:
        raise RuntimeError(f"{path}: {response.status} {text[:500]}")
    return json.loads(text) if text else None


def send(
    port: int,
    prompt: Sequence[int] | str,
    session: str = "",
    headers: dict[str, str] | None = None,
    max_tokens: int = MAX_TOKENS,
    **fields: Any,
) -> Answer:
    """Complete a prompt greedily. An answer that is an error is returned as such.

    It does not stream: until the answer is whole the router may send the request to another rank,
    and it learns no speeds, so that decisions do not depend on how busy the machine was.
    """
    body = {"prompt": prompt if isinstance(prompt, str) else list(prompt), "max_tokens": max_tokens}
    return _send(port, "/v1/completions", body | fields, session, headers)


def chat(port: int, messages: Sequence[dict[str, str]], session: str = "") -> Answer:
    """Answer a chat greedily."""
    return _send(port, "/v1/chat/completions", {"messages": list(messages), "max_tokens": MAX_TOKENS}, session, None)


def _send(port: int, path: str, body: dict[str, Any], session: str, headers: dict[str, str] | None) -> Answer:
    body = {"model": "m", "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body}
    with_session = {"X-Session-ID": session} if session else {}
    answer = Answer()
    try:
        response = ask(port, path, body, with_session | (headers or {}))
        raw = response.read().decode()
    except (OSError, http.client.HTTPException) as e:
        answer.error = repr(e)
        return answer
    answer.status = response.status
    answer.rank = int(response.headers.get("X-Kvconn-Rank", -1))
    answer.reason = response.headers.get("X-Kvconn-Reason", "")
    answer.note = response.headers.get("X-Kvconn-Note", "")
    answer.expected = int(response.headers.get("X-Kvconn-Cached-Tokens", 0))
    if response.status != 200:
        answer.error = raw[:300]
        return answer
    parsed = json.loads(raw)
    (choice,) = parsed["choices"]
    answer.tokens = choice.get("token_ids") or []  # SGLang has none
    answer.text = choice["text"] if "text" in choice else choice["message"]["content"]
    usage = parsed["usage"]
    answer.prompt = usage["prompt_tokens"]
    answer.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return answer
