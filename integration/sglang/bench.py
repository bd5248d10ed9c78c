"""Benchmark: SGLang with kvconnd below its host memory, beside its own `file` backend and no backend.

    python integration/sglang/bench.py [--kvconnd PATH] [--cache DIR] [--systems NAME...] [--rounds N] [--json FILE]

Servers of all systems run at the same time; all but the one that is asked are stopped (SIGSTOP), so that each has
the machine to itself, and every prompt is asked of all of them within seconds. Times are those of the client, to the
first token of a stream. Ratios are to the server without a backend, whose caches are flushed before each request.
Mixed requests and bursts that are saved are asked several times, and the least counts: single ones of two equal
servers differ by a factor of two and more. `none-again` is such an equal server, which shows the noise that is left.

It needs what e2e.py needs, and about 20 GB of memory for four systems: SGLang leaves 10 GiB free when it starts.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

# What both engines' tests use.
sys.path.append(str(Path(__file__).resolve().parent.parent / "vllm"))

import sglang_environment
import workplace
from bench_systems import SYSTEMS, System
from bench_table import CACHED, COLD, NEW, NONE, SEEN, Sample, slow_numbers, table
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
SLOW = 1.05
"""First token ÷ cold that a mixed request may cost."""


class Bench:
    """All systems, side by side."""

    def __init__(self, place: Place, systems: Sequence[System], seed: int) -> None:
        self.systems = list(systems)
        self.rng = random.Random(seed)
        self.samples: list[Sample] = []
        self.numbers = 0
        self.asked: dict[int, tuple[str, Sequence[int]]] = {}
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
        self,
        workload: str,
        phase: str,
        tokens: Sequence[int],
        take: int = 0,
        answer_tokens: int = ANSWER_TOKENS,
    ) -> None:
        """Ask all systems for a prompt, in another order each time, after device and host have forgotten theirs.

        Take 0 begins a new number.
        """
        if take == 0:
            self.numbers += 1
            self.asked[self.numbers] = phase, tokens
        self._ask(workload, phase, tokens, (self.numbers, take), answer_tokens)

    def _ask(
        self, workload: str, phase: str, tokens: Sequence[int], number: tuple[int, int], answer_tokens: int
    ) -> None:
        self.systems.append(self.systems.pop(0))
        found = []
        for system in self.systems:
            system.thaw()
            if not (phase == CACHED and system.keeps_device):
                system.server.flush_cache()
            got = stream(system.server.port, tokens, answer_tokens)
            system.settle()
            system.freeze()
            found.append((system.name, got))
        self._note(workload, phase, tokens, number, found)

    def _note(
        self,
        workload: str,
        phase: str,
        tokens: Sequence[int],
        number: tuple[int, int],
        found: Sequence[tuple[str, Streamed]],
    ) -> None:
        """Note what all systems answered to a prompt, which has a number and a take."""
        right = next((got.tokens for name, got in found if name == NONE), None)
        for name, got in found:
            self.samples.append(
                Sample(
                    workload,
                    phase,
                    name,
                    len(tokens),
                    *number,
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
                for phase in (COLD, CACHED):
                    self.ask("lengths", phase, tokens)
            self.say(f"lengths: round {done + 1} of {rounds}")

    def saving(self, bursts: int, takes: int) -> None:
        """New prompts alone: what saving them costs."""
        for done in range(bursts):
            self.numbers += 1
            for take in range(takes):
                self._burst(take, [prompt(self.rng, SAVING_TOKENS) for _ in range(BURST)])
            self.say(f"saving: burst {done + 1} of {bursts}")

    def _burst(self, take: int, prompts: Sequence[Sequence[int]]) -> None:
        """Ask each system for prompts without a pause: the saves of one go on while the next is computed."""
        self.systems.append(self.systems.pop(0))
        answers: list[tuple[str, list[Streamed]]] = []
        for system in self.systems:
            system.thaw()
            answers.append((system.name, [stream(system.server.port, p, ANSWER_TOKENS) for p in prompts]))
            system.settle()
            system.freeze()
        for i, tokens in enumerate(prompts):
            self._note("saving", COLD, tokens, (self.numbers, take), [(name, got[i]) for name, got in answers])

    def mixed(self, requests: int, takes: int) -> None:
        """Prompts of any length. Half of them were asked before; a new one is as long in each take, but another."""
        seen: list[list[int]] = []
        for done in range(requests):
            if seen and self.rng.random() < SEEN_SHARE:
                tokens = self.rng.choice(seen)
                for take in range(takes):
                    self.ask("mixed", SEEN, tokens, take, answer_tokens=1)
            else:
                length = self.rng.randint(SHORTEST, LONGEST)
                for take in range(takes):
                    seen.append(prompt(self.rng, length))
                    self.ask("mixed", NEW, seen[-1], take, answer_tokens=1)
            if (done + 1) % 50 == 0:
                self.say(f"mixed: {done + 1} of {requests}")

    def again(self, takes: int) -> None:
        """Ask more often for the mixed requests for which some system was slow: few takes leave much to chance."""
        slow = slow_numbers(self.samples, "mixed", SLOW)
        self.say(f"mixed: {len(slow)} requests above {SLOW:g} are asked {takes} times more")
        for number in slow:
            phase, first = self.asked[number]
            for take in range(takes):
                tokens = first if phase == SEEN else prompt(self.rng, len(first))
                self._ask("mixed", phase, tokens, (number, 1000 + take), 1)


def measure(place: Place, args: argparse.Namespace) -> int:
    """Run everything, and print the table."""
    bench = Bench(place, [SYSTEMS[name](place) for name in args.systems], args.seed)
    try:
        bench.start()
        bench.restart(args.rounds)
        bench.saving(args.bursts, args.burst_takes)
        bench.mixed(args.mixed, args.takes)
        if args.again:
            bench.again(args.again)
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
    parser.add_argument("--bursts", type=int, default=4, help=f"bursts of {BURST} requests that are saved")
    parser.add_argument("--burst-takes", type=int, default=1, help="how often each burst is asked")
    parser.add_argument("--mixed", type=int, default=200, help="requests of any length")
    parser.add_argument("--takes", type=int, default=1, help="how often each mixed request is asked")
    parser.add_argument("--again", type=int, default=0, help=f"takes more of mixed requests above {SLOW:g} of cold")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="where the samples go")
    args = parser.parse_args()
    return workplace.run(args, lambda place: measure(place, args), args.sglang, sglang_environment.prepare)


if __name__ == "__main__":
    workplace.exit_by(main)
