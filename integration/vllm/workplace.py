"""What the end-to-end tests have in common: their arguments, and where and how a run happens."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType

import environment
from report import Report
from stage import Place


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the arguments that every run has."""
    p = argparse.ArgumentParser(description=description)
    p.add_argument("--kvconnd", type=Path, help="the daemon's binary; built from the checkout otherwise")
    p.add_argument("--cache", type=Path, default=environment.default_cache(), help="for environment and model")
    p.add_argument(
        "--times",
        action="store_true",
        help="fail where a claimed time is not kept: on a machine that does nothing else",
    )
    p.add_argument("--keep", action="store_true", help="keep logs and store, also of a run that passed")
    return p


def run_stages(
    place: Place, stages: Mapping[str, Callable[[Place], None]], skipped: Collection[str], two_ranks: Collection[str]
) -> int:
    """Run all stages but some, and return the exit status. Stages of two ranks need a core for each."""
    for name, stage in stages.items():
        begun = time.monotonic()
        if name in skipped:
            place.report.say(f"      stage {name} is skipped")
        elif name in two_ranks and len(os.sched_getaffinity(0)) < 2:
            place.report.say(f"      stage {name} needs a core for each of two ranks, and is skipped")
        else:
            stage(place)
            place.report.say(f"      stage {name}: {time.monotonic() - begun:.0f} s")
    return place.report.close()


def unit_tests(place: Place, tests: Sequence[str] = ()) -> None:
    """Run the distribution's own tests, where the engine is and with the real daemon.

    Of files that are given no test may be skipped. Without any it is all tests, those of other engines too.
    """
    command = [str(place.env.python), "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", *tests]
    variables = place.env.variables() | {"KVCONND": str(place.binary)}
    done = subprocess.run(
        command, cwd=environment.DISTRIBUTION, env=variables, capture_output=True, text=True, check=False
    )
    summary = "".join(done.stdout.strip().splitlines()[-1:])
    passed = done.returncode == 0 and not (tests and "skipped" in summary)
    if not place.report.check("unit tests of the distribution", passed, summary):
        place.report.say(done.stdout[-4000:])


def run(
    args: argparse.Namespace,
    body: Callable[[Place], int],
    version: str = environment.NEWEST,
    prepare: Callable[[Path, str], environment.Environment] = environment.prepare,
) -> int:
    """Prepare a place with a release of the engine, run body there, and return its exit status. What failed is kept."""
    begun = time.monotonic()
    env = prepare(args.cache.resolve(), version)
    runs = env.cache / "runs"
    runs.mkdir(exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=runs))
    sockets = Path(tempfile.mkdtemp(prefix="kvconn-e2e-"))  # a socket's path has to be short
    status = 1
    try:
        binary = args.kvconnd.resolve() if args.kvconnd else environment.build_daemon(work)
        ready = time.monotonic()
        status = body(Place(Report(times_count=args.times), env, binary, work, sockets))
        print(f"prepared in {ready - begun:.0f} s, ran for {time.monotonic() - ready:.0f} s")
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
        if status == 0 and not args.keep:
            shutil.rmtree(work, ignore_errors=True)
        else:
            print(f"logs and store are in {work}")
    return status


def exit_by(main: Callable[[], int]) -> None:
    """Exit with main's status, or, where the run is told to end, in order."""
    signal.signal(signal.SIGTERM, _interrupted)
    sys.exit(main())


def _interrupted(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)  # by way of the exit handlers, which kill what was started
