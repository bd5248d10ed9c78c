"""kvconnd's router, with ranks in its configuration file, and what it knows of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from completions import BLOCK_SIZE
from ports import free_port
from processes import Daemon, Program, get
from router_client import call
from router_engine import EventEngine, metric

WAIT_S = 120.0
"""Bounds waits for what takes milliseconds when all is well, on a machine that stands still at times."""


@dataclass(frozen=True)
class Match:
    """What a rank has of a prompt, in tokens: in its GPU, and after that on disk."""

    gpu: int
    disk: int
    usable: int


def rank(number: int, engine: EventEngine, daemon: Daemon, dp_rank: int = 0) -> dict[str, Any]:
    """Describe one of an engine's data-parallel ranks to the router."""
    return {
        "id": number,
        "model": "m",
        "endpoint": f"http://127.0.0.1:{engine.port}",
        "dp_mode": "internal" if engine.ranks > 1 else "external",
        "dp_rank": dp_rank,
        "events": {"endpoint": engine.events, "replay_endpoint": engine.replay},
        "node": "here",
        "node_url": f"http://127.0.0.1:{daemon.port}",
        "cache_model": str(engine.model),
        "block_size": BLOCK_SIZE,
    }


class Router(Program):
    """A kvconnd that routes. It can be started again with other settings, on the same port."""

    def __init__(self, binary: Path, work: Path) -> None:
        super().__init__(work / "router.log")
        self._binary, self._config = binary, work / "router.yaml"
        self.port = free_port()

    def start(self, ranks: Sequence[dict[str, Any]], **settings: Any) -> None:
        """Start it and wait until it listens; `wait_ready` waits for ranks."""
        # What JSON can say, YAML says in the same way.
        self._config.write_text(json.dumps({"ranks": ranks, **settings}, indent=2))
        self.spawn([str(self._binary), "router", "--config", str(self._config), "--http", f"127.0.0.1:{self.port}"])
        self.wait(lambda: self.alive() and get(self.port, "/healthz")[0] == 200, "it listens")

    def ranks(self) -> dict[int, dict[str, Any]]:
        """Return the ranks as they stand, by id."""
        return {r["id"]: r for r in call(self.port, "/v1/ranks")["ranks"]}

    def ready(self) -> list[int]:
        """Return the ranks that get requests."""
        return sorted(number for number, r in self.ranks().items() if r["ready"])

    def synced(self) -> bool:
        """Whether events and residency of every rank that gets requests are followed without a gap."""
        feeds = [r[name]["state"] for r in self.ranks().values() if r["ready"] for name in ("event_feed", "disk_feed")]
        return all(state == "synced" for state in feeds)

    def metric(self, name: str, **labels: str) -> float:
        """Return the sum of a metric's samples that have the labels."""
        return metric(self.port, name, **labels)

    def wait_ready(self, *numbers: int) -> None:
        """Wait until these ranks and no others get requests, and until what they have is known."""
        self.wait(lambda: self.ready() == sorted(numbers) and self.synced(), f"ranks {numbers} are ready and synced")

    def prefixes(self, tokens: Sequence[int], **fields: Any) -> dict[int, Match]:
        """Return what each rank has of a prompt."""
        answer = call(self.port, "/v1/prefix", {"model": "m", "token_ids": list(tokens), **fields})
        found = {r["rank"]: r["prefix"] for r in answer["ranks"]}
        return {number: Match(p["gpu"], p["disk"], p["usable"]) for number, p in found.items()}

    def explain(self, tokens: Sequence[int], **fields: Any) -> dict[str, Any]:
        """Return where a request would go and why; it does not stay booked."""
        answer = call(self.port, "/v1/route", {"model": "m", "token_ids": list(tokens), "explain": True, **fields})
        call(self.port, f"/v1/requests/{answer['request']}/finished", {})
        answer["scores"] = {score["rank"]: score for score in answer["scores"]}
        return dict(answer)

    def wait(self, condition: Callable[[], bool], what: str) -> bool:
        """Wait until something holds; fail with the log if it does not."""
        if not self.holds(condition):
            self.fail_with_log(f"the router: not within {WAIT_S:g} s: {what}")
        return True

    @staticmethod
    def holds(condition: Callable[[], bool], timeout_s: float = WAIT_S) -> bool:
        """Wait until something holds, and return whether it does."""
        until = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return True
