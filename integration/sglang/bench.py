"""Benchmark: SGLang with kvconnd below its host memory, beside its own `file` backend and no backend.

    python integration/sglang/bench.py [--kvconnd PATH] [--cache DIR] [--systems NAME...] [--rounds N] [--json FILE]

Servers of all systems run at the same time; all but the one that is asked are stopped (SIGSTOP), so that each has
the machine to itself, and every prompt is asked of all of them within seconds. Times are those of the client, to the
first token of a stream. Ratios are to the server without a backend, whose caches are flushed before each request.

It needs what e2e.py needs, and about 20 GB of memory for four systems: SGLang leaves 10 GiB free when it starts.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

# What both engines' tests use.
sys.path.append(str(Path(__file__).resolve().parent.parent / "vllm"))

import sglang_environment
import workplace
from bench_systems import SYSTEMS, System
from generation import Streamed, prompt, stream
from stage import Place

LENGTHS = (500, 1000, 2700, 3900)
SAVING_TOKENS = 1000
BURST = 6
"""Requests that a system gets without a pause while it saves: with a pause after each, its saves would cost nothing."""
SHORTEST, LONGEST = 64, 3500
SEEN_SHARE = 0.5
"""Of the mixed requests: the part that was asked before."""
ANSWER_TOKENS = 32
NONE = "none"
CACHED = "cached"


@dataclass(frozen=True)
class Sample:
    """One prompt, asked of one system. Times are in seconds."""

    workload: str
    phase: str
    system: str
    tokens: int
    number: int
    """The same for all systems that were asked the same."""
    first_s: float
    total_s: float
    storage: int
    right: bool


class Bench:
    """All systems, side by side."""

    def __init__(self, place: Place, systems: Sequence[System], seed: int) -> None:
        self.systems = list(systems)
        self.rng = random.Random(seed)
        self.samples: list[Sample] = []
        self.numbers = 0
        self.say: Callable[[str], None] = place.report.say

    def start(self) -> None:
        """Start all, one after the other, and stop each once it serves."""
        for system in self.systems:
            system.start()
            for length in (200, 1000, LENGTHS[-1]):  # compiles, and faults memory in
                stream(system.server.port, prompt(self.rng, length), 4)
            system.settle()
            system.freeze()
            self.say(f"{system.name}: serves")

    def end(self) -> None:
        """Stop all."""
        for system in self.systems:
            system.kill()

    def ask(
        self, workload: str, phase: str, tokens: Sequence[int], flush: bool, answer_tokens: int = ANSWER_TOKENS
    ) -> None:
        """Ask all systems for a prompt, in another order each time. `flush` forgets what device and host have first."""
        self.numbers += 1
        self.systems.append(self.systems.pop(0))
        found = []
        for system in self.systems:
            system.thaw()
            if flush and not (phase == CACHED and system.keeps_device):
                system.server.flush_cache()
            got = stream(system.server.port, tokens, answer_tokens)
            system.settle()
            system.freeze()
            found.append((system.name, got))
        self._note(workload, phase, tokens, found)

    def _note(self, workload: str, phase: str, tokens: Sequence[int], found: Sequence[tuple[str, Streamed]]) -> None:
        """Note what all systems answered to a prompt."""
        right = next((got.tokens for name, got in found if name == NONE), None)
        for name, got in found:
            self.samples.append(
                Sample(
                    workload,
                    phase,
                    name,
                    len(tokens),
                    self.numbers,
                    got.first_s,
                    got.total_s,
                    got.storage,
                    got.tokens == right,
                )
            )

    def restart(self, rounds: int) -> None:
        """New prompts of each length, and the same once only the storage has them."""
        for done in range(rounds):
            for length in LENGTHS:
                tokens = prompt(self.rng, length)
                for phase in ("cold", CACHED):
                    self.ask("lengths", phase, tokens, flush=True)
            self.say(f"lengths: round {done + 1} of {rounds}")

    def saving(self, requests: int) -> None:
        """New prompts alone: what saving them costs."""
        for _ in range(0, requests, BURST):
            self._burst([prompt(self.rng, SAVING_TOKENS) for _ in range(BURST)])
        self.say(f"saving: {requests} requests")

    def _burst(self, prompts: Sequence[Sequence[int]]) -> None:
        """Ask each system for prompts without a pause: the saves of one go on while the next is computed."""
        self.systems.append(self.systems.pop(0))
        answers: list[tuple[str, list[Streamed]]] = []
        for system in self.systems:
            system.thaw()
            answers.append((system.name, [stream(system.server.port, p, ANSWER_TOKENS) for p in prompts]))
            system.settle()
            system.freeze()
        for i, tokens in enumerate(prompts):
            self.numbers += 1
            self._note("saving", "cold", tokens, [(name, got[i]) for name, got in answers])

    def mixed(self, requests: int) -> None:
        """Prompts of any length. Half of them were asked before."""
        seen: list[list[int]] = []
        for done in range(requests):
            if seen and self.rng.random() < SEEN_SHARE:
                self.ask("mixed", "seen", self.rng.choice(seen), flush=True, answer_tokens=1)
            else:
                seen.append(prompt(self.rng, self.rng.randint(SHORTEST, LONGEST)))
                self.ask("mixed", "new", seen[-1], flush=True, answer_tokens=1)
            if (done + 1) % 50 == 0:
                self.say(f"mixed: {done + 1} of {requests}")


def table(samples: Sequence[Sample], names: Sequence[str]) -> str:
    """Return what is compared, as Markdown: medians of ratios, and the worst."""
    base = {s.number: s for s in samples if s.system == NONE}
    rows: dict[str, dict[str, str]] = {}

    def ratios(name: str, keep: Callable[[Sample], bool], time_of: Callable[[Sample], float]) -> list[float]:
        return sorted(time_of(s) / time_of(base[s.number]) for s in samples if s.system == name and keep(s))

    def row(label: str, name: str, values: list[float], show: Callable[[list[float]], str]) -> None:
        if values:
            rows.setdefault(label, {})[name] = show(values)

    for name in names:
        for length in LENGTHS:
            keep = _of("lengths", CACHED, length)
            row(f"first token cached / cold, {length:,} tokens", name, ratios(name, keep, _first), _median)
        row("first token of a new prompt / none", name, ratios(name, _of("lengths", "cold"), _first), _median)
        saving = [s for s in samples if s.system == name and s.workload == "saving"]
        if saving:
            mine = sum(s.total_s for s in saving)
            row("throughput while saving / none", name, [sum(base[s.number].total_s for s in saving) / mine], _median)
        mixed = ratios(name, _of("mixed"), _first)
        row("mixed: first token / cold, median", name, mixed, _median)
        row("mixed: 99th percentile", name, mixed, lambda v: f"{v[min(len(v) - 1, len(v) * 99 // 100)]:.2f}")
        row("mixed: worst", name, mixed, lambda v: f"{v[-1]:.2f}")
        wrong = [s for s in samples if s.system == name and not s.right]
        rows.setdefault("other tokens than without a backend", {})[name] = f"{len(wrong)}"
    head = "| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names)
    lines = [f"| {label} | " + " | ".join(by.get(n, "") for n in names) + " |" for label, by in rows.items()]
    return "\n".join([head, *lines])


def _of(workload: str, phase: str | None = None, tokens: int | None = None) -> Callable[[Sample], bool]:
    return lambda s: s.workload == workload and phase in (None, s.phase) and tokens in (None, s.tokens)


def _first(s: Sample) -> float:
    return s.first_s


def _median(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f}"


def measure(place: Place, args: argparse.Namespace) -> int:
    """Run everything, and print the table."""
    bench = Bench(place, [SYSTEMS[name](place) for name in args.systems], args.seed)
    try:
        bench.start()
        bench.restart(args.rounds)
        bench.saving(args.saving)
        bench.mixed(args.mixed)
    finally:
        bench.end()
        if args.json:
            args.json.write_text(json.dumps([asdict(s) for s in bench.samples]))
    print(table(bench.samples, args.systems))
    return 0


def main() -> int:
    """Parse arguments and run."""
    parser = workplace.arguments("Benchmark of kvconn with real SGLang.")
    parser.add_argument("--sglang", metavar="VERSION", default=sglang_environment.NEWEST)
    parser.add_argument("--systems", nargs="+", choices=sorted(SYSTEMS), default=[NONE, "device", "file", "kvconn"])
    parser.add_argument("--rounds", type=int, default=5, help="prompts of each length")
    parser.add_argument("--saving", type=int, default=24, help="requests that are saved")
    parser.add_argument("--mixed", type=int, default=200, help="requests of any length")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the samples go")
    args = parser.parse_args()
    return workplace.run(args, lambda place: measure(place, args), args.sglang, sglang_environment.prepare)


if __name__ == "__main__":
    workplace.exit_by(main)
