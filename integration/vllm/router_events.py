"""Prints the KV cache events of an engine, one JSON object a line: what the router hears.

Runs in the environment that has vLLM: `python router_events.py ENDPOINT...`. For a look at what
happens; the checks do not need it.
"""

from __future__ import annotations

import json
import sys

import msgspec
import zmq


def describe(event: dict[str, object]) -> dict[str, object]:
    """Return an event with the token ids counted rather than named."""
    tokens = event.get("token_ids")
    return event | ({"token_ids": len(tokens)} if isinstance(tokens, list) else {})


def follow(endpoints: list[str]) -> None:
    """Print what is published at the endpoints, until it is stopped."""
    subscriber = zmq.Context.instance().socket(zmq.SUB)
    subscriber.subscribe(b"")
    for endpoint in endpoints:
        subscriber.connect(endpoint)
    while True:
        _, sequence, payload = subscriber.recv_multipart()
        _, events, rank = msgspec.msgpack.decode(payload)
        for event in events:
            line = {"rank": rank, "seq": int.from_bytes(sequence, "big"), **describe(event)}
            sys.stdout.write(json.dumps(line, default=bytes.hex) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    follow(sys.argv[1:])
