"""vLLM with every KV cache that can be had, side by side: speed, costs, and what damage does.

    python integration/bench/run.py --help

README.md says what it does, and what the figures mean.
"""

import sys
from pathlib import Path

# The engines, their environment and their requests are those of the end-to-end tests.
sys.path.append(str(Path(__file__).resolve().parent.parent / "vllm"))

if __name__ == "__main__":
    import cli
    import workplace

    workplace.exit_by(cli.main)
