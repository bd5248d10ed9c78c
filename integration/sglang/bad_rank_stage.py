"""Two tensor-parallel ranks; the backend of one misbehaves."""

from __future__ import annotations

import random
from pathlib import Path

from generation import LONG, SHORT, cacheable, generate_all, prompt
from main_stage import PATIENT_S, Scene
from server import Server
from stage import Place

FAULTS = {"half exists": True, "half loads": True, "loads fail": False, "raises": False}
"""Whether something is loaded nevertheless."""
LATE = "silent"
FAULTY = Path(__file__).resolve().parent / "faulty"


class BadRank(Scene):
    """Whatever one rank's backend does, both go on with what both have, and the answers are right."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "bad-rank", ranks=2)
        rng = random.Random("bad rank")
        self.prompts = [prompt(rng, length) for length in (SHORT, LONG)]
        self.file = place.work / "fault"

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        server = self.start(
            1,
            variables={"PYTHONPATH": str(FAULTY), "KVCONN_TEST_FAULT_FILE": str(self.file)},
            module_path="faulty_storage",
            class_name="FaultyStorage",
            deadline=PATIENT_S,
        )
        self.cold(server)
        for fault, some in FAULTS.items():
            self.faulty(server, fault, some)
        self.file.write_text(LATE)
        server.flush_cache()
        self.identical("one rank answers late", self.answers(server))
        self.over(server, "one rank answers late")
        self.report.check(f"{self.name}: the engine is healthy after all that", server.healthy())
        server.kill()
        self.daemon.terminate()

    def faulty(self, server: Server, fault: str, some: bool) -> None:
        """Have one rank fail: both use what both have."""
        self.file.write_text(fault)
        server.flush_cache()
        answers = self.answers(server)
        self.identical(fault, answers)
        loaded = [a.storage for a in answers]
        fewer = all((n > 0) == some and n < cacheable(len(p)) for n, p in zip(loaded, self.prompts, strict=True))
        self.report.check(f"{self.name}: {fault}: both ranks use what both have", fewer, f"{loaded} tokens")
        server.flush_cache()
        self.identical(f"{fault}, at the same time", generate_all(server.port, self.prompts))
        self.over(server, fault)

    def over(self, server: Server, fault: str) -> None:
        """Check that everything comes from storage again once the rank behaves."""
        self.file.write_text("")
        self.back(server, fault)
