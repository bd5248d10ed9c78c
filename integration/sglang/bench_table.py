"""What bench.py found, and the table made of it."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

NONE = "none"
"""The system without a backend: all others are compared with it."""
COLD, CACHED = "cold", "cached"
SEEN, NEW = "seen", "new"
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Sample:
    """One prompt, asked of one system. Times are in seconds."""

    workload: str
    phase: str
    system: str
    tokens: int
    number: int
    """The same for all systems and takes that were asked the same, or as much: a burst has one."""
    take: int
    first_s: float
    total_s: float
    storage: int
    right: bool


def table(samples: Sequence[Sample], names: Sequence[str]) -> str:
    """Return what is compared, as Markdown: ratios to the system without a backend."""
    rows: dict[str, dict[str, str]] = {}
    for name in names:
        for label, value in _column(samples, name):
            rows.setdefault(label, {})[name] = value
    head = "| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names)
    lines = [f"| {label} | " + " | ".join(by.get(n, "") for n in names) + " |" for label, by in rows.items()]
    return "\n".join([head, *lines])


def _column(samples: Sequence[Sample], name: str) -> Iterable[tuple[str, str]]:
    """Yield label and value of each row for a system."""
    for tokens in sorted({s.tokens for s in samples if s.workload == "lengths"}):
        cached = first_ratios(
            samples, name, lambda s, n=tokens: (s.workload, s.phase, s.tokens) == ("lengths", CACHED, n)
        )
        yield f"first token cached / cold, {tokens:,} tokens", _median(cached)
    new = first_ratios(samples, name, lambda s: (s.workload, s.phase) == ("lengths", COLD))
    if new:
        yield "first token of a new prompt / none", _median(new)
    if saving := burst_times(samples, name):
        yield "throughput while saving / none", _throughput(burst_times(samples, NONE), saving)
    for phase, label in ((SEEN, "asked before"), (NEW, "new")):
        if mixed := first_ratios(samples, name, lambda s, p=phase: (s.workload, s.phase) == ("mixed", p)):
            yield f"{len(mixed)} mixed, {label}: first token / cold, median", _median(mixed)
            yield f"{len(mixed)} mixed, {label}: worst", f"{max(mixed):.2f}"
    yield "other tokens than without a backend", f"{sum(s.system == name and not s.right for s in samples)}"


def first_ratios(samples: Sequence[Sample], name: str, keep: Callable[[Sample], bool]) -> list[float]:
    """Return the least first token of each number ÷ that without a backend.

    The least of several takes: what a system needs, without what the machine does beside it.
    """
    mine, base = _least_first(samples, name, keep), _least_first(samples, NONE, keep)
    return [mine[number] / base[number] for number in sorted(mine)]


def slow_numbers(samples: Sequence[Sample], workload: str, limit: float) -> list[int]:
    """Return the numbers of a workload where some system's least first token is above limit times that without one."""
    least = {
        name: _least_first(samples, name, lambda s: s.workload == workload) for name in {s.system for s in samples}
    }
    base = least.get(NONE, {})
    return sorted({n for by in least.values() for n, first_s in by.items() if first_s > limit * base[n]})


def _least_first(samples: Sequence[Sample], name: str, keep: Callable[[Sample], bool]) -> Mapping[int, float]:
    least: dict[int, float] = {}
    for s in samples:
        if s.system == name and keep(s):
            least[s.number] = min(s.first_s, least.get(s.number, math.inf))
    return least


def burst_times(samples: Sequence[Sample], name: str) -> Mapping[tuple[int, int], float]:
    """Return the time of each burst that was saved, by number and take."""
    times: dict[tuple[int, int], float] = defaultdict(float)
    for s in samples:
        if s.system == name and s.workload == "saving":
            times[s.number, s.take] += s.total_s
    return times


def _throughput(base: Mapping[tuple[int, int], float], mine: Mapping[tuple[int, int], float]) -> str:
    """Return the ratio of throughputs: by the least take of each burst, and the mean with its 95 % interval."""
    least = sum(_least_takes(base).values()) / sum(_least_takes(mine).values())
    logs = [math.log(base[key] / took) for key, took in mine.items()]
    if len(logs) < 2:
        return f"{least:.3f}"
    mean, half = statistics.mean(logs), NORMAL_95 * statistics.stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(v) for v in (mean - half, mean, mean + half))
    return f"{least:.3f} (mean {middle:.3f}, {low:.3f} to {high:.3f})"


def _least_takes(times: Mapping[tuple[int, int], float]) -> Mapping[int, float]:
    least: dict[int, float] = {}
    for (number, _), took in times.items():
        least[number] = min(took, least.get(number, math.inf))
    return least


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}" if values else ""
