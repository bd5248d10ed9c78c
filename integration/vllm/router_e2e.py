"""End-to-end test: real vLLM servers with kvconnd's router before them, their KV cache kept by one kvconnd.

    python integration/vllm/router_e2e.py [--kvconnd PATH] [--cache DIR] [--stages LIST] [--debug] [--keep]

Needs what e2e.py needs, about 6 GB of memory, and no GPU. The stages `turns`, `restart` and `kill`
share two servers; `data-parallel` has one server with two ranks. The exit status is 0 only if every
check passed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import workplace
from completions import BLOCK_SIZE, complete, prompt
from router_client import MAX_TOKENS, Answer, chat, send
from router_engine import EventEngine
from router_process import Match, Router
from router_scene import FIRST_TURN, LATER_TURN, Conversation, Scene

STAGES = ("turns", "restart", "kill", "data-parallel")
PAIR_STAGES = {"turns", "restart", "kill"}
CONVERSATIONS = 4
KILL_TOKENS = 256
"""Length of the answers that are cut off by the death of a server, which must not come after their end."""


class RouterEndToEnd(Scene):
    """The stages, in the order that needs the fewest engine starts."""

    def run(self, stages: Sequence[str]) -> int:
        """Run stages, and return the exit status."""
        self.daemon.start()
        if PAIR_STAGES & set(stages):
            self.start_engines(EventEngine(self.env, self.model, self.work / f"vllm-{n}.log") for n in (1, 2))
            if "turns" in stages:
                self.begin_by_prefix()
                self.turns_by_prefix()
            self.begin_by_conversation()
            if "turns" in stages:
                self.turns_by_conversation()
                self.texts_and_streams()
            if "restart" in stages:
                self.restart()
            if "kill" in stages:
                self.kill()
            self.stop_engines()
        if "data-parallel" in stages:
            self.start_engines([EventEngine(self.env, self.model, self.work / "vllm-dp.log", data_parallel=2)])
            self.begin_by_prefix()
            self.turns_by_prefix()
            self.begin_by_conversation()
            self.turns_by_conversation()
            self.pins()
            self.stop_engines()
        self.report.equal("kvconnd stops in order", self.daemon.terminate(), 0)
        return self.report.close()

    # Stage turns: who gets what.

    def begin_by_prefix(self) -> None:
        """First turns of several conversations at the same time, none of which has a name: both ranks get work."""
        self.start_router("cost")
        self.conversations = [Conversation("", prompt(self.rng, FIRST_TURN)) for _ in range(CONVERSATIONS)]
        before = self.served()
        with ThreadPoolExecutor(CONVERSATIONS) as pool:
            answers = list(pool.map(lambda c: send(self.router.port, c.tokens), self.conversations))
        self.ok(f"{self.who}first turns at the same time: answered", answers)
        for c, answer in zip(self.conversations, answers, strict=True):
            c.note(c.tokens, answer)
        work = {number: [a.rank for a in answers].count(number) for number in before}
        self.report.check(
            f"{self.who}first turns at the same time: both ranks get work", min(work.values()) > 0, f"{work}"
        )
        self.report.equal(f"{self.who}first turns: nothing cached", [a.cached for a in answers], [0] * len(answers))
        self.check_served(f"{self.who}first turns: served by the ranks that the router says", before, answers)

    def turns_by_prefix(self) -> None:
        """Later turns go to the rank whose GPU holds their prefix, though the other could load it from disk."""
        for turn in ("second", "third"):
            self.settle()
            self.explained(turn)
            before, homes, held, answers = self.served(), [], [], []
            for c in self.by_load():
                homes.append(c.rank)
                held.append(c.held())
                answers.append(self.turn(c))
                self.settle([c])
            self.check_turns(f"{self.who}{turn} turns by prefix", answers, homes, held)
            self.check_served(f"{self.who}{turn} turns by prefix: served there", before, answers)
        self.same_as_cold(f"{self.who}by prefix", self.conversations)

    def explained(self, turn: str) -> None:
        """What the router says of every rank before a turn."""
        wrong = []
        for c in self.conversations:
            answer = self.router.explain(c.tokens)
            for number, score in answer["scores"].items():
                p, home = score["prefix"], number == c.rank
                if (p["gpu"], p["disk"]) != ((c.held(), 0) if home else (0, c.held())):
                    wrong.append(f"rank {number}, home {c.rank}, {c.held()} held: {p}")
            totals = {number: score["total"] for number, score in answer["scores"].items()}
            if totals[answer["rank"]] > min(totals.values()):
                wrong.append(f"rank {answer['rank']} chosen of {totals}")
        what = f"{self.who}before the {turn} turns: explained, in the GPU of one rank and on the disk of both"
        self.report.check(what, not wrong, "; ".join(wrong[:2]))

    def by_load(self) -> Iterator[Conversation]:
        """Return the conversations in such an order that no rank gets much more work than the others.

        Where it has had more, the policy is right to have a prefix loaded elsewhere.
        """
        left = list(self.conversations)
        while left:
            recent = {number: r["load"]["recent_tokens"] for number, r in self.router.ranks().items()}
            left.sort(key=lambda c: recent[c.rank], reverse=True)
            yield left.pop()

    def begin_by_conversation(self) -> None:
        """Conversations with names, one after the other: in turn."""
        before = self.conversations
        known = [self.router.prefixes(c.tokens) for c in before]
        self.start_router("conversation")
        if before:
            again = [self.router.prefixes(c.tokens) for c in before]
            self.report.equal(f"{self.who}router restarted: it knows what GPUs and disk have", again, known)
        names = [f"{self.who}conversation {i}" for i in range(CONVERSATIONS)]
        self.conversations = [Conversation(name, prompt(self.rng, FIRST_TURN)) for name in names]
        served = self.served()
        answers = [self.turn(c, added=0) for c in self.conversations]
        self.ok(f"{self.who}first turns with X-Session-ID: answered", answers)
        got, want = sorted(a.rank for a in answers), sorted(self.ranks[i % 2]["id"] for i in range(CONVERSATIONS))
        self.report.equal(f"{self.who}first turns with X-Session-ID: ranks in turn", got, want)
        self.check_served(f"{self.who}first turns with X-Session-ID: served there", served, answers)

    def turns_by_conversation(self) -> None:
        """Later turns go where the conversation is."""
        self.settle()
        before, homes = self.served(), [c.rank for c in reversed(self.conversations)]
        held = [c.held() for c in reversed(self.conversations)]
        answers = [self.turn(c) for c in reversed(self.conversations)]
        self.check_turns(f"{self.who}second turns with X-Session-ID", answers, homes, held)
        self.check_served(f"{self.who}second turns with X-Session-ID: served there", before, answers)
        fresh = [send(self.router.port, prompt(self.rng, LATER_TURN), c.name) for c in self.conversations]
        self.ok(f"{self.who}a new prompt in a conversation: answered", fresh)
        same = [a.rank for a in fresh] == [c.rank for c in self.conversations]
        self.report.check(f"{self.who}a new prompt in a conversation: on its rank", same, f"{[a.rank for a in fresh]}")
        self.same_as_cold(f"{self.who}by conversation", self.conversations[:2])

    def texts_and_streams(self) -> None:
        """Prompts that the router has an engine tokenize, and answers that come as they are made."""
        words = "".join(self.rng.choice("abcdefgh ") for _ in range(FIRST_TURN))
        first = send(self.router.port, words, "text")
        second = send(self.router.port, words + "and then" * 20, "text")
        self.ok("text prompts: answered", [first, second])
        self.report.equal("text prompts: tokenized as the engine does", (first.note, first.prompt), ("", FIRST_TURN))
        self.found("text prompts: the second finds the first", first, second)

        messages = [{"role": "user", "content": words[::-1]}]
        first = chat(self.router.port, messages, "chat")
        messages += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and then" * 20}]
        second = chat(self.router.port, messages, "chat")
        self.ok("chats: answered", [first, second])
        self.report.equal("chats: tokenized", (first.note, second.note), ("", ""))
        self.found("chats: the second turn finds the first", first, second)

        c = self.conversations[0]
        asked, answer = c.turns[-1]
        streamed = complete(self.router.port, asked, MAX_TOKENS, session_id=c.name)
        self.report.equal("streamed through the proxy: identical", streamed.tokens, answer.tokens)

    def pins(self) -> None:
        """Clients that ask for a rank get it."""
        before, numbers = self.served(), [r["id"] for r in self.ranks for _ in range(2)]
        answers = [send(self.router.port, prompt(self.rng, LATER_TURN), headers=pin(n)) for n in numbers]
        self.ok(f"{self.who}pinned: answered", answers)
        self.report.equal(f"{self.who}pinned: at that rank", [a.rank for a in answers], numbers)
        self.check_served(f"{self.who}pinned: served there", before, answers)
        unknown = send(self.router.port, prompt(self.rng, LATER_TURN), headers=pin(99))
        self.report.equal(f"{self.who}pinned to an unknown rank: refused", unknown.status, 404)

    def found(self, what: str, first: Answer, second: Answer) -> None:
        """Check that a prompt that begins with another was expected to be cached, and was."""
        full = first.prompt // BLOCK_SIZE * BLOCK_SIZE
        ok = second.rank == first.rank and second.cached == second.expected >= full
        self.report.check(what, ok, f"{second.cached} tokens, {second.expected} expected, {full} are its full blocks")

    # Stage restart.

    def restart(self) -> None:
        """One server is restarted: what its GPU had is gone, what it had saved still counts and is used."""
        self.settle()
        self.daemon.wait_for_writes()
        victim = self.engines[0]
        mine = [c for c in self.conversations if c.rank == 1]
        victim.terminate()
        self.router.wait(lambda: self.router.ready() == [2], "rank 1 is out after its server was stopped")
        victim.launch(self.connector)

        c, held = mine[0], mine[0].held()
        answer = self.turn(c)
        self.check_turns("while its server restarts: goes on at the other rank, from disk", [answer], [2], [held])
        self.settle([c])

        victim.wait()
        self.router.wait_ready(1, 2)
        before = self.served()
        have = [self.router.prefixes(c.tokens)[1] for c in mine]
        want = [Match(0, c.held(), c.held()) for c in mine]
        self.report.equal("restarted: its GPU has nothing, the disk has everything", have, want)
        loaded = self.daemon.metric("kvconn_loaded_blocks_total")
        homes, held_by = [1] * len(mine), [c.held() for c in mine]
        answers = [self.turn(c) for c in mine]
        self.check_turns("restarted: conversations go on at their rank, from disk", answers, homes, held_by)
        loaded = self.daemon.metric("kvconn_loaded_blocks_total") - loaded
        self.report.equal("restarted: blocks loaded from disk", loaded * BLOCK_SIZE, sum(held_by))
        self.check_served("restarted: served there", before, answers)
        self.same_as_cold("restarted", mine)

    # Stage kill.

    def kill(self) -> None:
        """One server is killed with requests in flight: nobody notices; when it is back it is used again."""
        self.settle()
        victim, homes = self.engines[1], [c.rank for c in self.conversations]
        self.lose("killed", victim, victim.kill)
        state = self.router.ranks()[2]
        self.report.check("killed: /v1/ranks says so, and why", not state["ready"] and state["why"] != "", state["why"])
        self.report.equal("killed: nothing is in flight there", state["load"]["active_requests"], 0)
        self.same_as_cold("killed", self.conversations, KILL_TOKENS)
        fresh = [send(self.router.port, prompt(self.rng, LATER_TURN), f"new {i}") for i in range(2)]
        self.ok("killed: new conversations are answered", fresh)
        self.report.equal("killed: new conversations go to the other", [a.rank for a in fresh], [1, 1])

        victim.launch(self.connector)
        victim.wait()
        self.router.wait_ready(1, 2)
        self.settle()
        before, held = self.served(), [c.held() for c in self.conversations]
        loaded = self.daemon.metric("kvconn_loaded_blocks_total")
        answers = [self.turn(c) for c in self.conversations]
        self.check_turns("back again: conversations are where they were, from disk", answers, homes, held)
        loaded = self.daemon.metric("kvconn_loaded_blocks_total") - loaded
        want = sum(n for n, home in zip(held, homes, strict=True) if home == 2)
        self.report.equal("back again: blocks loaded from disk", loaded * BLOCK_SIZE, want)
        self.check_served("back again: served there", before, answers)

        # The worker alone dies, as for want of memory: the server says so to those who wait, and ends.
        self.settle()
        self.lose("worker killed", victim, victim.kill_worker)
        self.same_as_cold("worker killed", self.conversations, KILL_TOKENS)

    def lose(self, what: str, victim: EventEngine, kill: Callable[[], None]) -> None:
        """Kill the second server, or a part of it, while it works, and have its requests answered by the first."""
        asked = [c.tokens + prompt(self.rng, LATER_TURN) for c in self.conversations]
        homes = [c.rank for c in self.conversations]
        retries = self.router.metric("kvconn_router_retries_total")

        def kill_when_busy() -> None:
            Router.holds(lambda: victim.metric("vllm:num_requests_running") >= homes.count(2))
            kill()

        killer = threading.Thread(target=kill_when_busy)
        killer.start()
        with ThreadPoolExecutor(len(asked)) as pool:

            def ask(c: Conversation, tokens: list[int]) -> Answer:
                return send(self.router.port, tokens, c.name, max_tokens=KILL_TOKENS)

            answers = list(pool.map(ask, self.conversations, asked))
        killer.join()
        for c, tokens, answer in zip(self.conversations, asked, answers, strict=True):
            c.note(tokens, answer)
        self.ok(f"{what} with requests in flight: all answered", answers)
        ranks = [a.rank for a in answers]
        self.report.equal(f"{what} with requests in flight: answered by the other", ranks, [1] * len(homes))
        retries = self.router.metric("kvconn_router_retries_total") - retries
        self.report.check(f"{what} with requests in flight: they were sent again", retries > 0, f"{retries:g} retries")
        self.router.wait(lambda: self.router.ready() == [1], "rank 2 is out after it was lost")


def pin(number: int) -> dict[str, str]:
    """Return the headers that ask for a rank and no other."""
    return {"X-Kvconn-Rank": str(number), "X-Kvconn-Rank-Strict": "true"}


def main() -> int:
    """Parse arguments and run."""
    parser = workplace.arguments("End-to-end test of kvconn's router with real vLLM.")
    parser.add_argument("--stages", default=",".join(STAGES), help=f"which of {','.join(STAGES)}; default all")
    parser.add_argument("--debug", action="store_true", help="keep what the engines publish in events.log")
    args = parser.parse_args()
    stages = args.stages.split(",")
    if unknown := set(stages) - set(STAGES):
        parser.error(f"unknown stages: {', '.join(sorted(unknown))}")
    args.keep = args.keep or args.debug
    return workplace.run(args, lambda place: RouterEndToEnd(place, args.debug).run(stages))


if __name__ == "__main__":
    workplace.exit_by(main)
