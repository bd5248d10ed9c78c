from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import time

import pytest

from kvconn import fence
from kvconn.fence import FencePage


def words_of(page: FencePage) -> memoryview:
    """The daemon's mapping."""
    return memoryview(mmap.mmap(page.fd, 4096)).cast("Q")


def test_the_page_is_sealed_and_has_the_documented_size() -> None:
    page = FencePage()
    assert os.fstat(page.fd).st_size == 4096
    f_get_seals, shrink_and_grow = 1034, 2 | 4
    assert fcntl.fcntl(page.fd, f_get_seals) & shrink_and_grow == shrink_and_grow
    page.close()


def test_the_fence_is_seen_by_the_other_side_and_its_count_by_this_one() -> None:
    page = FencePage()
    words = words_of(page)
    assert not page.fenced
    page.fence()
    page.fence()
    assert page.fenced
    assert bytes(words)[:8] == b"\x01" + bytes(7)
    assert page.idle()
    words[8] = 2
    assert not page.idle()
    words[8] = 0
    assert page.idle()
    page.close()


def descriptors_of_pages() -> int:
    """How many descriptors of fence pages are open: other threads open and close others."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += "kvconn-fence" in os.readlink(f"/proc/self/fd/{fd}")
    return count


def test_closing_leaves_no_descriptor() -> None:
    before = descriptors_of_pages()
    FencePage().close()
    assert descriptors_of_pages() == before


@pytest.mark.skipif(not fence._membarrier(), reason="no membarrier here")
def test_where_there_is_a_membarrier_it_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("slept"))
    fence.full_barrier()


def test_where_there_is_none_the_thread_is_switched(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(fence.platform, "machine", lambda: "vax")
    monkeypatch.setattr(time, "sleep", slept.append)
    fence.full_barrier()
    assert slept == [fence._CONTEXT_SWITCH_S]
