"""The stage of vLLM's own offloading with kvconnd as its secondary tier, on a stand-in for the GPU (shim/)."""

from __future__ import annotations

import http.client
import json
import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import environment
import observed
import tier_faults
from completions import BLOCK_SIZE, MAX_TOKENS, Completion, cacheable, complete, complete_all, prompt
from identity import change_tensor
from offline_run import Offline
from processes import get
from stage import Place, Stage
from tiering import EMPTY, NOTHING, shimmed, tier_config

MODEL_SEED, HYBRID_SEED = 1, 3
ADAPTER_SEEDS = 1, 2
LENGTHS = (1000, 2000, 1000, 1000)
SHORT = (0, 2, 3)
"""The prompts of 1,000 tokens: seven chunks each."""
CHANGED_TENSOR = "model.layers.3.self_attn.k_proj.weight"
LARGE, TWO_PROMPTS, TINY = 200, 16, 6
"""Sizes of the region, in chunks. A prompt has 7 or 15."""
PATIENT_S, IMPATIENT_S, FROZEN_S = 20, 10, 25
"""One that is frozen is frozen for longer than the impatient wait."""


class Tier(Stage):
    """A server, then engines in one process, all on one store."""

    def __init__(self, place: Place) -> None:
        super().__init__(replace(place, env=shimmed(place.env)), "tier", LENGTHS)
        self.rng = random.Random("tier")
        self.adapters = [environment.model(place.env, seed, "adapter") for seed in ADAPTER_SEEDS]
        self.hybrid_model = environment.model(place.env, HYBRID_SEED, "gemma3")
        self.model = place.work / "model-tier"
        shutil.copytree(environment.model(place.env, MODEL_SEED), self.model)

    def run(self) -> None:
        """Run the stage."""
        self.daemon.start()
        self.server()
        self.report.equal("tier: kvconnd stops in order", self.daemon.terminate(), 0)
        self.daemon.start()
        with Offline(self.place.env, self.place.work / "vllm-tier-engines.log") as self.engines:
            self.small_region()
            self.tiny_region()
            self.adapter()
            self.identities()
            self.hybrid()
            self.tensor_parallel()
        self.daemon.terminate()

    def connector(self, chunks: int = LARGE, timeout_s: float = PATIENT_S, **extra: Any) -> dict[str, Any]:
        """Return what vLLM needs for a region of some chunks."""
        return tier_config(self.daemon, chunks, timeout_s, **extra)

    def loaded(self) -> float:
        """Return the blocks that the daemon has loaded."""
        return self.daemon.metric("kvconn_loaded_blocks_total")

    # A server: the daemon comes and goes.

    def server(self) -> None:
        """Save, load, and lose the daemon in all places."""
        engine = self.engine(self.model, 1)
        config = self.connector(timeout_s=IMPATIENT_S)
        followed = observed.Followed(self.place.env, self.place.work / "kv-events-tier.log")
        engine.start(json.dumps(config), prefix_caching=True, arguments=followed.options)
        engine.wait()
        self.daemon.wait_for_engine(engine)
        region = Path(f"/dev/shm/vllm_offload_{config['engine_id']}.mmap")  # noqa: S108
        self.report.check("tier: the region's name is gone", not region.exists())
        port = engine.port
        wish = {"kv_transfer_params": NOTHING}
        self.references = self.answers(engine, **wish)
        fresh = [prompt(self.rng, 1500) for _ in range(2)]
        fresh_references = [complete(port, p, **wish) for p in fresh]

        def empty() -> None:
            complete(port, prompt(self.rng, 10), max_tokens=20, kv_transfer_params=EMPTY)
            engine.reset_prefix_cache()

        engine.reset_prefix_cache()
        answers = self.answers(engine)
        self.identical("saving", answers)
        self.report.equal("tier: saving: nothing cached yet", [a.cached for a in answers], [0] * len(LENGTHS))
        engine.reset_prefix_cache()
        before = self.loaded()
        answers = self.answers(engine)
        self.identical("from vLLM's region", answers)
        self.report.equal("tier: from vLLM's region: the daemon loads nothing", self.loaded(), before)
        empty()
        answers = complete_all(port, self.prompts)
        self.identical("from kvconnd, all at once", answers)
        self.all_cached("from kvconnd, all at once", answers)
        chunks = sum(cacheable(n) // BLOCK_SIZE for n in LENGTHS)
        self.report.equal("tier: from kvconnd, all at once: blocks loaded", self.loaded() - before, chunks)
        observed.tier_is_shown(self.report, engine, followed, chunks)

        self.while_loading(engine, empty, "daemon killed while loading", [(0.01, signal.SIGKILL)])
        self.while_loading(
            engine, empty, "daemon frozen while loading", [(0.01, signal.SIGSTOP), (FROZEN_S, signal.SIGCONT)]
        )
        killer = threading.Timer(0.5, self.daemon.kill)
        killer.start()
        answers = complete_all(port, fresh)
        killer.join()
        self.report.equal(
            "tier: daemon killed while saving: identical",
            [a.tokens for a in answers],
            [r.tokens for r in fresh_references],
        )
        engine.reset_prefix_cache()
        self.identical("daemon gone", complete_all(port, self.prompts))
        self.daemon.start()
        self.daemon.wait_for_engine(engine)
        tier_faults.run(self, engine, empty)
        self.aborted(engine, empty)
        self.reset(engine, empty)
        self.no_errors(engine)
        engine.terminate()
        followed.withdrawn(self.report)
        followed.kill()

    def while_loading(
        self, engine: Any, empty: Callable[[], None], what: str, signals: list[tuple[float, Any]]
    ) -> None:
        """Send the daemon signals while an engine loads, and see that it finds it again."""
        empty()
        timers = [threading.Timer(after, self.daemon.signal, [number]) for after, number in signals]
        for timer in timers:
            timer.start()
        answers = complete_all(engine.port, self.prompts)
        for timer in timers:
            timer.join()
        self.identical(what, answers)
        if signals[-1][1] == signal.SIGKILL:
            self.daemon.kill()
            self.daemon.start()
        self.daemon.wait_for_engine(engine)
        empty()
        answers = self.answers(engine)
        self.identical(f"{what}, and back", answers)
        self.all_cached(f"{what}, and back", answers)

    def aborted(self, engine: Any, empty: Callable[[], None]) -> None:
        """Requests whose clients go away while they are loaded."""
        for after_s in (0.005, 0.02, 0.1):
            empty()
            leave(engine.port, self.prompts[1], after_s)
            answers = complete_all(engine.port, self.prompts)
            self.identical(f"a client gone after {after_s:g} s", answers)
        self.all_cached("clients gone", answers)

    def reset(self, engine: Any, empty: Callable[[], None]) -> None:
        """All of vLLM's caches are reset: the tier stops."""
        status, _ = get(engine.port, "/reset_prefix_cache?reset_external=true", "POST")
        self.report.equal("tier: reset", status, 200)
        before = self.loaded()
        empty()
        self.identical("after a reset", complete_all(engine.port, self.prompts))
        self.report.equal("tier: after a reset: nothing is loaded", self.loaded(), before)
        self.report.equal(
            "tier: after a reset: one warning",
            len(engine.lines("WARNING", "kvconn:", "until the engine is restarted")),
            1,
        )

    # Engines in one process.

    def start(
        self, config: dict[str, Any], model: Path | None = None, variables: dict[str, str] | None = None, **more: Any
    ) -> None:
        """Start the next engine."""
        arguments = {"model": str(model or self.model), "dtype": "float32", **more}
        self.engines.start(arguments, json.dumps(config), variables)

    def stop(self) -> None:
        """Stop the engine that runs."""
        self.engines.call("shutdown")
        self.engines.stop()

    def complete(
        self, prompts: Sequence[Sequence[int]], together: bool = False, lora: list[Any] | None = None, **wish: Any
    ) -> list[Completion]:
        """Complete prompts, one after the other or together, and wait until nothing is copied any more."""
        fields = {"max_tokens": MAX_TOKENS, "wish": wish} | ({"lora": lora} if lora else {})
        answers: list[Completion] = []
        for group in [list(prompts)] if together else [[p] for p in prompts]:
            said = self.engines.complete([{"tokens": tokens} | fields for tokens in group])
            self.engines.call("settle")
            answers += [Completion(tokens=a["tokens"], cached=a["cached"]) for a in said]
        return answers

    def small_region(self) -> None:
        """Engine and daemon restarted; a region of two prompts; bits flipped; a store that is too small."""
        # A batch of them all: a request waits for the region a while only, and would wait for its turn as well.
        self.start(self.connector(TWO_PROMPTS), max_num_seqs=8)
        before = self.loaded()
        answers = self.complete(self.prompts)
        self.identical("engine and daemon restarted", answers)
        # A request is given half of the region.
        want = [min(cacheable(n), TWO_PROMPTS // 2 * BLOCK_SIZE) for n in LENGTHS]
        self.report.equal("tier: engine and daemon restarted: cached", [a.cached for a in answers], want)
        self.report.check("tier: engine and daemon restarted: the daemon loads", self.loaded() > before)

        short = [self.prompts[i] for i in SHORT]
        self.complete([prompt(self.rng, 10)], **EMPTY)
        answers = self.complete(short * 2, together=True)
        self.report.equal(
            "tier: six prompts wait for a region of two: identical",
            [a.tokens for a in answers],
            [self.references[i].tokens for i in SHORT] * 2,
        )
        self.report.equal(
            "tier: six prompts wait for a region of two: cached", [a.cached for a in answers], [cacheable(1000)] * 6
        )

        self.damage(self.engines, every=3, shard=None, ranks=1)
        self.complete([prompt(self.rng, 10)], **EMPTY)
        self.identical("flipped bits", self.complete(self.prompts))
        self.damage_was_found()
        self.complete([prompt(self.rng, 10)], **EMPTY)
        self.identical("flipped bits, afterwards", self.complete(self.prompts))

        self.daemon.terminate()
        store, self.daemon.store = self.daemon.store, self.place.work / "store-tier-small"
        self.daemon.start(max_bytes="64MiB")
        self.daemon.wait_for_engine(self.engines)
        for what in ("a small store", "a small store that is full"):
            self.complete([prompt(self.rng, 10)], **EMPTY)
            self.identical(what, self.complete(self.prompts))
        self.daemon.terminate()
        self.daemon.store = store
        self.daemon.start()
        self.daemon.wait_for_engine(self.engines)
        self.identical("the store before", self.complete(self.prompts))
        self.stop()

    def tiny_region(self) -> None:
        """A region of less than one prompt."""
        self.start(self.connector(TINY))
        for together in (False, True):
            answers = self.complete(self.prompts, together=together)
            self.identical(f"a region smaller than a prompt, together: {together}", answers)
            cached = [a.cached for a in answers]
            what = f"tier: a region smaller than a prompt, together: {together}: some is cached"
            self.report.check(what, any(cached), f"{cached}")
        self.stop()

    def adapter(self) -> None:
        """A LoRA adapter, and another in its directory and under its name: nothing of the former is loaded."""
        directory = self.place.work / "tier-adapter"
        lora, tokens = ["mine", 1, str(directory)], self.prompts[:1]
        answered: list[list[int]] = []
        for source in self.adapters:
            shutil.copytree(source, directory, dirs_exist_ok=True)
            self.start(self.connector(), enable_lora=True, max_lora_rank=8)
            (cold,) = self.complete(tokens, lora=lora, **NOTHING)
            self.engines.wait_for("knows_adapters")
            (first,) = self.complete(tokens, lora=lora)
            self.complete([prompt(self.rng, 10)], **EMPTY)
            (again,) = self.complete(tokens, lora=lora)
            number = len(answered) + 1
            cached = [first.cached, again.cached]
            self.report.equal(f"tier: adapter {number}: cached", cached, [0, cacheable(LENGTHS[0])])
            same = cold.tokens == first.tokens == again.tokens
            self.report.check(f"tier: adapter {number}: identical", same)
            answered.append(cold.tokens)
            self.stop()
        different = len({str(t) for t in [*answered, self.references[0].tokens]}) == 3
        self.report.check("tier: each adapter answers otherwise", different)

    def identities(self) -> None:
        """Other weights, or another RoPE, in the same directory: nothing of the former is loaded."""
        config, weights = self.model / "config.json", self.model / "model.safetensors"
        kept = config.read_text()
        self.other_engine("another rope_theta", lambda: config.write_text(kept.replace("10000.0", "5000.0")))
        changed = self.place.work / "tier-changed.safetensors"
        change_tensor(weights, changed, CHANGED_TENSOR)

        def change() -> None:
            config.write_text(kept)
            weights.write_bytes(changed.read_bytes())

        self.other_engine("other weights", change)

    def other_engine(self, what: str, change: Callable[[], Any]) -> None:
        """Serve after a change of the model's files."""
        change()
        time.sleep(1.5)  # the connector allows for coarse clocks
        self.start(self.connector())
        tokens = self.prompts[:1]
        (cold,) = self.complete(tokens, **NOTHING)
        (first,) = self.complete(tokens)
        self.report.equal(f"tier: {what}: nothing cached, identical", (first.cached, first.tokens), (0, cold.tokens))
        self.report.check(f"tier: {what}: answers otherwise", cold.tokens != self.references[0].tokens)
        self.complete([prompt(self.rng, 10)], **EMPTY)
        (again,) = self.complete(tokens)
        self.report.equal(
            f"tier: {what}: cached, identical", (again.cached, again.tokens), (cacheable(LENGTHS[0]), cold.tokens)
        )
        self.stop()

    def hybrid(self) -> None:
        """A model of sliding-window and full-attention layers."""
        tokens = [prompt(self.rng, n) for n in (400, 1500)]
        self.start(self.connector(), self.hybrid_model)
        cold = [c.tokens for c in self.complete(tokens, **NOTHING)]
        self.report.equal("tier: hybrid: saving: identical", [a.tokens for a in self.complete(tokens)], cold)
        self.stop()
        self.start(self.connector(), self.hybrid_model)
        answers = self.complete(tokens)
        self.report.equal("tier: hybrid, restarted: identical", [a.tokens for a in answers], cold)
        self.report.equal("tier: hybrid, restarted: cached", [a.cached for a in answers], [384, 1408])
        self.stop()

    def tensor_parallel(self) -> None:
        """One rank, two and one again share the canonical layout."""
        if len(os.sched_getaffinity(0)) < 2:
            self.report.say("      the canonical layout needs a core for each of two ranks, and is skipped")
            return
        model = environment.model(self.place.env, MODEL_SEED)
        config = self.connector(canonical_layout=True)
        two = {
            "tensor_parallel_size": 2,
            "distributed_executor_backend": "mp",
            "variables": {"VLLM_CPU_OMP_THREADS_BIND": self.place.env.variables(2)["VLLM_CPU_OMP_THREADS_BIND"]},
        }
        cached: list[int] = []
        for ranks, more in ((1, {}), (2, two), (1, {})):
            self.start(config, model, **more)
            # Each engine finds one prompt of the one before it, and leaves one more for the next.
            answers = self.complete(self.prompts[: len(cached) + 1])
            want = [r.tokens for r in self.references[: len(answers)]]
            self.report.equal(f"tier: canonical layout, {ranks} ranks: identical", [a.tokens for a in answers], want)
            found = [cacheable(n) for n in LENGTHS[: len(cached)]] + [0]
            self.report.equal(f"tier: canonical layout, {ranks} ranks: cached", [a.cached for a in answers], found)
            cached.append(answers[0].cached)
            self.stop()


def leave(port: int, tokens: Sequence[int], after_s: float) -> None:
    """Ask for a completion, and hang up before it is there."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = {"model": "m", "prompt": list(tokens), "max_tokens": MAX_TOKENS, "temperature": 0}
    conn.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    time.sleep(after_s)
    conn.close()
