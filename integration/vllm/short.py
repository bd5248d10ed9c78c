"""The short stage: what has to work on every release of vLLM."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import environment
from completions import BLOCK_SIZE, MAX_TOKENS, prompt
from damage import flip_bits
from offline_run import run_offline
from short_tier import ShortTier
from stage import Place, Stage

MODELS = {"full attention": ("llama", 1), "hybrid": ("gemma3", 3)}
"""Kind and seed of the model of each name."""
LENGTHS = (500, 1000)
"""The answer to the first prompt fills a block that was begun with the prompt."""

Tokens = list[int]
Answers = list[dict[str, Any]]


class Short(Stage):
    """Engines with two models, one after the other in one process, which is started three times."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, "short", LENGTHS)
        self.models = {name: environment.model(place.env, seed, kind) for name, (kind, seed) in MODELS.items()}

    def run(self) -> None:
        """Run the direct connector, then kvconn as a tier of vLLM's own offloading."""
        self.direct()
        ShortTier(self.place, self.models["full attention"]).run()

    def direct(self) -> None:
        """Save, restart and load, then load what is damaged."""
        self.daemon.start()
        answers = self.saving()
        self.daemon.wait_for_writes()
        self.report.equal("short: kvconnd stops in order", self.daemon.terminate(), 0)
        if not answers:
            return
        self.daemon.start()
        self.second_turn(answers)
        self.daemon.terminate()  # it holds what it has read in memory
        flipped = flip_bits(self.daemon.store)
        self.report.check("short: there were records to damage", flipped > 0, f"{flipped} records")
        self.daemon.start()
        self.flipped_bits(answers)
        self.daemon.terminate()

    def saving(self) -> dict[str, list[Tokens]]:
        """Complete all prompts without cache and saving, and return each model's answers."""
        found: dict[str, list[Tokens]] = {}
        for name, (plain, saved) in self.engines("saving", self.prompts, [{"cache": False}, {}]).items():
            found[name] = tokens_of(plain)
            whole = all(len(tokens) == MAX_TOKENS for tokens in found[name])
            self.report.check(f"short: {name}: served without cache", whole)
            self.report.equal(f"short: {name}: saving: identical", tokens_of(saved), found[name])
            self.report.equal(f"short: {name}: saving: nothing cached yet", cached(saved), [0] * len(saved))
        return found

    def second_turn(self, answers: dict[str, list[Tokens]]) -> None:
        """After a restart, go on with the answers of all models: a model's own are cached, too."""
        more = prompt(random.Random(2), BLOCK_SIZE)
        turns = [p + a + more for given in answers.values() for p, a in zip(self.prompts, given, strict=True)]
        for name, (loaded, plain) in self.engines("restarted", turns, [{}, {"cache": False}]).items():
            want = [
                (n + (MAX_TOKENS - 1 if model == name else 0)) // BLOCK_SIZE * BLOCK_SIZE
                for model in answers
                for n in LENGTHS
            ]
            self.report.equal(f"short: {name}: restarted: identical", tokens_of(loaded), tokens_of(plain))
            self.report.equal(f"short: {name}: restarted: tokens cached", cached(loaded), want)

    def flipped_bits(self, answers: dict[str, list[Tokens]]) -> None:
        """Complete the prompts whose records are damaged."""
        for name, (given,) in self.engines("flipped bits", self.prompts, [{}]).items():
            self.report.equal(f"short: {name}: flipped bits: identical", tokens_of(given), answers.get(name))
        self.damage_was_found()

    def engines(
        self, what: str, prompts: Sequence[Tokens], rounds: Sequence[Mapping[str, Any]]
    ) -> dict[str, list[Answers]]:
        """Run an engine with each model, and return what it answered in each round, without engines that failed."""
        cases = {n: ({"model": str(path), "dtype": "float32"}, rounds) for n, path in self.models.items()}
        log = self.place.work / "vllm-short.log"
        results = run_offline(self.place.env, log, self.daemon.vllm_config(), prompts, cases)
        answered: dict[str, list[Answers]] = {}
        for name, result in results.items():
            error = result.get("error", "")
            if self.report.check(f"short: {name}: {what}: serves", not error, error):
                given, n = result["answers"], len(prompts)
                answered[name] = [given[i : i + n] for i in range(0, len(given), n)]
        return answered


def tokens_of(answers: Answers) -> list[Tokens]:
    """Return each answer's tokens."""
    return [a["tokens"] for a in answers]


def cached(answers: Answers) -> list[int]:
    """Return how many tokens of each prompt were cached."""
    return [a["cached"] for a in answers]
