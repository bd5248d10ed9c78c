"""Engine plugins of kvconn.

`kvconn.client` speaks the daemon's protocol, `kvconn.vllm` is the connector for vLLM.
"""

__version__ = "0.1.0"
