from __future__ import annotations

import pytest
from bench_table import NEW, SEEN, Sample, burst_times, first_ratios, slow_numbers, table


def sample(
    system: str,
    number: int,
    first_s: float,
    take: int = 0,
    phase: str = NEW,
    workload: str = "mixed",
    right: bool = True,
) -> Sample:
    return Sample(workload, phase, system, 100, number, take, first_s, first_s, 0, right)


def test_the_least_take_counts() -> None:
    samples = [
        *(sample("none", 1, s, take) for take, s in enumerate((2.0, 1.0, 3.0))),
        *(sample("kvconn", 1, s, take) for take, s in enumerate((1.5, 9.0, 1.1))),
        sample("none", 2, 1.0),
        sample("kvconn", 2, 0.5),
    ]
    assert first_ratios(samples, "kvconn", lambda _: True) == [1.1, 0.5]
    assert first_ratios(samples, "none", lambda _: True) == [1.0, 1.0]


def test_slow_numbers_are_those_of_any_system() -> None:
    samples = [
        *(sample("none", number, 1.0) for number in (1, 2, 3)),
        *(sample("none-again", number, s) for number, s in ((1, 1.0), (2, 1.06), (3, 0.5))),
        *(sample("kvconn", number, s) for number, s in ((1, 1.05), (2, 1.0), (3, 1.2))),
        sample("kvconn", 9, 9.0, workload="lengths"),
    ]
    assert slow_numbers(samples, "mixed", 1.05) == [2, 3]
    assert slow_numbers([], "mixed", 1.05) == []


def test_a_burst_is_as_long_as_its_requests() -> None:
    samples = [sample("kvconn", 1, s, workload="saving") for s in (1.0, 2.0)]
    assert burst_times(samples, "kvconn") == {(1, 0): 3.0}


def test_table_has_a_column_for_each_system() -> None:
    samples = [
        sample("none", 1, 1.0),
        sample("kvconn", 1, 1.04, right=False),
        sample("none", 2, 1.0, phase=SEEN),
        sample("kvconn", 2, 0.3, phase=SEEN),
        *(sample("none", n, 1.0, workload="saving") for n in (3, 4)),
        *(sample("kvconn", n, 1.25, workload="saving") for n in (3, 4)),
    ]
    assert table(samples, ["none", "kvconn"]).splitlines() == [
        "| | none | kvconn |",
        "|---|---|---|",
        "| throughput while saving / none | 1.000 (mean 1.000, 1.000 to 1.000) | 0.800 (mean 0.800, 0.800 to 0.800) |",
        "| 1 mixed, asked before: first token / cold, median | 1.000 | 0.300 |",
        "| 1 mixed, asked before: worst | 1.00 | 0.30 |",
        "| 1 mixed, new: first token / cold, median | 1.000 | 1.040 |",
        "| 1 mixed, new: worst | 1.00 | 1.04 |",
        "| other tokens than without a backend | 0 | 1 |",
    ]


@pytest.mark.parametrize("systems", [["none"], ["none", "file"]])
def test_table_of_nothing(systems: list[str]) -> None:
    assert table([], systems).splitlines()[0].count("|") == len(systems) + 2
