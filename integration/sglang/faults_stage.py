"""What happens to SGLang when kvconnd fails, records are damaged, tenants differ, or weights are exchanged."""

from __future__ import annotations

import random
import signal

import environment
from daemon_faults import after
from damage import flip_bits
from generation import LONG, SHORT, generate, generate_all, prompt
from scene import Scene, pages
from server import Server
from stage import Place

OTHER_SEED = 2
FROZEN_S = 4.0
KILLED_AFTER_S = (0.01, 0.05, 0.2)


class Faults(Scene):
    """One server, whose daemon is killed, frozen and given damaged records, and whose weights are exchanged at last."""

    freezes = True

    def __init__(self, place: Place, ranks: int = 1) -> None:
        super().__init__(place, "faults", ranks)
        rng = random.Random("faults")
        self.prompts = [prompt(rng, length) for length in (SHORT, LONG, SHORT)]

    def run(self) -> None:
        """Run everything."""
        self.daemon.start()
        server = self.start(1)
        self.cold(server)
        for delay_s in KILLED_AFTER_S:
            self.killed(server, delay_s)
        self.frozen(server)
        self.damaged(server)
        self.tenants(server)
        self.other_weights(server)
        self.no_errors(server)
        server.kill()
        self.daemon.terminate()

    def killed(self, server: Server, delay_s: float) -> None:
        """Kill the daemon while prompts are loaded, go on without it, and find everything again."""
        when = f"daemon killed {delay_s * 1000:g} ms into loads"
        server.flush_cache()
        with after(delay_s, self.daemon.kill):
            self.identical(when, generate_all(server.port, self.prompts))
        server.flush_cache()
        answers = self.answers(server)
        self.identical(f"{when}, and gone", answers)
        self.report.equal(f"{self.name}: {when}, and gone: nothing from storage", sum(a.storage for a in answers), 0)
        self.daemon.start()
        self.back(server, when)

    def frozen(self, server: Server) -> None:
        """Stop the daemon for a while in the middle of loads; SGLang's memory is flushed meanwhile."""
        server.flush_cache()
        with (
            after(0.02, lambda: self.daemon.signal(signal.SIGSTOP)),
            after(FROZEN_S, lambda: self.daemon.signal(signal.SIGCONT)),
        ):
            self.identical("daemon frozen while loading", generate_all(server.port, self.prompts))
            server.flush_cache()
            self.identical("daemon frozen, and flushed meanwhile", self.answers(server))
        server.flush_cache()
        self.identical("daemon thawed", self.answers(server))
        self.back(server, "daemon frozen and thawed")

    def damaged(self, server: Server) -> None:
        """Flip bits on disk. What is damaged is computed and saved again."""
        self.daemon.terminate()
        flipped = flip_bits(self.daemon.store, 7)
        self.report.check(f"{self.name}: there were records to damage", flipped > 0, f"{flipped} records")
        self.daemon.start()

        def asked() -> bool:
            self.identical("bits flipped on disk", self.answers(server))
            return self.daemon.metric("kvconn_store_corrupt_records_total") > 0

        self.report.check(f"{self.name}: damage found", self.found(server, asked))

    def tenants(self, server: Server) -> None:
        """Check that a tenant finds what it has saved, and nobody else."""
        tokens = prompt(random.Random("tenants"), SHORT)
        before = int(self.daemon.metric("kvconn_saved_blocks_total")) // self.ranks
        cold = generate(server.port, tokens, cache_salt="a")
        self.saved(server, before + pages(tokens), lambda: generate(server.port, tokens, cache_salt="a"))
        server.flush_cache()
        other = generate(server.port, tokens, cache_salt="b")
        self.report.equal(f"{self.name}: another tenant", (other.tokens == cold.tokens, other.storage), (True, 0))

        def asked() -> bool:
            again = generate(server.port, tokens, cache_salt="a")
            self.report.equal(f"{self.name}: the same tenant: identical", again.tokens, cold.tokens)
            return again.storage > 0

        self.report.check(f"{self.name}: the same tenant: from storage", self.found(server, asked))

    def other_weights(self, server: Server) -> None:
        """Exchange the weights: nothing of the old ones is loaded, and nothing of the new ones is saved."""
        other = environment.model(self.place.env, OTHER_SEED)
        server.flush_cache()  # waits for saves: SGLang reports a failure where it cannot flush after the update
        server.update_weights(other)
        before = self.daemon.metric("kvconn_saved_blocks_total")
        first = self.answers(server)
        server.flush_cache()
        again = self.answers(server)
        self.report.equal(f"{self.name}: other weights: nothing from storage", sum(a.storage for a in first + again), 0)
        equal = [a.tokens for a in first] == [a.tokens for a in again]
        differ = all(a.tokens != r.tokens for a, r in zip(first, self.references, strict=True))
        self.report.check(f"{self.name}: other weights: answers of their own, the same again", equal and differ)
        after_all = self.daemon.metric("kvconn_saved_blocks_total")
        self.report.equal(f"{self.name}: other weights: nothing saved", after_all, before)
