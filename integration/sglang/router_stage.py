"""kvconnd's router in front of two real SGLang servers, each with a kvconnd and a disk of its own."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import environment
from generation import PAGE_SIZE, SHORT, cacheable, prompt
from ports import free_ports
from processes import Daemon
from router_client import Answer, send
from router_process import Match, Router
from scene import MODEL_SEED, PATIENT_S
from server import Server
from stage import Place
from storage import kvconn

CONVERSATIONS = 4
RANKS = (1, 2)
BODY_PINNED = 1
"""The rank that requests can ask for in SGLang's way, by a number in the body."""


@dataclass
class Node:
    """A server with its daemon, as one of the router's ranks."""

    rank: int
    server: Server
    daemon: Daemon
    events: int
    """The port of the server's events; that of their replay is the next."""

    @property
    def dp_rank(self) -> int:
        """The number that requests to SGLang name it by."""
        return 0 if self.rank == BODY_PINNED else 1

    def launch(self, binary: Any) -> None:
        """Start the server; its `wait` waits until it serves."""
        # The router asks for no topic, and SGLang has none by default.
        events = {
            "publisher": "zmq",
            "endpoint": f"tcp://*:{self.events}",
            "replay_endpoint": f"tcp://*:{self.events + 1}",
        }
        storage = kvconn(binary, self.daemon.socket_path, deadline=PATIENT_S)
        # The router asks for health within seconds: without this SGLang computes a token for an answer.
        variables = {"SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
        self.server.start(storage, arguments=["--kv-events-config", json.dumps(events)], variables=variables)

    def described(self, model: str) -> dict[str, Any]:
        """Return the rank for the router's configuration."""
        return {
            "id": self.rank,
            "model": "m",
            "engine": "sglang",
            "endpoint": f"http://127.0.0.1:{self.server.port}",
            "events": {
                "endpoint": f"tcp://127.0.0.1:{self.events - self.dp_rank}",
                "replay_endpoint": f"tcp://127.0.0.1:{self.events + 1 - self.dp_rank}",
            },
            # Only one has data-parallel rank 0, so a request may name that. The router adds it to the ports of events.
            "dp_mode": "internal" if self.rank == BODY_PINNED else "external",
            "dp_rank": self.dp_rank,
            "node": f"node-{self.rank}",
            "node_url": f"http://127.0.0.1:{self.daemon.port}",
            "cache_model": model,
            "block_size": PAGE_SIZE,
        }


class Routed:
    """Where prompts go: to the GPU that has them, then to the disk that has them, and elsewhere if that is gone."""

    def __init__(self, place: Place) -> None:
        self.place, self.report = place, place.report
        self.model = environment.model(place.env, MODEL_SEED)
        self.router = Router(place.binary, place.work)
        self.nodes = {number: self._node(number) for number in RANKS}
        rng = random.Random("router")
        self.prompts = [prompt(rng, SHORT) for _ in range(CONVERSATIONS)]
        self.first: list[Answer] = []

    def _node(self, number: int) -> Node:
        place, label = self.place, f"router-{number}"
        daemon = Daemon(
            place.binary, place.work / f"store-{label}", place.sockets / f"{label}.sock", place.work / f"{label}.log"
        )
        server = Server(place.env, self.model, place.work / f"sglang-{label}.log")
        return Node(number, server, daemon, free_ports(2))

    def run(self) -> None:
        """Run everything."""
        begun = time.monotonic()
        for node in self.nodes.values():
            node.daemon.start()
            node.launch(self.place.binary)
        for node in self.nodes.values():
            node.server.wait()
            node.daemon.wait_until(node.server.linked, "the rank")
        self.report.say(f"      {len(self.nodes)} servers started in {time.monotonic() - begun:.0f} s")
        self.route()
        self.begin()
        self.by_gpu()
        self.by_disk()
        self.pinned()
        self.lost()
        mismatched = {n: r["event_feed"]["mismatched_hashes"] for n, r in self.router.ranks().items()}
        self.report.equal(
            "router: pages whose hash is not what the router computes", mismatched, dict.fromkeys(RANKS, 0)
        )
        self.report.equal("router: it stops in order", self.router.terminate(), 0)
        for node in self.nodes.values():
            node.server.kill()
            node.daemon.terminate()

    def route(self) -> None:
        """Start the router, again if it runs."""
        if self.router.alive():
            self.router.terminate()
        self.router.start([n.described(str(self.model)) for n in self.nodes.values()], tokenize_timeout="30s")
        self.router.wait_ready(*RANKS)

    def begin(self) -> None:
        """Send all prompts for the first time, at the same time."""
        with ThreadPoolExecutor(CONVERSATIONS) as pool:
            self.first = list(pool.map(lambda p: send(self.router.port, p), self.prompts))
        self.ok("first turns", self.first)
        self.report.equal("router: first turns: nothing cached", [a.cached for a in self.first], [0] * CONVERSATIONS)
        work = sorted({a.rank for a in self.first})
        self.report.equal("router: first turns: both ranks get work", work, list(RANKS))
        self.known("first turns", gpu=True)
        for node in self.nodes.values():
            node.daemon.wait_for_writes()

    def by_gpu(self) -> None:
        """Send all prompts again, whose pages are in the device memory of one rank."""
        answers = [send(self.router.port, p) for p in self.prompts]
        self.same("again", answers)
        self.report.equal("router: again: nothing is loaded", self.loaded(), dict.fromkeys(RANKS, 0))

    def by_disk(self) -> None:
        """Flush both servers: the prompts go where the disk has them, also after a restart of the router."""
        for when in ("flushed", "flushed, and the router restarted"):
            for node in self.nodes.values():
                node.server.flush_cache()
            self.known(when, gpu=False)
            if "restarted" in when:
                self.route()
                self.known(when, gpu=False)
            before = self.loaded()
            self.same(when, [send(self.router.port, p) for p in self.prompts])
            pages = {n: sum(a.rank == n for a in self.first) * cacheable(SHORT) // PAGE_SIZE for n in RANKS}
            got = {n: count - before[n] for n, count in self.loaded().items()}
            self.report.equal(f"router: {when}: pages loaded from the disk of each node", got, pages)

    def pinned(self) -> None:
        """A client that asks for a rank gets it, by SGLang's field in the body or by the router's header."""
        self.router.wait_ready(*RANKS)
        by_body = [send(self.router.port, p, routed_dp_rank=self.nodes[BODY_PINNED].dp_rank) for p in self.prompts]
        self.ok("pinned by the body", by_body)
        at = [a.rank for a in by_body]
        self.report.equal("router: pinned by the body: at that rank", at, [BODY_PINNED] * CONVERSATIONS)
        texts = [a.text for a in self.first]
        self.report.equal("router: pinned by the body: identical", [a.text for a in by_body], texts)
        wanted = [3 - a.rank for a in self.first]
        answers = [
            send(self.router.port, p, headers={"X-KVConn-Rank": str(n)})
            for p, n in zip(self.prompts, wanted, strict=True)
        ]
        self.ok("pinned", answers)
        self.report.equal("router: pinned: at that rank", [a.rank for a in answers], wanted)
        self.report.equal("router: pinned: identical", [a.text for a in answers], texts)

    def lost(self) -> None:
        """One server is killed: its prompts are answered by the other."""
        self.nodes[1].server.kill()
        answers = [send(self.router.port, p) for p in self.prompts]
        self.ok("a server killed", answers)
        self.report.equal("router: a server killed: at the other", [a.rank for a in answers], [2] * CONVERSATIONS)
        texts = [a.text for a in answers]
        self.report.equal("router: a server killed: identical", texts, [a.text for a in self.first])

    def same(self, when: str, answers: Sequence[Answer]) -> None:
        """Check that prompts were answered by their ranks, as before, and had as much cached as the router expected."""
        self.ok(when, answers)
        got = [(a.rank, a.cached, a.expected, a.text) for a in answers]
        full = cacheable(SHORT)
        want = [(a.rank, full, full, a.text) for a in self.first]
        self.report.equal(f"router: {when}: at the rank that has them, cached as expected, identical", got, want)

    def ok(self, what: str, answers: Sequence[Answer]) -> None:
        """Check that all were answered."""
        failed = [f"{a.status} {a.error}" for a in answers if a.status != 200 or not a.text]
        self.report.check(f"router: {what}: answered", not failed, "; ".join(failed[:2]))

    def known(self, when: str, gpu: bool) -> None:
        """Wait until the router knows that each prompt is on the disk of its node alone, and in its GPU or not."""
        self.router.wait_ready(*RANKS)
        full = SHORT // PAGE_SIZE * PAGE_SIZE
        here, elsewhere = Match(full, 0, full) if gpu else Match(0, full, full), Match(0, 0, 0)
        want = [{n: here if n == a.rank else elsewhere for n in RANKS} for a in self.first]

        def found() -> list[dict[int, Match]]:
            return [self.router.prefixes(p) for p in self.prompts]

        self.router.holds(lambda: found() == want)
        self.report.equal(f"router: {when}: it knows where all prompts are", found(), want)

    def loaded(self) -> dict[int, int]:
        """Return how many pages each node's daemon has loaded."""
        return {n: int(node.daemon.metric("kvconn_loaded_blocks_total")) for n, node in self.nodes.items()}
