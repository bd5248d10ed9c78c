"""Two data-parallel replicas of one SGLang server, on one kvconnd."""

from __future__ import annotations

import random

from generation import SHORT, Generation, cacheable, generate, prompt
from scene import BACKEND, PATIENT_S, Scene, pages
from stage import Place

REPLICAS = 2


class DataParallel(Scene):
    """What one replica has saved, the other loads. Each has a device and a host memory of its own."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "dp", ranks=1)
        rng = random.Random("dp")
        self.prompts = [prompt(rng, SHORT) for _ in range(REPLICAS)]

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        server = self.start(1, replicas=REPLICAS, deadline=PATIENT_S)
        self.report.equal(f"{self.name}: engines of the daemon", self.daemon.metric("kvconn_engines"), REPLICAS)

        def each_at_its_own() -> list[Generation]:
            return [generate(server.port, p, routed_dp_rank=replica) for replica, p in enumerate(self.prompts)]

        self.references = each_at_its_own()
        self.saved(server, sum(pages(p) for p in self.prompts), each_at_its_own)
        got = [
            generate(server.port, p, routed_dp_rank=REPLICAS - 1 - replica) for replica, p in enumerate(self.prompts)
        ]
        full = cacheable(SHORT)
        self.report.equal(
            f"{self.name}: at the other replica: identical, all full pages from the backend",
            [(g.tokens, g.storage, g.cached, g.storage_backend, g.dp_rank) for g in got],
            [(r.tokens, full, full, BACKEND, REPLICAS - 1 - r.dp_rank) for r in self.references],
        )
        server.kill()
        self.daemon.terminate()
