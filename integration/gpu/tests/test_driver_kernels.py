"""Modules and launches of the fake driver, with a stand-in for its interpreter of PTX."""

from __future__ import annotations

from pathlib import Path

import driver
import pytest

SOURCES = Path(__file__).resolve().parent.parent / "fakecuda"

# Its one kernel copies n bytes. A bad address is an error, as with the interpreter.
STAND_IN = """
#include <string.h>
#include <stdio.h>
#include "fakecuda_ptx.h"
static int one;
int fc_ptx_load(const char *text, size_t n, struct fc_ptx_module **out, char *err, size_t errn) {
    *out = (void *)&one;
    if (strstr(text, "nonsense") == NULL) return 0;
    snprintf(err, errn, "nonsense among %zu bytes", n);
    return 218;
}
struct fc_ptx_func *fc_ptx_func(struct fc_ptx_module *m, const char *name) {
    return strcmp(name, "missing") != 0 ? (void *)m : NULL;
}
int fc_ptx_launch(struct fc_ptx_func *f, const unsigned grid[3], const unsigned block[3], unsigned shared_bytes,
                  void **params, const struct fc_ptx_memory *mem) {
    unsigned n = *(unsigned *)params[2];
    void *dst = mem->translate(mem->ctx, *(uint64_t *)params[0], n, 1);
    void *src = mem->translate(mem->ctx, *(uint64_t *)params[1], n, 0);
    if (dst == NULL || src == NULL || f == NULL || *(char *)params[3] != 'p' || shared_bytes != 16) return 700;
    memcpy(dst, src, n);
    return grid[0] == 3 && block[1] == 2 ? 0 : 1;
}
size_t fc_ptx_param_bytes(const struct fc_ptx_func *f, size_t index) {
    static const size_t sizes[] = {8, 8, 4, 12};
    return index < 4 && f != NULL ? sizes[index] : 0;
}
int fc_ptx_accepts(const struct fc_ptx_func *f, const unsigned grid[3], const unsigned block[3],
                   unsigned shared_bytes) {
    return f != NULL && grid[0] > 0 && block[0] <= 64 && shared_bytes <= 16;
}
void fc_ptx_free(struct fc_ptx_module *m) { (void)m; }
"""

PTX = """
// Not so: .version 99.9
.version 7.0
.target sm_75
.address_size 64
"""


@pytest.fixture(scope="module")
def interpreted(stand_in, build, tmp_path_factory):
    """The fake driver with the stand-in instead of the interpreter."""
    source = tmp_path_factory.mktemp("stand-in") / "stand_in.c"
    source.write_text(STAND_IN)
    return build(f"-I{SOURCES}", str(source), interpreter=False)


def kernels(text: str) -> None:
    import ctypes

    cu = driver.Driver()
    module = cu.get("cuModuleLoadData", text.encode())
    function = cu.get("cuModuleGetFunction", module, b"copy")
    with driver.refused(driver.NOT_FOUND):
        cu.get("cuModuleGetFunction", module, b"missing")
    device, here, stream = cu.alloc(4096), driver.host(4096), cu.stream()
    cu.cuMemHostRegister_v2(here, 4096, 3)
    driver.put(here, b"by a kernel")
    values = (
        ctypes.c_uint64(device),
        ctypes.c_uint64(here),
        ctypes.c_uint32(11),
        ctypes.create_string_buffer(b"p", 12),
    )
    params = (ctypes.c_void_p * 4)(*(ctypes.addressof(v) for v in values))

    def launch(grid=(3, 1, 1), block=(64, 2, 1), shared=16, extra=0) -> int:
        return cu.code.cuLaunchKernel(function, *grid, *block, shared, stream, params, extra)

    assert launch() == 0
    values[0].value = 0  # The launch has its own copy by now.
    cu.cuStreamSynchronize(stream)
    assert cu.read(device, 11) == b"by a kernel"
    for wrong in ({"grid": (0, 1, 1)}, {"block": (65, 2, 1)}, {"shared": 17}):
        assert launch(**wrong) == driver.INVALID_VALUE
    assert launch(extra=1) == driver.NOT_SUPPORTED
    driver.counted(launches=1)
    cu.cuModuleUnload(module)
    assert launch() == cu.code.cuModuleUnload(module) == driver.INVALID_HANDLE


def test_a_kernel_is_launched_with_a_copy_of_its_parameters(scenes, interpreted):
    scenes.run(kernels, PTX, library=interpreted, DELAY_US=10000)


def bad_address(text: str, where: str) -> None:
    import ctypes

    cu = driver.Driver()
    function = cu.get("cuModuleGetFunction", cu.get("cuModuleLoadData", text.encode()), b"copy")
    device, here = cu.alloc(4096), driver.host(8192)
    cu.cuMemHostRegister_v2(here, 4096, 3)
    src = {"beyond": device + 4090, "host": here + 4096, "pinned": here + 4090}[where]
    values = (ctypes.c_uint64(device), ctypes.c_uint64(src), ctypes.c_uint32(11), ctypes.create_string_buffer(b"p", 12))
    params = (ctypes.c_void_p * 4)(*(ctypes.addressof(v) for v in values))
    cu.cuLaunchKernel(function, 3, 1, 1, 1, 2, 1, 16, 0, params, 0)
    assert cu.code.cuCtxSynchronize() == cu.code.cuMemFree_v2(device) == driver.ILLEGAL_ADDRESS


@pytest.mark.parametrize("where", ["beyond", "host", "pinned"])
def test_a_kernel_that_reaches_too_far_loses_the_device(scenes, interpreted, where):
    scenes.run(bad_address, PTX, where, library=interpreted)


def loading(text: str, code: int) -> None:
    import ctypes

    cu = driver.Driver()
    log = ctypes.create_string_buffer(64)
    options = (ctypes.c_int * 2)(5, 6)
    values = (ctypes.c_void_p * 2)(ctypes.addressof(log), 64)
    assert cu.code.cuModuleLoadDataEx(ctypes.byref(ctypes.c_uint64()), text.encode(), 2, options, values) == code
    print(log.value.decode())


def test_what_is_no_module_of_this_driver_is_refused(scenes, interpreted):
    def refuse(text: str, code: int, **settings) -> str:
        return scenes.run(loading, text, code, library=interpreted, **settings)

    assert "nonsense among" in refuse(PTX + "nonsense", driver.INVALID_PTX)
    refuse("\x7fELF", driver.NO_BINARY)
    refuse("nothing", driver.NO_BINARY)
    newer = PTX.replace("7.0", "9.0")
    refuse(newer, driver.UNSUPPORTED_PTX, VERSION=12080)
    refuse(newer, 0, VERSION=13000)
    refuse(PTX.replace("7.0", "8.5"), driver.UNSUPPORTED_PTX, VERSION=12040)
    refuse(PTX.replace("sm_75", "sm_100"), driver.INVALID_PTX)


def test_a_build_without_an_interpreter_says_so(stand_in, scenes, build):
    library = build(interpreter=False)
    assert "no interpreter" in scenes.run(loading, PTX, driver.INVALID_PTX, library=library)


def copy_kernel(path: str) -> None:
    import ctypes
    import random
    import struct

    cu, draw = driver.Driver(), random.Random(7)
    with open(path, "rb") as file:
        module = cu.get("cuModuleLoadData", file.read() + b"\0")
    stream, memory, slot = cu.stream(), cu.alloc(1 << 20), 2048
    runs = [(memory + 4096 * i + draw.randrange(64), slot * i, draw.randrange(slot)) for i in range(250)]
    before = draw.randbytes(1 << 20)
    cu.write(memory, before)
    described = b"".join(struct.pack("<QII", *run) for run in runs)
    table, staging = cu.alloc(len(described)), driver.host(1 << 20)
    cu.write(table, described)
    cu.cuMemHostRegister_v2(staging, 1 << 20, 3)
    values = (ctypes.c_uint64(table), ctypes.c_uint64(staging), ctypes.c_uint32(len(runs)), ctypes.c_uint32(4))
    params = (ctypes.c_void_p * 4)(*(ctypes.addressof(v) for v in values))

    def launch(name: bytes) -> None:
        function = cu.get("cuModuleGetFunction", module, name)
        cu.cuLaunchKernel(function, 3, 1, 1, 256, 1, 1, 0, stream, params, 0)
        cu.cuStreamSynchronize(stream)

    launch(b"kvconn_gather")
    gathered = ctypes.string_at(staging, 1 << 20)
    for address, offset, size in runs:
        at = address - memory
        assert gathered[offset : offset + slot] == before[at : at + size] + bytes(slot - size)
    cu.cuMemsetD8_v2(memory, 0, 1 << 20)
    launch(b"kvconn_scatter")
    after = bytearray(1 << 20)
    for address, _, size in runs:
        at = address - memory
        after[at : at + size] = before[at : at + size]
    assert cu.read(memory, 1 << 20) == bytes(after)


def test_the_copy_kernel_goes_through_the_driver(scenes):
    kernel = SOURCES.parents[2] / "gpu" / "kernel" / "copy.ptx"
    if not kernel.exists() or not (SOURCES / "ptx").is_dir():
        pytest.skip("there is no kernel or no interpreter of PTX here")
    scenes.run(copy_kernel, str(kernel))
