"""KV memory on a GPU, handed to the daemon: nothing of CUDA but the driver's own library is needed."""

from kvconn.cuda.memory import DeviceMemory
from kvconn.cuda.regions import NotShareable

__all__ = ["DeviceMemory", "NotShareable"]
