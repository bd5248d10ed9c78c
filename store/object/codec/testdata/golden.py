"""Writes the golden files of this folder, from docs/object-format.md and not from the Go code.

Needs the package zstandard. Run it in this folder.
"""

import struct
from pathlib import Path

import zstandard

COUNT = 5000


def element(i, width):
    """An element of a payload: sign and mantissa vary, the exponent has 5 values."""
    exponent, mantissa = 120 + i * 7919 % 5, i * 2654435761 % 2**23
    bits = (i & 1) << 31 | exponent << 23 | mantissa
    return bits >> 8 * (4 - width)


def encode(width):
    bits = 8 * width
    elements = [element(i, width) for i in range(COUNT)]
    if width > 1:
        elements = [(e << 1 | e >> (bits - 1)) & (2**bits - 1) for e in elements]
    planes = [bytes(e >> 8 * i & 255 for e in elements) for i in range(width)]
    frame = zstandard.ZstdCompressor(write_content_size=True).compress(planes[-1])
    return b"".join(struct.pack("<I", len(p)) + p for p in [*planes[:-1], frame])


for width in (1, 2, 4):
    Path(f"width{width}.bin").write_bytes(encode(width))
