"""Runs vLLM engines with tiered offloading inside one process, one after the other, as its standard input says.

Runs in the environment that has vLLM: `python tier_engines.py`. Each line of standard input is a JSON
object, and each is answered by one on standard output. A line with `arguments` starts an engine, in a
fork of its own with the environment variables in `variables`; lines after it with `prompts` complete
them, all at once, with `params` as their kv_transfer_params; one with `stop` ends it. vLLM is imported once.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any, TextIO

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"  # more would not survive the fork

from vllm import LLM, SamplingParams


def engine(job: dict[str, Any]) -> Any:
    """Start an engine."""
    os.environ.update(job.get("variables", {}))
    common: dict[str, Any] = {
        "dtype": "float32",
        "enforce_eager": True,
        "max_model_len": 4096,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 256 << 20,
        "distributed_executor_backend": "uni",
        "enable_prefix_caching": False,
        "disable_log_stats": False,
    }
    return LLM(**(common | job["arguments"]))


def complete(llm: Any, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Complete prompts, and go on until nothing is copied any more, which a server does by itself."""
    sampling = SamplingParams(
        temperature=0,
        max_tokens=job["max_tokens"],
        ignore_eos=True,
        extra_args={"kv_transfer_params": job["params"]},
    )
    prompts = [{"prompt_token_ids": tokens} for tokens in job["prompts"]]
    outputs = llm.generate(prompts, sampling, use_tqdm=False)
    core = llm.llm_engine.engine_core.engine_core
    while core.scheduler.connector.has_pending_push_work() or core.scheduler.finished_req_ids:
        core.step_fn()
    return [{"tokens": list(o.outputs[0].token_ids), "cached": o.num_cached_tokens} for o in outputs]


def forked(job: dict[str, Any], commands: TextIO, results: TextIO) -> None:
    """Run one engine in a child process."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    try:
        llm = engine(job)
        answer(results, {})
        while not (job := json.loads(commands.readline())).get("stop"):
            answer(results, {"answers": complete(llm, job)})
        llm.llm_engine.engine_core.shutdown()
        answer(results, {})
    except BaseException as err:  # noqa: BLE001
        answer(results, {"error": f"{type(err).__name__}: {err}"})
    os._exit(0)


def answer(results: TextIO, said: dict[str, Any]) -> None:
    """Answer one line."""
    results.write(json.dumps(said) + "\n")
    results.flush()


def main() -> None:
    """Run all engines."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints
    # A line is read by the process that it is for: the stage waits for each answer.
    while line := sys.stdin.readline():
        job = json.loads(line)
        if "arguments" in job:
            forked(job, sys.stdin, results)
        else:
            answer(results, {"error": "there is no engine"})


if __name__ == "__main__":
    main()
