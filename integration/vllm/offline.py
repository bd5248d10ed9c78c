"""Runs vLLM engines inside this process, one after the other, as its standard input says.

Runs in the environment that has vLLM: `python offline.py`. Each line of standard input is a JSON object with the name
of a command in `do`, and each is answered by a line on standard output: an object with `error`, or with what the
command says below. `start` starts an engine with `arguments` and perhaps a `connector` (vLLM's KV transfer
configuration) and environment `variables`, and says its `pid`; `stop` ends it. vLLM is imported once, and each
engine is a fork.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
os.environ["OMP_NUM_THREADS"] = "1"  # more would not survive the fork
os.environ["VLLM_LOGGING_STREAM"] = "ext://sys.stderr"  # some releases say something when they are imported

import numpy as np
import torch
from PIL import Image
from vllm.config import KVTransferConfig
from vllm.lora.request import LoRARequest

from vllm import LLM, SamplingParams

SOUND_SAMPLES = 32_000
"""Two seconds, 50 tokens."""
IMAGE_PIXELS = 56
ABORTED_WITHIN_S = 60.0
"""By when an aborted request's load has ended."""


class Engine:
    """One engine. Its commands are the methods without underscore."""

    def __init__(self, arguments: dict[str, Any], connector: dict[str, Any] | None) -> None:
        common: dict[str, Any] = {
            "enforce_eager": True,
            "max_model_len": 4096,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 2048,
            "kv_cache_memory_bytes": 256 << 20,
            "distributed_executor_backend": "uni",
            "enable_prefix_caching": False,
            "disable_log_stats": False,
            "kv_transfer_config": KVTransferConfig(**connector) if connector else None,
        }
        self._llm = LLM(**(common | arguments))

    def complete(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """Complete requests, all at once, and return `answers`.

        A request has `tokens`, `max_tokens`, and perhaps `sampling` parameters, a `wish` (kv_transfer_params), `salt`,
        `lora` (name, number and path), `sounds` or `images` (the seeds of noises), or `embeds` (the seed of a prompt of
        as many embeddings of a `width` as there are tokens).
        """
        outputs = self._llm.generate(
            [_prompt(r) for r in requests],
            [_sampling(r) for r in requests],
            lora_request=[LoRARequest(*r["lora"]) if "lora" in r else None for r in requests],
            use_tqdm=False,
        )
        answers = [
            {
                "tokens": [t for choice in out.outputs for t in choice.token_ids],
                "cached": out.num_cached_tokens,
                "prompt": len(out.prompt_token_ids or ()),
                "params": out.kv_transfer_params,
            }
            for out in outputs
        ]
        return {"answers": answers}

    def abort(self, request: dict[str, Any], steps: int) -> dict[str, Any]:
        """Abort a request after a number of steps, and return the blocks of KV that are free (`before`, `after`)."""
        engine = self._llm.llm_engine
        scheduler: Any = engine.engine_core.engine_core.scheduler  # type: ignore[attr-defined]
        pool = scheduler.kv_cache_manager.block_pool
        before = pool.get_num_free_blocks()
        engine.add_request("aborted", _prompt(request), _sampling(request))
        for _ in range(steps):
            engine.step()
        (running,) = scheduler.requests  # the engine's own name of it
        state = scheduler.requests[running].status.name
        engine.abort_request(["aborted"])
        until = time.monotonic() + ABORTED_WITHIN_S
        while (scheduler.requests or scheduler.finished_req_ids) and time.monotonic() < until:
            engine.engine_core.engine_core.step_fn()  # type: ignore[attr-defined]
        return {"state": state, "before": before, "after": pool.get_num_free_blocks()}

    def advance(self, request: dict[str, Any], steps: int) -> dict[str, Any]:
        """Take a number of steps with a request, and leave it there. Returns its `state`."""
        engine = self._llm.llm_engine
        engine.add_request("advanced", _prompt(request), _sampling(request))
        for _ in range(steps):
            engine.step()
        requests: Any = engine.engine_core.engine_core.scheduler.requests  # type: ignore[attr-defined]
        (running,) = requests.values()
        return {"state": running.status.name}

    def settle(self) -> dict[str, Any]:
        """Go on until nothing is copied any more, which a server does by itself."""
        core: Any = self._llm.llm_engine.engine_core.engine_core  # type: ignore[attr-defined]
        while core.scheduler.connector.has_pending_push_work() or core.scheduler.finished_req_ids:
            core.step_fn()
        return {}

    def linked(self) -> dict[str, Any]:
        """Say whether the connector can use all its connections to the daemon (`holds`)."""
        core: Any = self._llm.llm_engine.engine_core.engine_core  # type: ignore[attr-defined]
        # Not by way of the core: the connector takes a call that it does not know for an exchange of weights.
        return {"holds": _linked(core.scheduler.connector) and all(core.model_executor.collective_rpc(_worker_linked))}

    def knows_adapters(self) -> dict[str, Any]:
        """Say whether the digest of each adapter that was met is known (`holds`). It is made in the background."""
        connector: Any = self._llm.llm_engine.engine_core.engine_core.scheduler.connector  # type: ignore[attr-defined]
        side = _tier(connector) or connector._scheduler
        return {"holds": all(a.scope or a.refused for a in side._adapters._by_name.values())}

    def shutdown(self) -> dict[str, Any]:
        """Have the engine end in order; `stop` alone ends its process."""
        self._llm.llm_engine.engine_core.shutdown()
        return {}

    def reset_prefix_cache(self) -> dict[str, Any]:
        """Forget what is cached in engine memory."""
        return {"reset": self._llm.reset_prefix_cache()}

    def metrics(self) -> dict[str, Any]:
        """Return the values of vLLM's counters."""
        return {m.name: m.value for m in self._llm.get_metrics() if hasattr(m, "value")}


def _tier(connector: Any) -> Any:
    """Return the tier below vLLM's own offloading; None for the direct connector."""
    return getattr(getattr(connector, "_engine", None), "tier", None)


def _linked(connector: Any) -> bool:
    """Whether a connector can use its connection, with the KV memory registered where it is a worker's."""
    tier = _tier(connector)
    client = getattr(tier._side if tier else connector, "_client", None)
    if client is None:  # below vLLM's own offloading workers have none
        return True
    if hasattr(client, "register"):
        return client._registration() is not None
    return client._link.connection is not None


def _worker_linked(_worker: Any) -> bool:
    """Do the same in a worker's process, which may be another: it gets this function by its code."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    client = getattr(get_kv_transfer_group(), "_client", None)
    return client is None or client._registration() is not None


def _prompt(request: dict[str, Any]) -> dict[str, Any]:
    if "embeds" in request:
        generator = torch.Generator().manual_seed(request["embeds"])
        rows = torch.randn(len(request["tokens"]), request["width"], generator=generator)
        return {"prompt_embeds": rows}
    prompt: dict[str, Any] = {"prompt_token_ids": request["tokens"]}
    if "salt" in request:
        prompt["cache_salt"] = request["salt"]
    if "sounds" in request:
        noises = [np.random.default_rng(s).standard_normal(SOUND_SAMPLES, dtype=np.float32) for s in request["sounds"]]
        prompt["multi_modal_data"] = {"audio": noises}
    if "images" in request:
        shape = (IMAGE_PIXELS, IMAGE_PIXELS, 3)
        noises = [np.random.default_rng(s).integers(0, 256, shape, dtype=np.uint8) for s in request["images"]]
        prompt["multi_modal_data"] = {"image": [Image.fromarray(noise) for noise in noises]}
    return prompt


def _sampling(request: dict[str, Any]) -> SamplingParams:
    wish = {"kv_transfer_params": request["wish"]} if "wish" in request else {}
    fields = {"temperature": 0, "ignore_eos": True} | request.get("sampling", {})
    return SamplingParams(max_tokens=request["max_tokens"], extra_args=wish, **fields)


def serve(first: dict[str, Any], commands: TextIO, reply: Callable[[dict[str, Any]], None]) -> None:
    """Run one engine until it is told to stop."""
    os.environ.update(first.get("variables", {}))
    engine = Engine(first["arguments"], first.get("connector"))
    reply({"pid": os.getpid()})
    while line := commands.readline():
        command = json.loads(line)
        name = command.pop("do")
        if name == "stop":
            return
        reply(getattr(engine, name)(**command))


def main() -> None:
    """Fork a process for each engine."""
    results = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # vLLM prints

    def reply(answer: dict[str, Any]) -> None:
        results.write(json.dumps(answer) + "\n")
        results.flush()

    # Whoever asks waits for the answer: a line is read by the process that it is for.
    while line := sys.stdin.readline():
        first = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                serve(first, sys.stdin, reply)
            except BaseException as err:  # noqa: BLE001
                reply({"error": f"{type(err).__name__}: {err}"})
                os._exit(0)
            reply({})
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        if status:
            reply({"error": f"the engine died, exit status {status}"})


if __name__ == "__main__":
    main()
