"""A real S3 server for the stage of the object tier: versitygw, which the Go module proxy has."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from ports import free_port
from processes import Program

VERSION = "v1.8.0"
"""The version that Go's tests run against too: internal/testkit/versitygw."""
MODULE = "github.com/versity/versitygw/cmd/versitygw"
ACCESS, SECRET = "kvtest", "kvtestsecret"
BUCKET = "bucket"
START_TIMEOUT_S, CONNECT_TIMEOUT_S = 60.0, 1.0


def find() -> Path | None:
    """Return the server's binary, which is built once on a machine; None where it is to be built and Go is missing."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    directory = caches / "kvconn-ci" / f"versitygw-{VERSION}"  # as Go's tests have it
    directory.mkdir(parents=True, exist_ok=True)
    binary = directory / "versitygw"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not binary.is_file():
            if shutil.which("go") is None:
                return None
            _build(binary)
    return binary


def _build(binary: Path) -> None:
    with tempfile.TemporaryDirectory(dir=binary.parent, prefix="build-") as made:
        env = os.environ | {"GOBIN": made, "CGO_ENABLED": "0", "GOFLAGS": ""}
        subprocess.run(["go", "install", f"{MODULE}@{VERSION}"], cwd=made, env=env, check=True)
        (Path(made) / "versitygw").rename(binary)


class Gateway(Program):
    """An S3 server with one bucket. It can be started again after it was killed, and has what it had."""

    def __init__(self, binary: Path, data: Path, log: Path) -> None:
        super().__init__(log)
        self._binary, self._data = binary, data
        self.port = free_port()
        (data / BUCKET).mkdir(parents=True)

    def start(self) -> None:
        """Start it and wait until it takes connections."""
        address = f"127.0.0.1:{self.port}"
        command = [str(self._binary), "--port", address, "--access", ACCESS, "--secret", SECRET, "-q", "--keep-alive"]
        self.spawn([*command, "posix", str(self._data)])
        until = time.monotonic() + START_TIMEOUT_S
        while not self._listens():
            if not self.alive() or time.monotonic() > until:
                self.fail_with_log("versitygw is not ready")
            time.sleep(0.02)

    def settings(self) -> list[str]:
        """Return the settings of a daemon that shares the bucket."""
        endpoint = f"http://127.0.0.1:{self.port}"
        return ["--object", f"s3://{BUCKET}/cache", "--object-endpoint", endpoint, "--object-region", "us-east-1"]

    @staticmethod
    def environment() -> Mapping[str, str]:
        """Return the environment of such a daemon: the server's credentials, in place of the user's own."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
        keys = {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
        return own | keys

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), CONNECT_TIMEOUT_S).close()
        except OSError:
            return False
        return True
