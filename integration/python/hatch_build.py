"""Puts the daemon into the wheel.

KVCONN_WHEEL_DAEMON names the program, and KVCONN_WHEEL_PLATFORM the platform that it is for, such as
manylinux_2_17_x86_64. The licences of what is linked into it are in NOTICES.txt beside it. integration/release sets
both.
Without them the wheel has the engine plugins alone, and is for every platform: `pip install integration/python`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class DaemonHook(BuildHookInterface):
    """A script of the wheel's, which pip installs beside Python."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the daemon to what is built. An editable install has none."""
        daemon = os.environ.get("KVCONN_WHEEL_DAEMON", "")
        platform = os.environ.get("KVCONN_WHEEL_PLATFORM", "")
        if bool(daemon) != bool(platform):
            raise ValueError("KVCONN_WHEEL_DAEMON and KVCONN_WHEEL_PLATFORM go together")
        if not daemon or version == "editable":
            return
        notices = Path(daemon).with_name("NOTICES.txt")
        for file in (Path(daemon), notices):
            if not file.is_file():
                raise ValueError(f"KVCONN_WHEEL_DAEMON: there is no file {file}")
        build_data["shared_scripts"][daemon] = "kvconnd"
        build_data["extra_metadata"][str(notices)] = "NOTICES.txt"
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
