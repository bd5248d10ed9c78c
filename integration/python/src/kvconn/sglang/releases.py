"""Which releases of SGLang the backend was tested with."""

from __future__ import annotations

import logging

TESTED = ("0.5.22", "0.5.23")


def tell(version: str, logger: logging.Logger) -> None:
    """Say in the log which releases are known to work, as a warning if `version` is none of them."""
    level = logging.INFO if version in TESTED else logging.WARNING
    logger.log(level, "kvconn: SGLang %s; tested with %s", version, " and ".join(TESTED))
