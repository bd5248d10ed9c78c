"""What damage does: to what is on disk while nothing runs, and to the daemon under a running engine."""

from __future__ import annotations

import contextlib
import http.client
import math
import random
import signal
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import faults
import stores
from completions import Completion, complete, prompt
from pair import SPIN_S, answer, engine, is_right, nudge, warm
from processes import Engine
from results import LONG_FLIPPED, ON_DISK, Harm
from stores import Unit
from systems import Cache

PROMPT_TOKENS, SAVING_TOKENS = 1000, 2700
LONG_TOKENS = 2700
PROMPTS_OF_EACH, LONG_PROMPTS = 2, 5
ANSWER_TIMEOUT_S, ALIVE_TIMEOUT_S = 180.0, 60.0
"""After the first a request counts as unanswered."""
FROZEN_S = 45.0
KILLED_AT = (0.6, 1.0)
"""When the daemon is killed under a saving request, in times that its prompt takes without cache."""
RECONNECT_S = 3.0


@dataclass
class Victim:
    """A prompt that was saved, what is right for it, and where it is."""

    tokens: list[int]
    right: Completion = field(default_factory=Completion)
    units: list[Unit] = field(default_factory=list)


@dataclass
class Toll:
    """What requests have cost so far in one case."""

    requests: int = 0
    wrong: int = 0
    unanswered: int = 0
    hits: int = 0
    lost_s: float = 0.0
    first_ratios: list[float] = field(default_factory=list)
    """Time to first token ÷ that without cache, in the order of the requests."""


class Harming:
    """One system, all cases. The engine without cache says what is right, and how long it takes."""

    def __init__(
        self,
        system: str,
        cache: Cache,
        model: Path,
        none: Engine,
        cases: Sequence[str],
        say: Callable[[str], None],
        harms: list[Harm] | None = None,
    ) -> None:
        self.system, self.cache, self.model, self.none, self.say = system, cache, model, none, say
        self.cases = [case for case in cases if cache.daemon is not None or case in ON_DISK]
        self.rng = random.Random(f"harm {system}")
        self.engine: Engine | None = None
        self.victims: dict[str, list[Victim]] = {}
        self.harms: list[Harm] = [] if harms is None else harms
        """Where outcomes are put, each when it is there."""

    def run(self) -> list[Harm]:
        """Save, do harm, and see."""
        try:
            self.save()
            for case in self.cases:
                if case in ON_DISK:
                    self.damage(case)
            self.cache.start()
            for case in self.cases:
                self.say(f"{self.system}: {case}")
                if case in ON_DISK:
                    self.read_back(case)
                else:
                    self.lose_daemon(case)
        finally:
            self.end_engine()
            self.cache.kill()
            self.cache.sweep()
        return self.harms

    # Saving.

    def save(self) -> None:
        """Save a few prompts for each case, those last whose file is cut: what comes after them goes, too."""
        self.cache.start()
        for case in sorted(self.cases, key=lambda c: c == "file cut"):
            count = PROMPTS_OF_EACH if case in ON_DISK else 1
            count, length = (LONG_PROMPTS, LONG_TOKENS) if case == LONG_FLIPPED else (count, PROMPT_TOKENS)
            self.victims[case] = [Victim(prompt(self.rng, length)) for _ in range(count)]
            for victim in self.victims[case]:
                before = self.cache.units(self.cache.store)
                complete(self._engine().port, victim.tokens)
                nudge(self._engine(), self.rng)
                self.cache.settle()
                victim.units = sorted(self.cache.units(self.cache.store) - before)
        self.stop()
        for victims in self.victims.values():
            for victim in victims:
                self.none.reset_prefix_cache()
                victim.right = answer(self.none, victim.tokens)

    def damage(self, case: str) -> None:
        """Damage the middle of what was saved of each prompt of a case."""
        victims = self.victims[case]
        if not all(victim.units for victim in victims):
            raise RuntimeError(f"{case}: nothing was saved that could be damaged")
        middles = [victim.units[len(victim.units) // 2] for victim in victims]
        if case == "files swapped":
            faults.swap(*middles)
        elif case == "file cut":
            for victim in reversed(victims):  # from the end: a cut takes what comes after it
                faults.cut(victim.units[-1])
        else:
            for unit in middles:
                (faults.zero_page if case == "page zeroed" else faults.flip_bit)(unit)

    # Asking.

    def read_back(self, case: str) -> None:
        """Ask for damaged prompts, twice: what is loaded wrong once may be served again from memory."""
        toll = Toll()
        alive = True
        for victim in self.victims[case] * 2:
            if case == LONG_FLIPPED:  # its time without cache is that of the same minute
                self.none.reset_prefix_cache()
                victim.right = answer(self.none, victim.tokens)
                time.sleep(SPIN_S)
            self._engine().reset_prefix_cache()
            self.ask(victim, toll)
            alive = self.alive()
            if not alive:
                self.end_engine()
                break
        self.note(case, toll, alive)

    def lose_daemon(self, case: str) -> None:
        """Kill or freeze the daemon, ask, and bring it back."""
        daemon = self.cache.daemon
        if daemon is None:
            return
        toll = Toll()
        alive = True
        saving = case == "daemon killed while saving"
        for moment in KILLED_AT if saving else (0.0,):
            (victim,) = [self.unseen()] if saving else self.victims[case]
            self._engine()  # it runs before anything happens to the daemon
            time.sleep(SPIN_S)
            later = threading.Timer(moment * victim.right.first_token_s, self.cache.kill)
            if case == "daemon killed":
                self.cache.kill()
            elif case == "daemon frozen":
                daemon.signal(signal.SIGSTOP)
                later = threading.Timer(FROZEN_S, daemon.signal, [signal.SIGCONT])
            later.start()
            self.ask(victim, toll)
            alive = self.alive() and alive
            later.cancel()
            later.join()
            daemon.signal(signal.SIGCONT)
            if not daemon.alive():
                self.cache.start()
            if not alive:
                self.end_engine()
                break
            time.sleep(RECONNECT_S)
        self.note(case, toll, alive)

    def unseen(self) -> Victim:
        """Return a prompt that is not saved yet."""
        tokens = prompt(self.rng, SAVING_TOKENS)
        self.none.reset_prefix_cache()
        return Victim(tokens, answer(self.none, tokens))

    def ask(self, victim: Victim, toll: Toll) -> None:
        """Make a request, and count what comes of it."""
        port = self._engine().port
        begun = time.monotonic()
        toll.requests += 1
        try:
            got = complete(port, victim.tokens, timeout_s=ANSWER_TIMEOUT_S)
        except (OSError, RuntimeError, http.client.HTTPException):
            toll.unanswered += 1
            toll.first_ratios.append(math.inf)
            ended = time.monotonic()
        else:
            ended = time.monotonic()
            toll.wrong += not is_right(self.none, victim.tokens, got, victim.right)
            toll.hits += got.cached > 0
            toll.first_ratios.append(got.first_token_s / victim.right.first_token_s)
        toll.lost_s = max(toll.lost_s, ended - begun - victim.right.total_s)

    def alive(self) -> bool:
        """Whether the engine answers a small request."""
        engine = self._engine()
        with contextlib.suppress(OSError, RuntimeError, http.client.HTTPException):
            if engine.healthy():
                complete(engine.port, prompt(self.rng, 16), max_tokens=2, timeout_s=ALIVE_TIMEOUT_S)
                return engine.healthy()
        return False

    def note(self, case: str, toll: Toll, alive: bool) -> None:
        """Keep a case's outcome."""
        self.harms.append(
            Harm(
                system=self.system,
                case=case,
                requests=toll.requests,
                wrong=toll.wrong,
                unanswered=toll.unanswered,
                lost_s=round(max(0.0, toll.lost_s), 2),
                hits=toll.hits,
                alive=alive,
                first_ratio=self._first_ratio(case, toll),
            )
        )

    def _first_ratio(self, case: str, toll: Toll) -> float:
        """Return what damage costs the first token: of the first time that each prompt is asked for."""
        firsts = toll.first_ratios[: len(self.victims[case])]
        return round(statistics.median(firsts), 3) if case == LONG_FLIPPED and firsts else 0.0

    # The engine.

    def end_engine(self) -> None:
        """End the engine, dead or alive."""
        if self.engine is not None:
            self.engine.terminate()
            self.engine = None
            self.cache.sweep()

    def stop(self) -> None:
        """Stop both, with everything on disk and nothing in memory."""
        self.end_engine()
        self.cache.stop()
        stores.drop_pages(self.cache.store)

    def _engine(self) -> Engine:
        """Return the engine, started now if there is none."""
        if self.engine is None:
            self.engine = engine(self.cache, self.model, self.cache.site.work / "vllm-harm.log")
            self.engine.wait()
            warm(self.engine, self.rng)
        return self.engine
