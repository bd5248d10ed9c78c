"""The Python environment that SGLang runs with on a CPU, made once and kept in the cache."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from environment import DISTRIBUTION, Environment, install, install_local, two_cores

HERE = Path(__file__).resolve().parent
SHIM = HERE / "shim"

NEWEST, PREVIOUS = "0.5.23", "0.5.22"
"""The releases of SGLang that are tested."""
OLDEST_PYTHON = (3, 11)
# Kernels and libraries for GPUs, sound and video: no CPU needs them, and some cannot be installed without CUDA.
UNUSED = (
    "cuda-python",
    "cuda-tile",
    "deepseek-recipe",
    "flash-attn-4",
    "flashinfer-cubin",
    "flashinfer-python",
    "humming-kernels",
    "nvidia-cutlass-dsl",
    "nvidia-mathdx",
    "nvshmem4py-cu13",
    "quack-kernels",
    "sgl-deep-ep",
    "sgl-deep-gemm",
    "sgl-flash-mla",
    "sglang-kernel",
    "smg-grpc-servicer",
    "tilelang",
    "tml-renderers",
    "tokenspeed-mla",
    "torchaudio",
    "torchcodec",
)


@dataclass(frozen=True)
class SglangEnvironment(Environment):
    """Where things are: the interpreter that has SGLang, the shim and kvconn, and the cache they are in."""

    def variables(self, ranks: int = 1) -> dict[str, str]:
        """Return the environment of every engine process."""
        # An outer environment may select plugins, and directories of backends.
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SGLANG_", "SGL_", "PYTHONPATH"))}
        env.pop("PYTHONDONTWRITEBYTECODE", None)
        env |= {
            # Importing SGLang compiles for 20 s where it finds no byte code.
            "PYTHONPYCACHEPREFIX": str(self.cache / "pycache"),
            # SGLang compiles its page hash on first use, with the ninja of its own environment.
            "PATH": f"{self.python.parent}{os.pathsep}{env.get('PATH', os.defpath)}",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            "SGLANG_USE_CPU_ENGINE": "1",
        }
        if ranks > 1:
            env["SGLANG_CPU_OMP_THREADS_BIND"] = two_cores(ranks)
        return env


def prepare(cache: Path, version: str = NEWEST) -> SglangEnvironment:
    """Return an environment with a release of SGLang and the checkout's kvconn; what is there already is reused."""
    if sys.version_info < OLDEST_PYTHON:
        raise RuntimeError(f"SGLang needs Python {'.'.join(map(str, OLDEST_PYTHON))} or newer, this is {sys.version}")
    made = install(
        cache, f"venv-sglang-{version}", requirements(version), [f'{n} ; python_version < "3"' for n in UNUSED]
    )
    env = SglangEnvironment(made.cache, made.python)
    install_local(env, "sglang-cpu-shim", SHIM)
    install_local(env, "kvconn", DISTRIBUTION)
    return env


def requirements(version: str) -> Sequence[str]:
    """Return what is installed from the package index."""
    return [f"sglang=={version}", "pytest>=8"]
