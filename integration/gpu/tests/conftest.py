"""Builds the fake driver, and runs scenes on it: functions that have a process to themselves.

With a sanitizer: FAKECUDA_CFLAGS="-g -fsanitize=thread" and FAKECUDA_PRELOAD=$(gcc -print-file-name=libtsan.so).
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
FLAGS = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-Wmissing-prototypes", "-fPIC", "-shared"]


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

    def build_it(*more: str, check: bool = True, without: str = "") -> Path | str:
        library = tmp_path_factory.mktemp("fakecuda") / "libcuda.so.1"
        sources = sorted(str(path) for path in SOURCES.glob("*.c") if not (without and path.match(without)))
        extra = os.environ.get("FAKECUDA_CFLAGS", "").split()
        command = [
            compiler,
            *FLAGS,
            *extra,
            "-Wl,-soname,libcuda.so.1",
            "-o",
            str(library),
            *sources,
            *more,
            "-lpthread",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
        if not check:
            return done.stderr
        assert done.returncode == 0, done.stderr
        return library

    return build_it


@pytest.fixture(scope="session")
def library(build) -> Path:
    """The fake driver."""
    return build()


class Scenes:
    """Runs functions in processes of their own, on the fake driver with settings."""

    def __init__(self, library: Path, directory: Path) -> None:
        self.library, self.directory, self.running = library, directory, []

    def start(self, scene, *args, library: Path | None = None, path: str = "", **settings) -> subprocess.Popen:
        """Start a scene, which may read its standard input; settings go without FAKECUDA_ before them."""
        code = f"import driver\n{textwrap.dedent(inspect.getsource(scene))}\n{scene.__name__}(*{args!r})"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("FAKECUDA_", "CUDA_"))}
        names = {k: k if k.startswith("CUDA_") else f"FAKECUDA_{k}" for k in settings}
        environment.update({names[k]: str(v) for k, v in settings.items()})
        environment.update(
            FAKECUDA_LIBRARY=str(library or self.library),
            FAKECUDA_STATS=str(self.directory / "stats"),
            PYTHONPATH=f"{HERE}:{path}",
            LD_LIBRARY_PATH=str((library or self.library).parent),
            LD_PRELOAD=os.environ.get("FAKECUDA_PRELOAD", ""),
        )
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
    """Scenes on the fake driver."""
    them = Scenes(library, tmp_path)
    yield them
    for process in them.running:
        process.kill()
        process.communicate()
