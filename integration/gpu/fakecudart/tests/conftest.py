"""Runs scenes, functions that have a process to themselves, with a CUDA build of torch on the fake libraries.

KVCONN_CUDA_TORCH names the folder that ../../registry.py prints for torch. Without it, KVCONN_TEST_TORCH=get has it
downloaded. KVCONND names the daemon that torch's memory is registered with.

With KVCONN_CUDA_LIBRARY=libcuda.so.1, or another driver's path, the scenes run on that driver, with the torch of the
Python that runs the tests.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
GPU = HERE.parent.parent
CLIENT = GPU.parent / "python" / "src"
SCENE_TIMEOUT_S = 300
READY_S = 60
REAL = os.environ.get("KVCONN_CUDA_LIBRARY", "")
# 4,000 allocations of torch's expandable segments are 78 GiB. Only what is written takes memory.
DEVICE_BYTES = 100 << 30

sys.path.insert(0, str(GPU / "fakecudart"))


@pytest.fixture(scope="session")
def torch_folder() -> Path:
    """The folder with torch, and beside it CUDA's headers and vLLM's allocator."""
    if REAL:
        torch = importlib.util.find_spec("torch")
        if torch is None or torch.origin is None:
            pytest.skip(f"{sys.executable} has no torch")
        return Path(torch.origin).parents[1]
    if named := os.environ.get("KVCONN_CUDA_TORCH"):
        return Path(named)
    if os.environ.get("KVCONN_TEST_TORCH") != "get":
        pytest.skip(
            "no CUDA build of torch: set KVCONN_CUDA_TORCH to its folder, or KVCONN_TEST_TORCH=get to download it"
        )
    command = [sys.executable, str(GPU / "registry.py"), "torch"]
    return Path(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())


@pytest.fixture(scope="session")
def stand_in() -> None:
    """Skips what needs the stand-in's own controls, on a real driver."""
    if REAL:
        pytest.skip(f"needs the stand-in's own controls, and KVCONN_CUDA_LIBRARY is {REAL}")


@pytest.fixture(scope="session")
def allocator_folder(torch_folder: Path) -> Path:
    """The folder with vLLM's own allocator in a folder `vllm`."""
    if not any(Path(torch_folder, "vllm").glob("cumem_allocator*.so")):
        pytest.skip(f"there is no vLLM with its allocator in {torch_folder}")
    return torch_folder


@pytest.fixture(scope="session")
def driver(request: pytest.FixtureRequest) -> Path:
    """The driver's library."""
    return Path(REAL) if REAL else request.getfixturevalue("fakes") / "libcuda.so.1"


@pytest.fixture(scope="session")
def fakes(torch_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the fake libraries."""
    from build import build

    missing = [tool for tool in ("gcc", "readelf") if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"the fake CUDA libraries are in C: install {' and '.join(missing)} to run their tests")
    return build(torch_folder, [torch_folder / "nvidia/cu13/include"], tmp_path_factory.mktemp("fakes"))


class Scenes:
    """Runs functions in processes of their own, with torch on the fake libraries."""

    def __init__(self, torch_folder: Path, driver: Path) -> None:
        self._torch, self._driver = torch_folder, driver

    def start(self, scene: Callable[..., None], *args: object, **settings: object) -> subprocess.Popen[str]:
        """Start a scene, which may read its standard input. Settings are variables of its environment."""
        code = f"import pytest\nimport torch\n{textwrap.dedent(inspect.getsource(scene))}\n{scene.__name__}(*{args!r})"
        mine = ("FAKECUD", "PYTORCH_") if REAL else ("FAKECUD", "CUDA_", "PYTORCH_")
        environment = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
        environment.update({k: str(v) for k, v in settings.items()})
        if REAL:
            environment["PYTHONPATH"] = f"{CLIENT}:{HERE}:{os.environ.get('PYTHONPATH', '')}"
        else:
            environment.setdefault("FAKECUDA_MEM_BYTES", str(DEVICE_BYTES))
            environment["PYTHONPATH"] = f"{self._torch}:{CLIENT}:{HERE}"
            environment["LD_LIBRARY_PATH"] = str(self._driver.parent)
        pipe = subprocess.PIPE
        return subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )

    def run(self, scene: Callable[..., None], *args: object, **settings: object) -> str:
        """Run a scene to its end and return what it printed."""
        with self.start(scene, *args, **settings) as process:
            try:
                out, err = process.communicate(timeout=SCENE_TIMEOUT_S)
            finally:
                process.kill()
        assert process.returncode == 0, f"{process.returncode}\n{out}\n{err}"
        return out + err


@pytest.fixture
def scenes(torch_folder: Path, driver: Path) -> Scenes:
    """Scenes with torch."""
    return Scenes(torch_folder, driver)


class Daemons:
    """A real kvconnd, on the driver's GPUs, and those that come after it on the same store and socket."""

    def __init__(self, binary: str, driver: Path, folder: Path) -> None:
        self._socket = folder / "s"
        self._command = [binary, "serve", "--dir", str(folder / "store"), "--socket", str(self._socket)]
        self._command += ["--http", "127.0.0.1:0", "--max-bytes", "1GiB", "--min-free", "0", "--host-bytes", "256MiB"]
        self._command += ["--cuda-library", str(driver)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> str:
        """Start one, and return its socket."""
        # The daemon refuses settings that it does not know, such as the tests' own.
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("KVCONN_", "FAKECUDA_"))}
        environment["FAKECUDA_MEM_BYTES"] = str(DEVICE_BYTES)
        environment["FAKECUDA_STATS"] = str(self._socket.with_name("stats"))
        self._socket.unlink(missing_ok=True)
        self._process = subprocess.Popen(self._command, env=environment)
        until = time.monotonic() + READY_S
        while not self._socket.exists():
            assert self._process.poll() is None, "kvconnd has exited"
            assert time.monotonic() < until, "kvconnd is not ready"
            time.sleep(0.01)
        return str(self._socket)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@pytest.fixture
def daemons(driver: Path) -> Iterator[Daemons]:
    """What starts daemons."""
    binary = os.environ.get("KVCONND")
    if not binary:
        pytest.skip("KVCONND names no daemon")
    # Socket paths are short: pytest's own directories may not fit.
    with tempfile.TemporaryDirectory(prefix="kvconn") as name:
        them = Daemons(binary, driver, Path(name))
        yield them
        them.kill()


@pytest.fixture
def daemon(daemons: Daemons) -> str:
    """The socket of a real kvconnd."""
    return daemons.start()
