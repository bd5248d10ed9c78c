"""The bench's modules, and those of the end-to-end tests that it uses."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "vllm")]
