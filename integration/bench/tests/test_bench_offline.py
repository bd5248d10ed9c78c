"""Engines in a process that forks."""

import sys
from pathlib import Path

import environment
import offline_run
import pytest
from environment import Environment
from offline_run import EngineError, Offline

HANGS = """
import os, signal, sys
sys.stdin.readline()
if os.fork() == 0:
    signal.pause()
os.wait()
"""


def test_an_engine_that_hangs_is_killed_and_named(tmp_path, monkeypatch):
    monkeypatch.setattr(environment, "HERE", tmp_path)
    monkeypatch.setattr(offline_run, "TIMEOUT_S", 0.5)
    (tmp_path / "offline.py").write_text(HANGS)
    env = Environment(tmp_path, Path(sys.executable))
    with Offline(env, tmp_path / "log") as engines, pytest.raises(EngineError, match="no answer"):
        engines.call("complete")  # it returns once nobody has the other end of the pipe
