"""Ratios, tables and the chart say what was measured, and nothing about what was not."""

from xml.etree import ElementTree

import pytest
from chart import svg
from results import Harm, Result, Sample, Session, Throughput, burst_throughput, least, load, pick, ratios
from table import BEGIN, END, markdown, replace_between_markers

MACHINE = {"cores": 2, "processor": "P", "memory_gib": 24, "kernel": "6", "load": 0.1, "python": "3.11"}
SETTINGS = {"rounds": 3, "rounds_done": 3, "seed": 1, "quick": False}


def sample(**fields):
    base = {
        "system": "a",
        "round": 1,
        "workload": "restart",
        "phase": "restarted",
        "tokens": 1000,
        "cached": 896,
        "answered": 32,
        "first_s": 0.1,
        "total_s": 0.5,
        "none_first_s": 1.0,
        "none_total_s": 2.0,
        "right": True,
    }
    return Sample(**(base | fields))


def result(**fields):
    base = {
        "date": "2026-11-22",
        "machine": MACHINE,
        "settings": SETTINGS,
        "titles": {"a": "System A", "b": "System B"},
        "versions": {"a": {"p": "1.0"}},
    }
    return Result(**(base | fields))


def harm(case, **fields):
    base = {
        "system": "a",
        "case": case,
        "requests": 4,
        "wrong": 0,
        "unanswered": 0,
        "lost_s": 0.0,
        "hits": 4,
        "alive": True,
    }
    return Harm(**(base | fields))


def test_ratios_are_of_medians_and_of_sums():
    firsts = [0.1, 0.3, 0.2]
    found = ratios([sample(first_s=first, right=first != 0.3) for first in firsts])
    assert found.first == pytest.approx(0.2)
    assert found.worst == pytest.approx(0.3)
    assert found.first_request == pytest.approx(0.1)
    assert found.throughput == pytest.approx(4.0)
    assert found.tokens_per_s == pytest.approx(1032 / 0.5)
    assert found.cached == pytest.approx(0.896)
    assert found.wrong == 1
    assert ratios([]) is None


def test_the_first_request_is_that_of_each_round():
    firsts = [(1, 0.5), (1, 0.1), (2, 0.7), (2, 0.1), (3, 0.2), (3, 0.9)]
    found = ratios([sample(round=number, first_s=first) for number, first in firsts])
    assert found.first_request == pytest.approx(0.5)


def test_of_several_takes_the_least_counts():
    takes = [(2.0, 0.9), (1.0, 3.0)]
    samples = [
        *(sample(number=0, take=i, first_s=o, none_first_s=n, right=not i) for i, (o, n) in enumerate(takes)),
        sample(number=1, first_s=0.5, none_first_s=1.0),
        sample(number=0, round=2, first_s=0.3, none_first_s=1.0),
    ]
    assert [(s.first_s, s.none_first_s, s.right) for s in least(samples)] == [
        (1.0, 0.9, False),
        (0.5, 1.0, True),
        (0.3, 1.0, True),
    ]
    alone = [sample(first_s=f) for f in (0.1, 0.2)]
    assert least(alone) == alone, "samples without a number are of different requests"


def test_throughput_of_bursts_is_that_of_their_least_takes():
    def burst(number, take, ours, none):
        return [sample(number=number, take=take, total_s=o, none_total_s=n) for o, n in zip(ours, none, strict=True)]

    samples = [
        *burst(0, 0, (1.0, 1.0), (1.0, 1.0)),
        *burst(0, 1, (4.0, 4.0), (2.0, 2.0)),
        *burst(1, 0, (1.0, 1.0), (2.0, 2.0)),
    ]
    found = burst_throughput(samples)
    assert found.least == pytest.approx((2 + 4) / (2 + 2))
    assert found.mean == pytest.approx(1.0)
    assert found.low < 1 < found.high
    assert burst_throughput(samples[:2]) == Throughput(1.0, 1.0, 1.0, 1.0)
    assert burst_throughput([]) is None


def test_the_table_has_takes_and_bursts_and_the_long_damaged_prompt():
    r = result(
        samples=[
            *(sample(workload="mixed", number=0, take=t, first_s=s) for t, s in enumerate((3.0, 1.5))),
            *(sample(workload="bursts", number=0, take=t, total_s=1.0) for t in range(2)),
        ],
        harms=[harm("bit flipped in a long prompt", first_ratio=1.125)],
    )
    lines = markdown(r).splitlines()
    assert "| mixed: first token, the worst request | 3.00 |" in lines
    assert "| mixed, the least of 2 takes: first token, the worst request | 1.50 |" in lines
    assert "| bursts that are saved: throughput, least takes (mean, 95 % of it) | 2.00 (2.00, 2.00 to 2.00) |" in lines
    assert "| bit flipped in a long prompt | 0 of 4 wrong, 0.0 s lost, first token 1.12 of cold |" in lines


def test_pick_takes_one_phase_and_length():
    r = result(
        samples=[sample(), sample(tokens=2700), sample(phase="saving"), sample(system="b"), sample(workload="mixed")]
    )
    assert len(pick(r, "a", "restart")) == 3
    assert len(pick(r, "a", "restart", "restarted")) == 2
    assert pick(r, "a", "restart", "restarted", 2700) == [r.samples[1]]


def test_a_result_is_read_back_as_it_was_saved(tmp_path):
    r = result(samples=[sample()], sessions=[Session("a", 1, 2**20, 1.5, 10, 5)], harms=[harm("file cut")])
    r.save(tmp_path / "result.json")
    assert load(tmp_path / "result.json") == r


def test_the_table_has_figures_costs_and_damage():
    r = result(
        samples=[sample(), sample(tokens=2700, first_s=0.05), sample(system="b", first_s=0.5, right=False)],
        sessions=[Session("a", 1, 100 << 20, 1.5, 150, 100), Session("b", 1, 0, 0.0, 300, 100)],
        harms=[
            harm("bit flipped", wrong=2, lost_s=1.25),
            harm("daemon killed", alive=False, hits=0),
            harm("bit flipped", system="b"),
        ],
    )
    lines = markdown(r).splitlines()
    assert "| ÷ no cache | System A | System B |" in lines
    assert "| first token after a restart, 1,000 tokens | 0.10 | 0.50 |" in lines
    assert "| first token after a restart, 2,700 tokens | 0.050 |  |" in lines
    assert "| wrong answers of all requests | 0 of 2 | 1 of 1 |" in lines
    assert "| daemon's memory, the highest, MiB | 100 | none |" in lines
    assert "| bytes on disk ÷ KV of the prompts | 1.50 | 3.00 |" in lines
    assert "| bit flipped | 2 of 4 wrong, 1.2 s lost | 0 of 4 wrong, 0.0 s lost |" in lines
    assert "| daemon killed | 0 of 4 wrong, nothing from the cache, 0.0 s lost, **engine dead** | no daemon |" in lines
    assert not any("mixed" in line or "conversations" in line for line in lines), "nothing was measured of these"


def test_what_was_not_run_is_named_and_has_no_column():
    r = result(samples=[sample()], not_run={"b": "it cannot be installed"}, left_out=["round 2: a: out of time"])
    text = markdown(r)
    assert "- System B: it cannot be installed." in text
    assert "- round 2: a: out of time" in text
    assert "| System B" not in text


def test_the_table_replaces_what_is_between_the_markers(tmp_path):
    document = tmp_path / "d.md"
    document.write_text(f"# Before\n\n{BEGIN}\nold\n{END}\n\nAfter\n")
    replace_between_markers(document, "new")
    assert document.read_text() == f"# Before\n\n{BEGIN}\n\nnew\n\n{END}\n\nAfter\n"
    document.write_text("no markers")
    with pytest.raises(ValueError, match="no markers"):
        replace_between_markers(document, "new")


def test_the_chart_has_a_bar_for_each_figure():
    r = result(
        samples=[sample(), sample(tokens=2700), sample(system="b", tokens=2700)], titles={"a": "A & B", "b": "B"}
    )
    picture = ElementTree.fromstring(svg(r))
    bars = [
        e for e in picture if e.tag.endswith("rect") and float(e.get("x", "-1")) == 190 and float(e.get("y", "0")) >= 44
    ]
    assert len(bars) == 3
    assert any(e.text == "A & B" for e in picture)
    ElementTree.fromstring(svg(result()))
