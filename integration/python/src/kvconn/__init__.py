"""Engine plugins of kvconn.

`kvconn.client` speaks the daemon's protocol, `kvconn.vllm` is the connector for vLLM.
"""

from pathlib import Path


def _version() -> str:
    """The version's number: a wheel has the file that a checkout keeps beside the daemon's code."""
    here = Path(__file__).resolve().parent
    installed = here / "number.txt"
    file = installed if installed.is_file() else here.parents[3] / "internal/version/number.txt"
    return file.read_text(encoding="ascii").strip()


__version__ = _version()
