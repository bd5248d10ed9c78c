"""The stage of two nodes, each with an engine, a daemon and a disk of its own, that share one bucket."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Mapping, Sequence
from typing import Any

import environment
import gateway
from completions import BLOCK_SIZE, MAX_TOKENS, Completion, cacheable, complete, prompt
from processes import Daemon, Engine
from stage import NO_CACHE, Place

LENGTHS = (1000, 2000, 1000, 1500)
UNSEEN = 3
"""The prompt that node B first asks for while the bucket hangs."""
SETTINGS = ("--prefill-tokens-per-s", "1", "--host-bytes", "512MiB", "--object-upload-age", "500ms")
"""Whatever is in the bucket is worth loading, and is uploaded soon. A bucket that hangs fails a load in time."""


class Node(Daemon):
    """A daemon that shares a bucket."""

    def __init__(self, place: Place, name: str, bucket: gateway.Gateway) -> None:
        work = place.work
        socket_path = place.sockets / f"object-{name}.sock"
        super().__init__(place.binary, work / f"store-object-{name}", socket_path, work / f"kvconnd-object-{name}.log")
        self.name, self._bucket = name, bucket

    def begin(self) -> None:
        """Start it and wait until it is ready. The bucket need not be there."""
        self.start(settings=[*SETTINGS, *self._bucket.settings()], env=self._bucket.environment())

    def records(self, tier: str) -> float:
        """Return how many records it knows in a tier."""
        return self.metric(f'kvconn_tier_records{{tier="{tier}"}}')

    def hits(self, tier: str) -> float:
        """Return how many records were found in a tier since it was started."""
        return self.metric(f'kvconn_tier_hit_records_total{{tier="{tier}"}}')

    def wait_for_uploads(self) -> None:
        """Wait until the bucket's lists have all that is on its disk."""
        self.wait_for_writes()
        self.wait_until(
            lambda: (
                0 < self.records("disk") <= self.records("object")
                and self.metric("kvconn_object_queue_records") == 0
                and self.metric("kvconn_object_lists_waiting") == 0
            ),
            "its uploads",
        )

    def wait_for_news(self, records: float) -> None:
        """Wait until it offers that many records of the bucket."""
        self.wait_until(
            lambda: self.metric("kvconn_object_offers") == 1 and self.records("object") >= records, "news of the bucket"
        )


class ObjectTier:
    """Node A computes; node B has nothing but the bucket; the bucket fails; node A loses its disk."""

    def __init__(self, place: Place) -> None:
        self.place, self.report = place, place.report
        self.model = environment.model(place.env, 1)
        rng = random.Random("object")
        self.prompts = [prompt(rng, n) for n in LENGTHS]
        self.references: list[Completion] = []
        self.records = 0.0

    def run(self) -> None:
        """Run the stage."""
        binary = gateway.find()
        if binary is None:
            self.report.say("      the stage needs Go to build an S3 server, and is skipped")
            return
        self.bucket = gateway.Gateway(binary, self.place.work / "object-bucket", self.place.work / "versitygw.log")
        self.bucket.start()
        a, b = (Node(self.place, name, self.bucket) for name in ("A", "B"))
        engines = [self.engine(node) for node in (a, b)]
        for engine in engines:
            engine.wait()
        for node, engine in zip((a, b), engines, strict=True):
            node.wait_for_engine(engine)
        first, second = engines
        self.compute(a, first)
        self.share(b, second)
        self.outage(b, second)
        self.wiped_disk(a, first)
        for node, engine in ((a, first), (b, second)):
            self.well(node, engine)
        self.bucket.terminate()

    def engine(self, node: Node) -> Engine:
        """Start a node: its daemon, then its engine, which takes its time."""
        node.begin()
        engine = Engine(self.place.env, self.model, self.place.work / f"vllm-object-{node.name}.log")
        engine.start(node.vllm_config(), prefix_caching=False)
        return engine

    def compute(self, a: Node, engine: Engine) -> None:
        """Compute everything on node A, without cache and saving."""
        self.references = self.answers(engine, NO_CACHE)
        whole = all(len(r.tokens) == MAX_TOKENS for r in self.references)
        self.report.check("object: A: served without cache", whole, f"{len(self.prompts)} prompts")
        answers = self.answers(engine)
        self.identical("A computes and saves", answers)
        self.report.equal("object: A: nothing cached yet", [r.cached for r in answers], [0] * len(LENGTHS))
        a.wait_for_uploads()
        self.records = a.records("object")
        blocks = self.blocks(range(len(LENGTHS)))
        self.report.check("object: A: every full block is in the bucket", self.records >= blocks, f"{self.records:g}")

    def share(self, b: Node, engine: Engine) -> None:
        """Node B, which has computed nothing, gets what A has uploaded."""
        b.wait_for_news(self.records)
        self.report.equal("object: B: nothing on its disk", b.records("disk"), 0)
        self.cached_from(b, engine, "object", "B, from the bucket", range(UNSEEN))

    def outage(self, b: Node, engine: Engine) -> None:
        """The bucket hangs, then it is gone: B's engine computes what it cannot load, and B's disk serves the rest."""
        self.bucket.signal(signal.SIGSTOP)
        (answer,) = self.answers(engine, of=[UNSEEN])
        self.identical(f"B, the bucket hangs in a load ({answer.total_s:.1f} s)", [answer], [UNSEEN])
        self.report.check("object: B: that load failed", b.lines("WARN", "load failed in part or whole") != [])
        b.wait_for_writes()
        b.terminate()
        self.bucket.kill()
        b.begin()
        b.wait_for_engine(engine)
        self.cached_from(b, engine, "disk", "B restarted, the bucket is gone: from its disk", range(len(LENGTHS)))
        said = [*b.lines("WARN", "the bucket does not work"), *b.lines("WARN", "the bucket cannot be used", "remedy=")]
        self.report.check("object: B: its log says what to do", len(said) > 0, said[-1] if said else "")

    def wiped_disk(self, a: Node, engine: Engine) -> None:
        """The bucket is back. Node A has lost its disk, and gets from the bucket what it had computed itself."""
        self.report.equal("object: A: kvconnd stops in order, without the bucket", a.terminate(), 0)
        shutil.rmtree(a.store)
        self.bucket.start()
        a.begin()
        a.wait_for_engine(engine)
        a.wait_for_news(self.records)
        self.report.equal("object: A, disk wiped: nothing on it", a.records("disk"), 0)
        self.cached_from(a, engine, "object", "A, disk wiped: from the bucket", range(len(LENGTHS)))

    def well(self, node: Node, engine: Engine) -> None:
        """At the end both nodes use the bucket, and their engines are well."""
        node.wait_for_news(self.records)
        self.report.check(f"object: {node.name}: the engine is healthy after all that", engine.healthy())
        errors = engine.lines("ERROR")
        self.report.check(f"object: {node.name}: no error in the engine's log", not errors, "; ".join(errors[:2]))
        engine.terminate()
        self.report.equal(f"object: {node.name}: kvconnd stops in order", node.terminate(), 0)

    # Helpers.

    def answers(
        self, engine: Engine, fields: Mapping[str, Any] | None = None, of: Sequence[int] | None = None
    ) -> list[Completion]:
        """Complete prompts, or all, one after the other."""
        of = range(len(LENGTHS)) if of is None else of
        return [complete(engine.port, self.prompts[i], **(fields or {})) for i in of]

    def identical(self, what: str, answers: Sequence[Completion], of: Sequence[int] | None = None) -> None:
        """Check that answers to prompts, or to all, have the tokens of the run without cache."""
        of = range(len(LENGTHS)) if of is None else of
        wrong = [i for i, answer in zip(of, answers, strict=True) if answer.tokens != self.references[i].tokens]
        self.report.equal(f"object: {what}: identical", wrong, [])

    def blocks(self, of: Sequence[int]) -> int:
        """Return how many blocks of prompts a cache can give back."""
        return sum(cacheable(LENGTHS[i]) // BLOCK_SIZE for i in of)

    def cached_from(self, node: Node, engine: Engine, tier: str, what: str, of: Sequence[int]) -> None:
        """Complete prompts, and check that all that a cache can give came from one tier."""
        before = node.hits(tier)
        answers = self.answers(engine, of=of)
        self.identical(what, answers, of)
        want = [cacheable(LENGTHS[i]) for i in of]
        self.report.equal(f"object: {what}: cached tokens in usage", [r.cached for r in answers], want)
        self.report.equal(f"object: {what}: records", node.hits(tier) - before, self.blocks(of))
        node.wait_for_writes()
