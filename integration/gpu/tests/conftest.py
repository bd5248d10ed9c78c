"""Builds the fake driver, and runs scenes on it: functions that have a process to themselves.

With a sanitizer: FAKECUDA_CFLAGS="-g -fsanitize=thread" and FAKECUDA_PRELOAD=$(gcc -print-file-name=libtsan.so).

With KVCONN_CUDA_LIBRARY=libcuda.so.1, or another driver's path, the scenes run on that driver. Tests that need the
stand-in's own controls are then skipped: those that ask for the fixture stand_in, or give a scene a setting.
"""

from __future__ import annotations

import inspect
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parent / "fakecuda"
REAL = os.environ.get("KVCONN_CUDA_LIBRARY", "")
# A real driver takes its time and leaves old bytes in memory as it likes: a test asks for them to be hard on itself.
HARDER = {"DELAY_US", "POISON"}
# What no scene inherits. A real driver keeps the GPUs that its caller chose.
MINE = ("FAKECUDA_",) if REAL else ("FAKECUDA_", "CUDA_")


@pytest.fixture(scope="session")
def compiler() -> str:
    """The C compiler."""
    found = shutil.which("gcc")
    if found is None:
        pytest.skip("the fake CUDA driver is in C: install gcc to run its tests")
    return found


@pytest.fixture(scope="session")
def build(compiler, tmp_path_factory):
    """A function that builds the fake driver, with more sources and flags, and returns the path of the library."""

    def build_it(*more: str, check: bool = True, interpreter: bool = True) -> Path | str:
        library = tmp_path_factory.mktemp("fakecuda") / "libcuda.so.1"
        extra = os.environ.get("FAKECUDA_CFLAGS", "").split()
        command = [str(SOURCES / "build.sh"), str(library), *extra, *more]
        parts = {} if interpreter else {"FAKECUDA_PARTS": "."}
        environment = {**os.environ, "LC_ALL": "C", "CC": compiler, **parts}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if not check:
            return done.stderr
        assert done.returncode == 0, done.stderr
        return library

    return build_it


@pytest.fixture(scope="session")
def stand_in() -> None:
    """Skips what needs the stand-in's own controls, on a real driver."""
    if REAL:
        pytest.skip(f"needs the stand-in's own controls, and KVCONN_CUDA_LIBRARY is {REAL}")


@pytest.fixture(scope="session")
def library(request) -> Path:
    """The driver: the real one that KVCONN_CUDA_LIBRARY names, or else the fake one."""
    return Path(REAL) if REAL else request.getfixturevalue("build")()


class Scenes:
    """Runs functions in processes of their own, on the fake driver with settings."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.library, self.directory, self.running = library, directory, []

    def start(self, scene, *args, library: Path | None = None, path: str = "", **settings) -> subprocess.Popen:
        """Start a scene, which may read its standard input; settings go without FAKECUDA_ before them."""
        wanted = sorted(set(settings) - HARDER) + (["a build of its own"] if library else [])
        if REAL and wanted:
            pytest.skip(f"needs the stand-in's {', '.join(wanted)}, and KVCONN_CUDA_LIBRARY is {REAL}")
        code = f"import driver\n{textwrap.dedent(inspect.getsource(scene))}\n{scene.__name__}(*{args!r})"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(MINE)}
        names = {k: k if k.startswith("CUDA_") else f"FAKECUDA_{k}" for k in settings}
        environment.update({names[k]: str(v) for k, v in settings.items()})
        environment.update(
            FAKECUDA_LIBRARY=str(library or self.library),
            FAKECUDA_STATS=str(self.directory / "stats"),
            PYTHONPATH=f"{HERE}:{path}",
            LD_PRELOAD=os.environ.get("FAKECUDA_PRELOAD", ""),
        )
        if "/" in str(library or self.library):
            environment["LD_LIBRARY_PATH"] = str((library or self.library).parent)
        pipe = subprocess.PIPE
        process = subprocess.Popen(
            [sys.executable, "-c", code], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self.running.append(process)
        return process

    def run(self, scene, *args, status: int = 0, **settings) -> str:
        """Run a scene to its end and return what it printed."""
        process = self.start(scene, *args, **settings)
        out, err = process.communicate(timeout=60)
        assert process.returncode == status, f"{process.returncode}\n{out}\n{err}"
        return out

    def stats_of(self, process: subprocess.Popen) -> Path:
        return self.directory / f"stats.{process.pid}"


@pytest.fixture
def scenes(library, tmp_path):
    """Scenes on the driver."""
    them = Scenes(library, tmp_path)
    yield them
    for process in them.running:
        process.kill()
        process.communicate()
