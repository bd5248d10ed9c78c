"""Two SGLang servers on one kvconnd, with the flags that `kvconnd config sglang` prints."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from generation import LONG, SHORT, Generation, cacheable, generate_all, prompt
from main_stage import BACKEND, Scene
from server import Server
from stage import Place
from storage import printed

CPU = ("--hicache-io-backend", "direct")
"""What the printed line lacks on a CPU, which has none of the kernels that copy pages."""


class Pair(Scene):
    """What one has saved the other loads, also while both load at the same time.

    The second is started with the whole printed line as it is, so it keeps nothing in host memory and has the
    backend's own deadline, and SGLang's for loads. The first keeps pages in host memory.
    """

    freezes = False

    def __init__(self, place: Place) -> None:
        super().__init__(place, "pair", ranks=1)
        rng = random.Random("pair")
        self.prompts = [prompt(rng, length) for length in (SHORT, LONG)]
        self._others = [prompt(rng, length) for length in (SHORT, LONG)]
        self._line = printed(place.binary, self.daemon.socket_path)
        self._page_size = int(self._line[self._line.index("--page-size") + 1])

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        self.doctor()
        first = self.launch(1, "--hicache-host-memory-mode", "cache", "--hicache-size", "1")
        second = self.launch(2)
        for server in (first, second):
            server.wait()
        self.connected(2)
        self.references = self.answers(first)
        self.report.equal(f"{self.name}: nothing cached yet", sum(a.cached for a in self.references), 0)
        self.saved(self.pages(self.prompts))
        self.loaded("what the first saved, at the second", second, self.prompts, self.references)
        cold = generate_all(second.port, self._others)
        self.saved(self.pages([*self.prompts, *self._others]))
        self.loaded("what the second saved, at the first", first, self._others, cold)
        with ThreadPoolExecutor(2) as pool:
            asked = lambda server: self.loaded("both at once", server, self.prompts, self.references)  # noqa: E731
            list(pool.map(asked, (first, second)))
        for server in (first, second):
            self.no_errors(server)
            server.kill()
        self.daemon.terminate()

    def launch(self, number: int, *arguments: str) -> Server:
        """Return a server that starts with the printed line, and with arguments that hold in place of the line's."""
        server = Server(self.place.env, self.model, self.place.work / f"sglang-pair-{number}.log")
        server.start(None, arguments=[*self._line, *arguments, *CPU])
        return server

    def doctor(self) -> None:
        """Check that `kvconnd doctor sglang` finds nothing wrong with the line."""
        command = [str(self.place.binary), "doctor", "sglang", "--", *self._line]
        done = subprocess.run(command, env=self.place.env.variables(), capture_output=True, text=True, check=False)
        well = done.returncode == 0
        said = "" if well else done.stdout + done.stderr
        self.report.check(f"{self.name}: the doctor finds nothing wrong with the printed line", well, said)

    def loaded(self, when: str, server: Server, prompts: Sequence[Sequence[int]], cold: Sequence[Generation]) -> None:
        """Check that prompts are answered as when cold, and that all of them can be loaded.

        On a busy machine loads may end at a deadline, so they are asked for a few times at most.
        """
        full = [cacheable(len(p), self._page_size) for p in prompts]

        def asked() -> bool:
            answers = generate_all(server.port, prompts)
            self.report.equal(f"{self.name}: {when}: identical", [a.tokens for a in answers], [c.tokens for c in cold])
            return [(a.storage, a.storage_backend) for a in answers] == [(n, BACKEND) for n in full]

        self.report.check(f"{self.name}: {when}: all full pages from the backend", self.found(server, asked))

    def pages(self, prompts: Sequence[Sequence[int]]) -> int:
        """Return the full pages of prompts."""
        return sum(len(p) // self._page_size for p in prompts)
