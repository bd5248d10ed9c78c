"""NVIDIA's own assembler, ptxas, which says whether PTX is right. It comes from wheels on PyPI and needs no GPU.

KVCONN_PTXAS has the paths of one or more ptxas, separated by colons. Without it, KVCONN_TEST_PTXAS=get downloads two
releases once: the oldest that knows sm_120, and the newest.
"""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

WHEELS = ("nvidia-cuda-nvcc-cu12==12.8.93", "nvidia-cuda-nvcc")


def _get(requirement: str, cache: Path) -> Path:
    """Return the ptxas of a wheel, which is downloaded unless it was before."""
    ptxas = cache / requirement.replace("==", "-") / "ptxas"
    if ptxas.exists():
        return ptxas
    ptxas.parent.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", ptxas.parent, requirement]
    subprocess.run(pip, check=True)
    for wheel in ptxas.parent.glob("*.whl"):
        with zipfile.ZipFile(wheel) as z:
            name = next(n for n in z.namelist() if n.endswith("/bin/ptxas"))
            partial = ptxas.with_suffix(".partial")
            partial.write_bytes(z.read(name))
        partial.chmod(0o755)
        partial.rename(ptxas)
        wheel.unlink()
    return ptxas


def assemblers() -> list[Path]:
    """Every ptxas that tests may use; the test is skipped if there is none."""
    if paths := os.environ.get("KVCONN_PTXAS"):
        return [Path(p) for p in paths.split(os.pathsep)]
    if os.environ.get("KVCONN_TEST_PTXAS") == "get":
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kvconn-ci" / "ptxas"
        return [_get(w, cache) for w in WHEELS]
    pytest.skip("no ptxas: set KVCONN_PTXAS to its path, or KVCONN_TEST_PTXAS=get to download it")


def targets(ptxas: Path) -> set[str]:
    """The devices that an assembler knows."""
    usage = subprocess.run([ptxas, "--help"], check=True, capture_output=True, text=True).stdout
    return set(re.findall(r"\bsm_\d+\b", usage))


def assemble(ptxas: Path, text: str, target: str, directory: Path, *options: str) -> str:
    """Assemble a module; return what ptxas says against it, nothing if it is right."""
    source = directory / "module.ptx"
    source.write_text(text)
    command = [ptxas, f"-arch={target}", *options, "-o", directory / "module.cubin", source]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stderr or f"exit status {done.returncode}" if done.returncode else ""
