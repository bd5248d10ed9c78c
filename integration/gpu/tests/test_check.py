"""check.py, on programs that stand in for kvconnd and the tests."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).resolve().parent.parent / "check.py"


@pytest.fixture
def check_py(monkeypatch):
    spec = importlib.util.spec_from_file_location("check", CHECK)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "check", module)  # where dataclasses look for it
    monkeypatch.syspath_prepend(str(CHECK.parent))
    spec.loader.exec_module(module)
    return module


def kvconnd(directory: Path, script: str) -> Path:
    """A kvconnd that is a script of the shell."""
    program = directory / "kvconnd"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program


def asked(check_py, name: str, program: Path, library: str = "libcuda.so.1"):
    """The row of a name, asked on a machine whose kvconnd is this program."""
    check = check_py.Check(library, stand_in=False)
    check.kvconnd = program
    row, answer = next((row, answer) for row, answer in check_py.rows(check) if row.name == name)
    check_py.ask(row, answer)
    return row


LAYOUT = "llama-3-8b, per layer"


def case(direction: str, run_kib: int, ratio: float, tokens: int = 16) -> dict:
    """A case of the bench."""
    return {
        "layout": LAYOUT,
        "block_tokens": tokens,
        "direction": direction,
        "run_bytes": run_kib << 10,
        "ratio": ratio,
    }


def step(beside: str, ratio: float) -> dict:
    """A decode step of the bench."""
    return {"beside": beside, "median_s": 0.001 * ratio, "ratio": ratio}


STEPS = [step("", 1.0), step("load", 1.02), step("save", 1.125), step("both", 1.5)]
GOOD = [case("load", 64, 0.91), case("save", 64, 0.9), case("load", 32, 0.7), case("save", 32, 0.8)]


def bench(directory: Path, cases: list[dict], steps: list[dict] = STEPS, script: str = "", **more: object) -> Path:
    """A kvconnd that has measured this."""
    figures = directory / "figures.json"
    figures.write_text(json.dumps({"cases": cases, "decode": steps, "arena_pinned": True, **more}))
    return kvconnd(directory, f"echo measuring a layout >&2\n{script}\ncat {figures}\necho done >&2")


def test_figures_are_read_beside_what_is_told_of_progress(check_py, tmp_path):
    row = asked(check_py, "copies", bench(tmp_path, GOOD))
    assert (row.result, row.figures["bench"]["cases"]) == ("pass", GOOD), row.says
    assert "load of long runs 0.91" in row.says
    assert "save of short runs 0.80" in row.says


def test_figures_are_of_the_driver_that_is_named(check_py, tmp_path):
    program = bench(tmp_path, GOOD, script=f'echo "$*" >{tmp_path}/asked')
    assert asked(check_py, "copies", program, library="/opt/driver/libcuda-550.so").result == "pass"
    assert (tmp_path / "asked").read_text() == "bench gpu --json --cuda-library /opt/driver/libcuda-550.so\n"


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (
            case("load", 64, 0.89),
            "load of llama-3-8b, per layer, 16 tokens, runs of 64 KiB: 0.89 of the limit, want 0.9",
        ),
        (case("save", 2048, 0.899, 64), "save of llama-3-8b, per layer, 64 tokens, runs of 2048 KiB"),
        (case("save", 18, 0.69), "want 0.7"),
        (case("load", 63, float("nan")), "nan of the limit"),
    ],
)
def test_copies_below_their_bar_fail(check_py, tmp_path, bad, why):
    row = asked(check_py, "copies", bench(tmp_path, [*GOOD, bad]))
    assert row.result == "fail"
    assert "1 of 5 cases" in row.says
    assert why in row.says
    assert row.figures["bench"]["cases"][:4] == GOOD  # what was measured is in the report


def test_both_ways_at_one_time_have_no_bar(check_py, tmp_path):
    assert asked(check_py, "copies", bench(tmp_path, [*GOOD, case("both", 64, 0.2)])).result == "pass"


def test_memory_that_is_not_locked_is_said_where_copies_are_slow(check_py, tmp_path):
    row = asked(check_py, "copies", bench(tmp_path, [*GOOD, case("load", 64, 0.1)], arena_pinned=False))
    assert "ulimit -l" in row.says


@pytest.mark.parametrize(
    ("cases", "steps"),
    [
        ([], STEPS),
        ([case("load", 64, 1.0)], STEPS),
        (GOOD, []),
        ([{**GOOD[0], "ratio": None}, *GOOD], STEPS),
        ([{k: v for k, v in GOOD[0].items() if k != "run_bytes"}, *GOOD], STEPS),
    ],
)
def test_an_output_without_the_figures_fails(check_py, tmp_path, cases, steps):
    row = asked(check_py, "copies", bench(tmp_path, cases, steps))
    assert row.result == "fail", row.says


def test_decode_beside_copies_is_a_row_of_its_own(check_py, tmp_path):
    row = asked(check_py, "decode beside copies", bench(tmp_path, GOOD))
    assert (row.result, row.figures) == ("figure", {"decode": STEPS})
    assert row.says == "beside load 1.02, save 1.12, both 1.50 of a step alone"


def test_ways_of_copying_are_told_apart(check_py, tmp_path):
    ways = [("batch", 0.0), ("kernel", 1.0), ("kernel", 0.25)]
    steps = [*STEPS, *(step("save", 1.25) | {"way": way, "kernel_ratio": ratio} for way, ratio in ways)]
    row = asked(check_py, "decode beside copies", bench(tmp_path, GOOD, steps))
    said = "save by batch 1.25, save by kernel 1.25, save by kernel (25%) 1.25 of a step alone"
    assert row.says.endswith(f"both 1.50, {said}")


def test_the_bench_runs_once_for_all_rows(check_py, tmp_path):
    check = check_py.Check("libcuda.so.1", stand_in=False)
    check.kvconnd = bench(tmp_path, GOOD, script=f"echo ran >>{tmp_path}/runs")
    for row, answer in check_py.rows(check):
        if row.name in ("copies", "decode beside copies"):
            check_py.ask(row, answer)
            assert row.result in ("pass", "figure")
    assert (tmp_path / "runs").read_text() == "ran\n"


def test_without_figures_one_row_says_why(check_py, tmp_path):
    check = check_py.Check("libcuda.so.1", stand_in=False)
    check.kvconnd = kvconnd(tmp_path, "echo 'error: no GPU' >&2\nexit 1")
    results = {}
    for row, answer in check_py.rows(check):
        if row.name in ("copies", "decode beside copies"):
            check_py.ask(row, answer)
            results[row.name] = row.result
    assert results == {"copies": "fail", "decode beside copies": "skip"}


def test_figures_of_the_stand_in_are_not_judged(check_py, tmp_path):
    program = bench(tmp_path, [case("load", 64, 0.01), case("save", 64, 0.01)], stand_in=True)
    for name in ("copies", "decode beside copies"):
        row = asked(check_py, name, program)
        assert (row.result, row.figures) == ("pass", {})
        assert "mean nothing" in row.says


def test_a_probe_says_why_it_is_skipped(check_py, tmp_path, monkeypatch):
    monkeypatch.setattr(check_py.sys, "executable", str(kvconnd(tmp_path, """echo '{"skip": "not permitted"}'""")))
    row = asked(check_py, "across containers", tmp_path)
    assert (row.result, row.says) == ("skip", "not permitted")


@pytest.mark.parametrize("name", ["torch's allocators", "vLLM's allocator"])
def test_rows_of_torch_are_skipped_without_it(check_py, tmp_path, monkeypatch, name):
    monkeypatch.setattr(check_py.importlib.util, "find_spec", lambda _: None)
    row = asked(check_py, name, tmp_path)
    assert row.result == "skip"
    assert row.says.endswith("has no torch")


def test_findings_are_read_beside_warnings(check_py, tmp_path):
    row = asked(check_py, "driver", kvconnd(tmp_path, "echo a warning >&2\necho '[{}]'"))
    assert (row.result, row.says) == ("pass", "1 findings")


def test_a_row_that_fails_says_what_was_written_to_standard_error(check_py, tmp_path):
    row = asked(check_py, "driver", kvconnd(tmp_path, "echo '[]'\necho 'error: no GPU' >&2\nexit 1"))
    assert row.result == "fail"
    assert "error: no GPU" in row.says


def test_the_pack_has_what_pytest_needs_on_older_pythons(check_py):
    """pip leaves out what the Python that packs does not need; the other machine's may be 3.10."""
    brought = {re.split(r"[^\w-]", package)[0] for package in check_py.PYTHON_PACKAGES}
    wanted = {
        re.split(r"[^\w-]", requirement)[0]
        for requirement in importlib.metadata.requires("pytest") or []
        if "python_version" in requirement and "extra" not in requirement
    }
    assert wanted <= brought


def test_a_row_that_hangs_shows_how_far_it_came(check_py, tmp_path, capfd):
    program = kvconnd(tmp_path, "echo the last line >&2\nsleep 600")
    with pytest.raises(check_py.Failed, match="still running"):
        check_py.Check("libcuda.so.1", stand_in=False).run([program], limit_s=1)
    assert "the last line" in capfd.readouterr().err


# A copier has a group of processes of its own.
GROUPS = {"the same": "", "its own": "os.setpgid(0, 0); "}


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_what_a_row_has_started_ends_with_the_check(tmp_path, name, group):
    """Or else its GPU stays taken when a terminal closes."""
    started = tmp_path / "started"
    os.mkfifo(started)
    held = f'import os, time; {GROUPS[group]}open("{started}", "w").write(str(os.getpid())); time.sleep(600)'
    program = kvconnd(tmp_path, f"{sys.executable} -c '{held}' &\nwait")
    code = (  # what runs the tests may ignore signals, and children inherit that
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        f"import sys; sys.path.insert(0, {str(CHECK.parent)!r}); import check, shutil\n"
        f"check.build = lambda its: setattr(its, 'kvconnd', {str(program)!r})\n"
        "shutil.which = lambda program: program\n"
        "sys.exit(check.main())\n"
    )
    report = tmp_path / "report.json"
    running = subprocess.Popen([sys.executable, "-c", code, "--json", str(report)], stderr=subprocess.DEVNULL)
    pidfd = os.pidfd_open(int(started.read_text()))
    try:
        running.send_signal(getattr(signal, name))
        assert running.wait(timeout=60) != 0
        gone, _, _ = select.select([pidfd], [], [], 20)
        assert gone, "the process is left over"
    finally:
        running.kill()
        running.wait()
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
