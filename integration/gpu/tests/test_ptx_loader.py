"""What the PTX interpreter loads and what it refuses, beside what ptxas does."""

import random

import pytest
from ptx_assembler import assemble, assemblers
from ptx_cases import PTX
from ptx_interpreter import INVALID_PTX, UNSUPPORTED_VERSION, Interpreter, Refused, kernel


@pytest.fixture(scope="module")
def interpreter(tmp_path_factory):
    return Interpreter(tmp_path_factory.mktemp("ptx"))


# Bodies that neither ptxas nor the interpreter takes, and a word of the interpreter's reason.
REFUSED = {
    "foo.u32 %r1, %r2;": "unknown instruction",
    "add.u32 %r1, %tid.x, 1;": "unknown register",
    "add.b32 %r1, %r2, 1;": "type",
    "add.u32 %r1, %f1, 1;": "another type",
    "add.u32 %d1, %r1, 1;": "another type",
    "add.u64 %d1, %r1, 1;": "another type",
    "add.u32 1, %r1, 1;": "register expected",
    "add.u32 %r1, %r2;": "',' expected",
    "add.u32 %r1, %r2, %r3, %r4;": "';' expected",
    "add.u32 %r9, %r2, %r3;": "unknown register",
    "add.u32 %r1, %r2, %r3": "expected",
    "add.u8 %h1, %h1, %h1;": "type",
    "add.cs.u32 %r1, %r2, %r3;": "does not take '.cs'",
    "add %r1, %r2, %r3;": "lacks a type",
    "and.u32 %r1, %r2, 1;": "type",
    "shl.u32 %r1, %r2, 1;": "type",
    "shl.b64 %d1, %d2, %d3;": "another type",
    "not.u32 %r1, %r2;": "type",
    "neg.u32 %r1, %r2;": "type",
    "min.b32 %r1, %r2, %r3;": "type",
    "mul.u32 %r1, %r2, %r3;": ".lo, .hi or",
    "mul.wide.u64 %d1, %d2, %d3;": ".wide",
    "mul.wide.u32 %r1, %r2, 3;": "another type",
    "mad.wide.u32 %d1, %r2, 3, %r2;": "another type",
    "setp.lt.b32 %p1, %r1, %r2;": "comparison",
    "setp.lo.s32 %p1, %r1, %r2;": "comparison",
    "setp.u32 %p1, %r1, %r2;": "comparison",
    "setp.eq.pred %p1, %p2, %p3;": "type",
    "setp.lt.u64 %p1, %d1, %r1;": "another type",
    "setp.lt.u32 %r1, %r1, %r2;": "another type",
    "selp.pred %p1, %p2, %p3, %p0;": "type",
    "selp.b32 %r1, %d2, %r3, %p1;": "another type",
    "cvt.u64.u32 %r1, %r2;": "another type",
    "cvt.b64.b32 %d1, %r2;": "type",
    "cvta.to.global.u32 %r1, %r2;": "type",
    "mov.u32 %r1, %d1;": "another type",
    "mov.u64 %d1, %tid.x;": "32 bits",
    "mov.u32 %r1, %tid;": ".x, .y or .z",
    "mov.u32 %ntid.x, 1;": "unknown register",
    "mov.b8 %h0, %h1;": "type",
    "mov.u64 %d1, 0xfffffffffffffffff;": "64 bits",
    "mov.u32 %r1, 08;": "constant",
    "ld.global.u32 %h1, [%d0];": "another type",
    "ld.global.u32 %f1, [%d0];": "another type",
    "ld.global.u32 %r1, [%r1];": "cannot be an address",
    "ld.global.u32 %r1, [%d0-4];": "']' expected",
    "ld.global.u32 %r1, [16];": "expected",
    "ld.global.u32 %r1, [%d0+%d1];": "number",
    "ld.global.u32 %r1, %d0;": "'[' expected",
    "ld.global.u32 5, [%d0];": "register expected",
    "ld.global.v4.u64 {%d1, %d2, %d3, %d4}, [%d0];": "16 bytes",
    "ld.global.v4.u32 {%r1, %r2, %r3}, [%d0];": "',' expected",
    "ld.global.v2.u64 %d1, [%d0];": "'{' expected",
    "ld.global.v3.u32 {%r1, %r2, %r3}, [%d0];": "'.v3'",
    "ld.global.wb.u64 %d1, [%d0];": "'.wb'",
    "ld.volatile.global.cs.u32 %r1, [%d0];": "no hint",
    "ld.param.u32 %r1, [nope];": "nothing named",
    "st.global.ca.u64 [%d0], %d1;": "'.ca'",
    "st.global.nc.u32 [%d0], %r1;": "'.nc'",
    "st.global.u64 [%d0], %r1;": "another type",
    "st.global.pred [%d0], %p1;": "type",
    "st.param.u32 [p], %r1;": "read only",
    "bra nowhere;": "not defined",
    "@%r1 bra end; end:": "another type",
    "end: mov.u32 %r1, 0; end: mov.u32 %r1, 1;": "twice",
    "bar.sync 16;": "up to 15",
    "bar.sync;": "number",
    ".reg .b32 %r1;": "twice",
    ".shared .b8 big[49153]; mov.u32 %r1, big; st.shared.u32 [%r1], %r2;": "up to 49152",
    ".unknown;": "unknown directive",
}
# Bodies that a device takes and the interpreter does not know.
UNKNOWN = (
    "trap;",
    "mov.u32 %r1, 1+2;",
    "add.rn.f32 %f1, %f1, %f1;",
    "bar.sync %r1;",
    "{ .reg .b32 %x; mov.u32 %x, 1; }",
)
# Bodies that both take, odd as they look.
TAKEN = (
    "add.u32 %r1, %r2, 0x1ffffffff;",
    "add.u32 %r1, %i2, -5;",
    "and.pred %p1, %p2, 1;",
    "setp.lt.and.u32 %p1|%p2, %r1, %r2, !%p3;",
    "cvt.u8.u32 %d1, %tid.x;",
    "mov.b32 %r1, %f1;",
    "mov.u32 %r1, 0b101; mov.u32 %r2, 017; mov.u32 %r3, 5U;",
    "mov.pred %p1, 1;",
    "ld.v2.u64.global {%d1, _}, [%d0+-16];",
    "ld.global.f32 %r1, [%d0];",
    "ld.param.u32 %r1, [p+64];",
    "ld.param.u64 %d1, [q];",
    "st.global.v2.u32 [%d0], {%r1, 5};",
    ".shared .align 16 .b8 buf[64]; ld.shared.u32 %r2, [buf+4]; mov.u64 %d1, buf; st.shared.u32 [%d1], %r2;",
    "exit; ret.uni; bra.uni end; end:",
    '/* a comment\n over lines */ bar.sync 0; // and this\n .pragma "nounroll";',
)


def test_faulty_text_is_refused_when_it_is_loaded(interpreter):
    for body, reason in REFUSED.items():
        with pytest.raises(Refused) as refused:
            interpreter.load(kernel(body))
        assert refused.value.code == INVALID_PTX
        assert refused.value.message.startswith("line 1")
        assert reason in refused.value.message, body
    for body in UNKNOWN:
        with pytest.raises(Refused):
            interpreter.load(kernel(body))
    for body in TAKEN:
        interpreter.load(kernel(body)).free()


def test_ptxas_refuses_and_takes_the_same_texts(tmp_path):
    ptxas = assemblers()[-1]
    for bodies, wrong in ((REFUSED, True), (UNKNOWN, False), (TAKEN, False)):
        for body in bodies:
            complaint = assemble(ptxas, kernel(body), "sm_75", tmp_path, "-O0")
            assert bool(complaint) == wrong, f"{body}: {complaint}"


def test_modules_that_are_not_for_us(interpreter):
    text = PTX.read_text()
    for change, code in (
        ((".version 7.0", ".version 9.9"), UNSUPPORTED_VERSION),
        ((".version 7.0", ".version 12.0"), UNSUPPORTED_VERSION),
        ((".version 7.0", ""), INVALID_PTX),
        ((".version 7.0", ".version 7"), INVALID_PTX),
        ((".target sm_75", ".target"), INVALID_PTX),
        ((".address_size 64", ".address_size 32"), INVALID_PTX),
        ((".visible .entry kvconn_scatter", ".visible .entry kvconn_gather"), INVALID_PTX),
        ((".visible .entry", ".visible .func"), INVALID_PTX),
        (("\tret;\n}", "\tret;\n"), INVALID_PTX),
    ):
        assert change[0] in text
        with pytest.raises(Refused) as refused:
            interpreter.load(text.replace(*change))
        assert refused.value.code == code, change


def test_damaged_text_is_refused_or_loads(interpreter):
    """Text that is cut off, or has bytes changed, never harms the process."""
    text, rng = PTX.read_bytes(), random.Random(3)
    for cut in range(0, text.index(b"kvconn_scatter"), 37):
        with pytest.raises(Refused):
            interpreter.load(text[:cut])
    loaded = 0
    for _ in range(1500):
        damaged = bytearray(text)
        for _ in range(rng.choice([1, 1, 3])):
            at, n = rng.randrange(len(text)), rng.randrange(6)
            damaged[at : at + n] = rng.choice(
                [b"", rng.randbytes(n), b"{", b"%r<9", b"0x", b".", b"<60000>", b"/*", text[at + 9 : at + 30]]
            )
        try:
            interpreter.load(bytes(damaged)).free()
            loaded += 1
        except Refused:
            pass
    assert 0 < loaded < 1500
