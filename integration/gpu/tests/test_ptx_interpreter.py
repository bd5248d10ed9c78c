"""The PTX interpreter runs: each instruction against Python, faults, barriers, limits of launches."""

import ctypes
import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from ptx_interpreter import (
    HEADER,
    ILLEGAL_ADDRESS,
    INVALID_VALUE,
    LAUNCH_TIMEOUT,
    MAY_WRITE,
    MEMORY,
    MISALIGNED_ADDRESS,
    Interpreter,
    Memory,
    run,
)


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    return Interpreter(tmp_path_factory.mktemp("ptx"))


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def divide(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# Operations of two or three operands, which are signed for signed types; `bits` is the width.
ARITHMETIC = {
    "add": lambda a, b, c, bits: a + b,
    "sub": lambda a, b, c, bits: a - b,
    "mul.lo": lambda a, b, c, bits: a * b,
    "mul.hi": lambda a, b, c, bits: a * b >> bits,
    "mad.lo": lambda a, b, c, bits: a * b + c,
    "mad.hi": lambda a, b, c, bits: (a * b >> bits) + c,
    "min": lambda a, b, c, bits: min(a, b),
    "max": lambda a, b, c, bits: max(a, b),
    "div": lambda a, b, c, bits: divide(a, b) if b else -1,
    "rem": lambda a, b, c, bits: a - b * divide(a, b) if b else a,
    "shr": lambda a, b, c, bits: a >> min(b & 0xFFFFFFFF, bits),
}
BITWISE = {
    "and": lambda a, b, c, bits: a & b,
    "or": lambda a, b, c, bits: a | b,
    "xor": lambda a, b, c, bits: a ^ b,
    "not": lambda a, b, c, bits: ~a,
    "shl": lambda a, b, c, bits: a << b if b < bits else 0,
}
SIGNED_ONLY = {"neg": lambda a, b, c, bits: -a, "abs": lambda a, b, c, bits: abs(a)}
WIDE = {"mul.wide": lambda a, b, c, bits: a * b, "mad.wide": lambda a, b, c, bits: a * b + c}
COMPARISONS = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}
UNSIGNED_NAMES = {"lt": "lo", "le": "ls", "gt": "hi", "ge": "hs"}
KINDS = {16: "h", 32: "r", 64: "d"}


def operations():
    """Every operation and type: instruction, width, whether it is signed, width of the result, function."""
    for bits in (16, 32, 64):
        for kind in "us":
            for name, f in (ARITHMETIC | (SIGNED_ONLY if kind == "s" else {})).items():
                yield f"{name}.{kind}{bits}", bits, kind == "s", bits, f
            for name, f in WIDE.items() if bits < 64 else ():
                yield f"{name}.{kind}{bits}", bits, kind == "s", 2 * bits, f
        for name, f in BITWISE.items():
            yield f"{name}.b{bits}", bits, False, bits, f


def triples() -> list[tuple[int, int, int]]:
    rng = random.Random(7)
    edges = [0, 1, 2, 15, 16, 31, 32, 63, 64, 0x7FFF, 0x8000, 0xFFFF, 1 << 31, (1 << 31) - 1, (1 << 32) - 1, 1 << 63]
    edges += [(1 << 63) - 1, (1 << 64) - 1]
    pairs = [(a, b, rng.choice(edges)) for a in edges for b in edges]
    return pairs + [
        tuple(rng.getrandbits(rng.choice([6, 16, 32, 64])) for _ in range(3)) for _ in range(1000 - len(pairs))
    ]


def compute(interpreter, instructions: str, width: int) -> list[int]:
    """Run instructions, one thread per triple, whose values are in %d1 to %d3, %r1 to %r3 and %h1 to %h3."""
    values = triples()
    data = b"".join(v.to_bytes(8, "little") for t in values for v in (*t, 0))
    body = "\tmov.u32 %r0, %tid.x;\n\tmad.wide.u32 %d0, %r0, 32, %d0;\n"
    for i in (1, 2, 3):
        body += f"\tld.global.u64 %d{i}, [%d0+{8 * i - 8}];\n\tcvt.u32.u64 %r{i}, %d{i};\n\tcvt.u16.u64 %h{i}, %d{i};\n"
    result = f"%{KINDS[width]}{0 if width == 16 else 4}"
    body += f"{instructions.replace('RESULT', result)}\n\tst.global.b{width} [%d0+24], {result};"
    code, memory = run(interpreter, body, data, block=(len(values), 1, 1))
    assert code == 0
    return [int.from_bytes(memory[32 * i + 24 : 32 * i + 32], "little") for i in range(len(values))]


@pytest.mark.parametrize("operation", list(operations()), ids=lambda o: o[0])
def test_arithmetic_is_that_of_the_isa(interpreter, operation):
    instruction, bits, is_signed, result_bits, f = operation
    k, name = KINDS[bits], instruction.split(".")[0]
    operands = [f"%{k}1", f"%{k}2", f"%{KINDS[result_bits]}3"][: {"mad": 3, "not": 1, "neg": 1, "abs": 1}.get(name, 2)]
    if name in ("shl", "shr"):
        operands[1] = "%r2"
    got = compute(interpreter, f"\t{instruction} RESULT, {', '.join(operands)};", result_bits)

    def operand(value: int, width: int) -> int:
        return signed(value, width) if is_signed else value & ((1 << width) - 1)

    for (a, b, c), result in zip(triples(), got, strict=True):
        amount = b & 0xFFFFFFFF if name in ("shl", "shr") else operand(b, bits)
        want = f(operand(a, bits), amount, operand(c, result_bits), bits) & ((1 << result_bits) - 1)
        assert result == want, f"{instruction} of {a:#x}, {b:#x}, {c:#x} is {result:#x}, not {want:#x}"


@pytest.mark.parametrize("bits", KINDS)
@pytest.mark.parametrize("kind", "usb")
def test_comparisons_and_selections(interpreter, bits, kind):
    k = KINDS[bits]
    for name, f in COMPARISONS.items():
        if kind == "b" and name not in ("eq", "ne"):
            continue
        for spelled in {name, UNSIGNED_NAMES.get(name, name) if kind == "u" else name}:
            got = compute(
                interpreter,
                f"\tsetp.{spelled}.{kind}{bits} %p1, %{k}1, %{k}2;\n"
                f"\tsetp.{spelled}.or.{kind}{bits} %p2|%p3, %{k}1, %{k}2, !%p1;\n"
                "\tselp.b32 %r5, 1, 0, %p1;\n\tselp.b32 %r6, 2, 0, !%p2;\n\tor.b32 %r5, %r5, %r6;\n"
                "\tmov.u32 %r4, 7;\n\t@%p1 mov.u32 %r4, %r5;\n\t@!%p3 add.u32 %r4, %r4, 64;",
                32,
            )
            for (a, b, _), result in zip(triples(), got, strict=True):
                if kind == "s":
                    holds = f(signed(a, bits), signed(b, bits))
                else:
                    holds = f(a & ((1 << bits) - 1), b & ((1 << bits) - 1))
                # p2 = holds or not holds; p3 = not holds or not holds.
                assert result == ((1 if holds else 7) + (64 if holds else 0)), (spelled, kind, bits, a, b)


def test_conversions_extend_and_cut(interpreter):
    for source in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
        for target in ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"):
            got = compute(interpreter, f"\tcvt.{target}.{source} RESULT, %d1;", 64)
            for (a, _, _), result in zip(triples(), got, strict=True):
                for t in (source, target):
                    a = signed(a, int(t[1:])) if t[0] == "s" else a & ((1 << int(t[1:])) - 1)
                assert result == a & ((1 << 64) - 1), (source, target)


def test_moves_pack_and_unpack(interpreter):
    got = compute(
        interpreter, "\tmov.b64 {%r5, %r6}, %d1;\n\tmov.b32 {%h0, _}, %r5;\n\tmov.b64 RESULT, {%r6, %r5};", 64
    )
    assert got == [a >> 32 | (a & 0xFFFFFFFF) << 32 for a, _, _ in triples()]


def test_loads_and_stores_of_each_size(interpreter):
    data = bytes(range(0x81, 0x91)) + bytes(48)
    body = """	ld.global.v4.u32 {%r1, %r2, %r3, %r4}, [%d0];
	st.global.v2.u32 [%d0+16], {%r4, %r3};
	ld.global.s8 %r1, [%d0+1];
	st.global.u32 [%d0+24], %r1;
	ld.volatile.global.s16 %d1, [%d0+2];
	st.global.u64 [%d0+32], %d1;
	ld.global.v2.u8 {%r1, %r2}, [%d0+4];
	st.global.v2.u16 [%d0+40], {%r2, 0x1ff};
	ld.global.nc.f32 %f1, [%d0+8];
	st.global.cs.f32 [%d0+48], %f1;
	st.global.f32 [%d0+52], 0f3f800000;"""
    code, memory = run(interpreter, body, data)
    want = bytes(data[12:16] + data[8:12]) + b"\x82\xff\xff\xff\0\0\0\0" + b"\x83\x84" + b"\xff" * 6
    want += bytes([data[5], 0, 0xFF, 1]) + bytes(4) + data[8:12] + b"\0\0\x80\x3f"
    assert (code, bytes(memory[16:56])) == (0, want)


@pytest.mark.parametrize(
    ("access", "n"),
    [("u16 %h1", 2), ("u32 %r1", 4), ("u64 %d1", 8), ("v2.u64 {%d1, %d2}", 16), ("v4.u32 {%r1,%r2,%r3,%r4}", 16)],
)
def test_misaligned_access_faults(interpreter, access, n):
    kind, registers = access.split(" ", 1)
    for offset in range(33):
        want = MISALIGNED_ADDRESS if offset % n else 0
        assert run(interpreter, f"\tld.global.{kind} {registers}, [%d0+{offset}];", bytes(64))[0] == want
        assert run(interpreter, f"\tst.global.{kind} [%d0+{offset}], {registers};", bytes(64))[0] == want


def test_constants_and_loads_fill_their_registers_and_no_more(interpreter):
    """Comparisons see whole registers, so a bit too many or too few shows."""
    body = """	ld.global.s8 %r1, [%d0];
	setp.eq.u32 %p1, %r1, 0xffffff82;
	ld.global.s16 %d1, [%d0];
	setp.eq.and.u64 %p1, %d1, -126, %p1;
	mov.u32 %r2, 4;
	add.u32 %r2, %r2, -5;
	setp.eq.and.s32 %p1, %r2, -1, %p1;
	setp.eq.and.u32 %p1, %r2, 0x1ffffffff, %p1;
	cvt.u32.s8 %r3, %r1;
	setp.eq.and.u32 %p1, %r3, %r1, %p1;
	selp.b32 %r4, 1, 2, %p1;
	st.global.u32 [%d0+4], %r4;"""
    code, memory = run(interpreter, body, b"\x82\xff" + bytes(6))
    assert (code, memory[4:]) == (0, bytes([1, 0, 0, 0]))


def test_access_outside_of_memory_faults(interpreter):
    for offset, want in ((0, 0), (48, 0), (64, ILLEGAL_ADDRESS), (-16, ILLEGAL_ADDRESS)):
        code, _ = run(interpreter, f"\tld.global.v2.u64 {{%d1, %d2}}, [%d0+{offset}];", bytes(64))
        assert code == want
    assert run(interpreter, "\tmov.u64 %d1, 0;\n\tst.global.u8 [%d1], 1;")[0] == ILLEGAL_ADDRESS
    assert run(interpreter, "\tld.shared.u32 %r1, [%r2];")[0] == ILLEGAL_ADDRESS
    for n in range(6, 10):
        want = ILLEGAL_ADDRESS if n < 8 else 0
        assert run(interpreter, f"\t.shared .align 8 .b8 s[{n}];\n\tld.shared.u64 %d1, [s];")[0] == want
        code, _ = run(interpreter, "\tst.shared.u64 [s], %d0;", before=".extern .shared .b64 s[];\n", shared_bytes=n)
        assert code == want


def test_guards_skip_and_labels_loop(interpreter):
    body = """	mov.u32 %r1, 0;
	mov.u32 %r2, 0;
again:	setp.lt.u32 %p1, %r1, 10;
	@!%p1 bra.uni done;
	add.u32 %r2, %r2, %r1;
	add.u32 %r1, %r1, 1;
	bra again;
done:	@%p1 mov.u32 %r2, 0;
	st.global.u32 [%d0], %r2;
	@!%p1 ret;
	st.global.u32 [%d0], 0;"""
    assert run(interpreter, body, bytes(4)) == (0, bytearray([45, 0, 0, 0]))


SPECIALS = """	mov.u32 %r1, %tid.SIDE;
	mov.u32 %r2, %ntid.SIDE;
	mov.u32 %r3, %ctaid.SIDE;
	mov.u32 %r4, %nctaid.SIDE;
	mov.u32 %r6, %laneid;
"""


@pytest.mark.parametrize("side", [0, 1, 2])
def test_special_registers(interpreter, side):
    """Each thread of a grid adds its numbers to its own place."""
    block, grid = (4, 3, 2), (2, 3, 2)
    linear = "\tmov.u32 %r5, 0;\n"
    for size, at in (("nctaid", "ctaid"), ("ntid", "tid")):
        for axis in "zyx":
            linear += (
                f"\tmov.u32 %i0, %{size}.{axis};\n\tmov.u32 %i1, %{at}.{axis};\n\tmad.lo.u32 %r5, %r5, %i0, %i1;\n"
            )
    body = linear + SPECIALS.replace("SIDE", "xyz"[side])
    body += "\tmad.wide.u32 %d0, %r5, 20, %d0;\n"
    body += "".join(f"\tst.global.u32 [%d0+{4 * i}], %r{r};\n" for i, r in enumerate((1, 2, 3, 4, 6)))
    code, memory = run(interpreter, body, bytes(24 * 12 * 20), block=block, grid=grid)
    assert code == 0
    numbers = memoryview(memory).cast("I").tolist()
    place = 0
    for b in ((x, y, z) for z in range(2) for y in range(3) for x in range(2)):
        for lane, t in enumerate((x, y, z) for z in range(2) for y in range(3) for x in range(4)):
            assert numbers[place : place + 5] == [t[side], block[side], b[side], grid[side], lane]
            place += 5


REVERSE = """	.shared .align 4 .b8 buffer[256];
	mov.u32 %r1, %tid.x;
	mad.wide.u32 %d1, %r1, 4, %d0;
	ld.global.u32 %r2, [%d1];
	mov.u32 %r3, buffer;
	mad.lo.u32 %r4, %r1, 4, %r3;
	st.shared.u32 [%r4], %r2;
	bar.sync 0;
	sub.u32 %r5, 63, %r1;
	mad.lo.u32 %r4, %r5, 4, %r3;
	ld.shared.u32 %r2, [%r4];
	st.global.u32 [%d1], %r2;"""


def test_threads_exchange_through_shared_memory(interpreter):
    data = bytes(range(256))
    want = b"".join(data[i : i + 4] for i in range(252, -4, -4))
    assert run(interpreter, REVERSE, data, block=(64, 1, 1)) == (0, bytearray(want))
    dynamic = REVERSE.replace("	.shared .align 4 .b8 buffer[256];\n", "")
    before = ".extern .shared .align 16 .b8 buffer[];\n"
    assert run(interpreter, dynamic, data, block=(64, 1, 1), before=before, shared_bytes=256) == (0, bytearray(want))
    assert run(interpreter, dynamic, data, block=(64, 1, 1), before=before, shared_bytes=252)[0] == ILLEGAL_ADDRESS


def test_barriers_wait_for_threads_that_go_on_and_no_others(interpreter):
    some_end = "\tmov.u32 %r1, %tid.x;\n\tsetp.lt.u32 %p1, %r1, 3;\n\t@%p1 exit;\n\tbar.sync 0;"
    assert run(interpreter, some_end, block=(32, 1, 1))[0] == 0
    apart = "\tmov.u32 %r1, %tid.x;\n\tsetp.lt.u32 %p1, %r1, 3;\n\t@%p1 bar.sync 1;\n\t@!%p1 bar.sync 2;"
    assert run(interpreter, apart, block=(32, 1, 1))[0] == LAUNCH_TIMEOUT


def test_what_never_ends_is_ended(interpreter):
    assert run(interpreter, "again: bra again;")[0] == LAUNCH_TIMEOUT
    assert run(interpreter, "again: bar.sync 0;\n\tbra again;", block=(32, 1, 1))[0] == LAUNCH_TIMEOUT
    assert run(interpreter, "", grid=(1 << 30, 1, 1))[0] == LAUNCH_TIMEOUT


def test_launches_that_no_device_takes(interpreter):
    for grid, block, shared in (
        ((0, 1, 1), (1, 1, 1), 0),
        ((1, 1 << 16, 1), (1, 1, 1), 0),
        ((1, 1, 1), (1, 0, 1), 0),
        ((1, 1, 1), (1025, 1, 1), 0),
        ((1, 1, 1), (64, 32, 1), 0),
        ((1, 1, 1), (1, 1, 65), 0),
        ((1, 1, 1), (1, 1, 1), 50_000),
    ):
        assert run(interpreter, "", grid=grid, block=block, shared_bytes=shared)[0] == INVALID_VALUE


def test_parameters_have_their_places(interpreter):
    text = f"""{HEADER}.visible .entry k(
.param .u8 a, .param .u64 .ptr .global .align 8 p, .param .align 4 .b8 s[6], .param .u16 b)
.maxntid 64
{{ .reg .b32 %r<5>; .reg .b64 %d0;
ld.param.u64 %d0, [p]; ld.param.u8 %r0, [a]; ld.param.u32 %r1, [s]; ld.param.u16 %r2, [s+4]; ld.param.u16 %r3, [b];
st.global.v4.u32 [%d0], {{%r0, %r1, %r2, %r3}}; }}"""
    memory, mem = bytearray(16), Memory()
    mem.add(MEMORY, memory, bytearray([MAY_WRITE]) * 16)
    params = [
        ctypes.c_uint8(0xFE),
        ctypes.c_uint64(MEMORY),
        (ctypes.c_uint8 * 6)(1, 2, 3, 4, 5, 6),
        ctypes.c_uint16(0x809),
    ]
    with interpreter.load(text) as module:
        assert module.has("k")
        assert not module.has("kk")
        assert module.param_bytes("k") == [1, 8, 6, 2]
        assert module.launch("k", params, mem, block=(65, 1, 1)) == INVALID_VALUE
        assert module.launch("k", params, mem, block=(64, 1, 1)) == 0
    assert memory == bytes([0xFE, 0, 0, 0, 1, 2, 3, 4, 5, 6, 0, 0, 9, 8, 0, 0])


def test_launches_run_beside_each_other(interpreter):
    data = [bytes([i]) * 256 for i in range(4)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda d: [run(interpreter, REVERSE, d, block=(64, 1, 1)) for _ in range(50)], data))
    assert found == [[(0, bytearray(d))] * 50 for d in data]
