"""What vLLM shows of its cache: metrics, answers, KV events, and the daemon's log and spans of a traced request."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from completions import MAX_TOKENS, TIMEOUT_S, cacheable
from environment import Environment
from ports import free_port
from processes import Daemon, Engine, Program, get
from report import Report

TRACE = "0af7651916cd43dd8448eb211c80319c"
SPAN = "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"
SHOWN_WITHIN_S = 60.0
_SAMPLE = re.compile(r"([a-z_:]+)\{(.*)\} ([0-9.e+-]+)")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


class Followed(Program):
    """Follows the KV events of an engine that is started with its options."""

    def __init__(self, env: Environment, log: Path) -> None:
        super().__init__(log)
        port = free_port()
        config = {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://*:{port}"}
        self.options = ["--kv-events-config", json.dumps(config)]
        script = Path(__file__).with_name("router_events.py")
        self.spawn([str(env.python), str(script), f"tcp://127.0.0.1:{port}"])

    def hashes(self, kind: str, medium: str) -> set[int]:
        """Return the blocks of all events of a kind and medium until now."""
        events = [json.loads(line) for line in self.lines(f'"{kind}"', f'"{medium}"')]
        return {block for event in events for block in event["block_hashes"]}

    def announced(self, report: Report, blocks: int) -> None:
        """Check that what was saved is announced, under vLLM's own hashes."""
        _wait(lambda: len(self.hashes("BlockStored", "STORAGE")) >= blocks)
        stored, computed = self.hashes("BlockStored", "STORAGE"), self.hashes("BlockStored", "GPU")
        report.check("KV events: every saved block is announced", len(stored) >= blocks, f"{len(stored)} of {blocks}")
        report.equal("KV events: their hashes are vLLM's", len(stored - computed), 0)
        report.equal("KV events: nothing is taken back", len(self.hashes("BlockRemoved", "STORAGE")), 0)

    def withdrawn(self, report: Report) -> None:
        """Check that what was announced was taken back when the daemon was gone."""
        _wait(lambda: self.hashes("BlockRemoved", "STORAGE") != set())
        removed = self.hashes("BlockRemoved", "STORAGE")
        report.check("KV events: taken back while the daemon is gone", bool(removed), f"{len(removed)} blocks")


class Traced(Program):
    """Collects the spans of a daemon and of an engine that are started with its settings and options."""

    def __init__(self, env: Environment, log: Path) -> None:
        super().__init__(log)
        port = free_port()
        self.settings = ["--otlp-endpoint", f"http://127.0.0.1:{port}"]
        self.options = ["--otlp-traces-endpoint", f"http://127.0.0.1:{port}/v1/traces"]
        self.variables = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}
        self.spawn([str(env.python), str(Path(__file__).with_name("trace_collector.py")), str(port)])

    def spans(self, name: str) -> list[Any]:
        """Return the spans of a name in the trace of `ask`."""
        return [json.loads(line) for line in self.lines(f'"name": "{name}"', TRACE)]

    def joined(self, report: Report, *names: str) -> None:
        """Check that spans of these names are in the trace of `ask`."""
        for name in names:
            _wait(lambda name=name: self.spans(name) != [])
            parents = {span["parent"] for span in self.spans(name)}
            report.equal(f"traces: {name} is below the caller's span", parents, {SPAN})


def metric(engine: Engine, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples with these labels."""
    total = 0.0
    for line in get(engine.port, "/metrics")[1].splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample and sample[1] == name and labels.items() <= dict(_LABEL.findall(sample[2])).items():
            total += float(sample[3])
    return total


def ask(engine: Engine, tokens: Sequence[int]) -> Any:
    """Complete a prompt with a trace, and return the whole answer."""
    body = {"model": "m", "prompt": list(tokens), "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True}
    conn = http.client.HTTPConnection("127.0.0.1", engine.port, timeout=TIMEOUT_S)
    try:
        headers = {"Content-Type": "application/json", "traceparent": TRACEPARENT}
        conn.request("POST", "/v1/completions", json.dumps(body), headers)
        response = conn.getresponse()
        text = response.read().decode()
        if response.status != 200:
            raise RuntimeError(f"completion: {response.status} {text[:500]}")
        return json.loads(text)
    finally:
        conn.close()


def loaded_tokens(answer: Any) -> Any:
    """Return what an answer says was loaded from where."""
    return ((answer.get("kv_transfer_params") or {}).get("kvconn") or {}).get("loaded_tokens")


def hits_are_shown(report: Report, engine: Engine, tokens: Sequence[int], tier: str) -> None:
    """Check all that is shown of a prompt that lies in one tier."""
    want = cacheable(len(tokens))
    shown = {
        "vllm:kvconn_loaded_tokens_total": ({"tier": tier}, want),
        "vllm:prompt_tokens_cached_by_source_total": ({"source": tier}, want),
        "vllm:kvconn_load_seconds_count": ({}, 1),
    }
    before = {name: metric(engine, name, **labels) for name, (labels, _) in shown.items()}
    answer = ask(engine, tokens)
    report.equal(f"{tier}: the answer says what was loaded", loaded_tokens(answer), {tier: want})
    for name, (labels, count) in shown.items():
        _wait(lambda name=name, labels=labels, count=count: metric(engine, name, **labels) - before[name] >= count)
        report.equal(f"{tier}: vLLM's metric {name}", metric(engine, name, **labels) - before[name], count)
    report.check(f"{tier}: bytes", metric(engine, "vllm:kvconn_loaded_bytes_total", tier=tier) > 0)
    taken = metric(engine, "vllm:kvconn_saved_blocks_total", result="taken")
    report.check("vLLM's metrics count what is saved", taken > 0, f"{taken:g} blocks")


def hit_rates_agree(report: Report, engine: Engine, daemon: Daemon) -> None:
    """Check that daemon and engine count one hit rate, of all that this engine asked since this daemon started.

    kvconnd does not hear of requests that want neither load nor save, which vLLM counts.
    """
    ours = [daemon.metric(f"kvconn_{what}_tokens_total") for what in ("queried", "offered")]
    theirs = [metric(engine, f"vllm:external_prefix_cache_{what}_total") for what in ("queries", "hits")]
    rate, want = ours[1] / ours[0], theirs[1] / theirs[0]
    counted = f"{ours[1]:g} of {ours[0]:g}, vLLM {theirs[1]:g} of {theirs[0]:g}"
    report.check("the hit rate is vLLM's within 1%", abs(rate - want) <= 0.01 * want, counted)


def bench_sees_the_cache(report: Report, engine: Engine, binary: Path) -> None:
    """Check what `kvconnd bench engine` says of an engine whose own prefix cache is off."""
    command = [binary, "bench", "engine", "--url", f"http://127.0.0.1:{engine.port}", "--json"]
    command += ["--tokens", "400,1500", "--prompts", "3", "--pause", "10s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    if done.returncode != 0:
        report.check("bench engine", False, done.stderr)
        return
    for length in json.loads(done.stdout)["lengths"]:
        seen, tokens = length["engine"], length["tokens"]
        report.check(
            f"bench engine: prompts of {tokens} tokens",
            abs(seen["prompt_tokens"] - tokens) <= tokens / 10,
            f"{seen['prompt_tokens']:g} by the engine's count",
        )
        report.equal(f"bench engine: {tokens} tokens: nothing cached at first", seen["cold_cached_ratio"], 0)
        share = cacheable(round(seen["prompt_tokens"])) / seen["prompt_tokens"]
        cached = seen["again_cached_ratio"]
        report.check(f"bench engine: {tokens} tokens: cached when asked again", cached >= 0.95 * share, f"{cached:.3f}")


def tier_is_shown(report: Report, engine: Engine, followed: Followed, chunks: int) -> None:
    """Check what is shown of chunks that were saved and loaded below vLLM's own offloading."""
    least = {"saved_blocks_total": chunks, "loaded_bytes_total": 1, "load_seconds_count": 1}
    for name, number in least.items():
        full = f"vllm:kvconn_{name}"
        _wait(lambda full=full, number=number: metric(engine, full) >= number)
        report.check(f"tier: vLLM's metric {full}", metric(engine, full) >= number, f"{metric(engine, full):g}")
    _wait(lambda: len(followed.hashes("BlockStored", "STORAGE")) >= chunks)
    stored, computed = followed.hashes("BlockStored", "STORAGE"), followed.hashes("BlockStored", "GPU")
    report.check("tier: KV events: every saved chunk is announced", len(stored) >= chunks, f"{len(stored)} of {chunks}")
    report.equal("tier: KV events: their hashes are vLLM's", len(stored - computed), 0)


def failures_are_shown(report: Report, engine: Engine, daemon: Daemon, tokens: Sequence[int]) -> None:
    """Check what is shown of a prompt some of whose records on disk are damaged."""
    failed = metric(engine, "vllm:kvconn_load_failed_blocks_total")
    loaded = loaded_tokens(ask(engine, tokens)) or {}
    least = all(n < cacheable(len(tokens)) for n in loaded.values())
    report.check(
        "damaged: the answer says that less was loaded, from disk", least and set(loaded) <= {"disk"}, f"{loaded}"
    )
    _wait(lambda: metric(engine, "vllm:kvconn_load_failed_blocks_total") > failed)
    blocks = metric(engine, "vllm:kvconn_load_failed_blocks_total") - failed
    report.check("damaged: vLLM's metrics count the blocks", blocks > 0, f"{blocks:g}")
    lines = daemon.lines("load failed", TRACE)
    report.check("damaged: the daemon's line names the request's trace", len(lines) == 1, f"{len(lines)} lines")


def _wait(condition: Any) -> None:
    """Wait for what comes soon, or not at all: the check that follows says which."""
    until = time.monotonic() + SHOWN_WITHIN_S
    while not condition() and time.monotonic() < until:
        time.sleep(0.1)
