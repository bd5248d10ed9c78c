"""Two tensor-parallel ranks; the backend of one misbehaves."""

from __future__ import annotations

import random
from pathlib import Path

from generation import LONG, SHORT, cacheable, generate, generate_all, prompt
from scene import Scene
from server import Server
from stage import Place

LOADS = {"half exists": True, "half loads": True, "loads fail": False, "raises": False}
"""Faults of loads, and whether something is loaded nevertheless."""
SAVES = "saves fail"
LATE = "silent"
DEADLINE_S = 2.0
SILENT_S = 2.5
"""Beyond the deadline. From five seconds on, SGLang itself ends when it is flushed meanwhile."""
FAULTY = Path(__file__).resolve().parent / "faulty"


class BadRank(Scene):
    """Whatever one rank's backend does, both go on with what both have, and the answers are right."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "bad-rank", ranks=2)
        self._rng = random.Random("bad rank")
        self.prompts = [prompt(self._rng, length) for length in (SHORT, LONG)]
        self.file = place.work / "fault"

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        server = self.start(
            1,
            variables={
                "PYTHONPATH": str(FAULTY),
                "KVCONN_TEST_FAULT_FILE": str(self.file),
                "KVCONN_TEST_SILENT_S": str(SILENT_S),
            },
            module_path="faulty_storage",
            class_name="FaultyStorage",
            deadline=DEADLINE_S,
        )
        self.cold(server)
        for fault, some in LOADS.items():
            self.load(server, fault, some)
        for fault in (SAVES, "raises"):
            self.save(server, fault)
        self.late(server)
        self.back(server, "one rank misbehaved")
        self.report.check(f"{self.name}: the engine is healthy after all that", server.healthy())
        server.kill()
        self.daemon.terminate()

    def load(self, server: Server, fault: str, some: bool) -> None:
        """Have loads of one rank fail: both use what both have."""
        self.file.write_text(fault)
        loaded: list[int] = []

        def asked() -> bool:
            answers = generate_all(server.port, self.prompts)
            self.identical(fault, answers)
            loaded[:] = [a.storage for a in answers]
            return all((n > 0) == some and n < cacheable(len(p)) for n, p in zip(loaded, self.prompts, strict=True))

        fewer = self.found(server, asked)
        self.report.check(f"{self.name}: {fault}: both ranks use what both have", fewer, f"{loaded} tokens")

    def save(self, server: Server, fault: str) -> None:
        """Have one rank save nothing of a prompt: neither loads it, and it is saved again."""
        tokens = prompt(self._rng, SHORT)
        self.file.write_text(fault)
        cold = generate(server.port, tokens)
        server.flush_cache()
        self.file.write_text("")
        again = generate(server.port, tokens)
        got, want = (again.tokens, again.storage), (cold.tokens, 0)
        self.report.equal(f"{self.name}: {fault}, when saving: nothing is loaded", got, want)

        def asked() -> bool:
            warm = generate(server.port, tokens)
            self.report.equal(f"{self.name}: {fault}, when saving, and over: identical", warm.tokens, cold.tokens)
            return warm.storage > 0

        self.report.check(f"{self.name}: {fault}, when saving, and over: from storage", self.found(server, asked))

    def late(self, server: Server) -> None:
        """Have all calls of one rank end after the deadline."""
        self.file.write_text(LATE)
        server.flush_cache()
        answer = generate(server.port, self.prompts[0])
        right = answer.tokens == self.references[0].tokens
        self.report.check(f"{self.name}: one rank answers {SILENT_S:g} s late: identical", right)
        self.file.write_text("")
