"""How the daemon learns that a GPU has come to a call: its stream writes the call's number to host memory.

The page is the registration's fence page. The daemon polls its own mapping of it, so nothing on the device ever waits
for the daemon. Numbers are written in order, whatever streams the calls come on.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from kvconn.cuda.driver import ATTRIBUTE_STREAM_MEM_OPS_64, NOT_READY, Device, DriverError, HostFunction
from kvconn.engine_memory import NotAnnounced
from kvconn.fence import PAGE_BYTES, REACHED_OFFSET, FencePage

_PAUSE_S, _PAUSE_MAX_S = 0.001, 1.0


@dataclass(frozen=True)
class _Ended:
    """A page whose registration has ended, its last number, and what is needed until that is written."""

    page: FencePage
    last: int
    event: int
    function: HostFunction | None


class Retired:
    """Pages whose registrations have ended, kept until the device has written the last number to them.

    A device that writes to host memory which is gone takes its context with it. A thread of its own closes them: to
    unregister host memory may wait for the whole device. For any thread.
    """

    def __init__(self, device: Device) -> None:
        self._device = device
        self._lock = threading.Lock()
        self._pages: list[_Ended] = []
        self._broken: list[_Ended] = []
        self._running = False

    def add(self, ended: _Ended) -> None:
        """Keep a page until its last number is written. Never waits."""
        with self._lock:
            self._pages.append(ended)
            if self._running:
                return
            threading.Thread(target=self._run, name="kvconn-retired", daemon=True).start()
            self._running = True

    def _run(self) -> None:
        pause = _PAUSE_S
        while self._remain():
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_MAX_S)

    def _remain(self) -> bool:
        """Close the pages that are written, and return whether others remain."""
        with self._lock:
            pages = list(self._pages)
        left = [ended for ended in pages if not self._closed(ended)]
        with self._lock:
            self._pages = left + self._pages[len(pages) :]
            self._running = bool(self._pages)
            return self._running

    def _closed(self, ended: _Ended) -> bool:
        if ended.page.reached < ended.last:
            return False
        try:
            with self._device.current() as driver:
                # A host function may have written its number, and not have returned yet.
                if driver.code("cuEventQuery", ended.event) == NOT_READY:
                    return False
                driver.call("cuMemHostUnregister", ended.page.address)
                driver.code("cuEventDestroy_v2", ended.event)
        except DriverError:
            self._broken.append(ended)  # so is the context: the page ends with the process
            return True
        ended.page.close()
        return True


class CallNumbers:
    """The numbers of one registration's calls. For any thread."""

    def __init__(self, device: Device, page: FencePage, stream: Callable[[], int], retired: Retired) -> None:
        """`stream` returns the CUDA stream that the calling thread's work is queued on."""
        self._device, self._page, self._stream, self._retired = device, page, stream, retired
        self._lock = threading.Lock()
        self._number = 0
        self._queued_on: int | None = None
        self._closed = False
        self._function: HostFunction | None = None
        with device.current() as driver:
            by_stream = device.has(ATTRIBUTE_STREAM_MEM_OPS_64)
            self._event = device.event()
            try:
                self._address = device.map_host(page.address, PAGE_BYTES) + REACHED_OFFSET
            except DriverError:
                driver.code("cuEventDestroy_v2", self._event)
                raise
        if not by_stream:
            self._function = HostFunction(self._reached)

    def announce(self) -> None:
        """Have the device write the next number. Raises NotAnnounced or EngineMemoryError."""
        with self._lock:
            if self._closed:
                return  # the call that follows fails, too
            stream = self._stream()
            with self._device.current() as driver:
                if self._captured(stream):
                    raise NotAnnounced(
                        "the engine's stream is being captured: a graph would write the number each time"
                    )
                if self._queued_on not in (None, stream):
                    driver.call("cuStreamWaitEvent", stream, self._event, 0)
                self._write(stream)
                # Not when the stream changes: the engine may have destroyed it by then.
                driver.call("cuEventRecord", self._event, stream)
                self._queued_on = stream

    def _captured(self, stream: int) -> bool:
        status = ctypes.c_int()
        self._device.driver.call("cuStreamIsCapturing", stream, ctypes.byref(status))
        return status.value != 0

    def _write(self, stream: int) -> None:
        number = self._number + 1
        if self._function is not None:
            self._device.driver.call("cuLaunchHostFunc", stream, self._function, number)
        else:
            self._device.driver.call("cuStreamWriteValue64_v2", stream, self._address, number, 0)
        self._number = number

    def _reached(self, number: int | None) -> None:
        """Write a number, on a thread of the driver's."""
        self._page.reach(number or 0)

    def close(self) -> None:
        """Announce nothing more. The page is closed once its last number is written."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._retired.add(_Ended(self._page, self._number, self._event, self._function))
