"""The stages of engines of several processes: pipeline stages, ranks that share latent attention, and replicas."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import environment
from completions import MAX_TOKENS, complete, prompt
from offline_run import Offline
from shapes import LATENT_BLOCK_SIZE, MODEL_SEED, REFERENCE_ATTENTION, Run, Shape
from stage import Place, Stage

RANKS = 2
LENGTHS = (400, 1500)


class TwoRanks:
    """An engine whose ranks are two processes, on all the way that a shape goes."""

    def __init__(self, place: Place, name: str, kind: str, arguments: Mapping[str, Any], block_size: int) -> None:
        self.place = place
        rng = random.Random(name)
        requests = [{"tokens": prompt(rng, n), "max_tokens": MAX_TOKENS} for n in LENGTHS]
        model = str(environment.model(place.env, MODEL_SEED, kind))
        processes = {"distributed_executor_backend": "mp"}
        self.shape = Shape(name, model, processes | arguments, requests, block_size, RANKS)

    def run(self) -> None:
        """Run the stage."""
        log = self.place.work / f"vllm-{self.shape.name}.log"
        with Offline(self.place.env, log, RANKS) as engines:
            Run(self.place, engines, self.shape).run()


def latent_attention(place: Place) -> TwoRanks:
    """Return tensor-parallel ranks that have the same latent KV: it is stored once."""
    arguments = {"tensor_parallel_size": RANKS} | REFERENCE_ATTENTION
    return TwoRanks(place, "TP=2, latent attention", "deepseek", arguments, LATENT_BLOCK_SIZE)


def pipeline(place: Place) -> TwoRanks:
    """Return two pipeline stages. The scheduler is a step ahead of them."""
    # With enforce_eager and a fixed size of KV memory the second stage dies in its first step (vLLM 0.32).
    compiled = {"enforce_eager": False, "compilation_config": {"mode": 1, "backend": "eager"}}
    return TwoRanks(place, "PP=2", "llama", {"pipeline_parallel_size": RANKS} | compiled, 128)


class DataParallel(Stage):
    """Two replicas below one server, each with a scheduler of its own, on one cache."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "DP=2", LENGTHS)
        self.model = environment.model(place.env, MODEL_SEED)

    def run(self) -> None:
        """Run the stage."""
        self.daemon.start()
        engine = self.engine(self.model, 1)
        engine.start(self.daemon.vllm_config(), prefix_caching=True, data_parallel=RANKS)
        engine.wait()
        self.daemon.wait_for_engines(engine, RANKS, RANKS)
        engines = [self.daemon.metric(f"kvconn_{name}") for name in ("engines", "ranks")]
        self.report.equal("DP=2: replicas are engines of their own", engines, [RANKS, RANKS])
        first, second = ({"X-data-parallel-rank": str(n)} for n in range(RANKS))
        self.refer(engine)
        engine.reset_prefix_cache()
        answers = self.answers(engine, headers=first)
        self.identical("the first saves", answers)
        self.report.equal("DP=2: the first saves: nothing cached yet", [a.cached for a in answers], [0] * len(LENGTHS))
        before = self.daemon.metric("kvconn_loaded_blocks_total")
        answers = self.answers(engine, headers=second)
        self.identical("the second loads what the first has saved", answers)
        self.all_cached("the second loads what the first has saved", answers)
        loaded = self.daemon.metric("kvconn_loaded_blocks_total") - before
        self.report.check("DP=2: it was loaded", loaded > 0, f"{loaded:g} blocks")

        self.daemon.kill()
        self.daemon.start()
        self.daemon.wait_for_engines(engine, RANKS, RANKS)
        for name, headers in (("first", first), ("second", second)):
            engine.reset_prefix_cache()
            answers = self.answers(engine, headers=headers)
            self.identical(f"daemon killed -9 and back, the {name}", answers)
            self.all_cached(f"daemon killed -9 and back, the {name}", answers)

        self.damage(engine, every=4, shard=None, ranks=RANKS)
        engine.reset_prefix_cache()
        self.identical("flipped bits, recomputed by the first", self.answers(engine, headers=first))
        self.damage_was_found()
        self.cached_again("flipped bits, saved again by the first", lambda: self.emptied(engine, headers=first))
        engine.reset_prefix_cache()
        answers = self.answers(engine, headers=second)
        self.identical("flipped bits, loaded by the second", answers)
        self.all_cached("flipped bits, loaded by the second", answers)
        both = [complete(engine.port, self.prompts[0], headers=h).tokens for h in (first, second)]
        self.report.equal("DP=2: both answer alike", both, [self.references[0].tokens] * RANKS)
        self.no_errors(engine)
        engine.terminate()
        self.daemon.terminate()
