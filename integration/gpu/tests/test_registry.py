"""registry.py, on a registry that fails."""

from __future__ import annotations

import importlib.util
import subprocess
import zipfile
from pathlib import Path

import pytest


@pytest.fixture
def registry():
    spec = importlib.util.spec_from_file_location("registry", Path(__file__).resolve().parent.parent / "registry.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_download_that_fails_is_made_up_for(registry, tmp_path, monkeypatch):
    """What was brought by halves would be taken for the whole from then on."""
    broken = {"two"}

    def pip(command, **_):
        package, to = command[-1], Path(command[command.index("--dest") + 1])
        if package in broken:
            raise subprocess.CalledProcessError(1, command)
        to.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(to / f"{package}.whl", "w") as wheel:
            wheel.writestr(f"{package}.py", "")

    monkeypatch.setattr(registry.subprocess, "run", pip)
    with pytest.raises(subprocess.CalledProcessError):
        registry.bring(("one==1", "two"), tmp_path, "")
    broken.clear()
    for _ in range(2):
        unpacked = registry.bring(("one==1", "two"), tmp_path, "")
        assert sorted(f.name for f in unpacked.iterdir()) == ["one==1.py", "two.py"]
    newest = registry.bring(("newest",), tmp_path, "")
    assert registry.bring(("newest",), tmp_path, "") == newest
    assert [f.name for f in newest.iterdir()] == ["newest.py"]
