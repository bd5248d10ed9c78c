"""The bench's modules, those of the end-to-end tests that it uses, and those of SGLang's bench."""

import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(BENCH), str(BENCH.parent / "vllm")]
sys.path.append(str(BENCH.parent / "sglang"))  # last: it has a bench.py, too
