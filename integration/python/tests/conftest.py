from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    # Socket paths are short: pytest's own directories may not fit.
    with tempfile.TemporaryDirectory(prefix="kvconn") as name:
        yield Path(name)


@dataclass
class DaemonProcess:
    process: subprocess.Popen[bytes]
    socket: Path
    arguments: tuple[str, ...] = ()

    def restart(self) -> None:
        """Start it again, after its end, on the same store and socket."""
        self.process = start_daemon(os.environ["KVCONND"], self.socket.parent / "store", self.socket, *self.arguments)

    def freeze(self) -> None:
        """Stop the daemon, and return when all its threads stand still."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{self.process.pid}/task")
        until = time.monotonic() + 20
        while not all((t / "stat").read_text().rpartition(") ")[2][0] in "Tt" for t in tasks.iterdir()):
            assert time.monotonic() < until
            time.sleep(0.001)


@pytest.fixture
def daemon_process(socket_dir: Path) -> Iterator[DaemonProcess]:
    """A real kvconnd."""
    binary = os.environ.get("KVCONND")
    if not binary:
        pytest.skip("KVCONND names no daemon")
    path = socket_dir / "s"
    daemon = DaemonProcess(start_daemon(binary, socket_dir / "store", path), path)
    yield daemon
    daemon.process.kill()  # the test may have started another
    daemon.process.wait()


@pytest.fixture
def daemon(daemon_process: DaemonProcess) -> Path:
    """The socket of a real kvconnd."""
    return daemon_process.socket


def start_daemon(
    binary: str, store: Path, path: Path, *more: str, log: IO[bytes] | None = None
) -> subprocess.Popen[bytes]:
    args = ["--dir", str(store), "--socket", str(path), "--http", "127.0.0.1:0", "--max-bytes", "1GiB"]
    args += ["--min-free", "0", "--host-bytes", "128MiB", *more]
    process = subprocess.Popen([binary, "serve", *args], stderr=log)
    until = time.monotonic() + 20
    while not path.exists():
        assert process.poll() is None, "kvconnd has exited"
        assert time.monotonic() < until, "kvconnd is not ready"
        time.sleep(0.01)
    return process
