from __future__ import annotations

import logging
from typing import Any

import pytest

from kvconn.vllm.wishes import Wishes, WishReader


@pytest.fixture
def reader() -> WishReader:
    return WishReader(logging.getLogger("test"))


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the reader has logged; threads of other tests may log too."""
    return [r.getMessage() for r in caplog.records if r.name == "test"]


@pytest.mark.parametrize(
    ("params", "want"),
    [
        (None, Wishes()),
        ({}, Wishes()),
        ({"do_remote_prefill": True}, Wishes()),
        ({"kvconn": None}, Wishes()),
        ({"kvconn": {}}, Wishes()),
        ({"kvconn": {"load": False}}, Wishes(load=False)),
        ({"kvconn": {"save": False, "load": True}}, Wishes(save=False)),
        ({"kvconn": {"max_load_tokens": 0}}, Wishes(max_load_tokens=0)),
        ({"kvconn": {"max_load_tokens": 2048}}, Wishes(max_load_tokens=2048)),
        ({"kvconn": {"max_load_tokens": None}}, Wishes()),
    ],
)
def test_what_is_understood_is_not_reported(
    reader: WishReader, caplog: pytest.LogCaptureFixture, params: Any, want: Wishes
) -> None:
    assert (reader.read(params), reported(caplog)) == (want, [])


@pytest.mark.parametrize(
    ("asked", "want"),
    [
        ("no", Wishes()),
        ([], Wishes()),
        ({"save": "false"}, Wishes(save=False)),
        ({"save": 1, "max_load_tokens": 5}, Wishes(save=False, max_load_tokens=5)),
        ({"load": None}, Wishes(load=False)),
        ({"max_load_tokens": -1, "save": False}, Wishes(save=False)),
        ({"max_load_tokens": True}, Wishes()),
        ({"max_load_tokens": 512.0}, Wishes()),
        ({"max_load_tokens": "512"}, Wishes()),
        ({"max_tokens": 5, "load": False}, Wishes(load=False)),
        ({7: 5}, Wishes()),
    ],
)
def test_what_is_not_understood_is_reported_once_and_the_rest_counts(
    reader: WishReader, caplog: pytest.LogCaptureFixture, asked: Any, want: Wishes
) -> None:
    for _ in range(3):
        assert reader.read({"kvconn": asked}) == want
    assert len(reported(caplog)) == 1


def test_no_client_fills_the_log(reader: WishReader, caplog: pytest.LogCaptureFixture) -> None:
    for i in range(1000):
        assert reader.read({"kvconn": {f"{i}\n" + "x" * 100_000: 1, "save": False}}) == Wishes(save=False)
    said = reported(caplog)
    assert len(said) == 17
    assert all(len(line) < 300 and "\n" not in line for line in said)
    assert "not reported any more" in said[-1]


def test_params_that_are_no_object_are_not_ours_to_report(reader: WishReader, caplog: pytest.LogCaptureFixture) -> None:
    assert (reader.read("kvconn"), reported(caplog)) == (Wishes(), [])
