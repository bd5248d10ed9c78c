"""Writes the golden files of this folder, from docs/on-disk-format.md and not from the Go code.

Needs the packages xxhash and cryptography. Run it in this folder.
"""

import hashlib
import struct
from pathlib import Path

import xxhash
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

UNIT = 4096
KEY = bytes((1 + i * i) % 256 for i in range(32))
KEY_ID = int.from_bytes(hashlib.sha256(b"kvconn/key-id/1" + KEY).digest()[:4], "big")
NONCE = bytes(range(0x80, 0x98))
# 1000 elements of 2 bytes: 0x3f80 and 0x3f81 in turn. Rotated by a bit they have 0x7f in the high byte.
PAYLOAD = b"".join(struct.pack("<H", 0x3F80 + i % 2) for i in range(1000))


def counting(start, count=16):
    return bytes((start + i) % 256 for i in range(count))


def xaes(plain, aad):
    block = Cipher(algorithms.AES(KEY), modes.ECB()).encryptor().update
    mask = int.from_bytes(block(bytes(16)), "big") << 1
    if mask >> 128:
        mask = (mask & (2**128 - 1)) ^ 0b10000111
    subkey = b""
    for i in (1, 2):
        message = bytes([0, i]) + b"X\0" + NONCE[:12]
        subkey += block((int.from_bytes(message, "big") ^ mask).to_bytes(16, "big"))
    return AESGCM(subkey).encrypt(NONCE[12:], plain, aad)


def compress(payload):
    low, high = bytearray(), bytearray()
    for (element,) in struct.iter_unpack("<H", payload):
        element = (element << 1 | element >> 15) & 0xFFFF
        low.append(element & 255)
        high.append(element >> 8)
    assert len(set(high)) == 1
    # One zstd frame of one block, which repeats a byte; its content's size takes 2 bytes, less 256.
    frame = bytes.fromhex("28b52ffd60") + struct.pack("<H", len(high) - 256)
    frame += (len(high) << 3 | 1 << 1 | 1).to_bytes(3, "little") + high[:1]
    return struct.pack("<I", len(low)) + bytes(low) + struct.pack("<I", len(frame)) + frame


def slot(sealed, compressed):
    stored = compress(PAYLOAD) if compressed else PAYLOAD
    h = bytearray(UNIT)

    def put(offset, field):
        h[offset : offset + len(field)] = field

    put(0, b"KVCNREC1" + struct.pack("<HHH", 2, 0x0102, 0x0304))
    put(16, counting(0x10) + struct.pack("<IIQ", 0x05060708, 0x090A0B0C, 0x0D0E0F1011121314))
    put(48, counting(0x20, 32) + counting(0x40) + counting(0x50) + counting(0x60, 32))
    put(144, struct.pack("<I", len(PAYLOAD)))
    put(160, struct.pack("<I", sealed | compressed << 1) + counting(0xA0) + bytes([2]))
    if sealed or compressed:
        put(228, struct.pack("<I", len(stored)))
    put(232, bytes([int(compressed)]))
    if sealed:
        put(181, b"\x01")
        put(184, struct.pack("<I", KEY_ID) + NONCE)
        both = xaes(stored, bytes(h))
        stored = both[:-16]
        put(212, both[-16:])
    put(152, struct.pack("<Q", xxhash.xxh3_64_intdigest(stored)))
    put(UNIT - 8, struct.pack("<Q", xxhash.xxh3_64_intdigest(bytes(h[: UNIT - 8]))))
    return bytes(h) + stored + bytes(-len(stored) % UNIT)


for name, how in {"plain": (False, False), "sealed": (True, False), "compressed": (False, True), "both": (True, True)}.items():
    Path(name + ".bin").write_bytes(slot(*how))
