"""End-to-end test: real SGLang with a storage backend below its host memory.

    python integration/sglang/e2e.py [--kvconnd PATH] [--cache DIR] [--sglang VERSION] [--keep]
        [--skip STAGE]... [--also STAGE]...

Makes its own virtual environment with SGLang and a tiny model, and runs HTTP servers in float32 on a CPU. Nothing else
than Python 3.11, a C++ compiler, OpenSSL's headers and, without --kvconnd, Go is needed; no GPU. The exit status is
0 only if every check passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path

# What both engines' tests use.
sys.path.append(str(Path(__file__).resolve().parent.parent / "vllm"))

import environment
import sglang_environment
import workplace
from bad_rank_stage import BadRank
from dp_stage import DataParallel
from faults_stage import Faults
from file_stage import FileBackend
from main_stage import Main
from outages_stage import Outages
from router_stage import Routed
from stage import Place

UNIT_TESTS = sorted(str(path) for path in (environment.DISTRIBUTION / "tests").glob("test_sglang_*.py"))

STAGES: Mapping[str, Callable[[Place], None]] = {
    "unit": lambda place: workplace.unit_tests(place, UNIT_TESTS),
    "file": lambda place: FileBackend(place).run(),
    "file-tp": lambda place: FileBackend(place, ranks=2).run(),
    "main": lambda place: Main(place).run(),
    "main-tp": lambda place: Main(place, ranks=2).run(),
    "faults": lambda place: Faults(place).run(),
    "outages": lambda place: Outages(place).run(),
    "bad-rank": lambda place: BadRank(place).run(),
    "dp": lambda place: DataParallel(place).run(),
    "router": lambda place: Routed(place).run(),
}
TWO_RANKS = ("file-tp", "main-tp", "bad-rank", "dp")
"""Stages that need a core for each of two ranks."""
ON_REQUEST = ("file", "file-tp", "main-tp")
"""Stages that take minutes for what others mostly show, or that show SGLang alone."""


def main() -> int:
    """Parse arguments and run."""
    parser = workplace.arguments("End-to-end test of kvconn with real SGLang.")
    parser.add_argument("--skip", action="append", default=[], choices=sorted(STAGES), help="leave a stage out")
    parser.add_argument("--also", action="append", default=[], choices=ON_REQUEST, help="run a stage that takes long")
    parser.add_argument("--sglang", metavar="VERSION", default="newest", help="a release of SGLang, newest or previous")
    args = parser.parse_args()
    releases = {"newest": sglang_environment.NEWEST, "previous": sglang_environment.PREVIOUS}
    version = releases.get(args.sglang, args.sglang)
    skipped = {*args.skip, *(name for name in ON_REQUEST if name not in args.also)}
    return workplace.run(
        args,
        lambda place: workplace.run_stages(place, STAGES, skipped, TWO_RANKS),
        version,
        sglang_environment.prepare,
    )


if __name__ == "__main__":
    workplace.exit_by(main)
