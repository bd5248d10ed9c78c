"""End-to-end test: real vLLM, its KV cache kept by kvconnd through restarts, crashes and corruption.

    python integration/vllm/e2e.py [--kvconnd PATH] [--cache DIR] [--vllm VERSION] [--keep] [--times]
        [--skip STAGE]... [--also STAGE]... [--short]

Makes its own virtual environment with vLLM's CPU build and a tiny model, and runs OpenAI servers
in float32. Nothing else than Python 3.10 and Go is needed; no GPU. The exit status is 0 only if every
check passed.
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import daemon_faults
import engine_faults
import environment
import observed
import workplace
from completions import BLOCK_SIZE, LONG, MAX_TOKENS, SHORT, Completion, cacheable, complete, complete_all, prompt
from damage import flip_bits
from device_stage import HYBRID_SEED, OnDevice
from hybrid import Hybrid
from identity import Identity
from object_stage import ObjectTier
from offline_run import run_offline
from parallel import DataParallel, latent_attention, pipeline
from processes import SETTINGS, Daemon, Engine
from shapes import Shapes
from short import Short
from stage import Place, until_all_is_cached
from tensor_parallel import TensorParallel
from tier_stage import Tier

PROMPTS_OF_EACH = 5
MODEL_SEED, OTHER_MODEL_SEED = 1, 2
MAX_CACHED_TTFT_RATIO = 0.25
"""Claim: first token of a cached prompt of 2,700 tokens, against a cold one in the same run."""
MAX_SAVING_RATIO = 1.25
"""Claim: total time of the run that saves, against one without connector, by minima. That of sums is 1.10."""
SPIN_S = 1.5
"""An engine's processes spin for a second after a request, on the cores that the other needs."""


@dataclass
class Row:
    """One prompt, through all runs."""

    tokens: list[int]
    reference: Completion = field(default_factory=Completion)
    saving: Completion = field(default_factory=Completion)
    cached: Completion = field(default_factory=Completion)


class Main:
    """The scenarios with one rank and full attention, in the order that needs the fewest engine starts."""

    def __init__(self, place: Place) -> None:
        self.report = place.report
        self.env, self.work = place.env, place.work
        self.rng = random.Random(20)
        self.model = environment.model(self.env, MODEL_SEED)
        self.daemon = Daemon(
            place.binary, self.work / "store", place.sockets / "kvconnd.sock", self.work / "kvconnd.log"
        )
        self.connector = self.daemon.vllm_config(timeout_s=10)  # shorter than it will be frozen
        self.rows = [Row(prompt(self.rng, n)) for _ in range(PROMPTS_OF_EACH) for n in (SHORT, LONG)]

    def run(self) -> None:
        """Run everything."""
        self.first_run()
        self.second_run()
        self.other_namespaces()
        engine_faults.run(self)
        self.report.equal("kvconnd stops in order", self.daemon.terminate(), 0)
        self.print_table()

    # First run: an engine without connector beside one that saves.

    def first_run(self) -> None:
        """Serve without a daemon, save, load into the same engine, and lose the daemon while serving."""
        plain = Engine(self.env, self.model, self.work / "vllm-plain.log")
        engine = Engine(self.env, self.model, self.work / "vllm-1.log")
        followed = observed.Followed(self.env, self.work / "kv-events.log")
        plain.start(None, prefix_caching=True)
        engine.start(self.connector, prefix_caching=True, arguments=followed.options)
        plain.wait()
        engine.wait()
        self.daemon_absent(plain, engine)
        self.saving_run(plain, engine)
        followed.announced(self.report, sum(len(r.tokens) // BLOCK_SIZE for r in self.rows))
        self.load_into_the_same_engine(engine)
        daemon_faults.run(self, plain, engine)
        followed.withdrawn(self.report)
        followed.kill()
        engine.terminate()
        plain.terminate()
        self.report.equal("kvconnd stops in order", self.daemon.terminate(), 0)

    def daemon_absent(self, plain: Engine, engine: Engine) -> None:
        """No daemon at the engine's start: it serves, and says so once."""
        for length in (SHORT, LONG):
            tokens = prompt(self.rng, length)
            want, got = complete(plain.port, tokens), complete(engine.port, tokens)
            self.report.equal(f"daemon absent at start: {length} tokens served, identical", got.tokens, want.tokens)
        self.report.equal("daemon absent at start: one warning", len(engine.lines("WARNING", "kvconn:")), 1)
        self.daemon.start()
        self.daemon.wait_for_engine(engine)
        # The line that it is gone has these words, too, and more after them.
        back = [line for line in engine.lines("kvconn:") if line.endswith(" is back")]
        self.report.check("daemon started later: the engine finds it", back != [])

    def saving_run(self, plain: Engine, engine: Engine) -> None:
        """Each prompt once without connector and once saving, in turns."""
        for i, row in enumerate(self.rows):
            for kind in ("saving", "reference") if i % 2 else ("reference", "saving"):
                time.sleep(SPIN_S)
                setattr(row, kind, complete(engine.port if kind == "saving" else plain.port, row.tokens))
        self.identical("first run (saving): identical to no connector", [r.saving for r in self.rows])
        self.report.equal("first run: nothing cached yet", [r.saving.cached for r in self.rows], [0] * len(self.rows))
        self.daemon.wait_for_writes()
        blocks = sum(len(r.tokens) // BLOCK_SIZE for r in self.rows)
        saved = self.daemon.metric("kvconn_store_records")
        self.report.check("first run: every full block is saved", saved >= blocks, f"{saved:g} of {blocks}")

    def load_into_the_same_engine(self, engine: Engine) -> None:
        """Prompts at the same time, from disk, with vLLM's own prefix cache on and emptied; then from it."""
        engine.reset_prefix_cache()
        before = self.daemon.metric("kvconn_loaded_blocks_total")
        answers = complete_all(engine.port, [r.tokens for r in self.rows])
        loaded = self.daemon.metric("kvconn_loaded_blocks_total") - before
        self.identical("vLLM's prefix cache on, emptied: identical, from disk", answers)
        self.all_cached("vLLM's prefix cache on, emptied: cached tokens in usage", answers)
        self.report.equal("vLLM's prefix cache on, emptied: blocks loaded", loaded * BLOCK_SIZE, self.cacheable())
        answers = complete_all(engine.port, [r.tokens for r in self.rows[-2:]])
        again = self.daemon.metric("kvconn_loaded_blocks_total") - before
        self.identical("vLLM's prefix cache on, filled: identical", answers, self.rows[-2:])
        self.report.equal("vLLM's prefix cache on, filled: nothing loaded", again, loaded)

    def after_its_return(self, engine: Engine, what: str, then: str = "restarted") -> None:
        """The cache works again without restarting the engine."""
        engine.reset_prefix_cache()
        answers = [complete(engine.port, r.tokens) for r in self.rows[:2]]
        self.identical(f"{what}, {then}: identical", answers, self.rows[:2])
        self.all_cached(f"{what}, {then}: from disk again, same engine", answers, self.rows[:2])

    # Second run: engine and daemon restarted, vLLM's own prefix cache off.

    def second_run(self) -> None:
        """Load what the first run saved; then corruption, crashes and requests' own wishes."""
        traced = observed.Traced(self.env, self.work / "traces.log")
        self.daemon.start(settings=[*SETTINGS, *traced.settings])
        engine = Engine(self.env, self.model, self.work / "vllm-2.log")
        engine.start(self.connector, prefix_caching=False, arguments=traced.options, variables=traced.variables)
        engine.wait()
        self.daemon.wait_for_engine(engine)
        self.report.equal("daemon there at start: no warning", engine.lines("WARNING", "kvconn:"), [])
        self.cached_against_cold(engine)
        observed.hits_are_shown(self.report, engine, self.rows[-1].tokens, "host")
        observed.hit_rates_agree(self.report, engine, self.daemon)
        traced.joined(self.report, "kvconn.match", "kvconn.load", "llm_request")
        self.decoded_blocks(engine)
        self.scopes(engine)
        observed.bench_sees_the_cache(self.report, engine, self.daemon.binary)
        self.flipped_bits(engine)
        self.killed_between_runs(engine)
        engine.terminate()
        traced.kill()

    def cached_against_cold(self, engine: Engine) -> None:
        """Prompts of the first run and prompts never seen, in turns."""
        for length in (SHORT, LONG):
            complete(engine.port, prompt(self.rng, length))  # the first requests compile
        complete(engine.port, self.rows[0].tokens)
        cold: dict[int, list[float]] = {SHORT: [], LONG: []}
        for row in self.rows:
            row.cached = complete(engine.port, row.tokens)
            fresh = complete(engine.port, prompt(self.rng, len(row.tokens)))
            cold[len(row.tokens)].append(fresh.first_token_s)
        answers = [r.cached for r in self.rows]
        self.identical("engine and daemon restarted: identical", answers)
        self.all_cached("engine and daemon restarted: cached tokens in usage", answers)
        for length in (SHORT, LONG):
            cached = statistics.median(r.cached.first_token_s for r in self.rows if len(r.tokens) == length)
            cold_s = statistics.median(cold[length])
            what = (
                f"{length} tokens: first token {cached:.3f} s cached, {cold_s:.3f} s cold, ratio {cached / cold_s:.3f}"
            )
            if length == LONG:
                self.report.claim(what, cached / cold_s, MAX_CACHED_TTFT_RATIO)
            else:
                self.report.say(f"      {what}")

    def decoded_blocks(self, engine: Engine) -> None:
        """A conversation: blocks filled while decoding are found by the next turn."""
        first = prompt(self.rng, SHORT)
        answer = complete(engine.port, first, max_tokens=64)
        self.daemon.wait_for_writes()
        second = first + answer.tokens + prompt(self.rng, 200)
        held = (len(first) + len(answer.tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE
        cached = complete(engine.port, second)
        cold = complete(engine.port, second, kv_transfer_params={"kvconn": {"load": False, "save": False}})
        self.report.equal("second turn: cached up to the last block that was filled", cached.cached, held)
        self.report.equal("second turn: identical", cached.tokens, cold.tokens)

    def scopes(self, engine: Engine) -> None:
        """Opting out, and tenants."""
        row = self.rows[0]
        off = complete(engine.port, row.tokens, kv_transfer_params={"kvconn": {"load": False}})
        self.report.equal(
            "request opts out of loading: nothing cached", (off.cached, off.tokens), (0, row.reference.tokens)
        )
        for want in (0, cacheable(SHORT)):
            salted = complete(engine.port, row.tokens, cache_salt="another tenant")
            self.report.equal(f"another tenant's salt: {want} cached", salted.cached, want)
            self.report.equal("another tenant's salt: identical", salted.tokens, row.reference.tokens)
            self.daemon.wait_for_writes()

    def flipped_bits(self, engine: Engine) -> None:
        """A bit in every third record on disk: found, recomputed, and repaired."""
        self.daemon.terminate()  # it holds what it has read in memory
        flipped = flip_bits(self.daemon.store)
        self.daemon.start()
        self.daemon.wait_for_engine(engine)
        observed.failures_are_shown(self.report, engine, self.daemon, self.rows[-1].tokens)
        answers = complete_all(engine.port, [r.tokens for r in self.rows])
        found = self.daemon.metric("kvconn_store_corrupt_records_total")
        self.report.check("flipped bits: there were records to damage", flipped > 0, f"{flipped} records")
        self.report.check("flipped bits: found", 0 < found <= flipped, f"{found:g} of {flipped}, the rest was not read")
        self.identical("flipped bits: recomputed, identical", answers)

        def again() -> bool:
            nonlocal answers
            self.daemon.wait_for_writes()
            answers = complete_all(engine.port, [r.tokens for r in self.rows])
            self.identical("flipped bits, afterwards: identical", answers)
            return [a.cached for a in answers] == [cacheable(len(r.tokens)) for r in self.rows]

        until_all_is_cached(again)
        self.all_cached("flipped bits, afterwards: saved again", answers)

    def killed_between_runs(self, engine: Engine) -> None:
        """Kill -9 of an idle daemon loses nothing."""
        self.daemon.wait_for_writes()
        self.daemon.kill()
        self.daemon.start()
        self.daemon.wait_for_engine(engine)
        answers = [complete(engine.port, r.tokens) for r in self.rows]
        self.identical("daemon killed -9 between runs: identical", answers)
        self.all_cached("daemon killed -9 between runs: the cache is still there", answers)

    # Other namespaces.

    def other_namespaces(self) -> None:
        """Another model, block size or dtype on the same store: no hit, no error."""
        model, other = str(self.model), str(environment.model(self.env, OTHER_MODEL_SEED))
        same = {"model": model, "dtype": "float32"}
        cases = {
            "same engine": same,
            "other model": same | {"model": other},
            "other block size": same | {"block_size": 64},
            "other dtype": same | {"dtype": "bfloat16"},
        }
        row = self.rows[0]
        results = run_offline(
            self.env,
            self.work / "vllm-offline.log",
            self.connector,
            [row.tokens],
            {name: (arguments, [{}]) for name, arguments in cases.items()},
        )
        for name in cases:
            result = results[name]
            if not self.report.check(f"{name}: serves", "answers" in result, result.get("error", "")):
                continue
            (answer,) = result["answers"]
            want = cacheable(SHORT) if name == "same engine" else 0
            self.report.equal(f"{name}: {want} tokens cached", answer["cached"], want)
            if name in ("same engine", "other block size"):
                self.report.equal(f"{name}: identical", answer["tokens"], row.reference.tokens)

    # Helpers.

    def identical(self, what: str, answers: Sequence[Completion], rows: Sequence[Row] | None = None) -> None:
        """Check that answers have the tokens of the run without connector."""
        rows = self.rows if rows is None else rows
        wrong = [i for i, (a, r) in enumerate(zip(answers, rows, strict=True)) if a.tokens != r.reference.tokens]
        enough = all(len(a.tokens) == MAX_TOKENS for a in answers)
        self.report.check(
            what, not wrong and enough, f"{len(answers)} prompts" + (f", wrong: {wrong}" if wrong else "")
        )

    def all_cached(self, what: str, answers: Sequence[Completion], rows: Sequence[Row] | None = None) -> None:
        """Check that answers were given all that a cache can give."""
        rows = self.rows if rows is None else rows
        self.report.equal(what, [a.cached for a in answers], [cacheable(len(r.tokens)) for r in rows])

    def cacheable(self) -> int:
        """Return how many tokens of all prompts together a cache can give back."""
        return sum(cacheable(len(r.tokens)) for r in self.rows)

    def print_table(self) -> None:
        """Print each prompt's way through the runs, and the figures that are claimed."""
        say = self.report.say
        say()
        say("prompt  cached | first token (s)             | total (s)           | identical")
        say("tokens  tokens | no conn.   saving   cached  | no conn.    saving  |")
        for r in self.rows:
            same = r.saving.tokens == r.cached.tokens == r.reference.tokens
            firsts = f"{r.reference.first_token_s:8.3f} {r.saving.first_token_s:8.3f} {r.cached.first_token_s:8.3f}"
            totals = f"{r.reference.total_s:8.3f}  {r.saving.total_s:8.3f}"
            say(f"{len(r.tokens):6d}  {r.cached.cached:6d} | {firsts}  | {totals}  | {'yes' if same else 'NO'}")
        say()
        best = {"reference": 0.0, "saving": 0.0}
        for length in (SHORT, LONG):
            rows = [r for r in self.rows if len(r.tokens) == length]
            reference = sorted(r.reference.total_s for r in rows)
            saving = sorted(r.saving.total_s for r in rows)
            best["reference"] += reference[0]
            best["saving"] += saving[0]
            medians = statistics.median(saving) / statistics.median(reference)
            ratios = f"{medians:.3f} of medians, {saving[0] / reference[0]:.3f} of minima"
            say(f"      {length} tokens: total time of the saving run / no connector: {ratios}")
        total = sum(r.saving.total_s for r in self.rows) / sum(r.reference.total_s for r in self.rows)
        say(f"      all {len(self.rows)} prompts: total time of the saving run / no connector: {total:.3f} of sums")
        ratio = best["saving"] / best["reference"]
        what = f"saving run: total time {ratio:.3f} of the run without connector, by minima"
        self.report.claim(what, ratio, MAX_SAVING_RATIO)
        say(f"      on {os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}")


STAGES: dict[str, Callable[[Place], None]] = {
    "unit": workplace.unit_tests,
    "main": lambda place: Main(place).run(),
    "hybrid": lambda place: Hybrid(place).run(),
    "identity": lambda place: Identity(place).run(),
    "shapes": lambda place: Shapes(place).run(),
    "tp": lambda place: TensorParallel(place).run(),
    "tier": lambda place: Tier(place).run(),
    "object": lambda place: ObjectTier(place).run(),
    "mla": lambda place: latent_attention(place).run(),
    "pp": lambda place: pipeline(place).run(),
    "dp": lambda place: DataParallel(place).run(),
    "device": lambda place: OnDevice(place).run(),
    "device-hybrid": lambda place: OnDevice(place, "device-hybrid", "gemma3", HYBRID_SEED).run(),
}
TWO_RANKS = ("tp", "mla", "pp", "dp")
"""Stages that need a core for each of two ranks."""
ON_REQUEST = ("dp", "device-hybrid")
"""Stages that take minutes for what others mostly show."""


def main() -> int:
    """Parse arguments and run."""
    parser = workplace.arguments("End-to-end test of kvconn with real vLLM.")
    parser.add_argument("--skip", action="append", default=[], choices=sorted(STAGES), help="leave a stage out")
    parser.add_argument("--also", action="append", default=[], choices=ON_REQUEST, help="run a stage that takes long")
    parser.add_argument("--short", action="store_true", help="one stage of a minute in place of all others")
    parser.add_argument("--vllm", metavar="VERSION", default="newest", help="a release of vLLM, newest or oldest")
    args = parser.parse_args()
    stages = {"short": lambda place: Short(place).run()} if args.short else STAGES
    version = {"newest": environment.NEWEST, "oldest": environment.OLDEST}.get(args.vllm, args.vllm)
    skipped = {*args.skip, *(name for name in ON_REQUEST if name not in args.also)}
    return workplace.run(args, lambda place: workplace.run_stages(place, stages, skipped, TWO_RANKS), version)


if __name__ == "__main__":
    workplace.exit_by(main)
