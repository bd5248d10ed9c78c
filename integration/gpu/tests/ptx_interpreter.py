"""The fake driver's PTX interpreter, built alone and called through ctypes."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest

GPU = Path(__file__).resolve().parent.parent
BUILD = GPU / "fakecuda" / "build.sh"

INVALID_VALUE, INVALID_PTX, UNSUPPORTED_VERSION = 1, 218, 222
ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, MISALIGNED_ADDRESS = 700, 702, 716

MAY_READ, MAY_WRITE_ONCE, MAY_WRITE = 1, 2, 4

# Test kernels: their first lines, their registers, and where their memory is.
HEADER = ".version 7.0\n.target sm_75\n.address_size 64\n"
REGISTERS = """\t.reg .pred %p<4>;
\t.reg .b16 %h<4>;
\t.reg .b32 %r<8>;
\t.reg .s32 %i<4>;
\t.reg .b64 %d<8>;
\t.reg .f32 %f<4>;
"""
MEMORY = 0x10000


class Refused(Exception):
    """The loader does not take a module."""

    def __init__(self, code: int, message: str):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


class Region(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("size_bytes", ctypes.c_uint64),
        ("bytes", ctypes.c_void_p),
        ("may", ctypes.c_void_p),
    )


class Regions(ctypes.Structure):
    _fields_ = (
        ("regions", ctypes.c_uint64),
        ("fault_address", ctypes.c_uint64),
        ("fault_is_write", ctypes.c_uint64),
        ("reads", ctypes.c_uint64),
        ("writes", ctypes.c_uint64),
        ("region", Region * 4),
    )


class Seam(ctypes.Structure):
    _fields_ = (("ctx", ctypes.c_void_p), ("translate", ctypes.c_void_p))


class Memory:
    """Device memory: bytearrays at device addresses, each with a bytearray of what may be done to each byte."""

    def __init__(self):
        self.regions = Regions()
        self.kept = []

    def add(self, address: int, data: bytearray, may: bytearray) -> None:
        assert len(data) == len(may)
        place = [ctypes.addressof((ctypes.c_uint8 * len(b)).from_buffer(b)) if b else 0 for b in (data, may)]
        self.kept += [data, may]
        self.regions.region[self.regions.regions] = Region(address, len(data), *place)
        self.regions.regions += 1


class Interpreter:
    def __init__(self, directory: Path):
        self.ptx = self._build(directory / "ptx.so", "ptx")
        self.memory = self._build(directory / "memory.so", "", Path(__file__).with_name("ptx_memory.c"))
        self.translate = ctypes.cast(self.memory.ptx_memory_translate, ctypes.c_void_p).value
        pointer = ctypes.c_void_p
        self.ptx.fc_ptx_load.argtypes = [ctypes.c_char_p, ctypes.c_size_t, pointer, ctypes.c_char_p, ctypes.c_size_t]
        self.ptx.fc_ptx_func.argtypes, self.ptx.fc_ptx_func.restype = [pointer, ctypes.c_char_p], pointer
        self.ptx.fc_ptx_param_bytes.argtypes = [pointer, ctypes.c_size_t]
        self.ptx.fc_ptx_param_bytes.restype = ctypes.c_size_t
        self.ptx.fc_ptx_accepts.argtypes = [pointer, pointer, pointer, ctypes.c_uint]
        self.ptx.fc_ptx_launch.argtypes = [pointer, pointer, pointer, ctypes.c_uint, pointer, pointer]
        self.ptx.fc_ptx_free.argtypes, self.ptx.fc_ptx_free.restype = [pointer], None
        self.ptx.fc_ptx_limit.argtypes, self.ptx.fc_ptx_limit.restype = [pointer, ctypes.c_uint64], None

    @staticmethod
    def _build(library: Path, parts: str, *more: Path) -> ctypes.CDLL:
        compiler = shutil.which("gcc")
        if compiler is None:
            pytest.skip("there is no gcc to build the PTX interpreter with")
        environment = {**os.environ, "CC": compiler, "FAKECUDA_PARTS": parts}
        subprocess.run([BUILD, library, *more], check=True, env=environment)
        return ctypes.CDLL(str(library))

    def load(self, text: str | bytes, limit: int = 1 << 32) -> "Module":
        text = text.encode() if isinstance(text, str) else text
        module, err = ctypes.c_void_p(), ctypes.create_string_buffer(256)
        code = self.ptx.fc_ptx_load(text, len(text), ctypes.byref(module), err, len(err))
        if code:
            assert not module.value, "a module came with an error"
            raise Refused(code, err.value.decode(errors="replace"))
        self.ptx.fc_ptx_limit(module, limit)
        return Module(self, module)


class Module:
    def __init__(self, interpreter: Interpreter, module: ctypes.c_void_p):
        self.interpreter, self.module = interpreter, module

    def __enter__(self):
        return self

    def __exit__(self, *_: object):
        self.free()

    def free(self) -> None:
        self.interpreter.ptx.fc_ptx_free(self.module)

    def has(self, name: str) -> bool:
        return bool(self.interpreter.ptx.fc_ptx_func(self.module, name.encode()))

    def param_bytes(self, name: str) -> list[int]:
        func = self.interpreter.ptx.fc_ptx_func(self.module, name.encode())
        sizes = [self.interpreter.ptx.fc_ptx_param_bytes(func, i) for i in range(16)]
        return sizes[: sizes.index(0)]

    def launch(self, name, params, memory=None, grid=(1, 1, 1), block=(256, 1, 1), shared_bytes=0) -> int:
        """Run an entry. Parameters are ctypes values."""
        func = self.interpreter.ptx.fc_ptx_func(self.module, name.encode())
        assert func, f"no entry {name}"
        memory = memory or Memory()
        seam = Seam(ctypes.addressof(memory.regions), self.interpreter.translate)
        places = (ctypes.c_void_p * max(len(params), 1))(*[ctypes.addressof(p) for p in params])
        dimensions = [(ctypes.c_uint * 3)(*d) for d in (grid, block)]
        code = self.interpreter.ptx.fc_ptx_launch(func, *dimensions, shared_bytes, places, ctypes.byref(seam))
        accepted = self.interpreter.ptx.fc_ptx_accepts(func, *dimensions, shared_bytes)
        assert bool(accepted) == (code != INVALID_VALUE), "the shape of a launch is judged in two ways"
        return code


def kernel(body: str, before: str = "") -> str:
    """A module with one entry, whose %d0 is its first parameter."""
    return (
        f"{HEADER}{before}.visible .entry k(.param .u64 p, .param .u32 q)\n"
        f"{{\n{REGISTERS}\tld.param.u64 %d0, [p];\n{body}\n\tret;\n}}\n"
    )


def run(interpreter, body, data=b"", block=(1, 1, 1), before="", limit=1 << 20, q=0, **options):
    """Run a body on memory that begins at %d0; return the code and the memory afterwards."""
    memory, mem = bytearray(data), Memory()
    mem.add(MEMORY, memory, bytearray([MAY_READ | MAY_WRITE]) * len(memory))
    with interpreter.load(kernel(body, before), limit=limit) as module:
        params = [ctypes.c_uint64(MEMORY), ctypes.c_uint32(q)]
        return module.launch("k", params, mem, block=block, **options), memory
