"""Mutants of the kernels: copies with one mistake each, made from every instruction."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from ptx_cases import entry_text

# What may stand in place of a word of an opcode.
OTHERS = {
    "setp.lt": ["setp.le", "setp.gt", "setp.ne", "setp.eq"],
    "setp.ge": ["setp.gt", "setp.lt", "setp.eq", "setp.ne"],
    "setp.eq": ["setp.ne", "setp.le"],
    "add.u64": ["sub.u64"],
    "sub.u32": ["add.u32"],
    "min.u32": ["max.u32", "min.s32"],
    "shl.b64": ["shr.b64"],
    "shl.b32": ["shr.b32"],
    "shr.u64": ["shl.b64", "shr.s64"],
    "and.b64": ["or.b64", "xor.b64"],
    "and.b32": ["or.b32", "xor.b32"],
    "or.b64": ["and.b64", "xor.b64", "add.u64"],
    "mad.wide.u32": ["mad.wide.s32"],
    "mul.wide.u32": ["mul.wide.s32"],
    "cvt.u64.u32": ["cvt.s64.s32", "cvt.u64.u16", "cvt.u64.u8"],
    ".v2.u64": [".v2.u32"],
    "ld.global.cs.u32": ["ld.global.cs.u16", "ld.global.cs.s16", "ld.global.cs.u8"],
    "st.global.cs.u32": ["st.global.cs.u16", "st.global.cs.u8"],
    "ld.global.cs.u8": ["ld.global.cs.u16", "ld.global.cs.s8"],
    "st.global.cs.u8": ["st.global.cs.u16", "st.global.cs.u32"],
    "ld.param.u64": ["ld.param.u32"],
    "ld.param.u32": ["ld.param.u16"],
    ".x": [".y"],
}


COMMUTATIVE = ("add.", "and.", "or.", "min.", "mul.", "mad.", "setp.eq")


@dataclass(frozen=True)
class Mutant:
    line: str  # the instruction, as it was
    mutated: str  # and as it is; nothing if it was dropped
    text: str  # the whole module

    def __str__(self):
        return f"{self.line}  ->  {self.mutated or 'dropped'}"


def _operands(line: str) -> list[str]:
    """The line with two neighbouring registers exchanged, in each place, and each register taken for its neighbour."""
    registers = list(re.finditer(r"(?<=[ {\[])%\w+\b(?!\.)", line))
    out = []
    for a, b in pairwise(registers):
        if line.startswith(COMMUTATIVE) and a is not registers[0]:
            continue  # that is the same instruction
        out.append(line[: a.start()] + b.group() + line[a.end() : b.start()] + a.group() + line[b.end() :])
    numbered = [(r, last) for r in registers if (last := re.fullmatch(r"(%(?:[a-z]|in))(\d)", r.group()))]
    out += [f"{line[: r.start()]}{last[1]}{(int(last[2]) + 1) % 4}{line[r.end() :]}" for r, last in numbered]
    return out


def _numbers(line: str) -> list[str]:
    """The line with a constant one larger, one smaller, doubled and halved."""
    if not (m := re.search(r"(?<=, )-?(0x)?[0-9a-f]+(?=[,;])", line)):
        return []
    value = int(m.group(), 0)
    changed = {value + 1, value - 1, value * 2, value // 2} - {value}
    return [f"{line[: m.start()]}{v}{line[m.end() :]}" for v in sorted(changed)]


def _changes(line: str) -> Iterator[str]:
    """Every line that one mistake makes of an instruction; an empty one if it is dropped."""
    yield ""
    for word, others in OTHERS.items():
        if word in line:
            yield from (line.replace(word, other, 1) for other in others)
    if guard := re.match(r"@(%\w+) ", line):
        yield line[guard.end() :]
        yield f"@!{line[1:]}"
    if line.startswith("bra") or " bra " in line:
        yield re.sub(r"bra \w+", "bra finish", line)
        yield re.sub(r"bra \w+", "bra advance", line)
    yield from _operands(line)
    yield from _numbers(line)
    if m := re.search(r"\[(%\w+)\]", line):
        yield line.replace(m.group(), f"[{m[1]}+16]")
        yield line.replace(m.group(), f"[{m[1]}+1]")


def mutants(entry: str) -> list[Mutant]:
    """All mutants of one entry, without those that read as the original does."""
    before, text, after = entry_text(entry)
    lines = text.splitlines(keepends=True)
    found = {}
    for i, full in enumerate(lines):
        line = full.split("//")[0].strip()
        if not line.endswith(";") or line.startswith("."):
            continue
        for changed in _changes(line):
            if changed == line:
                continue
            whole = before + "".join([*lines[:i], f"\t{changed}\n", *lines[i + 1 :]]) + after
            found.setdefault(whole, Mutant(line, changed, whole))
    return list(found.values())


_SPEED_ONLY = "how many threads share a run changes nothing but speed"
_SMALL = "the value is below 2^31: 2^31 runs, blocks or threads are not allowed or not possible"
_LENGTH = "runs have less than 2 GiB"
_IN_BLOCK = "a block has 256 threads, which number 0 to 255"
_SAME_ADDRESS = "an address in device memory is the same in all spaces"

# Mutants that copy the same bytes with as many accesses, and why.
EQUIVALENT = {
    ("ld.param.u32 %log2, [lanes_log2];", ""): _SPEED_ONLY,
    ("ld.param.u32 %log2, [lanes_log2];", "ld.param.u16 %log2, [lanes_log2];"): _SPEED_ONLY,
    ("min.u32 %log2, %log2, 8;", "min.u32 %log2, %log2, 4;"): _SPEED_ONLY,
    ("min.u32 %log2, %log2, 8;", "min.u32 %log2, %log2, 7;"): _SPEED_ONLY,
    ("cvta.to.global.u64 %runs, %runs;", ""): _SAME_ADDRESS,
    ("cvta.to.global.u64 %staging, %staging;", ""): _SAME_ADDRESS,
    ("cvta.to.global.u64 %device, %device;", ""): _SAME_ADDRESS,
    ("cvt.u64.u32 %count, %count32;", "cvt.s64.s32 %count, %count32;"): _SMALL,
    ("mad.wide.u32 %thread, %ctaid32, %ntid32, %thread;", "mad.wide.s32 %thread, %ctaid32, %ntid32, %thread;"): _SMALL,
    ("mul.wide.u32 %groups, %nctaid32, %ntid32;", "mul.wide.s32 %groups, %nctaid32, %ntid32;"): _SMALL,
    ("shr.u64 %run, %thread, %log2;", "shr.s64 %run, %thread, %log2;"): _SMALL,
    ("shr.u64 %groups, %groups, %log2;", "shr.s64 %groups, %groups, %log2;"): _SMALL,
    ("cvt.u64.u32 %thread, %thread32;", "cvt.s64.s32 %thread, %thread32;"): _IN_BLOCK,
    ("cvt.u64.u32 %thread, %thread32;", "cvt.u64.u16 %thread, %thread32;"): _IN_BLOCK,
    ("cvt.u64.u32 %thread, %thread32;", "cvt.u64.u8 %thread, %thread32;"): _IN_BLOCK,
    ("cvt.u64.u32 %lanes, %lanes32;", "cvt.s64.s32 %lanes, %lanes32;"): _IN_BLOCK,
    ("cvt.u64.u32 %lanes, %lanes32;", "cvt.u64.u16 %lanes, %lanes32;"): _IN_BLOCK,
    ("cvt.u64.u32 %lane, %lane32;", "cvt.s64.s32 %lane, %lane32;"): _IN_BLOCK,
    ("cvt.u64.u32 %lane, %lane32;", "cvt.u64.u16 %lane, %lane32;"): _IN_BLOCK,
    ("cvt.u64.u32 %lane, %lane32;", "cvt.u64.u8 %lane, %lane32;"): _IN_BLOCK,
    ("@%done bra finish;", "@%done bra advance;"): "a group past the last run stays past it and ends",
    ("shr.u64 %length, %place, 32;", "shr.s64 %length, %place, 32;"): _LENGTH,
    ("setp.eq.u64 %aligned16, %rest, 0;", "setp.le.u64 %aligned16, %rest, 0;"): "nothing is below 0",
    ("setp.eq.u64 %aligned4, %rest, 0;", "setp.le.u64 %aligned4, %rest, 0;"): "nothing is below 0",
    ("ld.global.cs.u8 %word, [%s0];", "ld.global.cs.s8 %word, [%s0];"): "only the lowest byte is stored",
    ("ret;", ""): "a function ends at its brace",
}
