"""SGLang with its own file backend: whether the test bed shows what a storage backend gives back."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path

import environment
from generation import LONG, MAX_TOKENS, PAGE_SIZE, SHORT, Generation, cacheable, generate, prompt
from server import Server
from stage import Place
from storage import Storage

MODEL_SEED = 1
WRITE_TIMEOUT_S = 60.0


class FileBackend:
    """Cold, from device memory, from files, and from files after the engine was killed."""

    def __init__(self, place: Place, ranks: int = 1) -> None:
        self.name = "file" if ranks == 1 else f"file, {ranks} ranks"
        self.place, self.report, self.ranks = place, place.report, ranks
        self.model = environment.model(place.env, MODEL_SEED)
        self.directory = place.work / f"files-{ranks}"
        self.storage = Storage("file", variables={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(self.directory)})
        rng = random.Random("file")
        self.prompts = [prompt(rng, length) for length in (SHORT, LONG)]
        self.references: list[Generation] = []

    def run(self) -> None:
        """Run everything."""
        server = self.start(1)
        self.references = self.answers(server)
        whole = all(len(r.tokens) == MAX_TOKENS and r.cached == 0 for r in self.references)
        self.report.check(f"{self.name}: served, nothing cached yet", whole)
        self.came_from("device", "again", self.answers(server))
        self.wait_for_files()
        server.flush_cache()
        self.came_from("storage", "after a flush", self.answers(server))
        server.kill()
        server = self.start(2)
        self.came_from("storage", "after kill -9 and a restart", self.answers(server))
        self.report.check(f"{self.name}: the engine is healthy after all that", server.healthy())
        server.kill()

    def start(self, number: int) -> Server:
        """Return a server that serves."""
        log = self.place.work / f"sglang-file-{self.ranks}-{number}.log"
        server = Server(self.place.env, self.model, log)
        server.start(self.storage, self.ranks)
        server.wait()
        return server

    def answers(self, server: Server) -> list[Generation]:
        """Generate for all prompts, one after the other."""
        return [generate(server.port, p) for p in self.prompts]

    def came_from(self, tier: str, when: str, answers: Sequence[Generation]) -> None:
        """Check that answers are those of the cold run, and had all of their prompts cached in one tier."""
        got = [(a.tokens, getattr(a, tier), a.cached) for a in answers]
        full = [cacheable(len(p)) for p in self.prompts]
        want = [(r.tokens, n, n) for r, n in zip(self.references, full, strict=True)]
        self.report.equal(f"{self.name}: {when}: identical, all full pages from {tier}", got, want)

    def wait_for_files(self) -> None:
        """Wait until every full page of the prompts is in a file of each rank."""
        want = sum(len(p) // PAGE_SIZE for p in self.prompts) * self.ranks
        until = time.monotonic() + WRITE_TIMEOUT_S
        while (found := _pages(self.directory)) < want:
            if time.monotonic() > until:
                raise RuntimeError(f"{found} of {want} pages in {self.directory}")
            time.sleep(0.05)


def _pages(directory: Path) -> int:
    return sum(1 for _ in directory.glob("*.bin"))
