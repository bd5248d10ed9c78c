"""Runs offline.py: several engines one after the other in one process."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import environment
from completions import MAX_TOKENS
from environment import Environment

TIMEOUT_S = 900


def run_offline(
    env: Environment,
    log: Path,
    connector: str,
    prompts: Sequence[Sequence[int]],
    cases: Mapping[str, tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]],
) -> dict[str, dict[str, Any]]:
    """Run cases, each the arguments of an engine and its rounds, and return what each answered, or its error."""
    job = {
        "connector": json.loads(connector),
        "prompts": prompts,
        "max_tokens": MAX_TOKENS,
        "cases": [{"name": n, "arguments": a, "rounds": rounds} for n, (a, rounds) in cases.items()],
    }
    command = [str(env.python), str(environment.HERE / "offline.py")]
    with log.open("ab") as out:
        done = subprocess.run(
            command, input=json.dumps(job).encode(), stdout=subprocess.PIPE, stderr=out, check=False,
            env=env.variables(), timeout=TIMEOUT_S,
        )  # fmt: skip
    results: dict[str, dict[str, Any]] = json.loads(done.stdout or b"{}")
    return {name: results.get(name, {"error": f"no answer, exit status {done.returncode}"}) for name in cases}
