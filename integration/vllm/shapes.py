"""The stage of the shapes that an engine can take: what it computes with, how it schedules, what requests ask for."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import environment
from completions import BLOCK_SIZE, MAX_TOKENS, prompt
from damage import flip_bits
from offline_run import EngineError, Offline
from processes import Daemon
from stage import NO_CACHE, Place, until_all_is_cached

MODEL_SEED = 1
LATENT_BLOCK_SIZE = 16
REFERENCE_ATTENTION = {"attention_backend": "CPU_MLA"}
"""What vLLM's CPU build has for multi-head latent attention in float32."""
ROOM_OF_FEW, ROOM_OF_FEW_WINDOWS = 12, 30
"""Blocks of KV memory in which three requests begin, and two can go on."""
CHUNK = 512
HIDDEN = 512
SOUND = 261
"""The token that stands for a sound."""
IMAGE = 260
"""The token that stands for an image."""

Requests = list[dict[str, Any]]
Answers = list[dict[str, Any]]


@dataclass
class Shape:
    """An engine, what it is asked, and what else is checked in the end."""

    name: str
    model: str
    arguments: Mapping[str, Any]
    requests: Requests
    block_size: int = BLOCK_SIZE
    ranks: int = 1
    more: Callable[[Run], None] = field(default=lambda run: None)


class Shapes:
    """Engines one after the other in one process, each with a daemon and a store of its own."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.rng = random.Random(12)
        # Made before vLLM starts: the connector believes no weights that are younger.
        kinds = ("llama", "gemma3", "deepseek", "qwen2_audio", "llava", "draft")
        self.models = {kind: str(environment.model(place.env, MODEL_SEED, kind)) for kind in kinds}

    def run(self) -> None:
        """Run the stage."""
        with Offline(self.place.env, self.place.work / "vllm-shapes.log") as engines:
            for shape in self.shapes():
                Run(self.place, engines, shape).run()

    def shapes(self) -> list[Shape]:
        """Return all of them."""
        plain = self.prompts(400, 1500, 2700)
        several = plain[1] | {"sampling": {"n": 3, "temperature": 1.0, "top_k": 1}}
        mixed = [*plain, plain[0] | {"salt": "a tenant"}, several]
        four = self.prompts(370, 370, 370, 370, max_tokens=40)  # the answers fill a block
        decodes = self.prompts(370, 750, max_tokens=40)
        embedded = [{"tokens": r["tokens"], "embeds": i, "width": HIDDEN} for i, r in enumerate(self.prompts(400, 900))]
        drafted = {"method": "draft_model", "model": self.models["draft"], "num_speculative_tokens": 3}
        looked_up = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "prompt_lookup_max": 3}
        chunks = {"max_num_batched_tokens": CHUNK}
        few = {"num_gpu_blocks_override": ROOM_OF_FEW, "max_model_len": 1024}
        few_windows = chunks | few | {"num_gpu_blocks_override": ROOM_OF_FEW_WINDOWS}
        llama, gemma, deepseek = (self.models[kind] for kind in ("llama", "gemma3", "deepseek"))
        (heard,) = self.prompts(450)
        heard["tokens"][50], heard["tokens"][300] = SOUND, SOUND
        sounds = [heard | {"sounds": pair} for pair in ((1, 2), (1, 3), (4, 2))]
        (seen,) = self.prompts(450)
        seen["tokens"][50], seen["tokens"][300] = IMAGE, IMAGE
        images = [seen | {"images": pair} for pair in ((1, 2), (1, 3), (4, 2))]
        return [
            Shape("chunked prefill", llama, chunks, mixed, more=wishes_and_aborts),
            Shape("prefix caching", llama, {"enable_prefix_caching": True}, mixed, more=half_of_it_held),
            Shape("preemption", llama, few, four, more=was_preempted),
            Shape("windows, chunks, preemption", gemma, few_windows, four, more=was_preempted),
            Shape("latent attention", deepseek, REFERENCE_ATTENTION, self.prompts(300, 1000), LATENT_BLOCK_SIZE),
            Shape("n-gram speculation", llama, {"speculative_config": looked_up}, decodes, more=was_drafted),
            Shape("draft model", llama, {"speculative_config": drafted}, decodes, more=was_drafted),
            Shape("prompt embeddings", llama, {"enable_prompt_embeds": True}, embedded),
            Shape("sounds", self.models["qwen2_audio"], {}, sounds, more=was_heard),
            Shape("images", self.models["llava"], {}, images, more=was_seen),
        ]

    def prompts(self, *lengths: int, max_tokens: int = MAX_TOKENS) -> Requests:
        """Return requests with prompts never seen before."""
        return [{"tokens": prompt(self.rng, n), "max_tokens": max_tokens} for n in lengths]


class Run:
    """One shape, from no cache to a damaged one."""

    def __init__(self, place: Place, engines: Offline, shape: Shape) -> None:
        self.place, self.report, self.engines, self.shape = place, place.report, engines, shape
        store = place.work / f"store-{shape.name.replace(' ', '-')}"
        self.daemon = Daemon(place.binary, store, place.sockets / "shape.sock", store.with_suffix(".log"))
        self.requests = [{"max_tokens": MAX_TOKENS} | r for r in shape.requests]
        self.references: Answers = []

    def run(self) -> None:
        """Run the shape."""
        begun = time.monotonic()
        self.daemon.start()
        try:
            self.from_no_cache_to_a_damaged_one()
        except EngineError as err:
            self.report.check(f"{self.shape.name}: serves", False, str(err)[:500])
        self.daemon.terminate()
        self.report.say(f"      {self.shape.name}: {time.monotonic() - begun:.0f} s")

    def from_no_cache_to_a_damaged_one(self) -> None:
        """Run the engine: without cache, saving, loading, from a daemon restarted, and from damaged records."""
        arguments = {"model": self.shape.model, "dtype": "float32"} | self.shape.arguments
        self.engines.start(arguments, self.daemon.vllm_config())
        self.references = self.complete(self.requests, **NO_CACHE_WISH)
        answers = self.complete(self.requests)
        self.identical("saving", answers)
        alone = [a["cached"] for a, r in zip(answers, self.requests, strict=True) if "sampling" not in r]
        self.report.equal(f"{self.shape.name}: saving: nothing cached yet", alone, [0] * len(alone))
        self.all_loaded("cached")
        self.second_turn()
        self.daemon.terminate()
        self.restart()
        self.all_loaded("daemon restarted")
        self.damaged()
        self.shape.more(self)
        self.nothing_is_held()
        self.engines.stop()

    def complete(self, requests: Sequence[Mapping[str, Any]], **fields: Any) -> Answers:
        """Complete requests, with fields, by an engine that has nothing cached, and wait for what it saves."""
        forgotten = self.engines.call("reset_prefix_cache")["reset"]
        if not forgotten and self.shape.arguments.get("enable_prefix_caching"):
            raise EngineError("vLLM has not forgotten its prefix cache: what it serves would look like a hit")
        answers = self.engines.complete([{**r, **fields} for r in requests])
        self.daemon.wait_for_writes()
        return answers

    def restart(self) -> None:
        """Start the daemon again."""
        self.daemon.start()
        self.daemon.wait_for_engine(self.engines, self.shape.ranks)

    def identical(self, what: str, answers: Answers, references: Answers | None = None) -> None:
        """Check that answers have the tokens of those without cache."""
        pairs = zip(answers, references or self.references, strict=True)
        wrong = [i for i, (a, r) in enumerate(pairs) if a["tokens"] != r["tokens"] or not a["tokens"]]
        self.report.equal(f"{self.shape.name}: {what}: identical", wrong, [])

    def cached(self, what: str, answers: Answers, want: Sequence[int]) -> None:
        """Check how many tokens of each prompt came from the cache."""
        self.report.equal(f"{self.shape.name}: {what}: tokens cached", [a["cached"] for a in answers], list(want))

    def all_loaded(self, what: str) -> None:
        """Complete all requests: they are given all that a cache can give."""
        answers = self.complete(self.requests)
        self.identical(what, answers)
        self.cached(what, answers, self.all_of_it())

    def all_of_it(self) -> list[int]:
        """Return how many tokens of each prompt a cache can give."""
        return [self.whole(r["prompt"] - 1) for r in self.references]

    def whole(self, tokens: int) -> int:
        """Return how many of tokens are in whole blocks."""
        return tokens // self.shape.block_size * self.shape.block_size

    def second_turn(self) -> None:
        """What was filled while decoding is found by the next turn."""
        first, answer = self.requests[0], self.references[0]["tokens"]
        held = self.whole(len(first["tokens"]) + len(answer) - 1)
        if "embeds" in first or held == self.whole(len(first["tokens"]) - 1):
            return  # an answer has no embeddings; too short to fill a block
        turn = first | {"tokens": first["tokens"] + answer + first["tokens"][:20]}
        reference = self.complete([turn], **NO_CACHE_WISH)
        got = self.complete([turn])
        self.identical("second turn", got, reference)
        self.cached("second turn", got, [held])

    def damaged(self) -> None:
        """A bit in every fourth record is found, what it was in is computed, and saved again."""
        self.daemon.terminate()  # it holds what it has read in memory
        flipped = flip_bits(self.daemon.store, every=4)
        self.restart()
        self.identical("damaged", self.complete(self.requests))
        found = self.daemon.metric("kvconn_store_corrupt_records_total")
        self.report.check(f"{self.shape.name}: damage found", 0 < found <= flipped, f"{found:g} of {flipped} records")

        def again() -> bool:
            answers = self.complete(self.requests)
            self.identical("damaged, afterwards", answers)
            return [a["cached"] for a in answers] == self.all_of_it()

        until_all_is_cached(again)
        self.all_loaded("damaged, saved again")

    def nothing_is_held(self) -> None:
        """Check that nothing stays pinned once no request runs."""

        def held() -> list[float]:
            return [self.daemon.metric(f"kvconn_{name}") for name in ("store_leases", "host_pinned_bytes")]

        self.daemon.wait_until(lambda: held() == [0, 0], f"the end of what it held ({self.shape.name})")
        self.report.equal(f"{self.shape.name}: no lease and no pinned byte is left", held(), [0, 0])


NO_CACHE_WISH = {"wish": NO_CACHE["kv_transfer_params"]}


def wishes_and_aborts(run: Run) -> None:
    """Requests that want less than all, that are not understood, and that go away."""
    longest = run.requests[2]
    for most in (100, 1000):
        got = run.complete([longest], wish={"kvconn": {"max_load_tokens": most}})
        run.identical(f"at most {most} tokens", got, run.references[2:3])
        run.cached(f"at most {most} tokens", got, [run.whole(min(most, len(longest["tokens"]) - 1))])
    for _ in range(2):
        got = run.complete([longest], wish={"kvconn": {"load": False, "lode": True, "max_load_tokens": "1000"}})
    run.identical("wishes not understood", got, run.references[2:3])
    run.cached("wishes not understood", got, [0])
    log = (run.place.work / "vllm-shapes.log").read_text()
    counts = [log.count(words) for words in ("unknown key 'lode'", "'max_load_tokens' is no number")]
    run.report.equal(f"{run.shape.name}: wishes not understood: one warning each", counts, [1, 1])

    states: set[str] = set()
    for wish, steps in (({}, 1), (NO_CACHE["kv_transfer_params"], 2), ({}, 12), (NO_CACHE["kv_transfer_params"], 12)):
        ended = run.engines.call("abort", request=longest | {"wish": wish}, steps=steps)
        states.add(ended["state"])
        run.report.equal(f"{run.shape.name}: aborted: blocks freed", ended["after"], ended["before"])
    seen = {"WAITING_FOR_REMOTE_KVS", "RUNNING"} <= states
    run.report.check(f"{run.shape.name}: aborted while it loads and while it runs", seen, ", ".join(sorted(states)))
    run.all_loaded("after aborts")


def half_of_it_held(run: Run) -> None:
    """The first half of a prompt is in vLLM's own prefix cache."""
    longest = run.requests[2]
    half = run.whole(len(longest["tokens"]) // 2)
    for most, cached in ((None, run.whole(len(longest["tokens"]) - 1)), (BLOCK_SIZE, half + BLOCK_SIZE)):
        wish = {"kvconn": {} if most is None else {"max_load_tokens": most}}
        run.complete([longest | {"tokens": longest["tokens"][: half + 1], "max_tokens": 1}])
        before = run.daemon.metric("kvconn_loaded_blocks_total")
        got = run.engines.complete([longest | {"wish": wish}])
        loaded = (run.daemon.metric("kvconn_loaded_blocks_total") - before) * BLOCK_SIZE
        what = f"half of it held, at most {most or 'all'} loaded"
        run.identical(what, got, run.references[2:3])
        run.cached(what, got, [cached])
        run.report.equal(f"{run.shape.name}: {what}: the rest is loaded", loaded, cached - half)


def was_preempted(run: Run) -> None:
    """Check that requests were preempted, and that what they had decoded by then was loaded when they went on."""
    preempted = run.engines.call("metrics")["vllm:num_preemptions"]
    run.report.check(f"{run.shape.name}: requests were preempted", preempted > 0, f"{preempted} times")
    before = run.daemon.metric("kvconn_load_tokens_total")
    answers = run.complete(run.requests)
    loaded = run.daemon.metric("kvconn_load_tokens_total") - before
    first = sum(a["cached"] for a in answers)
    run.report.check(
        f"{run.shape.name}: preempted requests load what they had",
        loaded > first,
        f"{loaded:g} tokens, {first} at first",
    )
    most = {"wish": {"kvconn": {"max_load_tokens": BLOCK_SIZE}}}
    answers = run.complete(run.requests, **most)
    run.identical("preempted, at most a block loaded", answers)


def was_heard(run: Run) -> None:
    """Check that sounds count: equal tokens with other sounds have other answers."""
    answers = {str(r["tokens"]) for r in run.references}
    run.report.equal(f"{run.shape.name}: each pair of sounds has its own answer", len(answers), len(run.requests))


def was_seen(run: Run) -> None:
    """Check that images count, and that another image hits nothing from its place on."""
    answers = {str(r["tokens"]) for r in run.references}
    run.report.equal(f"{run.shape.name}: each pair of images has its own answer", len(answers), len(run.requests))
    for pair, cached in ((9, 2), 0), ((1, 9), 2 * BLOCK_SIZE):
        other = run.requests[0] | {"images": pair}
        reference = run.complete([other], **NO_CACHE_WISH)
        got = run.complete([other])
        run.identical(f"images {pair}, one new", got, reference)
        run.cached(f"images {pair}, one new", got, [cached])
        again = run.complete([other])
        run.identical(f"images {pair}, again", again, reference)
        run.cached(f"images {pair}, again", again, [run.whole(reference[0]["prompt"] - 1)])


def was_drafted(run: Run) -> None:
    """Check that tokens were proposed, and that some were not accepted."""
    metrics = run.engines.call("metrics")
    drafted, accepted = (metrics[f"vllm:spec_decode_num_{k}_tokens"] for k in ("draft", "accepted"))
    run.report.check(
        f"{run.shape.name}: tokens were proposed and rejected", drafted > accepted, f"{accepted} of {drafted} accepted"
    )
