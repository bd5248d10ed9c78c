"""Layouts of runs, and whether the kernels copy them and nothing else."""

import ctypes
import random
import re
import struct
from dataclasses import dataclass, field

from ptx_interpreter import GPU, MAY_READ, MAY_WRITE_ONCE, Memory, Module

PTX = GPU.parent.parent / "gpu" / "kernel" / "copy.ptx"
GATHER, SCATTER = "kvconn_gather", "kvconn_scatter"
VECTOR_BYTES = 16

# Regions cross multiples of 4 GiB, so that sums of 32 bits would miss them.
DEVICE, STAGING, DESCRIPTORS = 0x7F3BFFFFF800, 0x7E0FFFFFFC00, 0x6FFFFFFC0


@dataclass(frozen=True)
class Prepared:
    """A case's memory before a launch in one direction, and what must come of it."""

    source: bytes
    target: bytes
    expected: bytes
    may_read: bytes
    may_write: bytes
    descriptors: bytes
    accesses: int  # the fewest writes that move the bytes


@dataclass
class Case:
    """One launch, in either direction. Positions are those in the arena and in staging."""

    name: str
    runs: list[tuple[int, int, int]]  # position in the arena, position in staging, length
    arena_bytes: int
    staging_bytes: int
    lanes_log2: int = 2
    blocks: int = 1
    staging_base: int = STAGING  # the parameter: offsets count from here
    seed: int = 0
    prepared: dict[str, Prepared] = field(default_factory=dict)

    def prepare(self, entry: str) -> Prepared:
        rng = random.Random(self.seed)
        sizes = (self.arena_bytes, self.staging_bytes)[:: 1 if entry == GATHER else -1]
        source, target = (rng.randbytes(n) for n in sizes)
        may_read, may_write, expected = bytearray(sizes[0]), bytearray(sizes[1]), bytearray(target)
        descriptors, accesses = bytearray(), 0
        for at, place, length in self.runs:
            src, dst = (at, place) if entry == GATHER else (place, at)
            may_read[src : src + length] = bytes([MAY_READ]) * length
            may_write[dst : dst + length] = bytes([MAY_WRITE_ONCE]) * length
            expected[dst : dst + length] = source[src : src + length]
            offset = STAGING + place - self.staging_base
            descriptors += struct.pack("<QII", DEVICE + at, offset, length)
            accesses += fewest_accesses(DEVICE + at | STAGING + place, length)
        return Prepared(
            source, target, bytes(expected), bytes(may_read), bytes(may_write), bytes(descriptors), accesses
        )

    def check(self, module: Module, entry: str) -> str | None:
        """Run the case; return what went wrong, or None."""
        if entry not in self.prepared:
            self.prepared[entry] = self.prepare(entry)
        p = self.prepared[entry]
        source, target, descriptors = bytearray(p.source), bytearray(p.target), bytearray(p.descriptors)
        memory = Memory()
        places = (DEVICE, STAGING) if entry == GATHER else (STAGING, DEVICE)
        memory.add(places[0], source, bytearray(p.may_read))
        memory.add(places[1], target, bytearray(p.may_write))
        memory.add(DESCRIPTORS, descriptors, bytearray([MAY_READ]) * len(descriptors))
        params = [
            ctypes.c_uint64(DESCRIPTORS if self.runs else 0),
            ctypes.c_uint64(self.staging_base),
            ctypes.c_uint32(len(self.runs)),
            ctypes.c_uint32(self.lanes_log2),
        ]
        code = module.launch(entry, params, memory, grid=(self.blocks, 1, 1))
        regions = memory.regions
        if code:
            kind = "write" if regions.fault_is_write else "read"
            return f"{self.name}: error {code}, last fault: {kind} at {regions.fault_address:#x}"
        if target != p.expected:
            wrong = next(i for i in range(len(target)) if target[i] != p.expected[i])
            return f"{self.name}: byte {wrong} of the target is wrong"
        if source != p.source or descriptors != p.descriptors:
            return f"{self.name}: the source changed"
        if regions.writes != p.accesses:
            return f"{self.name}: {regions.writes} writes, {p.accesses} suffice"
        return None


def fewest_accesses(both: int, length: int) -> int:
    """How many vectors, words and bytes a run has, where `both` has the bits of both addresses."""
    vectors = length // 16 if both % 16 == 0 else 0
    words = (length - 16 * vectors) // 4 if both % 4 == 0 else 0
    return vectors + words + length - 16 * vectors - 4 * words


def layout(rng: random.Random, name: str, lengths: list[int], align: tuple[int, int], gap: int, **options) -> Case:
    """Place runs: those in the arena in another order than in staging, with gaps and at multiples of align."""

    def place(order: list[int], align: int) -> tuple[dict[int, int], int]:
        at, places = rng.randrange(0, 64), {}
        for i in order:
            at += rng.randrange(0, gap + 1)
            at += -at % align
            places[i] = at
            at += lengths[i]
        return places, at + 64

    order = list(range(len(lengths)))
    in_staging, staging_bytes = place(order, align[1])
    rng.shuffle(order)
    in_arena, arena_bytes = place(order, align[0])
    runs = [(in_arena[i], in_staging[i], lengths[i]) for i in range(len(lengths))]
    return Case(name, runs, arena_bytes, staging_bytes, seed=rng.randrange(1 << 30), **options)


ALIGNMENTS = [(16, 16), (4, 4), (1, 1), (16, 4), (8, 16), (16, 1), (4, 16), (2, 2)]


def random_case(seed: int) -> Case:
    rng = random.Random(seed)
    kinds = [(0, 20), (0, 70), (50, 300), (64, 64), (1, 1), (500, 1300), (16, 16), (2000, 5000), (0, 3)]
    low, high = rng.choice(kinds)
    lengths = [
        rng.randint(low, high) for _ in range(rng.choice([1, 2, 3, 17, 70, 200] if high < 400 else [1, 2, 5, 12]))
    ]
    if rng.random() < 0.5:
        lengths = [n & -VECTOR_BYTES for n in lengths]
    return layout(
        rng,
        f"random {seed}",
        lengths,
        rng.choice(ALIGNMENTS),
        rng.choice([0, 0, 5, 100]),
        lanes_log2=rng.choice([0, 1, 2, 2, 3, 4, 5, 5, 6, 7, 8]),
        blocks=rng.choice([1, 1, 1, 2, 3, 7]),
    )


def edge_cases() -> list[Case]:
    rng = random.Random(1)
    cases = [Case("no runs", [], 64, 64, blocks=2), Case("one empty run", [(3, 5, 0)], 64, 64)]
    # Every length near a multiple of what a group copies at a time, in one launch for each number of lanes.
    for log2 in (0, 2, 5, 8, 9, 31, 0xFFFFFFFF):
        step = VECTOR_BYTES << min(log2, 8)
        lengths = sorted({max(0, k * step + d) for k in range(6) for d in (-17, -16, -1, 0, 1, 4, 7, 16)})
        cases.append(layout(rng, f"lengths around {step}", lengths, (16, 16), 40, lanes_log2=log2, blocks=2))
    # Every alignment of both sides, for lengths that have vectors, words and bytes.
    for length in (1, 5, 16, 61):
        runs = [(at * 256 + at, place * 256 + at * 16 * 256 + place, length) for at in range(16) for place in range(16)]
        runs = [(at + i * 16 * 256, place, length) for i, (at, place, length) in enumerate(runs)]
        cases.append(Case(f"alignments of {length}", runs, 260 * 16 * 256, 17 * 16 * 256, lanes_log2=1, blocks=2))
    # Offsets of 32 bits are not signed, and the whole staging buffer need not be mapped.
    high = layout(rng, "high offsets", [64, 100, 7, 0, 33], (16, 16), 20, lanes_log2=1)
    high.staging_base = STAGING - 0xFFFF0000
    # One run after another by one group, many groups with nothing to do, and as many groups as runs.
    one = layout(rng, "one group", [rng.randrange(90) for _ in range(20)], (16, 16), 9, lanes_log2=8)
    many = layout(rng, "more groups than runs", [64, 1, 40], (16, 16), 9, lanes_log2=0, blocks=9)
    even = layout(rng, "as many groups as runs", [20] * 64, (16, 16), 9, lanes_log2=2)
    over = layout(rng, "one run more than groups", [20] * 65, (4, 4), 9, lanes_log2=2)
    # More runs than 16 bits count.
    tiny = layout(rng, "tiny runs", [rng.randrange(3) for _ in range(70_000)], (1, 1), 1, lanes_log2=0, blocks=8)
    return [*cases, high, one, many, even, over, tiny]


def cases(count: int) -> list[Case]:
    """The cases, those that find most mistakes first."""
    return [random_case(seed) for seed in range(count)] + edge_cases()


def entry_text(name: str) -> tuple[str, str, str]:
    """The module's text before an entry, the entry, and what follows it."""
    text = PTX.read_text()
    found = re.search(rf"\.visible \.entry {name}\(.*?\n}}\n", text, re.DOTALL)
    return text[: found.start()], found.group(), text[found.end() :]
