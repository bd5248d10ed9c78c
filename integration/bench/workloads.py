"""What is asked of the engines: prompts in the order in which they are sent. Nothing here runs anything.

A workload is a generator of steps. To each block of requests it is sent the answers' tokens, so that a
conversation's next turn can have them in it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from completions import BLOCK_SIZE, prompt

ANSWER_TOKENS = 32
SHORTEST, LONGEST = 64, 3500
"""Lengths of mixed prompts, in tokens. An engine takes 4,096 with the answer."""
MIXED_BLOCK = 10
KV_BYTES_PER_TOKEN = 8192
"""Of the tiny model: 8 layers, 2 heads of 64, keys and values, float32."""


@dataclass(frozen=True)
class Block:
    """Requests made of one engine one after the other; then the other engine is asked the same."""

    phase: str
    prompts: list[list[int]]
    first: int = -1
    """The number of the first prompt, if there are several takes: a number is as long in each, but another prompt."""
    take: int = 0
    burst: bool = False
    """All prompts have one number: what is compared is their time together."""

    def number(self, i: int) -> int:
        """Return the number of a prompt, below 0 where it has no other takes."""
        return self.first if self.burst or self.first < 0 else self.first + i


class Pause(Enum):
    """What happens between blocks."""

    RESTART = "engine and daemon restarted, page cache dropped"
    DROP_PAGES = "page cache dropped"


Script = Generator[Block | Pause, list[list[int]], None]


@dataclass(frozen=True)
class Sizes:
    """How large the workloads are."""

    prompts_of_each: int = 6
    lengths: tuple[int, ...] = (1000, 2700)
    conversations: int = 8
    turns: int = 4
    system_tokens: int = 512
    turn_tokens: int = 384
    large_prompts: int = 36
    large_tokens: int = 2048
    mixed_requests: int = 200
    mixed_takes: int = 3
    bursts: int = 4
    burst_takes: int = 3
    burst_requests: int = 6
    burst_tokens: int = 1000


QUICK = Sizes(
    prompts_of_each=2,
    conversations=3,
    turns=2,
    large_prompts=4,
    mixed_requests=12,
    mixed_takes=2,
    bursts=1,
    burst_takes=2,
    burst_requests=2,
)


def restart(rng: random.Random, sizes: Sizes) -> Script:
    """Prompts that are never seen before, and the same after a restart, where a long one is the first of all."""
    prompts = [prompt(rng, n) for _ in range(sizes.prompts_of_each) for n in sizes.lengths]
    for block in blocks(prompts, len(sizes.lengths)):
        yield Block("saving", block)
    yield Pause.RESTART
    for block in blocks(prompts, len(sizes.lengths)):
        yield Block("restarted", sorted(block, key=len, reverse=True))


def bursts(rng: random.Random, sizes: Sizes) -> Script:
    """New prompts without a pause: the saves of one go on while the next is computed. Each burst in several takes."""
    for number in range(sizes.bursts):
        for take in range(sizes.burst_takes):
            new = [prompt(rng, sizes.burst_tokens) for _ in range(sizes.burst_requests)]
            yield Block("bursts", new, number, take, burst=True)


def turns(rng: random.Random, sizes: Sizes) -> Script:
    """Conversations with one system prompt, in turns, each turn with all that was said before."""
    system = prompt(rng, sizes.system_tokens)
    said = [list(system) for _ in range(sizes.conversations)]
    for turn in range(sizes.turns):
        for words in said:
            words += prompt(rng, sizes.turn_tokens)
        answers = yield Block("first turn" if turn == 0 else "later turns", [list(words) for words in said])
        for words, answer in zip(said, answers, strict=True):
            words += answer


def large(rng: random.Random, sizes: Sizes) -> Script:
    """More than the engine's and the cache's memory hold together: all of it twice, in another order."""
    prompts = [prompt(rng, sizes.large_tokens) for _ in range(sizes.large_prompts)]
    for block in blocks(prompts, 4):
        yield Block("filling", block)
    yield Pause.DROP_PAGES
    rng.shuffle(prompts)
    for block in blocks(prompts, 4):
        yield Block("again", block)


def mixed(rng: random.Random, sizes: Sizes) -> Script:
    """Prompts of all lengths, as many short as long ones by order of magnitude; half begin like an earlier one.

    A single request says little: each is made in several takes, whose prompts have equal lengths and share as much.
    """
    takes: list[list[list[int]]] = [[] for _ in range(sizes.mixed_takes)]
    for done in range(sizes.mixed_requests):
        length = round(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST))))
        like, shared = -1, 0
        if done and rng.random() < 0.5:
            like = rng.randrange(done)
            shared = rng.randint(0, min(len(takes[0][like]), length - 1))
        for earlier in takes:
            earlier.append((earlier[like][:shared] if shared else []) + prompt(rng, length - shared))
    for first in range(0, sizes.mixed_requests, MIXED_BLOCK):
        for take, prompts in enumerate(takes):
            yield Block("mixed", prompts[first : first + MIXED_BLOCK], first, take)


WORKLOADS: dict[str, Callable[[random.Random, Sizes], Script]] = {
    "restart": restart,
    "bursts": bursts,
    "turns": turns,
    "large": large,
    "mixed": mixed,
}


def blocks(prompts: Sequence[list[int]], size: int) -> list[list[list[int]]]:
    """Divide prompts into blocks of that many."""
    return [list(prompts[i : i + size]) for i in range(0, len(prompts), size)]


def script(workload: str, seed: int, number: int, sizes: Sizes) -> Script:
    """Return a workload's steps in a round: the same for every system."""
    return WORKLOADS[workload](random.Random(f"{seed} {number} {workload}"), sizes)


def distinct_tokens(prompts: Iterable[Sequence[int]]) -> int:
    """Return how many tokens the prompts' full blocks have, those with equal beginnings counted once."""
    seen: set[int] = set()
    for tokens in prompts:
        chain = 0
        for end in range(BLOCK_SIZE, len(tokens) + 1, BLOCK_SIZE):
            chain = hash((chain, tuple(tokens[end - BLOCK_SIZE : end])))
            seen.add(chain)
    return len(seen) * BLOCK_SIZE
