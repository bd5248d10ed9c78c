"""check.py, on programs that stand in for kvconnd and the tests."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
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


HELP = "case $* in *help) echo '  bench gpu [flags]'; exit ;; esac"


def test_figures_are_read_beside_what_is_told_of_progress(check_py, tmp_path):
    program = kvconnd(tmp_path, f"{HELP}\necho measuring a layout >&2\necho '{{\"cases\": []}}'\necho done >&2")
    row = asked(check_py, "copies", program)
    assert (row.result, row.figures) == ("figure", {"bench": {"cases": []}}), row.says


def test_figures_are_of_the_driver_that_is_named(check_py, tmp_path):
    program = kvconnd(tmp_path, f'{HELP}\necho "[\\"$*\\"]"')
    row = asked(check_py, "copies", program, library="/opt/driver/libcuda-550.so")
    assert "--cuda-library /opt/driver/libcuda-550.so" in row.figures["bench"][0], row.says


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
    code = (
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
