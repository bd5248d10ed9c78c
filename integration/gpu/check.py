"""Judge a machine's GPU and its CUDA driver: a table with pass, fail, skip or figures, and a JSON file.

    integration/gpu/check.sh                 on the machine's driver
    integration/gpu/check.sh --stand-in      on the stand-in, in short and without figures, as in CI
    integration/gpu/check.sh --pack          brings all it needs into build/gpu-check: for a machine without Go

It needs Python with pytest and, unless it was packed, Go. It exits with 0 only if no row failed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import bars

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PACK = ROOT / "build" / "gpu-check"
# Of a pack or just built: the daemon, and the tests of these packages as programs.
GO_TESTS = ("gpu/libcuda", "gpu/cuda")
# What the tests in Python need, and what that needs on a Python 3.10: the one that packs may be newer.
PYTHON_PACKAGES = ("pytest>=8", "msgpack>=1", "exceptiongroup>=1", "tomli>=2", "typing_extensions>=4.6")
# In short: each takes seconds on the stand-in. CI runs the rest of these suites anyway.
SHORT_GO = "BytesGoBothWays|RandomRuns|EngineThatIsKilled|CopierThatIsFrozen"
SHORT_PYTHON = "test_driver_streams or test_driver_memory or test_driver_kernels"

# What probe.py calls the questions of these rows, and those whose answer is a figure.
QUESTIONS = {
    "call numbers in host memory": "words",
    "order of call numbers": "order",
    "kill of a process that hangs": "hang",
    "kill of a process that copies": "killed",
    "across containers": "containers",
    "pinning": "pinning",
    "context": "context",
}
FIGURES = ("pinning", "context")
# What Python has to have for these rows.
TORCH_ROWS = {"torch's allocators": ("torch",), "vLLM's allocator": ("torch", "vllm")}


@dataclass
class Row:
    """One question: what its answer decides, and the answer."""

    name: str
    decides: str
    result: str = "skip"
    says: str = ""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)


class Failed(Exception):
    """The row fails."""


class Skipped(Exception):
    """The row cannot be asked here."""


class Check:
    """What the rows share."""

    def __init__(self, library: str, stand_in: bool) -> None:
        self.library, self.stand_in = library, stand_in
        self.kvconnd = PACK / "kvconnd"
        self.environment = {k: v for k, v in os.environ.items() if not k.startswith("FAKECUDA_")}
        self.environment["KVCONN_CUDA_LIBRARY"] = library
        if "/" in library:
            self.environment["LD_LIBRARY_PATH"] = str(Path(library).parent)
        self.benched: dict[str, Any] | None = None
        self.waiting, self.signal = False, 0

    def end(self, number: int, _frame: object) -> None:
        """Handle a signal: end this process, and what a row has started with it."""
        self.signal = number
        if self.waiting:
            self.waiting = False  # another signal does not disturb what ends them
            raise SystemExit(128 + number)

    def run(self, command: Sequence[str | Path], *, limit_s: float = 300, cwd: Path = ROOT, **more: str) -> str:
        """Run a command and return its standard output; it fails the row by its exit status or by taking too long."""
        # What it started ends with it, whatever it waits for: else its GPU stays taken.
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # on its own: among figures it would be taken for one
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            # While a process is started a signal only leaves its number: else nobody would know what to end.
            self.waiting = True
            if self.signal:
                raise SystemExit(128 + self.signal)
            out, told = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired as error:
            late = (error.stdout or b"") + (error.stderr or b"")
            print(late.decode(errors="replace")[-6000:], file=sys.stderr)
            raise Failed(f"still running after {limit_s:.0f} s") from error
        finally:
            self.waiting = False
            kill_session(process.pid)
            process.wait()
        if process.returncode != 0:
            print(out[-6000:] + told[-6000:], file=sys.stderr)
            raise Failed(f"status {process.returncode}: {worst_line(out + told)}")
        return out

    def doctor(self, row: Row) -> None:
        """The driver is found and served."""
        out = self.run([self.kvconnd, "doctor", "gpu", "--json", "--library", self.library])
        row.figures["findings"] = json.loads(out)
        row.says = f"{len(row.figures['findings'])} findings"

    def go_tests(self, row: Row) -> None:
        """Tests of the Go packages that need no control of the stand-in."""
        counts = {"PASS": 0, "SKIP": 0}
        for package in GO_TESTS:
            command = [PACK / f"{Path(package).name}.test", "-test.v", "-test.timeout=280s"]
            if self.stand_in:
                command += ["-test.run", SHORT_GO]
            out = self.run(command, cwd=ROOT / package)
            for what in counts:
                counts[what] += len(re.findall(rf"^--- {what}: ", out, re.MULTILINE))
        row.says = f"{counts['PASS']} passed, {counts['SKIP']} need the stand-in"
        if counts["PASS"] == 0:
            raise Failed("no test ran")

    def pytest(self, tests: Sequence[Path], *more: str, **environment: str) -> str:
        """Run tests of Python, and return their last line."""
        path = os.pathsep.join(str(p) for p in (ROOT / "integration/python/src", PACK / "python"))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, *more]
        return self.run(command, PYTHONPATH=path, **environment).strip().splitlines()[-1]

    def conformance(self, row: Row) -> None:
        """The tests of the stand-in, on the driver."""
        tests = sorted((HERE / "tests").glob("test_driver_*.py"))
        row.says = self.pytest(tests, *(["-k", SHORT_PYTHON] if self.stand_in else []))

    def client(self, row: Row) -> None:
        """The client in Python."""
        tests = ROOT / "integration/python/tests" / "test_cuda.py"
        if not tests.exists():
            raise Skipped("not built")
        row.says = self.pytest([tests], KVCONND=str(self.kvconnd))

    def probe(self, row: Row) -> None:
        """A question of probe.py, which the row is named for."""
        question = QUESTIONS[row.name]
        if self.stand_in and question in FIGURES:
            raise Skipped("a figure, which the stand-in does not have")
        out = self.run([sys.executable, HERE / "probe.py", self.library, question], limit_s=120)
        answer = json.loads(out.strip().splitlines()[-1])
        if why := answer.get("skip"):
            raise Skipped(why)
        if self.stand_in:
            row.says = "as it should"
            return
        row.figures, row.result = answer, "figure" if question in FIGURES else "pass"
        row.says = ", ".join(f"{k} {v}" for k, v in answer.items())

    def torch(self, row: Row) -> None:
        """The tests of torch's memory on a daemon, with this Python's torch."""
        if self.stand_in:
            raise Skipped("CI runs these tests on stand-ins for all of NVIDIA's libraries")
        for package in TORCH_ROWS[row.name]:
            if importlib.util.find_spec(package) is None:
                raise Skipped(f"{sys.executable} has no {package}")
        tests = HERE / "fakecudart/tests/test_torch_kvconn.py"
        which = "vllms" if "vllm" in TORCH_ROWS[row.name] else "not vllms"
        row.says = self.pytest([tests], "-k", which, KVCONND=str(self.kvconnd))
        if "passed" not in row.says:
            raise Skipped(row.says)

    def bench(self) -> dict[str, Any]:
        """What `kvconnd bench gpu` has measured, once for all rows; on the stand-in in short, for its form."""
        if self.benched is None:
            short = ["--total-bytes", "1MiB", "--rounds", "1", "--steps", "2"] if self.stand_in else []
            bench = [self.kvconnd, "bench", "gpu", "--json", "--cuda-library", self.library, *short]
            self.benched = {}
            self.benched = json.loads(self.run(bench, limit_s=600))
        if not self.benched:
            raise Skipped("the row copies says why there are no figures")
        return self.benched

    def copies(self, row: Row) -> None:
        """How fast our path copies, beside large copies of locked memory."""
        bench = self.bench()
        cases, _ = bars.read(bench)
        if self.stand_in or bench.get("stand_in"):
            row.says = "measured; figures of the stand-in mean nothing"
            return
        row.figures = {"bench": bench}
        if missed := bars.below(cases):
            why = "" if bench.get("arena_pinned", True) else "host memory is not locked (ulimit -l); "
            raise Failed(f"{why}{len(missed)} of {len(cases)} cases are below their bar: " + "; ".join(missed[:4]))
        row.says = bars.least(cases)

    def decode(self, row: Row) -> None:
        """How long decode steps take beside copies."""
        bench = self.bench()
        _, steps = bars.read(bench)
        if self.stand_in or bench.get("stand_in"):
            row.says = "measured; figures of the stand-in mean nothing"
            return
        row.figures, row.result, row.says = {"decode": steps}, "figure", bars.decode(steps)


def kill_session(leader: int) -> None:
    """Kill all processes of a session. Copiers are in groups of their own; what is started meanwhile is met later."""
    for _ in range(2):
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended
                _, _, _, session = stat.read_text(errors="replace").rpartition(") ")[2].split()[:4]
                if int(session) == leader:
                    os.kill(int(stat.parent.name), signal.SIGKILL)


def worst_line(out: str) -> str:
    """What an output says about a failure: the tests that failed, or the line that says most."""
    lines = [line.strip() for line in out.splitlines() if line.strip()]
    failed = [line for line in lines if line.startswith(("FAILED ", "ERROR ", "--- FAIL"))]
    if failed:
        return f"{len(failed)} failed: " + "; ".join(failed)[:2000]
    told = [line for line in lines if re.search(r"FAIL|[Ee]rror|panic", line)]
    return (told or lines or ["no output"])[0][:160]


def rows(check: Check) -> list[tuple[Row, Callable[[Row], None]]]:
    """Every row, and what answers it."""
    return [
        (Row("driver", "whether kvconnd finds the driver and serves its version and GPUs"), check.doctor),
        (Row("Go conformance", "whether the daemon's copier works: bytes, deadlines, kills, leaks"), check.go_tests),
        (Row("driver conformance", "whether the driver does what the stand-in assumes"), check.conformance),
        (Row("Python client", "whether an engine hands its memory over, from each allocator"), check.client),
        (Row("torch's allocators", "whether engines need expandable segments off, or on"), check.torch),
        (Row("vLLM's allocator", "whether vLLM's sleep mode and the cache go together"), check.torch),
        (
            Row("call numbers in host memory", "whether streams and host may tell each other of calls by plain words"),
            check.probe,
        ),
        (
            Row("order of call numbers", "whether a call number may stand for all work that was queued before it"),
            check.probe,
        ),
        (Row("kill of a process that hangs", "whether ending a copier frees its GPU"), check.probe),
        (
            Row("kill of a process that copies", "whether the end of a copier's socket ends its copies, too"),
            check.probe,
        ),
        (Row("across containers", "whether engine and daemon may run in containers of their own"), check.probe),
        (Row("pinning", "how long a daemon needs for its host tier, and the size of a registration"), check.probe),
        (Row("context", "how much memory of the GPU a copier takes from the engine"), check.probe),
        (Row("copies", "whether our path is near the limit, each way and in each layout"), check.copies),
        (Row("decode beside copies", "whether copies have to be paced, and the kernels are worth it"), check.decode),
    ]


def ask(row: Row, answer: Callable[[Row], None]) -> None:
    """Fill a row in."""
    began = time.monotonic()
    try:
        answer(row)
        row.result = "pass" if row.result == "skip" else row.result
    except Skipped as why:
        row.result, row.says = "skip", str(why)
    except (Failed, bars.NoFigures, OSError, ValueError, IndexError) as why:
        row.result, row.says = "fail", str(why)
    row.seconds = round(time.monotonic() - began, 1)


def build(check: Check) -> None:
    """Build the daemon and the tests into the pack's folder."""
    PACK.mkdir(parents=True, exist_ok=True)
    plain = {**os.environ, "CGO_ENABLED": "0"}
    subprocess.run(
        ["go", "build", "-ldflags=-s -w", "-o", check.kvconnd, "./cmd/kvconnd"], cwd=ROOT, env=plain, check=True
    )
    for package in GO_TESTS:
        program = PACK / f"{Path(package).name}.test"
        command = ["go", "test", "-c", "-ldflags=-s -w", "-o", program, f"./{package}"]
        subprocess.run(command, cwd=ROOT, env=plain, check=True)


def pack(check: Check) -> None:
    """Bring all into build/gpu-check that a machine lacks which has Python alone, and nothing else."""
    shutil.rmtree(PACK, ignore_errors=True)
    build(check)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(PACK / "python")]
    subprocess.run([*pip, "--no-compile", *PYTHON_PACKAGES], check=True)
    size = sum(f.stat().st_size for f in PACK.rglob("*") if f.is_file())
    print(f"{PACK.relative_to(ROOT)}: {size >> 20} MiB. Copy the repository with it, and run check.sh there.")


def main() -> int:
    """Ask all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stand-in", action="store_true", help="build the stand-in and ask it, in short")
    parser.add_argument("--library", default="libcuda.so.1", help="the driver: a name that the loader finds, or a path")
    parser.add_argument("--json", type=Path, default=PACK / "report.json", metavar="FILE", help="where the report goes")
    parser.add_argument("--pack", action="store_true", help="build only, for another machine")
    args = parser.parse_args()
    library = str(PACK / "stand-in" / "libcuda.so.1") if args.stand_in else args.library
    if "/" in library:
        library = str(Path(library).resolve())
    check = Check(library, args.stand_in)
    if args.pack:
        pack(check)
        return 0
    # A pack is used as it is only where it cannot be built: beside Go it may be older than its sources.
    if shutil.which("go") is not None:
        build(check)
    elif not check.kvconnd.exists():
        parser.error("there is no Go here: bring build/gpu-check from a machine with it, where check.sh --pack made it")
    if args.stand_in:
        Path(library).parent.mkdir(exist_ok=True)
        subprocess.run([HERE / "fakecuda/build.sh", library], check=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # as nohup has it
            signal.signal(number, check.end)
    report = []
    for row, answer in rows(check):
        ask(row, answer)
        report.append(row)
        print(f"{row.result:7}{row.name:30}{row.seconds:6.1f} s  {row.says}\n{'':7}decides {row.decides}", flush=True)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    machine = {"machine": platform.machine(), "kernel": platform.release(), "stand_in": args.stand_in}
    args.json.write_text(json.dumps({**machine, "rows": [asdict(row) for row in report]}, indent=2) + "\n")
    print(f"{args.json}")
    return int(any(row.result == "fail" for row in report))


if __name__ == "__main__":
    sys.exit(main())
