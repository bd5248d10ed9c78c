"""Checks and their closing line."""

from __future__ import annotations

import sys


class Report:
    """Collects checks; each is printed when it is made."""

    def __init__(self) -> None:
        self.passed = self.failed = 0

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

    def say(self, line: str = "") -> None:
        """Print a line now: the script runs for minutes."""
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    def close(self) -> int:
        """Print the closing line, and return the exit status."""
        self.say(f"{self.passed} passed, {self.failed} failed")
        return 1 if self.failed or not self.passed else 0
