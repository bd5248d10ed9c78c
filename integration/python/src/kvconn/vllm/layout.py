"""What both kinds of KV memory, on a processor and on a GPU, say of layouts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig

BLOCK_OUTERMOST = "BLHNC"
"""vLLM's name for blocks of all layers in one piece, in each layer heads before tokens.

Of both block-outermost layouts it is the one that more attention backends take: those that take any, and those that
read whole heads (FlashInfer on compute capability 10). vLLM's own connectors ask for heads before tokens, too.
"""


class LayoutError(Exception):
    """The KV memory does not lie as the engine's own configuration says."""


def preferred(vllm_config: VllmConfig, on_device: bool) -> str | None:
    """Return the layout to ask vLLM for, None where its own choice is as good, or the only one.

    On a GPU a block of all layers is one long run, which copies faster than a short one for each layer. vLLM takes its
    own layout where a backend does not have the one that is asked for. Some backends of latent attention don't say
    that they lack it; state-space models have memory of another kind.
    """
    model = vllm_config.model_config
    if not on_device or model is None or model.use_mla or model.is_hybrid or model.is_attention_free:
        return None
    return BLOCK_OUTERMOST
