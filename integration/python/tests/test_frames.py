from __future__ import annotations

import struct

import msgpack
import pytest

from kvconn import frames
from kvconn.errors import ProtocolError, RequestTooLarge


def answer(length: int = 0, op: int = 2, kind: int = 1, fds: int = 0, zero: int = 0, epoch: int = 9) -> bytes:
    return struct.pack("<IIBBBBQ", length, 5, op, kind, fds, zero, epoch)


def test_request_has_the_documented_bytes() -> None:
    frame = frames.pack_request(0x01020304, frames.Op.MATCH, {"r": "a"})
    body = msgpack.packb({"r": "a"})
    assert frame[:20] == bytes([len(body), 0, 0, 0, 4, 3, 2, 1, 2, 0, 0, 0]) + bytes(8)
    assert frame[20:] == body


def test_a_packer_goes_on_after_a_body_that_does_not_pack() -> None:
    pack = frames.packer()
    with pytest.raises(TypeError):
        frames.pack_request(1, frames.Op.LOAD, {"meta": bytes(1 << 10), "r": object()}, 0, pack)
    bodies: list[dict[str, object]] = [{"r": "a", "meta": bytes(300_000)}, {"r": "b"}]
    for body in bodies:
        assert frames.pack_request(1, frames.Op.LOAD, body, 0, pack)[frames.HEADER_BYTES :] == msgpack.packb(body)


def test_request_beyond_the_bound_is_not_sent() -> None:
    with pytest.raises(RequestTooLarge):
        frames.pack_request(1, frames.Op.LOAD, {"meta": bytes(frames.MAX_BODY_BYTES)})
    with pytest.raises(RequestTooLarge):
        frames.pack_request(1, frames.Op.REGISTER, {}, fds=18)


@pytest.mark.parametrize(
    "header",
    [
        answer(length=frames.MAX_BODY_BYTES + 1),
        answer(length=0xFFFFFFFF),
        answer(kind=0),
        answer(kind=3),
        answer(zero=1),
        answer(fds=1),
        answer(epoch=0),
        b"HTTP/1.1 400 Bad Req",
    ],
)
def test_header_out_of_bounds_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.unpack_header(header)


def test_header_within_bounds_is_taken() -> None:
    header = frames.unpack_header(answer(length=frames.MAX_BODY_BYTES))
    assert (header.length, header.id, header.op, header.epoch) == (frames.MAX_BODY_BYTES, 5, 2, 9)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x81",
        msgpack.packb([1]),
        msgpack.packb({1: 2}),
        msgpack.packb({"a": 1}) + b"\0",
        b"\xdf\xff\xff\xff\xff",
        b"\x81\xa1a\xdd\xff\xff\xff\xff",
        b"\x81\xa1a\xc6\xff\xff\xff\xff",
        b"\x91" * 5000,
        b"\x81\xa1a\xa1\xff",
    ],
)
def test_body_that_is_no_map_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        frames.unpack_body(body)


def test_fields_are_checked_and_default_to_zero() -> None:
    body = {"n": 3, "t": True, "s": "x"}
    assert frames.field(body, "n", int) == 3
    assert frames.field(body, "none", bytes) == b""
    for key, kind in (("n", str), ("t", int), ("s", bytes)):
        with pytest.raises(ProtocolError):
            frames.field(body, key, kind)


def test_ids_are_little_endian_u32() -> None:
    assert frames.pack_u32s([1, 0xFFFFFFFF]) == b"\x01\0\0\0\xff\xff\xff\xff"
    assert frames.unpack_u32s(b"\x01\0\0\0\xff\xff\xff\xff") == [1, 0xFFFFFFFF]


def test_ids_of_a_big_endian_machine_are_swapped(monkeypatch: pytest.MonkeyPatch) -> None:
    native = frames.pack_u32s([1, 2])
    monkeypatch.setattr(frames.sys, "byteorder", "big")
    swapped = frames.pack_u32s([1, 2])
    assert swapped == b"".join(native[i : i + 4][::-1] for i in (0, 4))
    assert frames.unpack_u32s(swapped) == [1, 2]


@pytest.mark.parametrize("ids", [[-1], [1 << 32], ["a"]])
def test_ids_that_do_not_fit_are_refused(ids: list[int]) -> None:
    with pytest.raises(RequestTooLarge):
        frames.pack_u32s(ids)


def test_ids_of_odd_length_are_refused() -> None:
    with pytest.raises(ProtocolError):
        frames.unpack_u32s(b"\0" * 5)
