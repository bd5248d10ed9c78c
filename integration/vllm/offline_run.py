"""Runs offline.py: several engines one after the other in one process."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, cast

import environment
from completions import MAX_TOKENS
from environment import Environment

TIMEOUT_S = 300.0
"""For each command."""
WAIT_S = 120.0
"""For what an engine does in the background, and what takes seconds at most when all is well."""
SETTLED_S = 1.5
"""Files must have been there for longer than this when an engine starts: the connector allows for coarse clocks."""


class EngineError(Exception):
    """The engine did not start, failed or died."""


class Offline:
    """Engines of vLLM in a process of their own, one at a time. To be used in a `with` statement.

    Engines of several ranks have a further process for each.
    """

    def __init__(self, env: Environment, log: Path, ranks: int = 1) -> None:
        with log.open("ab") as out:
            self._process = subprocess.Popen(
                [str(env.python), str(environment.HERE / "offline.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=out,
                env=env.variables(ranks), start_new_session=True,
            )  # fmt: skip
        atexit.register(self._kill)
        self._runs = False
        self._engine = 0

    def __enter__(self) -> Offline:
        return self

    def __exit__(self, kind: type[BaseException] | None, err: BaseException | None, at: TracebackType | None) -> None:
        self._kill()
        self._process.communicate()

    def _kill(self) -> None:
        """Kill the process and the engine, a fork that holds the same pipes: while it lives a read does not end."""
        if self._process.returncode is None:  # else its number may be another's by now
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def start(
        self, arguments: Mapping[str, Any], connector: str | None, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start an engine, with environment variables of its own; one that runs is stopped before.

        With a connector it can use the daemon when this returns: what it is asked then is loaded and saved.
        """
        self.stop()
        self._runs = True
        loaded = json.loads(connector) if connector else None
        self._engine = int(self.call("start", arguments=arguments, connector=loaded, variables=variables or {})["pid"])
        if connector:
            self.wait_for("linked")

    def linked(self) -> bool:
        """Whether the engine can use all its connections to the daemon."""
        return bool(self.call("linked")["holds"])

    def wait_for(self, name: str) -> None:
        """Wait until a command of offline.py says that what it is about holds. Raises EngineError where it does not."""
        until = time.monotonic() + WAIT_S
        while not self.call(name)["holds"]:
            if time.monotonic() > until:
                raise EngineError(f"not within {WAIT_S:g} s: {name}")
            time.sleep(0.02)

    def kill_engine(self) -> str:
        """Kill the engine that runs, as `kill -9` does. Returns what is said of it."""
        self._runs = False
        os.kill(self._engine, signal.SIGKILL)
        stdout = cast(IO[bytes], self._process.stdout)
        return str(json.loads(stdout.readline())["error"])

    def stop(self) -> None:
        """Stop the engine, if one runs."""
        if self._runs:
            self.call("stop")
            self._runs = False

    def complete(self, requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Complete requests, all at once; see offline.py for what they may hold."""
        answers: list[dict[str, Any]] = self.call("complete", requests=requests)["answers"]
        return answers

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Have a command of offline.py run. Raises EngineError."""
        stdin, stdout = cast(IO[bytes], self._process.stdin), cast(IO[bytes], self._process.stdout)
        watchdog = threading.Timer(TIMEOUT_S, self._kill)
        watchdog.start()
        try:
            stdin.write(json.dumps({"do": name} | arguments).encode() + b"\n")
            stdin.flush()
            line = stdout.readline()
        except OSError:
            line = b""
        finally:
            watchdog.cancel()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "no answer"}
        if "error" in answer:
            self._runs = False
            raise EngineError(answer["error"])
        return answer


def replace(turn: Mapping[str, Any]) -> None:
    """Copy a round's files over others, in place."""
    for source, target in turn.get("replace", ()):
        Path(target).write_bytes(Path(source).read_bytes())


def run_offline(
    env: Environment,
    log: Path,
    connector: str,
    prompts: Sequence[Sequence[int]],
    cases: Mapping[str, tuple[Mapping[str, Any], Sequence[Mapping[str, Any]]]],
) -> dict[str, dict[str, Any]]:
    """Run cases, each the arguments of an engine and its rounds, and return what each answered, or its error.

    In each round all prompts are completed: after copying the files in `replace`, pairs of paths; with the LoRA
    adapter `lora`, name, number and path; without cache where `cache` is false. What the first round replaces is
    replaced before the engine starts.
    """
    results: dict[str, dict[str, Any]] = {}
    with Offline(env, log) as engines:
        for name, (arguments, rounds) in cases.items():
            results[name] = _answers(engines, connector, arguments, prompts, rounds)
    return results


def _answers(
    engines: Offline,
    connector: str,
    arguments: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    rounds: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    try:
        return {"answers": _rounds(engines, connector, arguments, prompts, rounds)}
    except EngineError as err:
        return {"error": str(err)}


def _rounds(
    engines: Offline,
    connector: str,
    arguments: Mapping[str, Any],
    prompts: Sequence[Sequence[int]],
    rounds: Sequence[Mapping[str, Any]],
) -> list[dict[str, Any]]:
    if rounds[0].get("replace"):
        replace(rounds[0])
        time.sleep(SETTLED_S)
    engines.start(arguments, connector)
    answers: list[dict[str, Any]] = []
    for i, turn in enumerate(rounds):
        if i:
            replace(turn)
        fields: dict[str, Any] = {"max_tokens": MAX_TOKENS}
        if not turn.get("cache", True):
            fields["wish"] = {"kvconn": {"load": False, "save": False}}
        if "lora" in turn:
            fields["lora"] = turn["lora"]
        for tokens in prompts:
            answers += engines.complete([{"tokens": tokens} | fields])
        if "lora" in turn:  # of one that is new nothing is loaded or saved before its digest is known
            engines.wait_for("knows_adapters")
    engines.stop()
    return answers
