"""One system through all workloads of a round, with as few starts of its engine as there can be."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import stores
from pair import Pair, engine, nudge, warm
from processes import Engine
from results import Result, Session
from systems import Cache
from workloads import KV_BYTES_PER_TOKEN, Block, Pause, Script, Sizes, distinct_tokens, script

Say = Callable[[str], None]


class Rounds:
    """A system's engines and cache in one round."""

    def __init__(self, system: str, number: int, cache: Cache, model: Path, none: Engine, say: Say) -> None:
        self.system, self.number, self.cache, self.model, self.none, self.say = system, number, cache, model, none, say
        self.rng = random.Random(f"{system} {number}")
        self.prompts: list[list[int]] = []
        self.engine: Engine | None = None

    def run(self, workloads: Sequence[str], seed: int, sizes: Sizes, result: Result) -> None:
        """Run workloads: up to where one wants a restart, then on from there."""
        scripts = {name: script(name, seed, self.number, sizes) for name in workloads}
        try:
            while scripts:
                pair = self.start()
                waiting = {}
                for name, steps in scripts.items():
                    self.say(f"{self.system}: {name}")
                    try:
                        if self.follow(pair, name, steps, result):
                            waiting[name] = steps
                    finally:
                        pair.settle(result.samples)
                nudge(pair.ours, self.rng)
                self.cache.settle()
                pair.ours.terminate()
                self.cache.sweep()
                self.cache.stop()
                stores.drop_pages(self.cache.store)
                scripts = waiting
        finally:
            if self.engine is not None:
                self.engine.kill()
            self.cache.kill()
            self.cache.sweep()
        result.sessions.append(
            Session(
                system=self.system,
                round=self.number,
                daemon_peak_bytes=self.cache.used.peak_bytes,
                daemon_cpu_s=round(self.cache.used.cpu_s, 2),
                disk_bytes=stores.physical_bytes(self.cache.store),
                kv_bytes=distinct_tokens(self.prompts) * KV_BYTES_PER_TOKEN,
            )
        )

    def start(self) -> Pair:
        """Start daemon and engine; the engine without cache forgets what it has, as if it were started, too."""
        self.say(f"{self.system}: starts")
        self.cache.start()
        self.engine = ours = engine(self.cache, self.model, self.cache.site.work / "vllm.log")
        ours.wait()
        self.prompts += warm(ours, self.rng)
        self.none.reset_prefix_cache()
        return Pair(self.system, ours, self.none)

    def follow(self, pair: Pair, workload: str, steps: Script, result: Result) -> bool:
        """Make a workload's requests up to its end or its restart; whether there is more."""
        answers: list[list[int]] | None = None
        while True:
            try:
                step = next(steps) if answers is None else steps.send(answers)
            except StopIteration:
                return False
            answers = None
            if step is Pause.RESTART:
                return True
            if step is Pause.DROP_PAGES:
                nudge(pair.ours, self.rng)
                self.cache.settle()
                stores.drop_pages(self.cache.store)
            if isinstance(step, Block):
                self.prompts += step.prompts
                samples, want = pair.ask(step, workload, self.number)
                result.samples += samples
                answers = [answer.tokens for answer in want]
