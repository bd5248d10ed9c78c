"""Two SGLang servers on one kvconnd, which keep pages in host memory in different ways."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from generation import LONG, SHORT, Generation, cacheable, generate_all, prompt
from main_stage import BACKEND, PATIENT_S, Scene, pages
from stage import Place


class Pair(Scene):
    """What one has saved the other loads, also while both load at the same time."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "pair", ranks=1)
        rng = random.Random("pair")
        self.prompts = [prompt(rng, length) for length in (SHORT, LONG)]
        self._others = [prompt(rng, length) for length in (SHORT, LONG)]

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        first = self.start(1, deadline=PATIENT_S, arguments=("--hicache-host-memory-mode", "cache"))
        second = self.start(2, deadline=PATIENT_S, arguments=("--hicache-host-memory-mode", "buffer_only"))
        self.connected(2)
        self.cold(first)
        self.loaded("what the first saved, at the second", self.answers(second), self.references)
        cold = generate_all(second.port, self._others)
        self.saved(sum(pages(p) for p in (*self.prompts, *self._others)))
        self.loaded("what the second saved, at the first", generate_all(first.port, self._others), cold)
        for server in (first, second):
            server.flush_cache()
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(self.answers, (first, second)))
        for answers in both:
            self.loaded("both at once", answers, self.references)
        for server in (first, second):
            self.no_errors(server)
            server.kill()
        self.daemon.terminate()

    def loaded(self, when: str, answers: Sequence[Generation], cold: Sequence[Generation]) -> None:
        """Check that answers are those of cold runs of prompts of these lengths, and were loaded."""
        got = [(a.tokens, a.storage, a.cached, a.storage_backend) for a in answers]
        full = [cacheable(length) for length in (SHORT, LONG)]
        want = [(c.tokens, n, n, BACKEND) for c, n in zip(cold, full, strict=True)]
        self.report.equal(f"{self.name}: {when}: identical, all full pages from the backend", got, want)
