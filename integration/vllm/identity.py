"""The stage of what an engine computes with: adapters trained again, and weights changed, under the same name."""

from __future__ import annotations

import json
import random
import shutil
import struct
from pathlib import Path
from typing import Any

import environment
from completions import MAX_TOKENS, cacheable, prompt
from offline_run import run_offline
from processes import Daemon
from stage import Place

MODEL_SEED, ADAPTER_SEEDS = 1, (1, 2)
LENGTH = 1000
CHANGED_TENSOR = "model.layers.3.self_attn.k_proj.weight"


class Identity:
    """Engines one after the other in one process, all on one store."""

    def __init__(self, place: Place) -> None:
        self.place, self.report = place, place.report
        self.model = place.work / "model"
        shutil.copytree(environment.model(place.env, MODEL_SEED), self.model)
        self.adapters = [environment.model(place.env, seed, "adapter") for seed in ADAPTER_SEEDS]
        self.adapter = place.work / "adapter"
        shutil.copytree(self.adapters[0], self.adapter)
        self.daemon = Daemon(
            place.binary, place.work / "store-identity", place.sockets / "identity.sock", place.work / "kvconnd-id.log"
        )
        self.prompt = prompt(random.Random(10), LENGTH)

    def run(self) -> None:
        """Run the stage."""
        self.daemon.start()
        changed = self.place.work / "changed.safetensors"
        change_tensor(self.model / "model.safetensors", changed, CHANGED_TENSOR)
        arguments = {"model": str(self.model), "dtype": "float32"}
        lora = arguments | {"enable_lora": True, "max_lora_rank": 8}
        mine, other = self._with_adapter("mine", 1), self._with_adapter("other name", 2)
        trained = {"replace": self._weights_of(1)}
        plain = {"cache": False}
        # Requests wait only a moment for the digest of an adapter that an engine meets: it is met without cache first.
        cases = {
            "adapter": (lora, [mine | plain, mine, mine, other | plain, other, mine | plain]),
            "restarted": (lora, [mine | plain, mine]),
            "trained again": (lora, [mine | trained | plain, mine, mine, mine | plain]),
            "trained while running": (lora, [mine | plain, mine | {"replace": self._weights_of(0)}, {}]),
            "first adapter again": (lora, [mine | plain, mine]),
            "model": (arguments, [{}, {}, plain]),
            "one tensor changed": (
                arguments,
                [{"replace": [[str(changed), str(self.model / "model.safetensors")]]}, {}, plain],
            ),
        }
        log = self.place.work / "vllm-identity.log"
        results = run_offline(self.place.env, log, self.daemon.vllm_config(), [self.prompt], cases)
        answers: dict[str, list[dict[str, Any]]] = {}
        for name in cases:
            if self.report.check(
                f"identity: {name}: serves", "answers" in results[name], results[name].get("error", "")
            ):
                answers[name] = results[name]["answers"]
        if len(answers) == len(cases):
            self.check(answers)
        warned = [line for line in log.read_text().splitlines() if "WARNING" in line and "kvconn:" in line]
        changes = [line for line in warned if "'mine' is neither loaded nor saved: its files have changed" in line]
        self.report.equal("identity: trained while running: one warning", (len(changes), len(warned)), (1, 1))
        self.daemon.terminate()

    def check(self, answers: dict[str, list[dict[str, Any]]]) -> None:
        """Check what each engine had cached, and that it answers as without cache."""
        full = cacheable(LENGTH)
        want = {
            "adapter": [0, 0, full, 0, full, 0],
            "restarted": [0, full],
            "trained again": [0, 0, full, 0],
            "trained while running": [0, 0, 0],
            "first adapter again": [0, full],
            "model": [full, full, 0],  # what the engine with adapters has saved without one
            "one tensor changed": [0, full, 0],
        }
        for name, cached in want.items():
            self.report.equal(f"identity: {name}: tokens cached", [a["cached"] for a in answers[name]], cached)
        for name in ("adapter", "trained again", "model", "one tensor changed"):
            tokens = [a["tokens"] for a in answers[name]]
            same = all(t == tokens[-1] and len(t) == MAX_TOKENS for t in tokens)
            self.report.check(f"identity: {name}: identical to no cache", same)
        first, again = answers["adapter"][0]["tokens"], answers["trained again"][0]["tokens"]
        base, changed = answers["model"][0]["tokens"], answers["one tensor changed"][0]["tokens"]
        for name in ("restarted", "first adapter again"):
            self.report.equal(f"identity: {name}: identical", [a["tokens"] for a in answers[name]], [first] * 2)
        different = len({str(t) for t in (first, again, base, changed)}) == 4
        self.report.check("identity: each adapter and each model answers otherwise", different)

    def _with_adapter(self, name: str, number: int) -> dict[str, Any]:
        return {"lora": [name, number, str(self.adapter)]}

    def _weights_of(self, adapter: int) -> list[list[str]]:
        name = "adapter_model.safetensors"
        return [[str(self.adapters[adapter] / name), str(self.adapter / name)]]


def change_tensor(source: Path, target: Path, name: str) -> None:
    """Write a copy of a safetensors file with the bytes of one tensor in another order."""
    data = bytearray(source.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    begin, end = (8 + length + o for o in json.loads(data[8 : 8 + length])[name]["data_offsets"])
    half = (begin + end) // 2
    data[begin:end] = data[half:end] + data[begin:half]
    target.write_bytes(data)
