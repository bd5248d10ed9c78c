"""What the connector costs vLLM's scheduler thread: for a request that is loaded, and for a step with nothing to do.

    kvconnd serve --dir DIR --socket PATH --prefill-tokens-per-s 1 &
    python bench/scheduler.py --socket PATH

Runs the scheduler's side of the connector as vLLM calls it, without an engine: a prompt is saved once by a worker that
has memory and no model; then one request after the other is looked up, given blocks, loaded, scheduled and ended. The
time is that of all hooks of one request added up, their round trips to the daemon included. Needs vLLM in the
environment. Prints JSON: fastest and middle request, by hook, the thread's processor time, which other work on the
machine changes less, and a step in which a request only decodes. Beside them what two round trips take to a process
that does nothing else, with as many bytes: no request can take less.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import socket
import statistics
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import match

from kvconn.client import GroupLayout, Options, Run, SchedulerClient, WorkerClient
from kvconn.memfd import sealed_memfd
from kvconn.vllm.adapters import Adapters
from kvconn.vllm.scheduler import SchedulerSide

BLOCK_SIZE = 128
BLOCK_BYTES = 64 << 10
MANIFEST = match.MANIFEST | {"block_size": BLOCK_SIZE}
DECODES = "a step of decoding"
PAUSE_S = 0.01
"""Between requests: an engine computes meanwhile, and the daemon's threads fall asleep."""
ANSWER_BYTES = 100
"""About what an answer has, and the step that loads."""


def bare_round_trips(rounds: int, request_bytes: int) -> float:
    """Return the median time of two round trips to a process that answers at once, with a pause before them."""
    here, there = socket.socketpair()
    if os.fork() == 0:
        here.close()
        while there.recv(1 << 16):
            there.send(bytes(ANSWER_BYTES))
        os._exit(0)
    there.close()
    took: list[float] = []
    with here:
        for _ in range(rounds):
            time.sleep(PAUSE_S)
            begun = time.perf_counter()
            for size in (request_bytes, ANSWER_BYTES):
                here.send(bytes(size))
                here.recv(1 << 16)
            took.append(time.perf_counter() - begun)
    return statistics.median(took)


class Engine:
    """Calls the scheduler's side as vLLM does, with its own clock on each call."""

    def __init__(self, socket: str, tokens: int) -> None:
        options = Options(socket, engine="bench", manifest=json.dumps(MANIFEST).encode())
        self.client, self.worker = SchedulerClient(options), WorkerClient(options, 0)
        if not self.client.connect():
            raise SystemExit(f"no kvconnd at {socket}")
        logger = logging.getLogger("bench")
        self.side = SchedulerSide(self.client, BLOCK_SIZE, logger, Adapters(0.0, False, "", logger))
        blocks = -(-tokens // BLOCK_SIZE) + 2
        fd = sealed_memfd("bench", blocks * BLOCK_BYTES)
        self.worker.register([fd], [GroupLayout(blocks, [Run(0, 0, 1, 0, BLOCK_BYTES, BLOCK_BYTES)])])
        rng = random.Random(1)
        self.tokens = [rng.randrange(150_000) for _ in range(tokens)]
        self.blocks = list(range(1, blocks))  # vLLM keeps the first for itself
        self.took: dict[str, float] = {}
        self.cpu_s = 0.0
        """The thread's processor time in all hooks of a request."""

    def timed(self, hook: str, call: Callable[[], Any]) -> Any:
        """Call, and add the time to a hook's."""
        begun, cpu = time.perf_counter(), time.thread_time()
        result = call()
        if hook and hook != DECODES:
            self.cpu_s += time.thread_time() - cpu
        self.took[hook] = self.took.get(hook, 0.0) + time.perf_counter() - begun
        return result

    def request(self, name: str) -> Any:
        """Return what the connector looks at of a vLLM request."""
        return SimpleNamespace(
            request_id=name,
            all_token_ids=list(self.tokens),
            num_tokens=len(self.tokens),
            num_prompt_tokens=len(self.tokens),
            cache_salt=None,
            lora_request=None,
            mm_features=[],
            prompt_embeds=None,
            resumable=False,
            kv_transfer_params=None,
            skip_reading_prefix_cache=False,
        )

    def output(self, new: dict[str, tuple[int, int]], cached: dict[str, tuple[int, int]]) -> Any:
        """Return a step's output, in which requests compute (count) tokens after (computed)."""
        return SimpleNamespace(
            scheduled_new_reqs=[SimpleNamespace(req_id=r, num_computed_tokens=c) for r, (c, _) in new.items()],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=list(cached), num_computed_tokens=[c for c, _ in cached.values()], resumed_req_ids=set()
            ),
            num_scheduled_tokens={r: n for r, (_, n) in (new | cached).items()},
            preempted_req_ids=None,
            kv_connector_block_state=SimpleNamespace(get_block_ids=lambda _: (self.blocks,)),
        )

    def plan(self, hook: str, new: Any = None, cached: Any = None) -> Any:
        """Plan a step."""
        output = self.output(new or {}, cached or {})
        return self.timed(hook, lambda: self.side.plan(output))

    def serve(self, name: str) -> tuple[int, dict[str, float]]:
        """Serve a request from its look-up to its end; return the tokens loaded, and the time in each hook."""
        self.took, self.cpu_s = {}, 0.0
        r, side = self.request(name), self.side
        blocks = SimpleNamespace(get_block_ids=lambda: (self.blocks,))
        offered, _ = self.timed("match", lambda: side.match(r, 0))
        self.timed("allocated", lambda: side.allocated(r, blocks, offered))
        if offered:
            plan = self.plan("plan of the load")
            self.worker.load(plan.payload, plan.loads)
            while self.worker.busy and not self.worker.poll():
                time.sleep(0.0002)
            ended = SimpleNamespace(finished_recving={name}, invalid_block_ids=set(), kv_connector_worker_meta=None)
            self.timed("end of the load", lambda: side.loaded(ended))
            self.timed("allocated", lambda: side.allocated(r, blocks, 0))
        plan = self.plan("plan of the prefill", new={name: (offered, r.num_tokens - offered)})
        self.worker.save(plan.payload)
        r.all_token_ids.append(7)
        r.num_tokens += 1
        for _ in range(2):  # the leader is told of the steps after a long prefill
            self.plan("", cached={name: (r.num_tokens - 1, 1)})
            r.all_token_ids.append(7)
            r.num_tokens += 1
        self.plan(DECODES, cached={name: (r.num_tokens - 1, 1)})
        self.timed("finished", lambda: side.finished(name))
        self.plan("plan after its end")
        return offered, self.took


def main() -> None:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(description="Cost of the connector in vLLM's scheduler.")
    parser.add_argument("--socket", required=True, help="path of a running kvconnd's socket")
    parser.add_argument("--tokens", type=int, default=2700, help="length of the prompt")
    parser.add_argument("--rounds", type=int, default=200, help="requests")
    args = parser.parse_args()
    bare = bare_round_trips(args.rounds, 4 * args.tokens)  # first: a process with threads must not fork
    engine = Engine(args.socket, args.tokens)
    engine.serve("saved")
    time.sleep(1)
    rounds: list[dict[str, float]] = []
    cpu: list[float] = []
    for i in range(args.rounds):
        time.sleep(PAUSE_S)
        loaded, took = engine.serve(f"r{i}")
        if loaded != (args.tokens - 1) // BLOCK_SIZE * BLOCK_SIZE:
            raise SystemExit(f"{loaded} tokens were offered: nothing else may use the daemon")
        took.pop("")
        rounds.append(took)
        cpu.append(engine.cpu_s)
    idle = [took.pop(DECODES) for took in rounds]
    whole = [sum(took.values()) for took in rounds]
    figures = {
        "request_s": min(whole),
        "request_p50_s": statistics.median(whole),
        "request_cpu_s": min(cpu),
        "request_cpu_p50_s": statistics.median(cpu),
        "idle_step_p50_s": statistics.median(idle),
        "bare_round_trips_p50_s": bare,
    }
    hooks = {hook: statistics.median(took[hook] for took in rounds) for hook in rounds[0]}
    print(json.dumps({k: float(f"{v:.3g}") for k, v in (figures | hooks).items()} | {"tokens": args.tokens}))


if __name__ == "__main__":
    main()
