"""Frames of the protocol (docs/protocol.md): header, bodies, and lists of numbers."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import msgpack

from kvconn.errors import ProtocolError, RequestTooLarge

VERSIONS = (2, 2)
"""Lowest and highest protocol version that this client speaks."""
KEYED_VERSIONS = (4, 4)
"""Those of clients that name blocks by the engine's own keys."""

CHANNEL_VERSIONS = (5, 5)
"""Those of clients whose sessions have channels."""

MAX_BODY_BYTES = 16 << 20
MAX_FDS = 17
"""Of a register request: 16 regions and the fence page."""
MAX_ID_BYTES = 512
MAX_STEP_ADAPTERS = 1024
MAX_SCOPE_BYTES = 4096
MAX_TOKENS = 2 << 20
MAX_SPANS = 4096
MAX_HASHES = 128 << 10
"""Of a call by key."""
MAX_SPAN_ID_BYTES = 256
MAX_TRACE_BYTES = 55
MAX_TIERS = 4
HASH_BYTES = 32
NO_BLOCK = 0xFFFFFFFF
"""Stands in a block table where the engine keeps no block: it is outside of the layers' window."""

_HEADER = struct.Struct("<IIBBBBQ")
HEADER_BYTES = _HEADER.size


class Op(IntEnum):
    """Operations."""

    HELLO = 1
    MATCH = 2
    STEP = 3
    LOADED = 4
    RESET = 5
    REGISTER = 6
    UNREGISTER = 7
    LOAD = 8
    SAVE = 9
    POLL = 10
    CANCEL = 11
    PRESENT = 12
    FETCH = 13
    PUT = 14
    TOUCH = 15


class Kind(IntEnum):
    """Kinds of frames."""

    REQUEST = 0
    REPLY = 1
    ERROR = 2


class Header(NamedTuple):
    """The fixed part of a frame."""

    length: int
    id: int
    op: int
    kind: int
    fds: int
    epoch: int


def packer() -> Callable[[dict[str, Any]], bytes]:
    """Return what packs bodies and keeps its memory from one to the next. For one thread at a time."""
    pack: Callable[[dict[str, Any]], bytes] = msgpack.Packer(use_bin_type=True).pack
    return pack


def pack_request(
    request_id: int, op: Op, body: dict[str, Any], fds: int = 0, pack: Callable[[dict[str, Any]], bytes] | None = None
) -> bytes:
    """Return the frame of a request, packed by what `packer` returned.

    Raises RequestTooLarge where the daemon would refuse its size.
    """
    payload = (pack or packer())(body)
    if len(payload) > MAX_BODY_BYTES or fds > MAX_FDS:
        raise RequestTooLarge(
            f"{op.name.lower()} request of {len(payload)} bytes and {fds} descriptors:"
            f" at most {MAX_BODY_BYTES} and {MAX_FDS}"
        )
    return _HEADER.pack(len(payload), request_id, op, Kind.REQUEST, fds, 0, 0) + payload


def unpack_header(data: bytes | bytearray | memoryview, at: int = 0) -> Header:
    """Decode the header of an answer that begins there, and check every bound before anything is allocated."""
    length, request_id, op, kind, fds, zero, epoch = _HEADER.unpack_from(data, at)
    if zero != 0 or kind not in (Kind.REPLY, Kind.ERROR) or fds != 0 or epoch == 0:
        raise ProtocolError(f"not a kvconn answer (header {bytes(data[at : at + HEADER_BYTES]).hex()})")
    if length > MAX_BODY_BYTES:
        raise ProtocolError(f"answer of {length} bytes, at most {MAX_BODY_BYTES}")
    return Header(length, request_id, op, kind, fds, epoch)


def unpack_body(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Decode a body. The lengths it declares are bounded by the bytes that are there."""
    try:
        body = msgpack.unpackb(data, raw=False, strict_map_key=True)
    except Exception as err:
        raise ProtocolError(f"answer does not decode: {type(err).__name__}: {err}") from err
    if not isinstance(body, dict):
        raise ProtocolError(f"answer is no map but {type(body).__name__}")
    return body


T = TypeVar("T", int, str, bytes, bool, list[Any])


def field(body: dict[str, Any], key: str, kind: type[T]) -> T:
    """Return a field of a body; a missing one is zero, empty or false."""
    value = body.get(key)
    if value is None:
        return kind()
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ProtocolError(f"field {key!r} is {type(value).__name__}, want {kind.__name__}")
    return value


def pack_u32s(numbers: Iterable[int]) -> bytes:
    """Return token or block ids as little-endian u32."""
    try:
        if isinstance(numbers, list):
            packed = array("I")
            packed.fromlist(numbers)  # in two thirds of the constructor's time
        else:
            packed = array("I", numbers)
    except (OverflowError, TypeError) as err:
        raise RequestTooLarge(f"an id does not fit 32 bits: {err}") from err
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def unpack_u32s(data: bytes) -> list[int]:
    """Inverse of pack_u32s."""
    if len(data) % 4:
        raise ProtocolError(f"{len(data)} bytes are no whole number of u32")
    packed = array("I")
    packed.frombytes(data)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tolist()


if array("I").itemsize != 4:  # pragma: no cover - no platform that vLLM runs on
    raise ImportError("kvconn needs a platform whose unsigned int has 32 bits")
