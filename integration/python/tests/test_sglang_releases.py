from __future__ import annotations

import logging

import pytest

from kvconn.sglang import releases


def test_a_release_that_was_not_tested_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for version in ("0.5.23", "0.6.0"):
        releases.tell(version, logging.getLogger("kvconn"))
    assert [r.levelno for r in caplog.records] == [logging.INFO, logging.WARNING]
    assert caplog.records[1].message == "kvconn: SGLang 0.6.0; tested with 0.5.22 and 0.5.23"
