"""SGLang with kvconnd below its host memory: what comes back, from where, after what."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from generation import LONG, SHORT, Generation, cacheable, generate, generate_all, prompt
from scene import BACKEND, PATIENT_S, Scene, pages
from server import Server
from stage import Place
from storage import printed

CPU = ("--hicache-io-backend", "direct")
"""What the printed line lacks on a CPU, which has none of the kernels that copy pages."""


class Main(Scene):
    """Cold, after a flush, at a second server, and after restarts of the engine, of the daemon and of both.

    One rank has the second server beside the first. It is started with the whole line that `kvconnd config sglang`
    prints, so it keeps nothing in host memory and has the deadlines of real use. All have the line's page size.
    """

    def __init__(self, place: Place, ranks: int = 1) -> None:
        super().__init__(place, "main", ranks)
        rng = random.Random("main")
        self.prompts = [prompt(rng, length) for length in (SHORT, LONG)]
        self._others = [prompt(rng, length) for length in (SHORT, LONG)]
        self._line = printed(place.binary, self.daemon.socket_path)
        self.page_size = int(self._line[self._line.index("--page-size") + 1])

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        self.doctor()
        server = self.patient(1)
        self.cold(server)
        server.flush_cache()
        self.from_storage("after a flush", self.answers(server))
        server.flush_cache()
        self.from_storage("after a flush, at the same time", generate_all(server.port, self.prompts))
        self.extended(server)
        self.daemon.terminate()
        self.daemon.start()
        self.connected(server)
        server.flush_cache()
        self.from_storage("after a restart of the daemon", self.answers(server))
        self.report.check(f"{self.name}: the engine is healthy after that", server.healthy())
        if self.ranks == 1:
            self.beside(server)
        else:
            server.kill()
            server = self.patient(2)
            self.from_storage("after kill -9 and a restart of the engine", self.answers(server))
            server.kill()
        self.daemon.kill()
        self.daemon.start()
        server = self.patient(3)
        self.from_storage("after kill -9 and a restart of both", self.answers(server))
        self.no_errors(server)
        server.kill()
        self.daemon.terminate()

    def patient(self, number: int) -> Server:
        """Return a server that serves, and waits for loads as long as they take."""
        return self.start(number, arguments=("--page-size", str(self.page_size)), deadline=PATIENT_S)

    def doctor(self) -> None:
        """Check that `kvconnd doctor sglang` finds nothing wrong with the printed line."""
        command = [str(self.place.binary), "doctor", "sglang", "--", *self._line]
        done = subprocess.run(command, env=self.place.env.variables(), capture_output=True, text=True, check=False)
        well = done.returncode == 0
        said = "" if well else done.stdout + done.stderr
        self.report.check(f"{self.name}: the doctor finds nothing wrong with the printed line", well, said)

    def from_storage(self, when: str, answers: Sequence[Generation]) -> None:
        """Check that answers are those of the cold run, and had all of their prompts loaded by the backend."""
        got = [(a.tokens, a.storage, a.cached, a.storage_backend) for a in answers]
        full = [cacheable(len(p), self.page_size) for p in self.prompts]
        want = [(r.tokens, n, n, BACKEND) for r, n in zip(self.references, full, strict=True)]
        self.report.equal(f"{self.name}: {when}: identical, all full pages from the backend", got, want)

    def extended(self, server: Server) -> None:
        """Check a prompt that goes on after one that the engine holds: the rest of it is computed, and then loaded."""
        first, size = self.prompts[0], self.page_size
        longer = first + prompt(random.Random("longer"), SHORT)
        before = int(self.daemon.metric("kvconn_saved_blocks_total")) // self.ranks
        cold = generate(server.port, longer)
        missing = pages(longer, size) - pages(first, size)
        self.saved(server, before + missing, lambda: generate(server.port, longer))
        server.flush_cache()
        generate(server.port, first)
        warm = generate(server.port, longer)
        rest = cacheable(len(longer), size) - pages(first, size) * size
        got = (warm.tokens, warm.cached, warm.storage >= rest)
        want = (cold.tokens, cacheable(len(longer), size), True)
        self.report.equal(f"{self.name}: the rest of a prompt whose beginning the engine holds", got, want)

    def beside(self, first: Server) -> None:
        """Start a second server with the printed line. What one has saved the other loads, also both at once."""
        second = Server(self.place.env, self.model, self.place.work / "sglang-main-2.log")
        second.start(None, arguments=[*self._line, *CPU])
        second.wait()
        self.connected(second, 2)
        self.loaded("what the first saved, at the second", second, self.prompts, self.references, ranks=2)
        before = int(self.daemon.metric("kvconn_saved_blocks_total"))
        cold = generate_all(second.port, self._others)
        want = before + sum(pages(p, self.page_size) for p in self._others)
        self.saved(second, want, lambda: generate_all(second.port, self._others))
        self.loaded("what the second saved, at the first", first, self._others, cold, ranks=2)

        def both(server: Server) -> None:
            self.loaded("both at once", server, self.prompts, self.references, ranks=2)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(both, (first, second)))
        self.no_errors(first)
        first.kill()
        self.loaded("after kill -9 of the first, at the second", second, self.prompts, self.references)
        self.no_errors(second, patient=False)
        second.kill()

    def loaded(
        self,
        when: str,
        server: Server,
        prompts: Sequence[Sequence[int]],
        cold: Sequence[Generation],
        ranks: int = 1,
    ) -> None:
        """Check that prompts are answered as when cold, and that all of them can be loaded.

        On a busy machine loads may end at a deadline, so they are asked for a few times at most.
        """
        want = [(cacheable(len(p), self.page_size), BACKEND) for p in prompts]

        def asked() -> bool:
            answers = generate_all(server.port, prompts)
            self.report.equal(f"{self.name}: {when}: identical", [a.tokens for a in answers], [c.tokens for c in cold])
            return [(a.storage, a.storage_backend) for a in answers] == want

        self.report.check(f"{self.name}: {when}: all full pages from the backend", self.found(server, asked, ranks))
