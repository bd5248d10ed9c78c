"""What the stages of the end-to-end test share."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from completions import BLOCK_SIZE, MAX_TOKENS, Completion, cacheable, complete, prompt
from damage import flip_bits
from environment import Environment
from processes import Daemon, Engine, Linked
from report import Report

NO_CACHE: dict[str, Any] = {"kv_transfer_params": {"kvconn": {"load": False, "save": False}}}
NO_SAVE: dict[str, Any] = {"kv_transfer_params": {"kvconn": {"save": False}}}
REPEATS = 6


@dataclass(frozen=True)
class Place:
    """Where a run happens: its report, environment, daemon binary, and directories."""

    report: Report
    env: Environment
    binary: Path
    work: Path
    sockets: Path


class Stage:
    """Some prompts, and a daemon with a store of its own. What each prompt yields is known from a run without cache."""

    block_size = BLOCK_SIZE

    def __init__(self, place: Place, name: str, lengths: Sequence[int]) -> None:
        self.name, self.place, self.report = name, place, place.report
        work, sockets = place.work, place.sockets
        self.daemon = Daemon(
            place.binary, work / f"store-{name}", sockets / f"{name}.sock", work / f"kvconnd-{name}.log"
        )
        rng = random.Random(name)
        self.prompts = [prompt(rng, n) for n in lengths]
        self.references: list[Completion] = []

    def engine(self, model: Path, number: int) -> Engine:
        """Return an engine that is not started yet."""
        return Engine(self.place.env, model, self.place.work / f"vllm-{self.name}-{number}.log")

    def answers(self, engine: Engine, **fields: Any) -> list[Completion]:
        """Complete all prompts, one after the other, and wait until what was saved is on disk."""
        answers = [complete(engine.port, p, **fields) for p in self.prompts]
        self.daemon.wait_for_writes()
        return answers

    def emptied(self, engine: Engine, **fields: Any) -> list[Completion]:
        """Complete all prompts when the engine has forgotten them."""
        engine.reset_prefix_cache()
        return self.answers(engine, **fields)

    def refer(self, engine: Engine) -> None:
        """Complete all prompts without cache: what the others are compared with."""
        self.references = self.answers(engine, **NO_CACHE)
        whole = all(len(r.tokens) == MAX_TOKENS for r in self.references)
        self.report.check(f"{self.name}: served without cache", whole, f"{len(self.prompts)} prompts")

    def identical(self, what: str, answers: Sequence[Completion]) -> None:
        """Check that answers have the tokens of the run without cache."""
        wrong = [i for i, (a, r) in enumerate(zip(answers, self.references, strict=True)) if a.tokens != r.tokens]
        self.report.equal(f"{self.name}: {what}: identical", wrong, [])

    def all_cached(self, what: str, answers: Sequence[Completion]) -> None:
        """Check that answers were given all that a cache can give."""
        want = [cacheable(len(p), self.block_size) for p in self.prompts]
        self.report.equal(f"{self.name}: {what}: cached tokens in usage", [a.cached for a in answers], want)

    def cached_again(self, what: str, ask: Callable[[], list[Completion]]) -> None:
        """Ask until all that was damaged is cached again."""
        answers: list[Completion] = []

        def asked() -> bool:
            answers[:] = ask()
            self.identical(what, answers)
            return [a.cached for a in answers] == [cacheable(len(p), self.block_size) for p in self.prompts]

        until_all_is_cached(asked)
        self.all_cached(what, answers)

    def damage(self, engine: Linked, every: int, shard: int | None, ranks: int) -> None:
        """Flip bits in records while the daemon is stopped: it holds what it has read in memory."""
        self.daemon.terminate()
        flipped = flip_bits(self.daemon.store, every, shard)
        self.report.check(f"{self.name}: there were records to damage", flipped > 0, f"{flipped} records")
        self.daemon.start()
        self.daemon.wait_for_engine(engine, ranks)

    def damage_was_found(self) -> None:
        """Check that the daemon has seen damaged records since it was started."""
        found = self.daemon.metric("kvconn_store_corrupt_records_total")
        self.report.check(f"{self.name}: damage found", found > 0, f"{found:g} records")

    def no_errors(self, engine: Engine) -> None:
        """Check that the engine is well."""
        self.report.check(f"{self.name}: the engine is healthy after all that", engine.healthy())
        errors = engine.lines("ERROR")
        self.report.check(f"{self.name}: no error in the engine's log", not errors, "; ".join(errors[:2]))


def until_all_is_cached(asked: Callable[[], bool]) -> None:
    """Have prompts asked until all that was damaged is cached again, a few times at most.

    Each time computes, and saves, what could not be known before: a load ends at the first record that is damaged.
    """
    for _ in range(REPEATS):
        if asked():
            return
