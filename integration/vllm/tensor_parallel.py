"""The stage with two tensor-parallel ranks, each with its own process, memory and shard of each block."""

from __future__ import annotations

import environment
from stage import NO_SAVE, Place, Stage

MODEL_SEED = 1
LENGTHS = (1000, 2000, 1000)
RANKS = 2
SECOND_RANKS_SHARD = 1


class TensorParallel(Stage):
    """One engine."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "TP=2", LENGTHS)
        self.model = environment.model(place.env, MODEL_SEED)

    def run(self) -> None:
        """Run the stage."""
        self.daemon.start()
        engine = self.engine(self.model, 1)
        engine.start(self.daemon.vllm_config(), prefix_caching=True, tensor_parallel=RANKS)
        engine.wait()
        self.daemon.wait_for_engine(engine, RANKS)
        self.report.equal("TP=2: ranks registered", self.daemon.metric("kvconn_ranks"), RANKS)
        self.refer(engine)
        engine.reset_prefix_cache()
        answers = self.answers(engine)
        self.identical("saving", answers)
        self.report.equal("TP=2: saving: nothing cached yet", [a.cached for a in answers], [0] * len(LENGTHS))
        engine.reset_prefix_cache()
        answers = self.answers(engine)
        self.identical("cached", answers)
        self.all_cached("cached", answers)

        # The second rank's shard is corrupt, then missing, then saved again.
        self.damage(engine, every=1, shard=SECOND_RANKS_SHARD, ranks=RANKS)
        engine.reset_prefix_cache()
        self.identical("one rank's shard corrupt", self.answers(engine, **NO_SAVE))
        self.damage_was_found()
        engine.reset_prefix_cache()
        answers = self.answers(engine, **NO_SAVE)
        self.identical("one rank's shard missing", answers)
        self.report.check(
            "TP=2: one rank's shard missing: not all is offered",
            all(a.cached < n // 2 for a, n in zip(answers, LENGTHS, strict=True)),
            f"cached {[a.cached for a in answers]}",
        )
        self.cached_again("one rank's shard saved again", lambda: self.emptied(engine))

        self.daemon.kill()
        self.daemon.start()
        self.daemon.wait_for_engine(engine, RANKS)
        engine.reset_prefix_cache()
        answers = self.answers(engine)
        self.identical("daemon killed -9 and back", answers)
        self.all_cached("daemon killed -9 and back", answers)
        self.no_errors(engine)
        engine.terminate()
        self.daemon.terminate()
