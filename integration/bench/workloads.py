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


QUICK = Sizes(prompts_of_each=2, conversations=3, turns=2, large_prompts=4, mixed_requests=12)


def restart(rng: random.Random, sizes: Sizes) -> Script:
    """Prompts that are never seen before, and the same after a restart."""
    prompts = [prompt(rng, n) for _ in range(sizes.prompts_of_each) for n in sizes.lengths]
    for block in blocks(prompts, len(sizes.lengths)):
        yield Block("saving", block)
    yield Pause.RESTART
    for block in blocks(prompts, len(sizes.lengths)):
        yield Block("restarted", block)


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
    """Prompts of all lengths, as many short as long ones by order of magnitude; half begin like an earlier one."""
    earlier: list[list[int]] = []
    for _ in range(sizes.mixed_requests):
        length = round(math.exp(rng.uniform(math.log(SHORTEST), math.log(LONGEST))))
        shared: list[int] = []
        if earlier and rng.random() < 0.5:
            before = rng.choice(earlier)
            shared = before[: rng.randint(0, min(len(before), length - 1))]
        earlier.append(shared + prompt(rng, length - len(shared)))
    for block in blocks(earlier, MIXED_BLOCK):
        yield Block("mixed", block)


WORKLOADS: dict[str, Callable[[random.Random, Sizes], Script]] = {
    "restart": restart,
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
