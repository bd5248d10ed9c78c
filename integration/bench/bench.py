"""A run: every system prepared, the rounds, and the damage."""

from __future__ import annotations

import http.client
import os
import platform
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import environment
from catalogue import SYSTEMS
from environment import Environment
from harm import Harming
from pair import engine, warm
from processes import Engine
from results import OUT_OF_TIME, Result
from session import Rounds
from systems import Cache, NoCache, Site, UnavailableError
from workloads import QUICK, Sizes

MODEL_SEED = 1
FAILURES = (RuntimeError, OSError, http.client.HTTPException, subprocess.SubprocessError, KeyError, ValueError)
"""What a system that does not work raises here."""

CAUSE_LENGTH = 160


@dataclass(frozen=True)
class Plan:
    """What is asked for."""

    systems: Sequence[str]
    workloads: Sequence[str]
    faults: Sequence[str]
    rounds: int
    budget_s: float | None
    quick: bool
    seed: int
    memory_bytes: int
    disk_bytes: int


class Bench:
    """A run in progress. Its result is saved after each step."""

    def __init__(
        self,
        plan: Plan,
        cache: Path,
        kvconnd: Path,
        work: Path,
        sockets: Path,
        out: Path,
        earlier: Result | None = None,
    ) -> None:
        self.plan, self.cache, self.kvconnd, self.work, self.sockets, self.out = (
            plan, cache, kvconnd, work, sockets, out
        )  # fmt: skip
        self.begun = time.monotonic()
        self.environments: dict[str, Environment] = {}
        self.result = Result(
            date=datetime.now(timezone.utc).strftime("%Y-%m-%d"),
            machine=machine(),
            settings={
                "rounds": plan.rounds,
                "rounds_done": 0,
                "seed": plan.seed,
                "quick": plan.quick,
                "workloads": list(plan.workloads),
                "faults": list(plan.faults),
                "memory_bytes": plan.memory_bytes,
            },
            titles={name: SYSTEMS[name].title for name in plan.systems},
        )
        self.rounds_before = 0
        if earlier is not None:
            self.rounds_before = earlier.settings["rounds"]
            self.result.go_on_from(earlier)
        self.none: Engine | None = None

    def say(self, words: str) -> None:
        """Print progress now."""
        sys.stdout.write(f"[{time.monotonic() - self.begun:6.0f} s] {words}\n")
        sys.stdout.flush()

    def run(self) -> Result:
        """Run everything: a round of all systems, the damage, and the other rounds."""
        self.prepare()
        for number in range(1, self.plan.rounds + 1):
            self.round(self.rounds_before + number)
            if number == 1:
                self.harm()
        self.save()
        return self.result

    def prepare(self) -> None:
        """Install all systems; those that cannot be are named with the reason."""
        for name in self.plan.systems:
            system = SYSTEMS[name]
            self.say(f"{name}: is prepared")
            try:
                env = system.prepare(self.cache)
                self.result.note_versions(name, system.versions(env))
            except (UnavailableError, *FAILURES) as err:
                self.give_up(name, cause(err))
            else:
                self.environments[name] = env

    def reference(self) -> Engine:
        """Return the engine without cache, started now if it has not been or has died."""
        if self.none is not None and self.none.healthy():
            return self.none
        if self.none is not None:
            self.none.kill()
        self.say("the engine without cache starts")
        env = environment.prepare(self.cache)
        work = self.work / "reference"
        work.mkdir(exist_ok=True)
        self.none = engine(NoCache(self.site(env, work)), self.model(env), work / "vllm.log")
        self.none.wait()
        warm(self.none, random.Random(self.plan.seed))
        return self.none

    def round(self, number: int) -> None:
        """Run all workloads on all systems, another system first in each round."""
        if not self.plan.workloads:
            return
        names = list(self.environments)
        first = (number - 1) % max(1, len(names))
        complete = True
        for name in names[first:] + names[:first]:
            if not self.attempt(f"round {number}: {name}", name, number):
                complete = False
        self.result.settings["rounds_done"] += complete

    def attempt(self, what: str, name: str, number: int) -> bool:
        """Run one system's round; whether it was run to its end."""
        if name not in self.environments:
            return False
        if self.spent():
            self.result.left_out.append(f"{what}: {OUT_OF_TIME}")
            return False
        self.say(what)
        none = self.reference()
        try:
            cache, site = self.open(name, f"{name}-{number}")
            rounds = Rounds(name, number, cache, self.model(site.env), none, self.say)
            rounds.run(self.plan.workloads, self.plan.seed, QUICK if self.plan.quick else Sizes(), self.result)
        except FAILURES as err:
            self.failed(what, name, err)
            return False
        self.close(site)
        return True

    def harm(self) -> None:
        """Do all the damage to every system."""
        for name in list(self.environments):
            cases = [c for c in self.plan.faults if (name, c) not in {(h.system, h.case) for h in self.result.harms}]
            if not cases or name == "none":
                continue
            if self.spent():
                self.result.left_out.append(f"damage: {name}: {OUT_OF_TIME}")
                continue
            self.say(f"damage: {name}")
            none = self.reference()
            try:
                cache, site = self.open(name, f"{name}-harm")
                Harming(name, cache, self.model(site.env), none, cases, self.say, self.result.harms).run()
            except FAILURES as err:
                self.failed(f"damage: {name}", name, err)
            else:
                self.close(site)
            self.save()

    def failed(self, what: str, name: str, err: Exception) -> None:
        """Note that a step did not work: a system with no figures at all is not tried again, if it is its fault."""
        self.say(f"{what}: failed: {err}")
        reason = cause(err)
        if self.none is not None and not self.none.healthy():
            self.result.left_out.append(f"{what}: the engine without cache died: {reason}")
        elif any(s.system == name for s in self.result.samples) or any(h.system == name for h in self.result.harms):
            self.result.left_out.append(f"{what}: {reason}")
        else:
            self.give_up(name, reason)
        self.save()

    def give_up(self, name: str, reason: str) -> None:
        """Name a system that has no figures."""
        self.say(f"{name}: not run: {reason}")
        self.result.not_run[name] = reason
        self.environments.pop(name, None)

    # Places.

    def site(self, env: Environment, work: Path) -> Site:
        """Return a place."""
        return Site(env, work, self.sockets, self.kvconnd, self.plan.memory_bytes, self.plan.disk_bytes)

    def open(self, name: str, place: str) -> tuple[Cache, Site]:
        """Return a system's cache with an empty store."""
        work = self.work / place
        work.mkdir()
        site = self.site(self.environments[name], work)
        return SYSTEMS[name].cache(site), site

    def close(self, site: Site) -> None:
        """Remove what a step that worked has left; what failed is kept."""
        shutil.rmtree(site.work, ignore_errors=True)
        self.save()

    def model(self, env: Environment) -> Path:
        """Return the model's directory, the same for all."""
        return environment.model(env, MODEL_SEED)

    def save(self) -> None:
        """Keep the result so far."""
        self.result.save(self.out / "result.json")

    def spent(self) -> bool:
        """Whether the time is over."""
        return self.plan.budget_s is not None and time.monotonic() - self.begun > self.plan.budget_s


def cause(err: Exception) -> str:
    """Return an error in one line: with the last error of a log, if it ends with one."""
    said, _, log = str(err).partition("; end of ")
    words = said.partition("\n")[0] or type(err).__name__
    errors = [line for line in log.splitlines() if "Error" in line]
    return f"{words}: {errors[-1].strip()[-CAUSE_LENGTH:]}" if errors else words


def machine() -> dict[str, object]:
    """Describe the machine."""
    processor = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            processor = line.partition(":")[2].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "processor": processor,
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "kernel": platform.release(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
    }
