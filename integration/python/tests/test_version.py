import importlib.util
from pathlib import Path

import pytest

import kvconn

PYTHON = Path(__file__).resolve().parents[1]


def test_version_is_that_of_the_checkout():
    number = PYTHON.parent.parent / "internal/version/number.txt"
    if not number.is_file():
        pytest.skip("these tests are not in a checkout")
    assert kvconn.__version__ == number.read_text().strip()


@pytest.fixture
def hook(tmp_path):
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", PYTHON / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.DaemonHook(str(tmp_path), {}, None, None, str(tmp_path), "wheel")


@pytest.fixture
def data():
    return {"shared_scripts": {}, "extra_metadata": {}, "pure_python": True}


@pytest.fixture
def daemon(tmp_path, monkeypatch):
    daemon = tmp_path / "kvconnd"
    daemon.write_bytes(b"\x7fELF")
    (tmp_path / "NOTICES.txt").write_text("notices")
    monkeypatch.setenv("KVCONN_WHEEL_DAEMON", str(daemon))
    monkeypatch.setenv("KVCONN_WHEEL_PLATFORM", "manylinux_2_17_x86_64")
    return daemon


def test_wheel_gets_the_daemon_and_its_platform(hook, data, daemon):
    hook.initialize("standard", data)
    assert data["shared_scripts"] == {str(daemon): "kvconnd"}
    assert list(data["extra_metadata"].values()) == ["NOTICES.txt"]
    assert data["tag"] == "py3-none-manylinux_2_17_x86_64"
    assert data["pure_python"] is False


def test_wheel_without_a_daemon_is_for_every_platform(hook, data, monkeypatch):
    monkeypatch.delenv("KVCONN_WHEEL_DAEMON", raising=False)
    monkeypatch.delenv("KVCONN_WHEEL_PLATFORM", raising=False)
    hook.initialize("standard", data)
    assert data == {"shared_scripts": {}, "extra_metadata": {}, "pure_python": True}


def test_editable_install_has_no_daemon(hook, data, daemon):
    hook.initialize("editable", data)
    assert data["shared_scripts"] == {}


@pytest.mark.parametrize("missing", ["KVCONN_WHEEL_DAEMON", "KVCONN_WHEEL_PLATFORM"])
def test_one_setting_without_the_other_is_refused(hook, data, daemon, monkeypatch, missing):
    monkeypatch.delenv(missing)
    with pytest.raises(ValueError, match="go together"):
        hook.initialize("standard", data)


@pytest.mark.parametrize("missing", ["kvconnd", "NOTICES.txt"])
def test_wheel_that_would_lack_a_file_is_refused(hook, data, daemon, missing):
    (daemon.parent / missing).unlink()
    with pytest.raises(ValueError, match=f"there is no file .*{missing}"):
        hook.initialize("standard", data)
