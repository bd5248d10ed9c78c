"""What one look-up of a long prompt costs an engine's scheduler thread.

    kvconnd serve --dir DIR --socket PATH & python bench/match.py --socket PATH

Each round asks for a request that the leader does not know yet, whose tokens are a Python list as
engines have them: so it takes the list's copy out of the engine's request, its packing, the round
trip, and in the daemon the hashing and the search. Prints JSON: the fastest round, the middle one,
and the same for a request of one block.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time

from kvconn.client import Options, SchedulerClient, Step

BLOCK_SIZE = 16
MANIFEST = {
    "engine": "bench/1",
    "model": "bench",
    "kv_dtype": "bfloat16",
    "block_size": BLOCK_SIZE,
    "groups": [{"layers": 32, "kv_heads": 8, "head_size": 256, "layout": "LBHNC"}],
    "tensor_parallel": 1,
    "pipeline_parallel": 1,
    "key_scheme": "tokens",
    "hash_scheme": "kvconn-1",
}


def rounds(client: SchedulerClient, tokens: list[int], count: int) -> list[float]:
    """Return the seconds that each of count look-ups took."""
    took: list[float] = []
    for i in range(count):
        request = f"{len(tokens)}-{i}"
        begun = time.perf_counter()
        client.match(request, tokens[0:], prompt=len(tokens))
        took.append(time.perf_counter() - begun)
        client.step(Step(finished=[request]), client.session)
    return took


def main() -> None:
    """Parse arguments and measure."""
    parser = argparse.ArgumentParser(description="Cost of a look-up in Python.")
    parser.add_argument("--socket", required=True, help="path of a running kvconnd's socket")
    parser.add_argument("--tokens", type=int, default=131_072, help="length of the prompt")
    parser.add_argument("--rounds", type=int, default=30, help="look-ups")
    args = parser.parse_args()
    client = SchedulerClient(Options(args.socket, engine="bench", manifest=json.dumps(MANIFEST).encode()))
    if not client.connect():
        raise SystemExit(f"no kvconnd at {args.socket}")
    rng = random.Random(1)
    rounds(client, [rng.randrange(150_000) for _ in range(args.tokens)], 2)  # the first pay for memory
    long = rounds(client, [rng.randrange(150_000) for _ in range(args.tokens)], args.rounds)
    small = rounds(client, list(range(BLOCK_SIZE + 1)), 100 * args.rounds)
    client.close()
    figures = {
        "python_match_s": min(long),
        "python_match_p50_s": statistics.median(long),
        "python_rtt_p50_s": statistics.median(small),
    }
    print(json.dumps({k: float(f"{v:.4g}") for k, v in figures.items()} | {"tokens": args.tokens}))


if __name__ == "__main__":
    main()
