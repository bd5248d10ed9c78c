"""What SGLang's storage threads wait for: whether a prompt's pages are there, and their load.

    kvconnd serve --dir DIR --socket PATH --prefill-tokens-per-s 1 &
    python bench/pages.py --socket PATH

Runs the storage backend's side as SGLang calls it, without the engine: a prompt is saved, then asked for and loaded
again and again. Needs torch, for the indices of slots. Prints JSON: median and 99th percentile of both, in seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace

import match
import torch

from kvconn.client import GroupLayout, KeyedChannels, Options, Run
from kvconn.memfd import sealed_memfd
from kvconn.sglang.pools import Pool, Pools
from kvconn.sglang.side import Move, Side

PAGE_TOKENS = 64
PAGE_BYTES = 256 << 10
BATCH_PAGES = 128
"""The most that SGLang loads or saves in one call."""
PAUSE_S = 0.01
"""Between requests: an engine computes meanwhile, and the daemon's threads fall asleep."""
DEADLINE_S = 0.8


class Backend:
    """A rank with one pool."""

    def __init__(self, socket: str, pages: int) -> None:
        manifest = match.MANIFEST | {"block_size": PAGE_TOKENS, "key_scheme": "engine"}
        channels = KeyedChannels(
            Options(socket, engine="bench", manifest=json.dumps(manifest).encode(), timeout=DEADLINE_S), Side.CHANNELS
        )
        layout = GroupLayout(pages, [Run(0, 0, 1, PAGE_BYTES, PAGE_BYTES, PAGE_BYTES)])
        pools = Pools()
        pools.fds.append(sealed_memfd("bench", pages * PAGE_BYTES))
        pools.pools.append(Pool("kv", SimpleNamespace(page_size=PAGE_TOKENS), layout))
        if not channels.register(pools.fds, [layout]):
            raise SystemExit(f"no kvconnd at {socket}")
        self.side = Side(channels, pools, PAGE_TOKENS, DEADLINE_S)
        chain, self.keys = hashlib.sha256(str(time.time_ns()).encode()), []
        for _ in range(pages):
            chain.update(b"page")
            self.keys.append(chain.copy().hexdigest())

    def moves(self) -> list[Move]:
        """Return the prompt's pages in batches, as SGLang makes them."""
        slots = torch.arange(len(self.keys) * PAGE_TOKENS)
        return [
            Move("kv", self.keys[i : i + BATCH_PAGES], slots[i * PAGE_TOKENS : (i + BATCH_PAGES) * PAGE_TOKENS])
            for i in range(0, len(self.keys), BATCH_PAGES)
        ]

    def save(self) -> None:
        """Save the prompt, and wait until all of it can be loaded."""
        before = None
        for move in self.moves():
            self.side.save([move], before)
            before = move.keys[-1]
        until = time.monotonic() + 60
        while self.side.present(self.keys) < len(self.keys):
            if time.monotonic() > until:
                raise SystemExit("the prompt was not saved: the daemon's host tier or disk is too small for it")
            time.sleep(0.05)


def measure(rounds: int, call: Callable[[], object]) -> dict[str, float]:
    """Return how long a call takes."""
    took = []
    for _ in range(rounds):
        time.sleep(PAUSE_S)
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    took.sort()
    return {"p50_s": float(f"{statistics.median(took):.3g}"), "p99_s": float(f"{took[len(took) * 99 // 100]:.3g}")}


def main() -> None:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(description="Cost of the storage backend in SGLang's storage threads.")
    parser.add_argument("--socket", required=True, help="path of a running kvconnd's socket")
    parser.add_argument("--tokens", type=int, default=32_768, help="length of the prompt")
    parser.add_argument("--rounds", type=int, default=300, help="requests")
    args = parser.parse_args()
    backend = Backend(args.socket, args.tokens // PAGE_TOKENS)
    backend.save()

    def load() -> None:
        if not all(all(done) for move in backend.moves() for done in backend.side.load([move])):
            raise SystemExit("pages were not loaded: nothing else may use the daemon")

    figures = {
        "pages": len(backend.keys),
        "page_bytes": PAGE_BYTES,
        "present": measure(args.rounds, lambda: backend.side.present(backend.keys)),
        "load": measure(max(1, args.rounds // 10), load),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
