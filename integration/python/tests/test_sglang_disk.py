"""The storage backend while the daemon's disk is full."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sglang_stub import PAGE_BYTES, HostPool, engine, slots

PAGES = 4
"""Of a prompt."""


@dataclass
class SmallDisk:
    """A daemon whose store is on a file system of 48 MiB."""

    process: subprocess.Popen[bytes]
    socket: Path
    root: Path
    http: str

    def fill(self) -> Path:
        """Take all space, and return the file that has it."""
        path = self.root / "fill"
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1 << 20))
        with path.open("ab", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        return path

    def healthy(self) -> bool:
        """Whether the daemon says so, or says nothing in time: then it is to be asked again."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/healthz", timeout=10) as answer:
                return bool(answer.status == 200)
        except urllib.error.HTTPError:
            return False
        except OSError:
            return True


@pytest.fixture
def small_disk(socket_dir: Path) -> Iterator[SmallDisk]:
    binary = os.environ.get("KVCONND")
    if not binary:
        pytest.skip("KVCONND names no daemon")
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("only root may mount a file system")
    store, path, log = socket_dir / "store", socket_dir / "s", socket_dir / "log"
    store.mkdir()
    mounted = f"mount -t tmpfs -o size=48m none {store}"
    if subprocess.run(["unshare", "-m", "sh", "-c", mounted], capture_output=True, check=False).returncode:
        pytest.skip("no file system can be mounted here")
    serve = f"{binary} serve --dir {store} --socket {path} --http 127.0.0.1:0 --max-bytes 40MiB --min-free 0"
    command = ["unshare", "-m", "sh", "-c", f"{mounted} && exec {serve} --host-bytes 0"]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stderr=out)
    until = time.monotonic() + 20
    while not (ready := re.search(r"msg=ready .*http=(\S+)", log.read_text())):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < until, "kvconnd is not ready"
        time.sleep(0.01)
    yield SmallDisk(process, path, Path(f"/proc/{process.pid}/root{store}"), ready[1])
    process.kill()
    process.wait()


def keys(prompt: int) -> list[str]:
    return [hashlib.sha256(b"%d %d" % (prompt, page)).hexdigest() for page in range(PAGES)]


def byte(prompt: int, page: int) -> int:
    return (prompt * PAGES + page) % 251 + 1


class Traffic:
    """Prompts that are saved and loaded at the same time, on the backend's threads."""

    def __init__(self, backend: Any, pool: HostPool) -> None:
        self.backend, self.pool = backend, pool
        self.saved = self.loaded = 0
        self.wrong: list[str] = []
        self.over = threading.Event()
        self.threads = [threading.Thread(target=f) for f in (self.save, self.load)]
        for thread in self.threads:
            thread.start()

    def save(self) -> None:
        """Save one prompt after the other."""
        while not self.over.is_set():
            for page in range(PAGES):
                self.pool.fill(page, byte(self.saved, page))
            done = self.backend.batch_set_v1(keys(self.saved), slots(*range(PAGES)))
            self.check(len(done) == PAGES, "an answer to a save")
            self.saved += 1

    def load(self) -> None:
        """Ask for prompts that were saved lately, and load what is there."""
        turn = 0
        while not self.over.is_set():
            turn += 1
            prompt = max(0, self.saved - 1 - turn % 900)
            hit = self.backend.batch_exists(keys(prompt))
            for page in range(PAGES):
                self.pool.fill(8 + page, 255)
            done = self.backend.batch_get_v1(keys(prompt)[:hit], slots(*range(8, 8 + hit)))
            self.check(len(done) == hit, "an answer to a load")
            for page, there in enumerate(done):
                self.loaded += there
                self.check(not there or self.pool.read(8 + page) == {byte(prompt, page)}, f"prompt {prompt}")

    def check(self, good: bool, what: str) -> None:
        """Note what is wrong."""
        if not good:
            self.wrong.append(what)

    def wait_for_more(self) -> None:
        """Wait until pages have been loaded, and prompts saved, after now."""
        saved, loaded, until = self.saved, self.loaded, time.monotonic() + 60
        while self.saved < saved + 100 or self.loaded < loaded + 100:
            assert time.monotonic() < until, (self.saved - saved, self.loaded - loaded)
            time.sleep(0.01)


def test_a_full_disk_costs_hits_alone(
    small_disk: SmallDisk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with engine(small_disk.socket, monkeypatch) as sglang:
        pool = HostPool()
        backend = sglang.backend(("kv", pool))
        traffic = Traffic(backend, pool)
        try:
            traffic.wait_for_more()
            taken = small_disk.fill()
            until = time.monotonic() + 60
            while small_disk.healthy():
                assert time.monotonic() < until, (
                    f"the disk is not full after {traffic.saved * PAGES * PAGE_BYTES} bytes"
                )
                time.sleep(0.1)
            before, until = traffic.saved, time.monotonic() + 60
            while traffic.saved < before + 200:
                assert time.monotonic() < until
                time.sleep(0.01)
            taken.unlink()
            traffic.wait_for_more()
        finally:
            traffic.over.set()
            for thread in traffic.threads:
                thread.join()
        assert not traffic.wrong
        assert "failed, going on without" not in caplog.text
        backend.close()
