"""The tier stage's faults of a daemon that others have: it is upgraded under load, and its disk fills up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from completions import complete_all, prompt
from processes import Engine
from small_disk import filled_up

if TYPE_CHECKING:
    from tier_stage import Tier

UPGRADED_AFTER_S = 0.05
FRESH = 1500
"""The length of prompts that nobody has asked for yet."""


def run(tier: Tier, engine: Engine, empty: Callable[[], None]) -> None:
    """Do both. `empty` empties vLLM's region and its prefix cache."""
    upgraded(tier, engine, empty)
    disk_full(tier, engine, empty)


def upgraded(tier: Tier, engine: Engine, empty: Callable[[], None]) -> None:
    """Stop the daemon in order while prompts are loaded and others are saved, and start its successor."""
    what = "daemon upgraded while serving"
    fresh = [prompt(tier.rng, FRESH) for _ in range(2)]
    statuses: list[int | None] = []

    def upgrade() -> None:
        statuses.append(tier.daemon.terminate())
        tier.daemon.start()

    empty()
    timer = threading.Timer(UPGRADED_AFTER_S, upgrade)
    timer.start()
    answers = complete_all(engine.port, [*tier.prompts, *fresh])
    timer.join()
    tier.report.equal(f"tier: {what}: the old one stops in order", statuses, [0])
    tier.identical(f"{what}: what is loaded meanwhile", answers[: len(tier.prompts)])
    tier.daemon.wait_for_engine(engine)
    empty()
    again = complete_all(engine.port, fresh)
    saved = [a.tokens for a in answers[len(tier.prompts) :]]
    tier.report.equal(f"tier: {what}: what is saved meanwhile: identical", [a.tokens for a in again], saved)
    empty()
    answers = tier.answers(engine)
    tier.identical(f"{what}, by its successor", answers)
    tier.all_cached(f"{what}, by its successor", answers)


def disk_full(tier: Tier, engine: Engine, empty: Callable[[], None]) -> None:
    """Others fill the disk."""

    def ask(what: str) -> None:
        empty()
        tier.identical(what, complete_all(engine.port, tier.prompts))
        tier.daemon.wait_for_writes()

    def cached() -> None:
        empty()
        answers = tier.answers(engine)
        tier.identical("disk with room again, cached", answers)
        tier.all_cached("disk with room again, cached", answers)

    filled_up(tier.daemon, engine, tier.report, tier.place.work / "small-disk-tier", ask, cached, whose="tier: ")
