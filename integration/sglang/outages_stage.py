"""What happens to SGLang when kvconnd is replaced under load, full, or hangs, and records are damaged in other ways."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from damage import cut, swap_pages, swap_records, zero_pages
from generation import LONG, SHORT, Generation, generate, prompt
from scene import Scene
from server import Server
from stage import Place

SMALL = "24MiB"
"""Less than the prompts need."""
ROTATIONS = 2
UNDER_LOAD_S = 3.0
DAMAGE: dict[str, Callable[[Path], int]] = {
    "pages zeroed": zero_pages,
    "pages of other records": swap_pages,
    "other records": swap_records,
    "files cut short": cut,
}


class Outages(Scene):
    """One server that keeps nothing in host memory, with the backend's own deadline."""

    freezes = True

    def __init__(self, place: Place) -> None:
        super().__init__(place, "outages", ranks=1)
        rng = random.Random("outages")
        self.prompts = [prompt(rng, length) for length in (SHORT, LONG, SHORT)]

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        server = self.start(1, arguments=["--hicache-host-memory-mode", "buffer_only"])
        self.cold(server)
        self.replaced(server, "replaced in order under load", self.daemon.terminate)
        self.replaced(server, "killed under load", self.daemon.kill)
        for what, damage in DAMAGE.items():
            self.damaged(server, what, damage)
        self.full(server)
        self.hung(server)
        self.no_errors(server)
        server.kill()
        self.daemon.terminate()

    def replaced(self, server: Server, when: str, end: Callable[[], object]) -> None:
        """Exchange the daemon while requests are made without a pause."""
        with self.load(server) as answers:
            time.sleep(UNDER_LOAD_S)
            end()
            time.sleep(1)
            self.daemon.start()
            self.connected(server)
            time.sleep(UNDER_LOAD_S)
        wrong = [i for i, g in answers if g.tokens != self.references[i].tokens]
        self.report.equal(f"{self.name}: {when}: identical", wrong, [])
        self.report.check(f"{self.name}: {when}: requests were made", len(answers) > 0, f"{len(answers)}")
        self.back(server, when)

    @contextmanager
    def load(self, server: Server) -> Iterator[list[tuple[int, Generation]]]:
        """Make requests all the time, and collect their answers with the prompts' numbers."""
        answers: list[tuple[int, Generation]] = []
        end = threading.Event()

        def ask() -> None:
            number = 0
            while not end.is_set():
                server.flush_cache()
                answers.append((number, generate(server.port, self.prompts[number])))
                number = (number + 1) % len(self.prompts)

        thread = threading.Thread(target=ask)
        thread.start()
        try:
            yield answers
        finally:
            end.set()
            thread.join()

    def damaged(self, server: Server, what: str, damage: Callable[[Path], int]) -> None:
        """Damage records while the daemon is stopped. What is damaged is computed and saved again."""
        self.daemon.terminate()
        done = damage(self.daemon.store)
        self.report.check(f"{self.name}: {what}: there was something to damage", done > 0, f"{done}")
        self.daemon.start()
        self.connected(server)
        server.flush_cache()
        self.identical(what, self.answers(server))
        self.daemon.wait_for_writes()
        server.flush_cache()
        self.identical(f"{what}, again", self.answers(server))

    def full(self, server: Server) -> None:
        """Give the daemon less disk than the prompts need: they are right, and others make room."""
        self.daemon.terminate()
        self.daemon.store = self.daemon.store.with_name("store-small")
        self.daemon.start(max_bytes=SMALL)
        self.connected(server)
        for _ in range(ROTATIONS):
            for number, tokens in enumerate(self.prompts):
                server.flush_cache()
                got = generate(server.port, tokens)
                self.report.equal(f"{self.name}: store full: identical", got.tokens, self.references[number].tokens)
                self.daemon.wait_for_writes()
        evicted = self.daemon.metric("kvconn_store_evicted_records_total")
        self.report.check(f"{self.name}: store full: records made room", evicted > 0, f"{evicted:g}")

    def hung(self, server: Server) -> None:
        """Flush SGLang, and take the backend away from it, while the daemon hangs: SGLang lives."""
        server.flush_cache()
        self.daemon.signal(signal.SIGSTOP)
        self.identical("daemon hangs", self.answers(server))
        server.flush_cache()
        status, said = server.detach()
        self.report.check(f"{self.name}: daemon hangs: the backend is detached", status == 200, f"{status} {said}")
        self.identical("daemon hangs, and the backend is detached", self.answers(server))
        self.daemon.signal(signal.SIGCONT)
        self.identical("daemon goes on, and the backend is detached", self.answers(server))
