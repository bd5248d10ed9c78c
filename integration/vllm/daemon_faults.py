"""The main stage's faults of a daemon under a running engine: killed, frozen, replaced, its disk full."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from completions import LONG, SHORT, complete, complete_all, prompt
from processes import Engine
from small_disk import filled_up

if TYPE_CHECKING:
    from e2e import Main

FROZEN_S = 60.0


def run(main: Main, plain: Engine, engine: Engine) -> None:
    """Do all of it. An engine without connector says what is right."""
    killed_while_decoding(main, plain, engine)
    killed_while_loading(main, engine)
    frozen_while_loading(main, engine)
    killed_while_saving(main, plain, engine)
    replaced(main, plain, engine)
    disk_full(main, engine)
    main.report.check("the engine is healthy after all that", engine.healthy())
    errors = engine.lines("ERROR")
    main.report.check("no error in the engine's log", not errors, "; ".join(errors[:2]))


@contextmanager
def after(delay_s: float, action: Callable[[], object]) -> Iterator[None]:
    """Do something that long after the block has begun, and wait for it at the block's end."""
    timer = threading.Timer(delay_s, action)
    timer.start()
    try:
        yield
    finally:
        timer.join()


def killed_while_decoding(main: Main, plain: Engine, engine: Engine) -> None:
    """Kill it between two tokens."""
    decoding = prompt(main.rng, SHORT)
    want = complete(plain.port, decoding, max_tokens=200)
    got = complete(engine.port, decoding, max_tokens=200, on_first_token=main.daemon.kill)
    main.report.equal("daemon killed while a request decodes: identical", got.tokens, want.tokens)
    main.daemon.start()
    main.daemon.wait_for_engine(engine)
    main.after_its_return(engine, "daemon killed while a request decodes")


def killed_while_loading(main: Main, engine: Engine) -> None:
    """Kill it soon after requests for what is saved were sent."""
    for delay_s in (0.005, 0.02, 0.05):
        engine.reset_prefix_cache()
        with after(delay_s, main.daemon.kill):
            answers = complete_all(engine.port, [r.tokens for r in main.rows])
        main.identical(f"daemon killed {delay_s * 1000:g} ms into loads: identical", answers)
        main.daemon.start()
        main.daemon.wait_for_engine(engine)
    main.after_its_return(engine, "daemon killed while loading")


def frozen_while_loading(main: Main, engine: Engine) -> None:
    """Stop it for a minute while requests load, and let it go on while others are computed in the same memory.

    What it was copying for waits until it goes on: its copy could still write. The others are served meanwhile.
    """
    engine.reset_prefix_cache()
    earlier = main.daemon.schedulers()
    until = time.monotonic() + FROZEN_S
    with (
        after(0.02, lambda: main.daemon.signal(signal.SIGSTOP)),
        after(FROZEN_S, lambda: main.daemon.signal(signal.SIGCONT)),
    ):
        answers = complete_all(engine.port, [r.tokens for r in main.rows])
        main.identical(f"daemon frozen for {FROZEN_S:g} s while loading: identical", answers)
        while time.monotonic() < until:
            engine.reset_prefix_cache()
            answers = complete_all(engine.port, [r.tokens for r in main.rows])
            main.identical("daemon frozen, and thawed: requests go on, identical", answers)
    main.daemon.wait_for_scheduler_after(earlier)  # until then it may count the connections that were given up
    main.daemon.wait_for_engine(engine)
    main.after_its_return(engine, "daemon frozen", "thawed")


def killed_while_saving(main: Main, plain: Engine, engine: Engine) -> None:
    """Kill it while prompts are computed, and serve without it."""
    fresh = [prompt(main.rng, LONG) for _ in range(3)]
    references = complete_all(plain.port, fresh)
    with after(1.0, main.daemon.kill):
        answers = complete_all(engine.port, fresh)
    main.report.check(
        "daemon killed while saving: identical", [a.tokens for a in answers] == [r.tokens for r in references]
    )

    engine.reset_prefix_cache()
    answers = complete_all(engine.port, [r.tokens for r in main.rows[:4]])
    main.identical("daemon gone: requests go on, identical", answers, main.rows[:4])
    main.report.equal("daemon gone: nothing cached", [a.cached for a in answers], [0] * 4)
    main.daemon.start()
    main.daemon.wait_for_engine(engine)
    main.after_its_return(engine, "daemon gone and back")

    engine.reset_prefix_cache()
    answers = complete_all(engine.port, fresh)
    main.report.check(
        "prompts whose saving was cut off: identical", [a.tokens for a in answers] == [r.tokens for r in references]
    )


def replaced(main: Main, plain: Engine, engine: Engine) -> None:
    """Upgrade it under load: it is stopped gracefully while requests are served, and its successor is started."""
    fresh = [prompt(main.rng, LONG) for _ in range(2)]
    references = complete_all(plain.port, fresh)

    statuses: list[int | None] = []

    def upgrade() -> None:
        statuses.append(main.daemon.terminate())
        main.daemon.start()

    engine.reset_prefix_cache()
    with after(0.3, upgrade):
        answers = complete_all(engine.port, [*fresh, *(r.tokens for r in main.rows)])
    same = [a.tokens for a in answers[: len(fresh)]] == [r.tokens for r in references]
    main.report.check("daemon upgraded while serving: what is saved meanwhile: identical", same)
    main.report.equal("daemon upgraded while serving: the old one stops in order", statuses, [0])
    main.identical("daemon upgraded while serving: what is loaded meanwhile: identical", answers[len(fresh) :])
    main.daemon.wait_for_engine(engine)
    main.after_its_return(engine, "daemon upgraded", "by its successor")


def disk_full(main: Main, engine: Engine) -> None:
    """Others fill the disk."""
    rows = main.rows[:4]

    def ask(what: str) -> None:
        engine.reset_prefix_cache()
        main.identical(f"{what}: identical", complete_all(engine.port, [r.tokens for r in rows]), rows)
        main.daemon.wait_for_writes()

    def cached() -> None:
        main.after_its_return(engine, "disk full", "with room again")

    filled_up(main.daemon, engine, main.report, main.work / "small-disk", ask, cached)
