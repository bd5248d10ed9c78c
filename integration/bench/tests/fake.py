"""An engine and a cache without vLLM: what a prompt yields follows from what is in the cache's files."""

import hashlib

from completions import Completion
from systems import Cache

UNIT_BYTES = 32 << 10


def kv(tokens):
    """Return a prompt's KV."""
    return hashlib.sha256(repr(tokens).encode()).digest() * (UNIT_BYTES // 32)


def answer(data):
    """Return the tokens that follow from KV."""
    return list(hashlib.sha256(data).digest())


class FakeDaemon:
    """A daemon that is there or not."""

    pid = None

    def __init__(self):
        self.running, self.frozen = False, False

    def alive(self):
        return self.running

    def terminate(self):
        self.running = False

    kill = terminate

    def signal(self, number):
        self.frozen = number.name == "SIGSTOP"


class FakeCache(Cache):
    """A file for each prompt. `trusting` caches load what they find; others check it first."""

    def __init__(self, site, trusting, daemon=True):
        super().__init__(site)
        self.trusting = trusting
        self.daemon = FakeDaemon() if daemon else None
        self.log = []

    def start(self):
        self.log.append("start")
        if self.daemon is not None:
            self.daemon.running = True

    def stop(self):
        self.log.append("stop")
        super().stop()

    def settle(self):
        self.log.append("settle")


class FakeEngine:
    """Serves from a cache, or without."""

    engines = {}  # noqa: RUF012, by port

    def __init__(self, cache=None, dies=lambda data: False):
        self.cache, self.dies, self.dead, self.asked = cache, dies, False, []
        self.port = len(self.engines) + 1
        self.engines[self.port] = self

    def wait(self):
        """It is there at once."""

    def healthy(self):
        return not self.dead

    def terminate(self):
        self.dead = True

    kill = terminate

    def reset_prefix_cache(self):
        self.asked.append("reset")

    def complete(self, tokens):
        if self.dead:
            raise ConnectionRefusedError
        self.asked.append(tokens)
        right = kv(tokens)
        if self.cache is None or len(tokens) < 128 or (self.cache.daemon and not self.cache.daemon.alive()):
            return Completion(answer(right), 0, 0.01, 0.02)
        path = self.cache.store / hashlib.sha256(repr(tokens).encode()).hexdigest()
        if not path.exists():
            path.write_bytes(right)
            return Completion(answer(right), 0, 0.01, 0.02)
        found = path.read_bytes()
        if self.dies(found):
            self.dead = True
            raise RuntimeError("the engine died")
        if found != right and not self.cache.trusting:
            path.write_bytes(right)
            return Completion(answer(right), 0, 0.01, 0.02)
        return Completion(answer(found), len(tokens), 0.01, 0.02)


def complete(port, tokens, max_tokens=32, **__):
    """Stand in for completions.complete."""
    got = FakeEngine.engines[port].complete(tokens)
    return Completion(got.tokens[:max_tokens], got.cached, got.first_token_s, got.total_s)
