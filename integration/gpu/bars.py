"""What the figures of `kvconnd bench gpu --json` have to be, and what the rows of check.py say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LONG_RUN_BYTES = 64 << 10
LONG_RATIO, SHORT_RATIO = 0.9, 0.7
"""Of the limit of large copies of locked memory: for runs of 64 KiB and more; and for shorter ones, which layouts with
a run in each layer have at 16 tokens."""


class NoFigures(Exception):
    """The output is not that of the bench."""


def read(bench: Mapping[str, Any]) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return cases and decode steps. Raises NoFigures where one of them lacks what is read here."""
    try:
        cases, steps = list(bench["cases"]), list(bench["decode"])
        for case in cases:
            _ = case["layout"], case["block_tokens"], case["direction"], case["run_bytes"] + 0, case["ratio"] + 0.0
        for step in steps:
            _ = step["beside"], step["ratio"] + 0.0, step["median_s"] + 0.0
    except (KeyError, TypeError) as err:
        raise NoFigures(f"the bench's output lacks {err}") from err
    if not {"load", "save"} <= {case["direction"] for case in cases}:
        raise NoFigures("the bench has measured no loads, or no saves")
    if not {"load", "save"} <= {step["beside"] for step in steps}:
        raise NoFigures("the bench has measured no decode steps beside loads, or none beside saves")
    return cases, steps


def bar(case: Mapping[str, Any]) -> float:
    """Return the least ratio of a case that passes; 0 for both ways at one time, which no bar is set for."""
    if case["direction"] not in ("load", "save"):
        return 0.0
    return LONG_RATIO if case["run_bytes"] >= LONG_RUN_BYTES else SHORT_RATIO


def below(cases: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is below its bar, the worst first. A ratio that is no number is below."""
    missed = [case for case in cases if not case["ratio"] >= bar(case)]
    missed.sort(key=lambda case: case["ratio"] - bar(case))
    return [f"{_named(case)}: {case['ratio']:.2f} of the limit, want {bar(case)}" for case in missed]


def least(cases: Sequence[Mapping[str, Any]]) -> str:
    """Return the lowest ratio each way, of long and of short runs."""
    said = []
    for direction in ("load", "save"):
        for name, want in (("long", LONG_RATIO), ("short", SHORT_RATIO)):
            ratios = [c["ratio"] for c in cases if c["direction"] == direction and bar(c) == want]
            if ratios:
                said.append(f"{direction} of {name} runs {min(ratios):.2f}")
    return "of the limit at least: " + ", ".join(said)


def decode(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return how much longer decode steps take beside copies."""
    said = [f"{s['beside']}{_by(s)} {s['ratio']:.2f}" for s in steps if s["beside"]]
    return "beside " + ", ".join(said) + " of a step alone"


def _by(step: Mapping[str, Any]) -> str:
    """Return how copies were made, where the bench said so: the way, and the share that a GPU let go that way."""
    way = step.get("way")
    if not way:
        return ""
    share = step["kernel_ratio"] if way == "kernel" else 1 - step["kernel_ratio"]
    return f" by {way}" + (f" ({share:.0%})" if share < 1 else "")


def _named(case: Mapping[str, Any]) -> str:
    kib = case["run_bytes"] / 1024
    return f"{case['direction']} of {case['layout']}, {case['block_tokens']} tokens, runs of {kib:g} KiB"
