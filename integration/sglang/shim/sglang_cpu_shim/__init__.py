"""SGLang's hierarchical cache without a GPU, for tests: the "GPU" is the memory of its CPU engine.

SGLang loads this through its entry point for plugins, in every process. Scheduler, radix tree, cache controller and its
threads, host pool, storage and HTTP server are SGLang's own and unmodified; what is replaced is the pinning of
host memory, three kernels that copy pages, and the GPU's collectives. And machines that run tests have less memory
than GPUs' hosts.
"""

from __future__ import annotations

from typing import Any

_SPARE_BYTES = 1 << 30
"""What a host pool leaves free: SGLang's own 10 GiB are more than half of a small machine."""


def load() -> None:
    """Replace what needs a GPU."""
    from sglang.srt.distributed.parallel_state import GroupCoordinator
    from sglang.srt.mem_cache.pool_host import base, common, mha, mla

    from sglang_cpu_shim import copies

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = _SPARE_BYTES
    common._cuda_host_register = lambda *_args, **_kwargs: None
    for module in (mha, mla):
        for copy in (
            copies.transfer_kv_direct,
            copies.transfer_kv_per_layer_direct_pf_lf,
            copies.transfer_kv_all_layer_direct_lf_pf,
        ):
            setattr(module, copy.__name__, copy)
    _unpinned(mha.MHATokenToKVPoolHost)
    _unpinned(mla.MLATokenToKVPoolHost)
    _gloo(GroupCoordinator)


def _unpinned(pool: Any) -> None:
    """Have host pools of a class never pin their memory."""
    made = pool.__init__

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs | {"pin_memory": False})

    pool.__init__ = init


def _gloo(group: Any) -> None:
    """Have groups of ranks use the collectives of torch alone."""
    made = group.__init__
    off = dict.fromkeys(("use_pynccl", "use_custom_allreduce", "use_pymscclpp", "use_torch_symm_mem_all_reduce"), False)

    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs | {name: value for name, value in off.items() if name in kwargs})

    group.__init__ = init
