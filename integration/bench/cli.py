"""vLLM with every KV cache that can be had, side by side: speed, costs, and what damage does.

    python integration/bench/run.py [--systems LIST] [--workloads LIST] [--faults LIST] [--rounds N]
                                    [--budget MINUTES] [--add RESULT] [--quick] [--kvconnd PATH]
                                    [--cache DIR] [--out DIR]
    python integration/bench/run.py --table DIR/result.json [--document docs/comparison.md]

Installs each system by its package's name into an environment of its own, makes a tiny model, and
runs OpenAI servers in float32 on the CPU. Each request is made of an engine with a cache and, within
the same minute, of one without; figures are ratios of medians. README.md says what each one means.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import environment
from catalogue import SYSTEMS
from chart import svg
from results import CASES, Result, load
from table import markdown, replace_between_markers
from workloads import WORKLOADS

from bench import Bench, Plan

MIB = 1 << 20
NOTHING = "nothing"
DISK_MIB = 4096
CHART = "comparison.svg"


def chosen(known: list[str], named: str) -> list[str]:
    """Return those of the known names that a list has, in their own order."""
    names = [] if named == NOTHING else named.split(",")
    if unknown := [name for name in names if name not in known]:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}, {NOTHING}")
    return [name for name in known if name in names]


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    words = (__doc__ or "").partition("\n")
    p = argparse.ArgumentParser(
        description=words[0],
        epilog="Lists are separated by commas.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name, known, what in (
        ("systems", list(SYSTEMS), "systems to compare"),
        ("workloads", list(WORKLOADS), f"workloads to run, or '{NOTHING}'"),
        ("faults", list(CASES), f"damage to do, or '{NOTHING}'"),
    ):
        p.add_argument(
            f"--{name}",
            type=lambda named, known=known: chosen(known, named),
            default=",".join(known),
            metavar="LIST",
            help=what,
        )
    p.add_argument("--rounds", type=int, default=3, help="how often each system runs all workloads")
    p.add_argument("--budget", type=float, metavar="MINUTES", help="begin nothing new after this time")
    p.add_argument(
        "--add", type=Path, metavar="RESULT", help="go on with this result: rounds of other prompts are added"
    )
    p.add_argument("--quick", action="store_true", help="tiny workloads and one round: shows that everything runs")
    p.add_argument("--seed", type=int, default=1, help="of the prompts")
    p.add_argument("--memory-mib", type=int, default=128, help="host memory of a cache, where it can be set")
    p.add_argument("--kvconnd", type=Path, help="the daemon's binary; built from the checkout otherwise")
    p.add_argument("--cache", type=Path, default=default_cache(), help="for environments and model")
    p.add_argument("--out", type=Path, default=Path("bench-result"), help="for result.json, table.md and the chart")
    p.add_argument("--keep", action="store_true", help="keep logs and stores, also of what worked")
    p.add_argument("--table", type=Path, metavar="RESULT", help="run nothing: write table and chart of this result")
    p.add_argument("--document", type=Path, help="write the table between this document's markers, the chart beside it")
    return p


def default_cache() -> Path:
    """Return the cache directory below the user's own."""
    return environment.default_cache().with_name("kvconn-bench")


def write(result: Result, out: Path, document: Path | None) -> None:
    """Write table and chart."""
    text = markdown(result)
    (out / "table.md").write_text(text + "\n")
    (out / CHART).write_text(svg(result))
    if document is not None:
        replace_between_markers(document, f"![Time to first token after a restart]({CHART})\n\n{text}")
        (document.parent / CHART).write_text(svg(result))
    sys.stdout.write(f"\n{text}\n\nresult, table and chart are in {out}\n")


def measure(args: argparse.Namespace) -> Result:
    """Run, and return the result."""
    plan = Plan(
        systems=args.systems,
        workloads=args.workloads,
        faults=args.faults,
        rounds=1 if args.quick else args.rounds,
        budget_s=None if args.budget is None else args.budget * 60,
        quick=args.quick,
        seed=args.seed,
        memory_bytes=args.memory_mib * MIB,
        disk_bytes=DISK_MIB * MIB,
    )
    cache = args.cache.resolve()
    cache.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=cache, prefix="run-"))
    sockets = Path(tempfile.mkdtemp(prefix="kvconn-bench-"))  # a socket's path has to be short
    try:
        binary = args.kvconnd.resolve() if args.kvconnd else environment.build_daemon(work)
        earlier = load(args.add) if args.add else None
        result = Bench(plan, cache, binary, work, sockets, args.out, earlier).run()
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
        if args.keep:
            sys.stdout.write(f"logs and stores are in {work}\n")
        else:
            shutil.rmtree(work, ignore_errors=True)
    return result


def main() -> int:
    """Parse arguments and run."""
    args = parser().parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    result = load(args.table) if args.table else measure(args)
    write(result, args.out, args.document)
    return 0
