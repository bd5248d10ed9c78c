"""Runs prompts through engines of other namespaces on the same daemon, one after the other.

Runs in the environment that has vLLM: `python offline.py`, with a JSON object on standard input:
`connector` (vLLM's KV transfer configuration), `prompts`, `max_tokens` and `cases`, each with a
`name`, the engine's `arguments`, and perhaps `rounds`. In each round, one without more said, all
prompts are completed: after copying the files in `replace`, pairs of paths; with the LoRA adapter
`lora`, name, number and path; without cache where `cache` is false. What the first round replaces is
replaced before the engine starts. Prints a JSON object of what each case answered. vLLM is imported
once, and each engine lives in a fork of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"  # more would not survive the fork
os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # some releases say something when they are imported

from vllm.config import KVTransferConfig
from vllm.lora.request import LoRARequest

from vllm import LLM, SamplingParams

SETTLED_S = 1.5
"""Files must have been there for longer than this when an engine starts: the connector allows for coarse clocks."""


def answers(job: dict[str, Any], arguments: dict[str, Any], rounds: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Run one engine."""
    common: dict[str, Any] = {
        "enforce_eager": True,
        "max_model_len": 4096,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 256 << 20,
        "distributed_executor_backend": "uni",
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "kv_transfer_config": KVTransferConfig(**job["connector"]),
    }
    llm = LLM(**(common | arguments))
    answered: list[dict[str, Any]] = []
    for i, turn in enumerate(rounds):
        if i:
            replace(turn)
        wish = {} if turn.get("cache", True) else {"kv_transfer_params": {"kvconn": {"load": False, "save": False}}}
        sampling = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True, extra_args=wish)
        lora = LoRARequest(*turn["lora"]) if "lora" in turn else None
        for tokens in job["prompts"]:
            (out,) = llm.generate({"prompt_token_ids": tokens}, sampling, use_tqdm=False, lora_request=lora)
            answered.append({"tokens": list(out.outputs[0].token_ids), "cached": out.num_cached_tokens})
    return answered


def replace(turn: dict[str, Any]) -> None:
    """Copy a round's files over others, in place."""
    for source, target in turn.get("replace", ()):
        Path(target).write_bytes(Path(source).read_bytes())


def forked(job: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """Run one engine in a child process."""
    rounds = case.get("rounds") or [{}]
    if rounds[0].get("replace"):
        replace(rounds[0])
        time.sleep(SETTLED_S)
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            result: dict[str, Any] = {"answers": answers(job, case["arguments"], rounds)}
        except BaseException as err:  # noqa: BLE001
            result = {"error": f"{type(err).__name__}: {err}"}
        with os.fdopen(writer, "w") as pipe:
            json.dump(result, pipe)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    return json.loads(text) if text else {"error": "the engine died"}


def main() -> None:
    """Run all cases."""
    results_fd = os.dup(1)
    os.dup2(2, 1)  # vLLM prints
    job = json.load(sys.stdin)
    results = {case["name"]: forked(job, case) for case in job["cases"]}
    with os.fdopen(results_fd, "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    main()
