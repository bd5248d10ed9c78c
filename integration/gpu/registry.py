"""Bring NVIDIA's own headers or Python bindings, of several CUDA versions, from the package registry.

    export KVCONN_CUDA_HEADERS=$(python3 integration/gpu/registry.py headers)
    export KVCONN_CUDA_BINDINGS=$(python3 integration/gpu/registry.py bindings)

What is printed are folders, separated by colons: with cuda.h and cudaTypedefs.h, or to be put into a path of Python
modules. Nothing is installed; the packages are kept in --cache.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

# The oldest driver that is served, the first with batch copies, the first of 13, and the newest.
HEADERS = (
    ("nvidia-cuda-runtime-cu12==12.4.127",),
    ("nvidia-cuda-runtime-cu12==12.8.90",),
    ("nvidia-cuda-runtime==13.0.96",),
    ("nvidia-cuda-runtime",),
)
BINDINGS = (("cuda-bindings==12.8.0",), ("cuda-bindings==13.5.0", "cuda-pathfinder"))


def bring(packages: Sequence[str], cache: Path, wanted: str) -> Path:
    """Download packages, and unpack what has wanted in its name into one folder. Pinned ones are brought once."""
    folder = cache / packages[0].replace("==", "-")
    unpacked = folder / "unpacked"
    if "==" in packages[0] and unpacked.is_dir():
        return unpacked
    for package in packages:
        target = folder / package
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target)]
        subprocess.run([*pip, package], check=True, stdout=sys.stderr)
        newest = max(target.glob("*.whl"), key=lambda f: f.stat().st_mtime)
        with zipfile.ZipFile(newest) as wheel:
            wheel.extractall(unpacked, [n for n in wheel.namelist() if wanted in n])
    return unpacked


def main() -> None:
    """Bring all versions and print their folders."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("headers", "bindings"))
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache/kvconn-ci/cuda", help="where packages are kept"
    )
    args = parser.parse_args()
    if args.what == "headers":
        unpacked = (bring(p, args.cache, "/include/") for p in HEADERS)
        folders = [next(folder.rglob("cuda.h")).parent for folder in unpacked]
    else:
        folders = [bring(p, args.cache, "") for p in BINDINGS]
    print(":".join(str(folder) for folder in folders))


if __name__ == "__main__":
    main()
