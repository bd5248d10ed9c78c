"""KV memory on a GPU, as the daemon gets it: a description of each region, and descriptors of its allocations."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence

from kvconn.cuda import regions
from kvconn.cuda.calls import CallNumbers, Retired
from kvconn.cuda.driver import LIBRARY, Device, Driver
from kvconn.cuda.regions import MAX_PARTS, Part, Range
from kvconn.engine_memory import EngineMemoryError
from kvconn.fence import FencePage
from kvconn.memfd import sealed_memfd_of

MAX_REGIONS = 15
"""A registration carries 17 descriptors: the page and the socket of the exports are among them."""
REGISTRATION_TIMEOUT_S = 90.0
"""The daemon may have to start a copier for the GPU first, and the copier may have to map thousands of exports."""
_EXPORTS_IN_MESSAGE = 64
"""The kernel bounds how many descriptors of a user are on their way at once (RLIMIT_NOFILE)."""
_FULL_PAUSE_S = 0.005
_FORMAT = 1


class DeviceMemory:
    """Regions of a GPU's memory. An EngineMemory.

    A region is ranges of addresses, end to end in the offsets of the layout: all tensors of an engine can be one. The
    ranges of a region are all of cuMemAlloc or all of cuMemCreate; they must stay allocated while they are
    registered. `stream` returns the CUDA stream that the calling thread's work is queued on, as a number:
    `torch.cuda.current_stream().cuda_stream`.
    """

    timeout = REGISTRATION_TIMEOUT_S

    def __init__(
        self, ranges: Sequence[Sequence[Range]], device: int, stream: Callable[[], int], library: str = LIBRARY
    ) -> None:
        """Prepare regions on the device of a number, that of this process.

        Raises NotShareable where CUDA cannot share the memory, EngineMemoryError where it cannot be registered.
        """
        if not 0 < len(ranges) <= MAX_REGIONS:
            raise EngineMemoryError(f"{len(ranges)} regions: 1 to {MAX_REGIONS} can be registered")
        self._regions, self._stream = [tuple(region) for region in ranges], stream
        self._device = Device(Driver(library), device)
        self._retired = Retired(self._device)
        self._found()  # what cannot be shared is said now

    @contextlib.contextmanager
    def hand_over(self) -> Iterator[Sequence[int]]:
        """Yield the descriptors of the descriptions, and that of the socket by which the exports come."""
        found = self._found()
        exports = [part for parts in found for part in parts if part.handle is None]
        fds: list[int] = []
        sending: _Sending | None = None
        try:
            first = 0
            for parts in found:
                fds.append(sealed_memfd_of("kvconn-region", self._description(parts, first)))
                first += len(parts) if parts[0].handle is None else 0
            if exports:
                sending = _Sending(self._device, exports)
                fds.append(sending.theirs)
            yield fds
        except BaseException as err:
            if sending is not None and sending.failed is not None:
                raise EngineMemoryError(f"the KV memory cannot be exported: {sending.failed}") from err
            raise
        finally:
            for fd in fds:
                os.close(fd)
            if sending is not None:
                sending.end()

    def calls(self, page: FencePage) -> CallNumbers:
        """Return the numbers of the calls of a registration."""
        return CallNumbers(self._device, page, self._stream, self._retired)

    def _found(self) -> list[list[Part]]:
        """Return the allocations of each region."""
        with self._device.current() as driver:
            found = [regions.find(driver, ranges, self._device.ordinal) for ranges in self._regions]
        if sum(part.handle is None for parts in found for part in parts) > MAX_PARTS:
            raise regions.too_many()
        return found

    def _description(self, parts: Sequence[Part], exports: int) -> bytes:
        kind = "vmm" if parts[0].handle is None else "ipc"
        told = [part.described(exports + i) for i, part in enumerate(parts)]
        text = {"kvconn_region": _FORMAT, "device": self._device.uuid, "kind": kind, "parts": told}
        return json.dumps(text, separators=(",", ":")).encode()


class _Sending:
    """Exports allocations in order, in a thread, and sends their descriptors. `theirs` is the daemon's end.

    Few are open at a time: a process may have 1,024 descriptors, and the memory of a large GPU is in thousands of
    allocations.
    """

    def __init__(self, device: Device, parts: Sequence[Part]) -> None:
        self.failed: Exception | None = None
        self._device, self._parts = device, parts
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.theirs = theirs.detach()
        self._thread = threading.Thread(target=self._run, name="kvconn-exports", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for first in range(0, len(self._parts), _EXPORTS_IN_MESSAGE):
                self._export(self._parts[first : first + _EXPORTS_IN_MESSAGE])
        except OSError:
            pass  # the daemon, or end(), has hung up
        except Exception as err:  # noqa: BLE001 - whatever it is, the registration fails with it
            self.failed = err
        finally:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)

    def _export(self, parts: Sequence[Part]) -> None:
        fds: list[int] = []
        try:
            with self._device.current() as driver:
                for part in parts:
                    fds.append(regions.export(driver, part))  # noqa: PERF401 - those before one that fails are closed
            self._send(fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _send(self, fds: Sequence[int]) -> None:
        """Send one message. While too many descriptors of this user are on their way, wait: the daemon takes them."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))]
        while True:
            try:
                self._socket.sendmsg([b"\0"], rights)
                return
            except OSError as err:
                if err.errno != errno.ETOOMANYREFS:
                    raise
            time.sleep(_FULL_PAUSE_S)
            self._socket.send(b"", socket.MSG_DONTWAIT)  # raises once hung up

    def end(self) -> None:
        """Hang up, and return when nothing is open any more."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()
