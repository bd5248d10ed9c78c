"""What a run has measured, and what follows from it. Nothing here runs anything."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

LONG_FLIPPED = "bit flipped in a long prompt"
ON_DISK = ("bit flipped", LONG_FLIPPED, "page zeroed", "files swapped", "file cut")
NORMAL_95 = 1.96
WITH_DAEMON = ("daemon killed", "daemon killed while saving", "daemon frozen")
OUT_OF_TIME = "out of time"
CASES = (*ON_DISK, *WITH_DAEMON)
"""Kinds of damage, in the order in which they are done."""


@dataclass(frozen=True)
class Sample:
    """One request, made of a system's engine and, within the same minute, of the engine without cache."""

    system: str
    round: int
    workload: str
    phase: str
    tokens: int
    cached: int
    """Prompt tokens that the system's engine did not compute."""
    answered: int
    first_s: float
    total_s: float
    none_first_s: float
    none_total_s: float
    right: bool
    """The answer has the same tokens."""
    number: int = -1
    """Equal in all takes of a request of `mixed`, and in all requests and takes of a burst; else below 0."""
    take: int = 0


@dataclass(frozen=True)
class Session:
    """What a system took in a round."""

    system: str
    round: int
    daemon_peak_bytes: int
    daemon_cpu_s: float
    disk_bytes: int
    kv_bytes: int
    """KV of the distinct full blocks of all prompts: what there was to keep."""


@dataclass(frozen=True)
class Harm:
    """What one kind of damage did."""

    system: str
    case: str
    requests: int
    wrong: int
    unanswered: int
    lost_s: float
    """The most that a request took longer than without cache."""
    hits: int
    """Requests that were given something from the cache."""
    alive: bool
    note: str = ""
    first_ratio: float = 0.0
    """Time to first token of what was damaged ÷ that without cache, median; 0 where it was not measured."""


@dataclass
class Result:
    """A run."""

    date: str
    machine: dict[str, Any]
    settings: dict[str, Any]
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    not_run: dict[str, str] = field(default_factory=dict)
    """Systems without figures, and why."""
    left_out: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    sessions: list[Session] = field(default_factory=list)
    harms: list[Harm] = field(default_factory=list)

    def go_on_from(self, earlier: Result) -> None:
        """Take over what an earlier run has measured. ValueError where its requests were of another kind."""
        ours, theirs = self.settings, earlier.settings
        if other := [key for key in ("seed", "quick", "memory_bytes") if ours[key] != theirs[key]]:
            raise ValueError(f"the earlier run has another {', '.join(other)}")
        if self.machine["processor"] != earlier.machine["processor"]:
            raise ValueError("the earlier run was made on another machine")
        ours["rounds"] += theirs["rounds"]
        ours["rounds_done"] = theirs["rounds_done"]
        for key in ("workloads", "faults"):
            ours[key] += [name for name in theirs[key] if name not in ours[key]]
        self.titles = earlier.titles | self.titles
        self.versions, self.not_run = dict(earlier.versions), dict(earlier.not_run)
        self.samples, self.sessions, self.harms = earlier.samples, earlier.sessions, earlier.harms
        self.left_out = [what for what in earlier.left_out if not what.endswith(OUT_OF_TIME)]

    def note_versions(self, system: str, packages: dict[str, str]) -> None:
        """Note the versions of a system that runs. ValueError where earlier figures are of others."""
        if self.versions.setdefault(system, packages) != packages:
            raise ValueError(f"the earlier run has {self.versions[system]}")
        self.not_run.pop(system, None)

    def save(self, path: Path) -> None:
        """Write it as JSON."""
        half = path.with_suffix(".part")
        half.write_text(json.dumps(asdict(self), indent=1) + "\n")
        half.replace(path)


def load(path: Path) -> Result:
    """Read what save wrote."""
    data = json.loads(path.read_text())
    data["samples"] = [Sample(**s) for s in data["samples"]]
    data["sessions"] = [Session(**s) for s in data["sessions"]]
    data["harms"] = [Harm(**h) for h in data["harms"]]
    return Result(**data)


@dataclass(frozen=True)
class Ratios:
    """A system beside no cache. Below 1 is faster, but for throughput, where it is above 1."""

    requests: int
    first: float
    """Median time to first token ÷ that without cache."""
    worst: float
    """The highest ratio of a single request."""
    first_request: float
    """The ratio of a round's first request, median of the rounds."""
    throughput: float
    """Tokens a second, of prompts and answers, ÷ those without cache."""
    tokens_per_s: float
    cached: float
    """Share of the prompts' tokens that came from a cache, the engine's own or this one."""
    wrong: int


def ratios(samples: Sequence[Sample]) -> Ratios | None:
    """Compare; None where there is nothing."""
    if not samples:
        return None
    ours, none = sum(s.total_s for s in samples), sum(s.none_total_s for s in samples)
    singles = [s.first_s / s.none_first_s for s in samples]
    firsts = {s.round: single for s, single in zip(reversed(samples), reversed(singles), strict=True)}
    return Ratios(
        requests=len(samples),
        first=statistics.median(s.first_s for s in samples) / statistics.median(s.none_first_s for s in samples),
        worst=max(singles),
        first_request=statistics.median(firsts.values()),
        throughput=none / ours,
        tokens_per_s=sum(s.tokens + s.answered for s in samples) / ours,
        cached=sum(s.cached for s in samples) / sum(s.tokens for s in samples),
        wrong=sum(not s.right for s in samples),
    )


def least(samples: Sequence[Sample]) -> list[Sample]:
    """Return a sample for each number, with the least times of all its takes.

    What a request needs, without what the machine does beside it: two equal engines differ by a factor of two in
    single requests.
    """
    takes: dict[tuple[int, int], list[Sample]] = {}
    for i, s in enumerate(samples):
        takes.setdefault((s.round, s.number if s.number >= 0 else -1 - i), []).append(s)
    return [
        replace(
            group[0],
            **{name: min(getattr(s, name) for s in group) for name in _TIMES},
            right=all(s.right for s in group),
        )
        for group in takes.values()
    ]


_TIMES = ("first_s", "total_s", "none_first_s", "none_total_s")


@dataclass(frozen=True)
class Throughput:
    """Throughput while saving ÷ that without cache."""

    least: float
    """By the least take of each burst."""
    mean: float
    """Of all takes, the geometric one, with its 95 % interval from `low` to `high`; a single take has none."""
    low: float
    high: float


def burst_throughput(samples: Sequence[Sample]) -> Throughput | None:
    """Compare the times of bursts; None where there are none."""
    ours: dict[tuple[int, int, int], float] = {}
    none: dict[tuple[int, int, int], float] = {}
    for s in samples:
        key = s.round, s.number, s.take
        ours[key] = ours.get(key, 0.0) + s.total_s
        none[key] = none.get(key, 0.0) + s.none_total_s
    if not ours:
        return None
    logs = [math.log(none[key] / took) for key, took in ours.items()]
    mean = statistics.mean(logs)
    half = NORMAL_95 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else 0.0
    return Throughput(
        least=_least_sum(none) / _least_sum(ours),
        mean=math.exp(mean),
        low=math.exp(mean - half),
        high=math.exp(mean + half),
    )


def _least_sum(times: dict[tuple[int, int, int], float]) -> float:
    least_of: dict[tuple[int, int], float] = {}
    for (number, burst, _), took in times.items():
        least_of[number, burst] = min(took, least_of.get((number, burst), math.inf))
    return sum(least_of.values())


def pick(result: Result, system: str, workload: str, phase: str | None = None, tokens: int = 0) -> list[Sample]:
    """Return the samples of a system's workload, of one phase and one length if these are given."""
    return [
        s
        for s in result.samples
        if (s.system, s.workload) == (system, workload) and phase in (None, s.phase) and tokens in (0, s.tokens)
    ]
