"""Checks and their closing line."""

from __future__ import annotations

import sys


class Report:
    """Collects checks; each is printed when it is made.

    Claims about time are checks where `times_count`, on a machine that does nothing else. Elsewhere they are printed.
    """

    def __init__(self, *, times_count: bool = False) -> None:
        self.passed = self.failed = 0
        self._times_count = times_count

    def check(self, what: str, ok: bool, detail: str = "") -> bool:
        """Note one check."""
        if ok:
            self.passed += 1
        else:
            self.failed += 1
        self.say(f"{'PASS' if ok else 'FAIL'}  {what}{f' ({detail})' if detail else ''}")
        return ok

    def equal(self, what: str, got: object, want: object) -> bool:
        """Note a check of equality."""
        return self.check(what, got == want, "" if got == want else f"got {got}, want {want}")

    def claim(self, what: str, figure: float, at_most: float) -> None:
        """Compare a figure of time with what is claimed of it."""
        detail = f"claimed: at most {at_most}"
        if self._times_count:
            self.check(what, figure <= at_most, detail)
        else:
            self.say(f"{'    ' if figure <= at_most else 'NOTE'}  {what} ({detail})")

    def say(self, line: str = "") -> None:
        """Print a line now: the script runs for minutes."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> int:
        """Print the closing line, and return the exit status."""
        self.say(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0
