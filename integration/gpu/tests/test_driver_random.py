"""Random calls with handles and addresses that are right, stale or invented: each is answered, and none crashes."""

from __future__ import annotations

import os

import driver
import pytest


def random_calls(seed: int, calls: int) -> None:
    import ctypes
    import os
    import random
    from collections import Counter

    cu, draw, g = driver.Driver(), random.Random(seed), driver.GRANULE
    page = driver.host(1 << 20)
    cu.cuMemHostRegister_v2(page, 1 << 20, 3)
    kinds = ("stream", "event", "memory", "handle", "reserved", "export")
    known = {kind: [0x700000000000 + 16 * i for i in range(3)] for kind in kinds}
    known["export"] = [-1, 0, 1000]
    answers = Counter()

    def some(kind: str) -> int:
        return draw.choice(known[kind])

    def keep(kind: str, entry: str, *args, of=ctypes.c_uint64) -> int:
        out = of()
        code = getattr(cu.code, entry)(ctypes.byref(out), *args)
        if code == 0:
            known[kind].append(out.value)
        return code

    def address() -> int:
        return some(draw.choice(("memory", "reserved"))) + draw.choice((0, 8, 4096, g))

    def here() -> int:
        return page + draw.choice((0, 512 << 10, (1 << 20) - 64))

    def size() -> int:
        return draw.choice((0, 64, 4096, 65536))

    def unmap() -> int:
        cu.code.cuCtxSynchronize()
        return cu.code.cuMemUnmap(some("reserved"), draw.choice((g, 2 * g)))

    def close() -> int:
        fd = some("export")
        if fd > 2 and fd in known["export"][3:]:
            known["export"].remove(fd)
            os.close(fd)
        return 0

    def begin_again() -> int:
        code = cu.code.cuDevicePrimaryCtxRelease_v2(0)
        cu.use(0)
        cu.code.cuMemHostRegister_v2(page, 1 << 20, 3)
        return code

    def batch() -> int:
        # An invented address is one of the host's to a batch, and a crash with the real driver, too.
        device = [draw.choice(known["memory"][3:] + known["reserved"][3:] + [page]) for _ in range(5)]
        copies = [draw.choice(((at, here(), size()), (here(), at, size()))) for at in device]
        return cu.batch(copies, [draw.randrange(4) for _ in range(draw.randrange(1, 3))], some("stream"))[0]

    what = {
        "stream": lambda: keep("stream", "cuStreamCreate", draw.randrange(2)),
        "destroy stream": lambda: cu.code.cuStreamDestroy_v2(some("stream")),
        "query": lambda: cu.code.cuStreamQuery(draw.choice((0, 1, 2, some("stream")))),
        "synchronize": lambda: cu.code.cuStreamSynchronize(some("stream")),
        "event": lambda: keep("event", "cuEventCreate", draw.choice((0, 2, 6))),
        "destroy event": lambda: cu.code.cuEventDestroy_v2(some("event")),
        "record": lambda: cu.code.cuEventRecord(some("event"), some("stream")),
        "wait": lambda: cu.code.cuStreamWaitEvent(some("stream"), some("event"), 0),
        "wait here": lambda: cu.code.cuEventSynchronize(some("event")),
        "alloc": lambda: keep("memory", "cuMemAlloc_v2", size()),
        "free": lambda: cu.code.cuMemFree_v2(some("memory")),
        "create": lambda: keep("handle", "cuMemCreate", g, cu.properties(draw.randrange(2)), 0),
        "release": lambda: cu.code.cuMemRelease(some("handle")),
        "retain": lambda: keep("handle", "cuMemRetainAllocationHandle", address()),
        "reserve": lambda: keep("reserved", "cuMemAddressReserve", 2 * g, 0, 0, 0),
        "unreserve": lambda: cu.code.cuMemAddressFree(some("reserved"), 2 * g),
        "map": lambda: cu.code.cuMemMap(some("reserved") + draw.randrange(2) * g, g, 0, some("handle"), 0),
        "unmap": unmap,
        "access": lambda: cu.allow(some("reserved"), draw.choice((g, 2 * g)), flags=draw.choice((0, 1, 3))),
        "export": lambda: keep("export", "cuMemExportToShareableHandle", some("handle"), 1, 0, of=ctypes.c_int),
        "import": lambda: keep("handle", "cuMemImportFromShareableHandle", some("export"), 1),
        "close": close,
        "to device": lambda: cu.code.cuMemcpyHtoDAsync_v2(address(), here(), size(), some("stream")),
        "to host": lambda: cu.code.cuMemcpyDtoHAsync_v2(here(), address(), size(), some("stream")),
        "between": lambda: cu.code.cuMemcpyDtoDAsync_v2(address(), address(), size(), some("stream")),
        "fill": lambda: cu.code.cuMemsetD32Async(address(), 5, size() // 4, some("stream")),
        "batch": batch,
        "write value": lambda: cu.code.cuStreamWriteValue64_v2(some("stream"), address(), 5, 0),
        "wait value": lambda: cu.code.cuStreamWaitValue64_v2(some("stream"), page, 0, 2**30),
        "range": lambda: cu.code.cuMemGetAddressRange_v2(0, 0, address()),
        "name": lambda: cu.code.cuIpcGetMemHandle(ctypes.create_string_buffer(64), address()),
        "close name": lambda: cu.code.cuIpcCloseMemHandle(address()),
    }
    for turn in range(calls):
        name = draw.choice(list(what))
        answers[name, what[name]() == 0] += 1
        if turn % 500 == 499:
            begin_again()
        if min(len(known[kind]) for kind in kinds[:-1]) > 40:
            for kind in kinds[:-1]:
                known[kind] = known[kind][:3] + draw.sample(known[kind][3:], 12)
    assert cu.code.cuCtxSynchronize() == 0, "the device is lost"
    cu.cuDevicePrimaryCtxRelease_v2(0)
    for kind in ("contexts", "streams", "events", "allocations", "registrations", "modules", "pending"):
        assert driver.stats()[kind] == 0, kind
    print(
        sum(count for (_, good), count in answers.items() if good), {name for name, good in answers if good} >= {"map"}
    )


@pytest.mark.parametrize("seed", range(int(os.environ.get("FAKECUDA_SEEDS", "3"))))
def test_no_call_crashes(stand_in, scenes, seed):
    good, mapped = scenes.run(random_calls, seed, 4000).split()
    assert int(good) > 400
    assert mapped == "True"
