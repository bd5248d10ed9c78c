"""The stage of KV memory on a device: vLLM computes in device memory of the stand-in for CUDA (device/)."""

from __future__ import annotations

import json
import math
import random
import shutil
import subprocess
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from http import HTTPStatus

import environment
from completions import BLOCK_SIZE, MAX_TOKENS, Completion, complete, prompt
from environment import HERE, Environment
from processes import Engine, get
from stage import NO_CACHE, Place, Stage

MODEL_SEED, HYBRID_SEED = 1, 3
LENGTHS = (400, 1500)
DELAY_US = 300_000
"""How late the device comes to each call: many steps."""
SMALL_BLOCKS = {"llama": 32, "gemma3": BLOCK_SIZE}
"""Tokens by kind of model: small blocks are asked for often, so that a preempted request's are soon given out again."""
FEW_BLOCKS = {"llama": 135, "gemma3": 72}
"""By kind of model: enough for one request of any length, and for four prompts, but not for their long answers."""
CROWDED = 1000
LONG_ANSWER = {"llama": 150, "gemma3": 400}
"""Tokens of prompts, and of answers by kind of model, that have to share the blocks."""
CROWDED_S = 300.0
"""By when their blocks have been given out again."""
STEADY_S = 1.0
HOST_BYTES = "256MiB"
"""More than all that is saved."""


class _Environment(Environment):
    """An environment whose engines find the connector, and have the device."""

    library = ""

    def variables(self, tensor_parallel: int = 1) -> dict[str, str]:
        own = {"PYTHONPATH": str(HERE / "device"), "FAKECUDA_LIBRARY": self.library, "FAKECUDA_DELAY_US": str(DELAY_US)}
        return super().variables(tensor_parallel) | own


class OnDevice(Stage):
    """Engines with full attention and with windows, saves that are late, and requests that are preempted."""

    def __init__(self, place: Place, name: str = "device", kind: str = "llama", seed: int = MODEL_SEED) -> None:
        env = _Environment(place.env.cache, place.env.python)
        super().__init__(replace(place, env=env), name, LENGTHS)
        env.library = self._library = str(place.work / "libcuda.so.1")
        self.model, self.block_size = environment.model(place.env, seed, kind), SMALL_BLOCKS[kind]
        self._few_blocks = ["--num-gpu-blocks-override", str(FEW_BLOCKS[kind])]
        self._long_answer = LONG_ANSWER[kind]
        self._whole = kind == "llama"

    def run(self) -> None:
        """Run the stage."""
        if shutil.which("gcc") is None:
            self.report.say(f"      {self.name}: the stand-in for CUDA is in C, and there is no gcc")
            return
        subprocess.run([HERE.parent / "gpu" / "fakecuda" / "build.sh", self._library], check=True)
        self.start_daemon()
        engine = self.started(1, prefix_caching=False)
        self.saving(engine)
        self.slept(engine)
        self.ended(engine)
        self.report.equal(f"{self.name}: kvconnd stops in order", self.daemon.terminate(), 0)
        self.start_daemon()
        engine = self.started(2, prefix_caching=True, arguments=self._few_blocks)
        self.restarted(engine)
        self.preempted(engine)
        self.ended(engine)
        self.daemon.terminate()

    def ended(self, engine: Engine) -> None:
        """End an engine that should be well."""
        self.no_errors(engine)
        engine.terminate()

    def start_daemon(self) -> None:
        """Start the daemon, which loads the stand-in when an engine registers memory of a device."""
        settings = ["--prefill-tokens-per-s", "1", "--host-bytes", HOST_BYTES]
        settings += ["--load-timeout", f"{CROWDED_S:g}s", "--cuda-library", self._library]
        self.daemon.start(settings=settings)

    def started(self, number: int, prefix_caching: bool, arguments: Sequence[str] = ()) -> Engine:
        """Return an engine that serves."""
        config = json.loads(self.daemon.vllm_config())
        config |= {"kv_connector": "DeviceConnector", "kv_connector_module_path": "device_connector"}
        engine = self.engine(self.model, number)
        controls = ["--worker-extension-cls", "device_connector.Controls", "--block-size", str(self.block_size)]
        engine.start(json.dumps(config), prefix_caching, arguments=[*controls, *arguments])
        engine.wait()
        self.daemon.wait_for_engine(engine)
        self.registered(engine)
        return engine

    def registered(self, engine: Engine) -> None:
        """Wait until kvconnd has the KV memory, which is handed over in the background."""
        self.daemon.wait_until(lambda: engine.call("is_kv_memory_registered") == ["True"], "a registration")

    def settled(self, least: int = 0) -> None:
        """Wait until all saves have ended, which go on after the answers. `least` is known to come, in blocks."""
        self.daemon.wait_until(lambda: self.ended_saves() >= least, f"{least} blocks", CROWDED_S)
        last, since = -1.0, time.monotonic()
        while time.monotonic() - since < STEADY_S:
            saved = self.ended_saves()
            if saved != last:
                last, since = saved, time.monotonic()
            time.sleep(0.05)
        self.daemon.wait_for_writes()

    def ended_saves(self) -> float:
        """Return how many blocks were saved or dropped since the daemon's start."""
        return sum(self.daemon.metric(f"kvconn_{what}_blocks_total") for what in ("saved", "dropped"))

    def saving(self, engine: Engine) -> None:
        """Without cache, saving, and from the daemon; vLLM's own prefix cache is off."""
        self.refer(engine)
        answers = self.answers(engine)
        self.identical("saving", answers)
        self.report.equal(f"{self.name}: saving: nothing cached yet", [a.cached for a in answers], [0] * len(LENGTHS))
        self.settled(sum((n + MAX_TOKENS - 1) // self.block_size for n in LENGTHS))
        answers = self.answers(engine)
        self.identical("cached", answers)
        self.all_cached("cached", answers)
        copied = total(self.daemon.port, "kvconn_gpu_loaded_bytes_total")
        self.report.check(f"{self.name}: it was copied by CUDA", copied > 0, f"{copied:g} bytes")

    def slept(self, engine: Engine) -> None:
        """KV memory that is taken back, loses its bytes, and is handed over again."""
        engine.call("get_kv_memory_back")
        registered = engine.call("is_kv_memory_registered")
        self.report.equal(f"{self.name}: asleep: kvconnd has no KV memory", registered, ["False"])
        engine.call("check_kv_memory_in")
        self.registered(engine)
        answers = self.answers(engine)
        self.identical("after a sleep", answers)
        self.all_cached("after a sleep", answers)

    def restarted(self, engine: Engine) -> None:
        """Engine and daemon restarted, vLLM's own prefix cache on."""
        answers = self.answers(engine)
        self.identical("restarted", answers)
        self.all_cached("restarted", answers)

    def preempted(self, engine: Engine) -> None:
        """More requests at a time than there are blocks for: blocks are given out again while they are saved."""
        rng = random.Random("preempted")
        prompts = [prompt(rng, CROWDED) for _ in range(4)]
        want = [self.long(engine, p, **NO_CACHE) for p in prompts]
        self.forgotten(engine)
        engine.call("get_device_held")
        with ThreadPoolExecutor(len(prompts)) as pool:
            answers = [pool.submit(self.long, engine, p) for p in prompts]
            # Saves are under way when their blocks are given out again, however fast this machine computes.
            try:
                self.daemon.wait_until(lambda: self.stands_still(engine, answers), "an engine that waits", CROWDED_S)
            finally:
                engine.call("get_device_going")
            got = [a.result() for a in answers]
        self.same("preempted while saving", got, want)
        self.forgotten(engine)
        got = [self.long(engine, p) for p in prompts]
        self.same("afterwards", got, want)
        if self._whole:  # windows take blocks back without any preemption, and hits need what they took
            self.report.check(f"{self.name}: afterwards: something is cached", all(a.cached > 0 for a in got))
            preempted = total(engine.port, "vllm:num_preemptions_total")
            self.report.check(f"{self.name}: requests were preempted", preempted > 0, f"{preempted:g}")
        dropped = self.daemon.metric("kvconn_dropped_blocks_total")
        self.report.check(f"{self.name}: blocks were taken back from saves", dropped > 0, f"{dropped:g}")

    @staticmethod
    def stands_still(engine: Engine, answers: Sequence[Future[Completion]]) -> bool:
        """Whether what is left of the answers waits for blocks that saves hold."""
        done = sum(a.done() for a in answers)
        return done == len(answers) or (done > 0 and total(engine.port, "vllm:num_requests_running") == 0)

    def forgotten(self, engine: Engine) -> None:
        """Wait for all saves, and have the engine forget what it holds."""
        self.settled()
        engine.reset_prefix_cache()

    def long(self, engine: Engine, tokens: list[int], **fields: object) -> Completion:
        """Complete a prompt with a long answer."""
        return complete(engine.port, tokens, max_tokens=self._long_answer, **fields)

    def same(self, what: str, got: Sequence[Completion], want: Sequence[Completion]) -> None:
        """Check that answers have the tokens that are wanted."""
        wrong = [i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a.tokens != b.tokens]
        self.report.equal(f"{self.name}: {what}: identical", wrong, [])


def total(port: int, metric: str) -> float:
    """Return the sum of a metric over its labels; no number where the server does not answer: neither 0 nor above."""
    status, text = get(port, "/metrics")
    if status != HTTPStatus.OK:
        return math.nan
    lines = text.splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith(metric + "{"))
