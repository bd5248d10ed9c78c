"""The main stage's faults of an engine under a running daemon: killed while it loads, and while it saves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from completions import LONG, MAX_TOKENS, cacheable, prompt
from offline_run import Offline
from stage import NO_CACHE

if TYPE_CHECKING:
    from e2e import Main

NO_CACHE_WISH = {"wish": NO_CACHE["kv_transfer_params"]}


def run(main: Main) -> None:
    """Kill an engine twice, and ask the next one for the same."""
    with Offline(main.env, main.work / "vllm-killed.log") as engines:
        saved = main.rows[-1]
        start(main, engines)
        killed(main, engines, "engine killed while it loads", saved.tokens, "WAITING_FOR_REMOTE_KVS")
        nothing_is_held(main, "engine killed while it loads")

        fresh = prompt(main.rng, LONG)
        start(main, engines)
        got = ask(engines, saved.tokens)
        main.report.equal("engine killed while it loads, restarted: identical", got["tokens"], saved.reference.tokens)
        main.report.equal("engine killed while it loads, restarted: cached", got["cached"], cacheable(LONG))
        killed(main, engines, "engine killed while it saves", fresh, "RUNNING")
        nothing_is_held(main, "engine killed while it saves")

        start(main, engines)
        got, want = ask(engines, fresh), ask(engines, fresh, **NO_CACHE_WISH)
        what = "engine killed while it saves, restarted: identical"
        main.report.check(what, got["tokens"] == want["tokens"], f"{got['cached']} tokens cached")
        main.daemon.wait_for_writes()
        got = ask(engines, fresh)
        main.report.equal("engine killed while it saves, saved again: identical", got["tokens"], want["tokens"])
        main.report.equal("engine killed while it saves, saved again: cached", got["cached"], cacheable(LONG))
        engines.stop()
        nothing_is_held(main, "engine stopped")


def start(main: Main, engines: Offline) -> None:
    """Start an engine, on a daemon that has nothing in memory."""
    main.daemon.terminate()
    main.daemon.start()
    engines.start({"model": str(main.model), "dtype": "float32"}, main.daemon.vllm_config())


def ask(engines: Offline, tokens: list[int], **fields: Any) -> dict[str, Any]:
    """Complete one prompt."""
    (answer,) = engines.complete([{"tokens": tokens, "max_tokens": MAX_TOKENS, **fields}])
    return answer


def killed(main: Main, engines: Offline, what: str, tokens: list[int], state: str) -> None:
    """Kill the engine as soon as a request is in a state."""
    reached = engines.call("advance", request={"tokens": tokens, "max_tokens": MAX_TOKENS}, steps=1)["state"]
    held = mapped(main) > 0
    died = engines.kill_engine()
    main.report.equal(f"{what}: it was, with its memory mapped", (reached, held, "died" in died), (state, True, True))


def nothing_is_held(main: Main, what: str) -> None:
    """Check that the daemon holds nothing for an engine that is gone."""
    names = ("engines", "ranks", "store_leases", "host_pinned_bytes")
    main.daemon.wait_until(
        lambda: not any(main.daemon.metric(f"kvconn_{name}") for name in names) and not mapped(main),
        f"the end of what it held for an engine ({what})",
    )
    held = [main.daemon.metric(f"kvconn_{name}") for name in names]
    main.report.equal(f"{what}: no session, no lease, no pinned byte, no mapping is left", held, [0] * len(names))


def mapped(main: Main) -> int:
    """Return how many mappings of engines' memory the daemon has."""
    lines = Path(f"/proc/{main.daemon.pid}/maps").read_text().splitlines()
    return sum("memfd:kvconn-kv" in line or "memfd:kvconn-fence" in line for line in lines)
