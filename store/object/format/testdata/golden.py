"""Writes the golden files of this folder, from docs/object-format.md and not from the Go code.

Needs the packages xxhash and cryptography. Run it in this folder.
"""

import hashlib
import json
import struct
from pathlib import Path

import xxhash
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

UNIT = 4096


def counting(start):
    return bytes((start + i) % 256 for i in range(16))


WRITER = bytes(range(0xA0, 0xAA))
BUCKET = counting(0xB0)
MANIFEST = b'{"engine":"test/1"}'
KEY = bytes((1 + i * i) % 256 for i in range(32))
KEY_ID = int.from_bytes(hashlib.sha256(b"kvconn/key-id/1" + KEY).digest()[:4], "big")
NONCE = bytes(range(0x80, 0x98))
BIG = WRITER + (0x010203).to_bytes(6, "big")
SMALL = WRITER + (5).to_bytes(6, "big")
DIGEST = hashlib.sha256(MANIFEST).digest()


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


def section(kind, count, entries):
    needed = 0 if kind == 3 else 1
    return struct.pack("<BBHII", kind, needed, 0, count, len(entries)) + entries


def entry(object_id, namespace, size, runs, records):
    e = object_id + struct.pack("<HHHHIIIIHBB", namespace, 0x0405, len(records), len(runs), size, 4097, 0x60616263, 0x70717273, 2, 1, 0)
    for first, depth, parent in runs:
        e += struct.pack("<HH", first, depth) + parent
    for key, start in records:
        e += key + struct.pack("<H", start)
    return e


def make_list(kind, number, writer, sections, name="", previous=bytes(16), sealed=False):
    body = b"".join(sections)
    header = b"KVCNMAN1" + struct.pack("<HBBI", 1, kind, int(sealed), KEY_ID if sealed else 0) + BUCKET
    header += struct.pack("<Q", number) + writer + bytes(6) + struct.pack("<II", len(body), len(sections))
    header += previous + (NONCE if sealed else bytes(24))
    header += struct.pack("<Q", xxhash.xxh3_64_intdigest(header))
    if sealed:
        return header + xaes(body, header + name.encode())
    return header + body + xxhash.xxh3_128_digest(header + body)


def big(namespace):
    runs = [(0, 0x0607, counting(0x10)), (1, 0, bytes(16))]
    records = [(counting(0x20), 0), (counting(0x30), 2), (counting(0x40), 5)]
    return entry(BIG, namespace, 7 * UNIT + 322 + 64, runs, records)


def small(namespace):
    return entry(SMALL, namespace, 2 * UNIT + 400, [(0, 1, counting(0x50))], [(counting(0x60), 0)])


def lists():
    nine = bytes([9]) + bytes(31)
    sections = [
        section(1, 2, DIGEST + nine),
        section(2, 2, big(0) + small(1)),
        section(3, 1, BIG + struct.pack("<I", 0x60616264)),
        section(6, 1, SMALL + bytes([4, 0, 0, 0])),
    ]
    yield "in.bin", make_list(1, 0x0708, WRITER, sections)
    name = "kv1/in/a0a1a2a3a4a5a6a7a8a9-000000000708"
    yield "in.sealed.bin", make_list(1, 0x0708, WRITER, sections, name, sealed=True)
    sections = [
        section(1, 1, nine),
        section(2, 1, small(0)),
        section(4, 1, BIG + struct.pack("<I", 0x60616265) + bytes([2, 0, 0, 0])),
        section(5, 1, BIG),
        section(7, 1, WRITER + (0x010203040506).to_bytes(6, "little")),
    ]
    yield "log.bin", make_list(2, 0x090A, WRITER, sections, previous=counting(0xC0))
    sections = [section(1, 1, DIGEST), section(2, 1, big(0))]
    yield "part.bin", make_list(3, 0x0B0C, WRITER, sections)
    footer = make_list(4, 0x010203, WRITER, sections)
    yield "footer.bin", footer
    yield "namespace.bin", make_list(5, 0, WRITER, [section(8, 1, MANIFEST)])
    trailer = b"KVCNOBJ1" + struct.pack("<HHIQII", 1, 0, 0, 7 * UNIT, len(footer), 3) + BIG
    trailer += struct.pack("<Q", xxhash.xxh3_64_intdigest(footer))
    trailer += struct.pack("<Q", xxhash.xxh3_64_intdigest(trailer))
    yield "tail.bin", footer + trailer


def small_files():
    bucket = (bytes([1, 2]) + bytes(14)).hex()
    note = {"format": 1, "bucket_id": bucket, "created": 1_800_000_000, "sealed": "none"}
    yield "format.json", note
    yield "format.sealed.json", {**note, "sealed": f"{KEY_ID:08x}"}
    parts = [
        (1, 200, 7, 5000, 8, 200),
        (201, 300, 8, 64 << 20, 9, 3_000_000),
    ]
    parts = [
        {
            "name": f"kv1/part/{first:016x}-{last:016x}-{(bytes([of]) + bytes(15)).hex()}",
            "bytes": size,
            "xxh3": (bytes([digest]) + bytes(15)).hex(),
            "records": records,
        }
        for first, last, of, size, digest, records in parts
    ]
    head = {"bucket_id": bucket, "generation": 2**63 + 1, "needs": 0, "parts": parts, "last": 300, "interval_ms": 2000}
    yield "head.json", head
    yield "head.empty.json", {**head, "generation": 0, "parts": [], "last": 0, "interval_ms": 0}
    yield "lease.json", {"node": 'a "node"', "writer": "0102" + 16 * "0"}


for file, content in lists():
    Path(file).write_bytes(content)
for file, fields in small_files():
    text = json.dumps({**fields, "sum": ""}, indent=2)
    before = text[: text.rindex('"sum"')]
    digest = xxhash.xxh3_64_hexdigest(before.encode())
    Path(file).write_text(f'{before}"sum": "{digest}"\n}}\n')
