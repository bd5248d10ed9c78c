"""What the stages of router_e2e.py share: engines, router, conversations, and the checks of answers."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import environment
from completions import BLOCK_SIZE, prompt
from processes import Daemon, Program
from router_client import MAX_TOKENS, Answer, send
from router_engine import EventEngine
from router_process import Router, rank
from stage import Place

FIRST_TURN, LATER_TURN = 1015, 240
"""Tokens that a user adds in the first turn and in those after it. With an answer of 16 each turn ends
a few tokens after a full block, which has the answer in it: only events can tell of that one."""


@dataclass
class Conversation:
    """What was said so far, answers included, and the rank that said it last."""

    name: str
    tokens: list[int]
    rank: int = -1
    turns: list[tuple[list[int], Answer]] = field(default_factory=list)
    """The whole prompt of each turn, and its answer."""

    def held(self) -> int:
        """Return the tokens that the rank of the last turn holds: full blocks, the last token's not among them."""
        return (len(self.tokens) - 1) // BLOCK_SIZE * BLOCK_SIZE

    def note(self, asked: list[int], answer: Answer) -> None:
        """Take an answer in."""
        self.turns.append((asked, answer))
        self.tokens = asked + answer.tokens
        self.rank = answer.rank


class Scene:
    """One kvconnd, the router and its engines, and conversations with these."""

    def __init__(self, place: Place, debug: bool) -> None:
        self.report = place.report
        self.env, self.work, self.debug = place.env, place.work, debug
        self.rng = random.Random(6)
        self.model = environment.model(self.env, 1)
        self.daemon = Daemon(
            place.binary, self.work / "store", place.sockets / "kvconnd.sock", self.work / "kvconnd.log"
        )
        self.connector = self.daemon.vllm_config()
        self.router = Router(place.binary, self.work)
        self.engines: list[EventEngine] = []
        self.ranks: list[dict[str, Any]] = []
        self.conversations: list[Conversation] = []
        self.who = ""
        self.salts = 0

    def start_engines(self, engines: Iterable[EventEngine]) -> None:
        """Start engines side by side; every data-parallel rank of them is one of the router's, from 1 on."""
        self.engines, begun = list(engines), time.monotonic()
        self.who = "data parallel: " if self.engines[0].ranks > 1 else ""
        for engine in self.engines:
            engine.launch(self.connector)
        self.ranks = [
            rank(number, engine, self.daemon, dp_rank)
            for number, (engine, dp_rank) in enumerate(((e, r) for e in self.engines for r in range(e.ranks)), 1)
        ]
        if self.debug:
            endpoints = [offset(r["events"]["endpoint"], r["dp_rank"]) for r in self.ranks]
            command = [str(self.env.python), str(environment.HERE / "router_events.py"), *endpoints]
            Program(self.work / "events.log").spawn(command)  # until the script ends
        for engine in self.engines:
            engine.wait()
        self.report.say(f"      {self.who}{len(self.ranks)} ranks started in {time.monotonic() - begun:.0f} s")

    def stop_engines(self) -> None:
        """Stop the router, then the engines."""
        self.report.equal(f"{self.who}the router stops in order", self.router.terminate(), 0)
        for engine in self.engines:
            engine.terminate()

    def start_router(self, policy: str) -> None:
        """Restart the router with a policy."""
        if self.router.alive():
            self.router.terminate()
        # On a busy machine tokenizing takes longer than the default allows for.
        self.router.start(self.ranks, policy=policy, tokenize_timeout="30s")
        self.router.wait_ready(*(r["id"] for r in self.ranks))

    def engine_of(self, number: int) -> EventEngine:
        """Return the server that a rank is on."""
        return self.engines[0] if len(self.engines) == 1 else self.engines[number - 1]

    def served(self) -> dict[int, int]:
        """Return how many requests each rank has finished, by the engines' own count."""
        return {r["id"]: self.engine_of(r["id"]).served(r["dp_rank"]) for r in self.ranks}

    def turn(self, c: Conversation, added: int = LATER_TURN) -> Answer:
        """Say something in a conversation, and take the answer in."""
        asked = c.tokens + prompt(self.rng, added)
        answer = send(self.router.port, asked, c.name)
        c.note(asked, answer)
        return answer

    def settle(self, conversations: Sequence[Conversation] | None = None) -> None:
        """Wait until the router knows what was cached: in the GPU of the rank that answered, and on disk."""
        for c in self.conversations if conversations is None else conversations:

            def known(c: Conversation = c) -> bool:
                found = self.router.prefixes(c.tokens)
                here = found.get(c.rank)  # none where the last turn failed
                return here is not None and here.gpu == c.held() and all(m.usable == c.held() for m in found.values())

            if not self.router.holds(known):
                found = self.router.prefixes(c.tokens)
                self.report.check(f"the router knows what {c.name or 'a conversation'} left", False, f"{found}")

    def ok(self, what: str, answers: Sequence[Answer]) -> None:
        """Check that all were answered."""
        failed = [f"{a.status} {a.error}" for a in answers if a.status != 200]
        self.report.check(what, not failed, "; ".join(failed[:2]))

    def check_turns(self, what: str, answers: Sequence[Answer], ranks: Sequence[int], held: Sequence[int]) -> None:
        """Check that turns were answered by these ranks, with that many tokens cached, as expected."""
        self.ok(f"{what}: answered", answers)
        self.report.equal(f"{what}: at the rank that has it", [a.rank for a in answers], list(ranks))
        self.report.equal(f"{what}: cached tokens in usage", [a.cached for a in answers], list(held))
        self.report.equal(f"{what}: as many as the router expected", [a.expected for a in answers], list(held))

    def check_served(self, what: str, before: dict[int, int], answers: Sequence[Answer]) -> None:
        """Check by the engines' own counters that each rank finished what the router says it did."""
        want = {number: count + [a.rank for a in answers].count(number) for number, count in before.items()}
        self.router.holds(lambda: self.served() == want)
        got = {number: count - before[number] for number, count in self.served().items()}
        self.report.equal(what, got, {number: count - before[number] for number, count in want.items()})

    def same_as_cold(self, what: str, conversations: Sequence[Conversation], max_tokens: int = MAX_TOKENS) -> None:
        """Compare the last answers with those of a server that computes the whole prompt."""
        wrong = []
        for c in conversations:
            asked, answer = c.turns[-1]
            self.salts += 1
            off = {"kvconn": {"load": False, "save": False}}
            fields: dict[str, Any] = {"cache_salt": f"cold {self.salts}", "kv_transfer_params": off}
            cold = send(self.engines[0].port, asked, max_tokens=max_tokens, **fields)
            if cold.cached or cold.tokens != answer.tokens or len(cold.tokens) != max_tokens:
                wrong.append(f"{answer.cached} of {len(asked)} cached, {cold.cached} in the cold run {cold.error}")
        self.report.check(
            f"{what}: identical to cold runs", not wrong, "; ".join(wrong[:2]) or f"{len(conversations)} prompts"
        )


def offset(endpoint: str, dp_rank: int) -> str:
    """Return the endpoint of a data-parallel rank, given that of rank 0."""
    host, port = endpoint.rsplit(":", 1)
    return f"{host}:{int(port) + dp_rank}"
