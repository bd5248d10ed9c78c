"""What stages of SGLang with kvconnd below its host memory share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import environment
from generation import MAX_TOKENS, PAGE_SIZE, Generation, generate
from processes import Daemon
from server import Server
from stage import Place
from storage import kvconn

MODEL_SEED = 1
BACKEND = "KVConnStorage"
"""SGLang's name for it in answers."""
PATIENT_S = 5
"""What is tested is what comes back. On two cores that SGLang spins on, a daemon can take a second to answer."""
ATTEMPTS = 5
SAVES_END_S = 5.0
"""No save goes on for longer without a block."""
STOOD_STILL = "stood still in the middle of a copy"
# What the backend adds where this machine kept the call from going on.
OVERLOADED = "the machine is overloaded"
"""Why a call may be late, if the daemon is stopped: its memory cannot be given back earlier."""


class Scene:
    """A daemon with a store of its own, and servers that keep their pages in it."""

    freezes = False
    """Whether the daemon is stopped at times."""
    page_size = PAGE_SIZE

    def __init__(self, place: Place, name: str, ranks: int) -> None:
        self.name = name if ranks == 1 else f"{name}, {ranks} ranks"
        self.place, self.report, self.ranks = place, place.report, ranks
        self.model = environment.model(place.env, MODEL_SEED)
        self._label = f"{name}-{ranks}"
        self.daemon = Daemon(
            place.binary,
            place.work / f"store-{self._label}",
            place.sockets / f"{self._label}.sock",
            place.work / f"kvconnd-{self._label}.log",
        )
        self.prompts: Sequence[Sequence[int]] = ()
        self.references: list[Generation] = []

    def start(
        self,
        number: int,
        replicas: int = 1,
        arguments: Sequence[str] = (),
        variables: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> Server:
        """Return a server that serves. Its arguments and variables, and settings of the backend, may be given."""
        log = self.place.work / f"sglang-{self._label}-{number}.log"
        server = Server(self.place.env, self.model, log)
        storage = kvconn(
            self.place.binary, self.daemon.socket_path, digest_cache=str(self.place.work / "digests"), **settings
        )
        server.start(storage, self.ranks, replicas, arguments=arguments, variables=variables)
        server.wait()
        self.connected(server, self.ranks * replicas)
        return server

    def connected(self, server: Server, ranks: int = 0) -> None:
        """Wait until the daemon has that many ranks, by default one server's, and all of the server can use it."""
        want = ranks or self.ranks
        self.daemon.wait_until(lambda: self.daemon.metric("kvconn_ranks") >= want, "the ranks")
        self.daemon.wait_until(server.linked, "the ranks that use it")

    def cold(self, server: Server) -> None:
        """Generate for all prompts for the first time: later answers are compared with these. All is on disk then."""
        self.references = self.answers(server)
        whole = all(len(r.tokens) == MAX_TOKENS and r.cached == 0 for r in self.references)
        self.report.check(f"{self.name}: served, nothing cached yet", whole)
        self.saved(server, sum(pages(p, self.page_size) for p in self.prompts), lambda: self.answers(server))

    def answers(self, server: Server) -> list[Generation]:
        """Generate for all prompts, one after the other."""
        return [generate(server.port, p) for p in self.prompts]

    def identical(self, when: str, answers: Sequence[Generation]) -> None:
        """Check that answers are those of the cold run."""
        wrong = [i for i, (a, r) in enumerate(zip(answers, self.references, strict=True)) if a.tokens != r.tokens]
        self.report.equal(f"{self.name}: {when}: identical", wrong, [])

    def back(self, server: Server, when: str) -> None:
        """Wait until everything comes from the daemon again. On a busy machine a load may miss its deadline."""

        def asked() -> bool:
            answers = self.answers(server)
            self.identical(f"{when}, and back", answers)
            return all(a.storage > 0 for a in answers)

        self.report.check(f"{self.name}: {when}, and back: from storage again", self.found(server, asked))

    def found(self, server: Server, asked: Callable[[], bool], ranks: int = 0) -> bool:
        """Have questions asked, a few times at most, until they say that all came from storage.

        Other servers may be there: `ranks` is that of all.
        """
        for _ in range(ATTEMPTS):
            self.connected(server, ranks)
            server.flush_cache()
            if asked():
                return True
        return False

    def no_errors(self, server: Server, patient: bool = True) -> None:
        """Check that the engine is well. One that is not patient may find this machine standing still, too."""
        self.report.check(f"{self.name}: the engine is healthy after all that", server.healthy())
        errors = server.lines("kvconn", "Traceback") + server.lines("kvconn", " failed, going on without")
        self.report.check(f"{self.name}: no error of the backend in the log", not errors, "; ".join(errors[:2]))
        late = [line for line in server.lines("kvconn", "its deadline is") if OVERLOADED not in line]
        if self.freezes or not patient:
            late = [line for line in late if STOOD_STILL not in line]
        self.report.check(f"{self.name}: no call later than its deadline", not late, "; ".join(late[:2]))

    def saved(self, server: Server, blocks: int, again: Callable[[], object]) -> None:
        """Wait until that many blocks of each rank were saved since the daemon's start, and are on disk.

        SGLang does not try a save again that missed its deadline. So what is not saved after a while is computed
        `again`; what is stored already does not count twice.
        """
        want = blocks * self.ranks
        for _ in range(ATTEMPTS):
            if self._ended_saves(want) >= want:
                break
            server.flush_cache()
            again()
        self.daemon.wait_until(lambda: self.daemon.metric("kvconn_saved_blocks_total") >= want, f"{want} blocks")
        self.daemon.wait_for_writes()

    def _ended_saves(self, want: float) -> float:
        """Return how many blocks were saved, once they are as many as is wanted, or none has come for a while."""
        last, since = -1.0, time.monotonic()
        while last < want and time.monotonic() - since < SAVES_END_S:
            if (now := self.daemon.metric("kvconn_saved_blocks_total")) != last:
                last, since = now, time.monotonic()
            time.sleep(0.02)
        return last


def pages(tokens: Sequence[int], page_size: int = PAGE_SIZE) -> int:
    """Return the full pages of a prompt."""
    return len(tokens) // page_size
