"""Two engines that take turns: one with a cache, and one without."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from completions import MAX_TOKENS, Completion, complete, prompt
from processes import Engine
from results import Sample
from systems import Cache
from workloads import ANSWER_TOKENS, KV_BYTES_PER_TOKEN, Block

SPIN_S = 1.5
"""An engine's processes spin for a second after a request, on the cores that the other needs."""
ENGINE_KV_TOKENS = 8192
"""What an engine holds in its own memory: two prompts of the greatest length."""
STEP_TOKENS = 4096
"""A prompt is computed in one step: vLLM's ExampleConnector knows of no other."""
WARM_LENGTHS = (200, 1000, 2700)
NUDGE_TOKENS = 32


def engine(cache: Cache, model: Path, log: Path) -> Engine:
    """Start an engine on a cache; `wait` waits until it serves. Its own prefix cache is on, as by default."""
    new = Engine(cache.site.env, model, log)
    arguments = ["--kv-cache-memory-bytes", str(ENGINE_KV_TOKENS * KV_BYTES_PER_TOKEN)]
    arguments += ["--max-num-batched-tokens", str(STEP_TOKENS), *cache.arguments]
    new.start(cache.connector, prefix_caching=True, arguments=arguments, variables=cache.variables)
    return new


def warm(one: Engine, rng: random.Random) -> list[list[int]]:
    """Make the requests that compile, with prompts that are not used again, and return these."""
    prompts = [prompt(rng, length) for length in WARM_LENGTHS]
    for tokens in prompts:
        complete(one.port, tokens, max_tokens=4)
    return prompts


def nudge(one: Engine, rng: random.Random) -> None:
    """Make a request that fills no block: some connectors end a save only in a later step of the engine."""
    complete(one.port, prompt(rng, NUDGE_TOKENS), max_tokens=4)


def answer(one: Engine, tokens: list[int], max_tokens: int = MAX_TOKENS) -> Completion:
    """Complete a prompt. RuntimeError where tokens are missing: two answers without any are equal, and quick."""
    got = complete(one.port, tokens, max_tokens=max_tokens)
    if len(got.tokens) != max_tokens:
        raise RuntimeError(f"completion: {len(got.tokens)} tokens, not {max_tokens}")
    return got


def is_right(none: Engine, tokens: list[int], got: Completion, want: Completion) -> bool:
    """Whether an answer is one that vLLM gives without the cache.

    The last bits of float32 depend on how a prompt is divided, and in one prompt of some twenty two tokens are
    so close that its answer does. What differs from `want` is therefore asked again: with the whole prompt in the
    engine's own prefix cache, and with as much of it as the system's engine had.
    """
    if got.tokens == want.tokens:
        return True
    if not got.cached or len(got.tokens) != len(want.tokens):
        return False
    if answer(none, tokens, len(got.tokens)).tokens == got.tokens:
        return True
    none.reset_prefix_cache()
    answer(none, tokens[: got.cached], 1)
    return answer(none, tokens, len(got.tokens)).tokens == got.tokens


@dataclass
class Pair:
    """The engine of a system, and the one without cache."""

    system: str
    ours: Engine
    none: Engine
    ours_first: bool = True
    doubts: list[tuple[Sample, list[int], Completion, Completion]] = field(default_factory=list)
    """What differs, with its prompt and both answers."""

    def ask(self, block: Block, workload: str, number: int) -> tuple[list[Sample], list[Completion]]:
        """Make a block's requests of both, and return what is compared, and the answers without cache."""
        if self.ours_first:
            got = self._answers(self.ours, block)
            want = self._answers(self.none, block)
        else:
            want = self._answers(self.none, block)
            got = self._answers(self.ours, block)
        self.ours_first = not self.ours_first
        samples = [
            Sample(
                system=self.system,
                round=number,
                workload=workload,
                phase=block.phase,
                tokens=len(tokens),
                cached=ours.cached,
                answered=len(ours.tokens),
                first_s=ours.first_token_s,
                total_s=ours.total_s,
                none_first_s=none.first_token_s,
                none_total_s=none.total_s,
                right=ours.tokens == none.tokens,
                number=block.number(i),
                take=block.take,
            )
            for i, (tokens, ours, none) in enumerate(zip(block.prompts, got, want, strict=True))
        ]
        asked = zip(samples, block.prompts, got, want, strict=True)
        self.doubts += [doubt for doubt in asked if not doubt[0].right]
        return samples, want

    def settle(self, samples: list[Sample]) -> None:
        """Ask again for what differs, and correct the samples, after a workload.

        The engine without cache loses its own prefix cache by this, which its next times would show.
        """
        doubts, self.doubts = self.doubts, []
        for sample, tokens, got, want in doubts:
            if is_right(self.none, tokens, got, want):
                samples[samples.index(sample)] = replace(sample, right=True)

    @staticmethod
    def _answers(one: Engine, block: Block) -> list[Completion]:
        time.sleep(SPIN_S)
        return [answer(one, tokens, ANSWER_TOKENS) for tokens in block.prompts]
