"""What bench.py compares: SGLang servers that keep pages in different places, and can be stopped for a while."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import environment
from processes import Daemon
from scene import MODEL_SEED
from server import Server
from stage import Place
from storage import Storage, kvconn

SETTLE_S = 60.0


class System:
    """A server, and what is below its memory. With `keeps_device` device memory is not flushed between requests."""

    keeps_device = False

    def __init__(self, place: Place, name: str, arguments: Sequence[str] = ()) -> None:
        self.name, self.place = name, place
        self.arguments = list(arguments)
        self.server = Server(place.env, environment.model(place.env, MODEL_SEED), place.work / f"sglang-{name}.log")

    def storage(self) -> Storage | None:
        """Return the storage backend."""
        return None

    def start(self) -> None:
        """Start the server, and return when it serves."""
        self.server.start(self.storage(), calm=False, arguments=self.arguments)
        self.server.wait()

    def settle(self) -> None:
        """Wait until all that was saved is stored."""

    def freeze(self) -> None:
        """Stop the server's processes: an idle SGLang spins."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let them go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if (pid := self.server.pid) is not None:
            os.killpg(pid, number)

    def kill(self) -> None:
        """End everything."""
        self.server.kill()


class Device(System):
    """A server without a backend whose device memory has the prompts that were asked before: no backend is faster."""

    keeps_device = True


class FileSystem(System):
    """SGLang's own `file` backend. Its files stay in the page cache."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "file")
        self._directory = place.work / "files-bench"

    def storage(self) -> Storage | None:
        """Return the storage backend."""
        return Storage("file", variables={"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": str(self._directory)})

    def settle(self) -> None:
        """Wait until no new file has come for a while."""
        wait_steady(lambda: _files(self._directory))


class KVConn(System):
    """kvconnd, as `kvconnd config sglang` configures it but for what a CPU lacks."""

    def __init__(
        self,
        place: Place,
        name: str = "kvconn",
        arguments: Sequence[str] = ("--hicache-host-memory-mode", "buffer_only"),
    ) -> None:
        super().__init__(place, name, [*arguments, "--hicache-storage-prefetch-policy", "timeout"])
        self.daemon = Daemon(
            place.binary,
            place.work / f"store-{name}",
            place.sockets / f"{name}.sock",
            place.work / f"kvconnd-{name}.log",
        )

    def storage(self) -> Storage | None:
        """Return the storage backend."""
        return kvconn(self.place.binary, self.daemon.socket_path)

    def start(self) -> None:
        """Start daemon and server."""
        self.daemon.start(settings=())  # with the price of its own
        super().start()
        self.daemon.wait_until(lambda: self.daemon.metric("kvconn_ranks") >= 1, "the rank")

    def settle(self) -> None:
        """Wait until no new block has come for a while, and all are on disk."""
        wait_steady(lambda: self.daemon.metric("kvconn_saved_blocks_total"))
        self.daemon.wait_for_writes()

    def kill(self) -> None:
        """End everything."""
        super().kill()
        self.daemon.kill()


def wait_steady(count: Callable[[], float], steady_s: float = 0.3) -> None:
    """Wait until a count has not changed for a while."""
    until = time.monotonic() + SETTLE_S
    last, since = count(), time.monotonic()
    while time.monotonic() - since < steady_s:
        if time.monotonic() > until:
            raise RuntimeError("saves do not end")
        time.sleep(0.05)
        if (now := count()) != last:
            last, since = now, time.monotonic()


def _files(directory: Path) -> int:
    return sum(1 for _ in directory.glob("*.bin"))


SYSTEMS: Mapping[str, Callable[[Place], System]] = {
    "none": lambda place: System(place, "none"),
    "none-again": lambda place: System(place, "none-again"),
    "device": lambda place: Device(place, "device"),
    "file": FileSystem,
    "kvconn": KVConn,
    "kvconn-cache": lambda place: KVConn(place, "kvconn-cache", ()),
}
"""By name. What `none-again` differs from `none` by is noise; so is `device`, for prompts that are not cached."""
