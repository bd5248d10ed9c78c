"""Runs prompts through engines of other namespaces on the same daemon, one after the other.

Runs in the environment that has vLLM: `python offline.py`, with a JSON object on standard input:
`connector` (vLLM's KV transfer configuration), `prompts`, `max_tokens` and `cases`, each with a
`name` and the engine's `arguments`. Prints a JSON object of what each case answered. vLLM is
imported once, and each engine lives in a fork of its own.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"  # more would not survive the fork

from vllm.config import KVTransferConfig

from vllm import LLM, SamplingParams


def answers(job: dict[str, Any], arguments: dict[str, Any]) -> list[dict[str, Any]]:
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
    sampling = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
    outputs = [llm.generate({"prompt_token_ids": p}, sampling, use_tqdm=False)[0] for p in job["prompts"]]
    return [{"tokens": list(o.outputs[0].token_ids), "cached": o.num_cached_tokens} for o in outputs]


def forked(job: dict[str, Any], arguments: dict[str, Any]) -> dict[str, Any]:
    """Run one engine in a child process."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        try:
            result: dict[str, Any] = {"answers": answers(job, arguments)}
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
    results = {case["name"]: forked(job, case["arguments"]) for case in job["cases"]}
    with os.fdopen(results_fd, "w") as out:
        json.dump(results, out)


if __name__ == "__main__":
    main()
