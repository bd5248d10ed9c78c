"""Bring NVIDIA's own headers or Python bindings, of several CUDA versions, or torch, from the package registry.

    export KVCONN_CUDA_HEADERS=$(python3 integration/gpu/registry.py headers)
    export KVCONN_CUDA_BINDINGS=$(python3 integration/gpu/registry.py bindings)
    export KVCONN_CUDA_TORCH=$(python3 integration/gpu/registry.py torch)

What is printed are folders, separated by colons: with cuda.h and cudaTypedefs.h, or to be put into a path of Python
modules. Nothing is installed; the packages are kept in --cache.

The torch is a CUDA build without NVIDIA's libraries, for the fakes in fakecudart; beside it lie the headers of its CUDA
version, and the memory allocator of the vLLM that is built for it. 870 MB are downloaded, and 1.2 GB kept.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
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
# Packages, and what of them is wanted. The release of vLLM asks for this torch, which is built for these headers.
TORCH = (
    ("torch==2.13.0", ""),
    ("filelock==4.2.12", ""),
    ("typing-extensions==4.16.0", ""),
    ("sympy==1.14.0", ""),
    ("mpmath==1.4.1", ""),
    ("networkx==3.6.1", ""),
    ("jinja2==3.1.6", ""),
    ("markupsafe==3.0.4", ""),
    ("fsspec==2026.9.0", ""),
    ("nvidia-cuda-runtime==13.0.96", "/include/"),
    ("nvidia-cuda-crt==13.0.88", "/include/"),
    ("vllm==0.33.0", "vllm/cumem_allocator"),
)


def bring(packages: Sequence[str], cache: Path, wanted: str) -> Path:
    """Download packages, and unpack what has wanted in its name into one folder. Pinned ones are brought once."""
    folder = cache / packages[0].replace("==", "-")
    unpacked = folder / "unpacked"
    if "==" in packages[0] and unpacked.is_dir():
        return unpacked
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        part = Path(name, "unpacked")
        for package in packages:
            target = folder / package
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(target)]
            subprocess.run([*pip, package], check=True, stdout=sys.stderr)
            newest = max(target.glob("*.whl"), key=lambda f: f.stat().st_mtime)
            with zipfile.ZipFile(newest) as wheel:
                wheel.extractall(part, [n for n in wheel.namelist() if wanted in n])
        shutil.rmtree(unpacked, ignore_errors=True)
        shutil.move(part, unpacked)
    return unpacked


def bring_torch(cache: Path) -> Path:
    """Unpack torch and what goes with it into one folder, once for each version of Python."""
    unpacked = cache / f"torch-2.13.0-{sys.implementation.cache_tag}"
    if unpacked.is_dir():
        return unpacked
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as name:
        part, wheels = Path(name, "unpacked"), Path(name, "wheels")
        for package, wanted in TORCH:
            pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
            subprocess.run([*pip, "--dest", str(wheels), package], check=True, stdout=sys.stderr)
            wheel = next(wheels.glob("*.whl"))
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(part, [n for n in archive.namelist() if wanted in n])
            wheel.unlink()
        shutil.move(part, unpacked)
    return unpacked


def main() -> None:
    """Bring all versions and print their folders."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("headers", "bindings", "torch"))
    parser.add_argument(
        "--cache", type=Path, default=Path.home() / ".cache/kvconn-ci/cuda", help="where packages are kept"
    )
    args = parser.parse_args()
    if args.what == "headers":
        unpacked = (bring(p, args.cache, "/include/") for p in HEADERS)
        folders = [next(folder.rglob("cuda.h")).parent for folder in unpacked]
    elif args.what == "torch":
        folders = [bring_torch(args.cache)]
    else:
        folders = [bring(p, args.cache, "") for p in BINDINGS]
    print(":".join(str(folder) for folder in folders))


if __name__ == "__main__":
    main()
