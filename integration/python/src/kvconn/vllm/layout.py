"""What both kinds of KV memory, on a processor and on a GPU, say of layouts."""


class LayoutError(Exception):
    """The KV memory does not lie as the engine's own configuration says."""
