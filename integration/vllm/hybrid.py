"""The stage with a hybrid model: layers with sliding windows and with full attention."""

from __future__ import annotations

import environment
from completions import MAX_TOKENS, cacheable, complete
from stage import Place, Stage

MODEL_SEED = 3
LENGTHS = (400, 1500, 400, 1500)


class Hybrid(Stage):
    """Two engines, one after the other."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "hybrid", LENGTHS)
        self.model = environment.model(place.env, MODEL_SEED, "gemma3")

    def run(self) -> None:
        """Run the stage."""
        self.daemon.start()
        self.first_run()
        self.report.equal("hybrid: kvconnd stops in order", self.daemon.terminate(), 0)
        self.daemon.start()
        self.second_run()
        self.daemon.terminate()

    def first_run(self) -> None:
        """Without cache, saving, and from disk; vLLM's own prefix cache is off."""
        engine = self.engine(self.model, 1)
        engine.start(self.daemon.vllm_config(), prefix_caching=False)
        engine.wait()
        self.daemon.wait_for_engine(engine)
        groups = engine.lines("kv cache group sizes (128, 128, 128)")
        self.report.check("hybrid: vLLM keeps three groups of layers", bool(groups))
        self.refer(engine)
        answers = self.answers(engine)
        self.identical("saving", answers)
        self.report.equal("hybrid: saving: nothing cached yet", [a.cached for a in answers], [0] * len(LENGTHS))
        answers = self.answers(engine)
        self.identical("cached", answers)
        self.all_cached("cached", answers)
        self.no_errors(engine)
        engine.terminate()

    def second_run(self) -> None:
        """Engine and daemon restarted, vLLM's own prefix cache on; then corruption."""
        engine = self.engine(self.model, 2)
        engine.start(self.daemon.vllm_config(), prefix_caching=True)
        engine.wait()
        self.daemon.wait_for_engine(engine)
        answers = self.answers(engine)
        self.identical("restarted", answers)
        self.all_cached("restarted", answers)
        before = self.daemon.metric("kvconn_loaded_blocks_total")
        self.identical("from vLLM's own prefix cache", self.answers(engine))
        self.report.equal(
            "hybrid: from vLLM's own prefix cache: nothing loaded",
            self.daemon.metric("kvconn_loaded_blocks_total"),
            before,
        )

        engine.reset_prefix_cache()
        half = [len(p) // 2 for p in self.prompts]
        begun = [complete(engine.port, p[:n], max_tokens=1) for p, n in zip(self.prompts, half, strict=True)]
        self.report.equal("hybrid: first half: cached", [a.cached for a in begun], [cacheable(n) for n in half])
        answers = self.answers(engine)
        self.identical("first half in vLLM's cache, the rest from disk", answers)
        self.all_cached("first half in vLLM's cache, the rest from disk", answers)

        self.damage(engine, every=2, shard=None, ranks=1)
        engine.reset_prefix_cache()
        self.identical("flipped bits, recomputed", self.answers(engine))
        self.damage_was_found()
        self.cached_again("flipped bits, afterwards", lambda: self.emptied(engine))

        decoding = self.prompts[0]
        engine.reset_prefix_cache()
        got = complete(engine.port, decoding, on_first_token=self.daemon.kill)
        self.report.equal(
            "hybrid: daemon killed: identical", (len(got.tokens), got.tokens), (MAX_TOKENS, self.references[0].tokens)
        )
        self.daemon.start()
        self.daemon.wait_for_engine(engine)
        self.no_errors(engine)
        engine.terminate()
