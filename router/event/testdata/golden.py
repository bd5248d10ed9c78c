"""Writes golden.json, the batches that the decoder's tests read, into the current directory.

They are encoded with msgspec, the encoder of vLLM and SGLang; TensorRT-LLM's are of the same form. Each
case has the expected events in the words of the test's recorder.
"""

import hashlib
import json
from typing import Any

import msgspec

TS = 1757500000.25


def cases() -> list[dict]:
    """Encodes the batches."""
    out = []

    def add(name: str, payload: bytes, want: list[str]) -> None:
        out.append({"name": name, "hex": payload.hex(), "want": want})

    enc = msgspec.msgpack.Encoder()

    # maps, as vLLM 0.22 and later
    class E(msgspec.Struct, omit_defaults=True, gc=False, tag=True):
        pass

    class BlockStored(E, tag="BlockStored"):
        block_hashes: list
        parent_block_hash: Any
        token_ids: list
        block_size: int
        lora_id: int | None
        medium: str | None
        lora_name: str | None
        extra_keys: Any = None
        group_idx: int | None = None
        kv_cache_spec_kind: str | None = None
        kv_cache_spec_sliding_window: int | None = None
        locality: str | None = None
        ownership: str | None = None
        session_id: str | None = None

    class BlockRemoved(E, tag="BlockRemoved"):
        block_hashes: list
        medium: str | None
        group_idx: int | None = None
        locality: str | None = None

    class AllBlocksCleared(E, tag="AllBlocksCleared"):
        pass

    class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
        ts: float
        events: list
        data_parallel_rank: int | None = None

    def b(events: list, rank: int = 0) -> bytes:
        return enc.encode(Batch(TS, events, rank))

    add(
        "vllm map: one removed, integer hash",
        b([BlockRemoved([3236607068019569386], "GPU", group_idx=0)]),
        ["removed [3236607068019569386] gpu group 0", "rank 0"],
    )
    add("vllm map: all blocks cleared", b([AllBlocksCleared()]), ["cleared", "rank 0"])
    add(
        "vllm map: two stored, root",
        b(
            [
                BlockStored(
                    [11, 2**64 - 1],
                    None,
                    [1, 127, 128, 255, 256, 65535, 65536, 2**32 - 1],
                    4,
                    None,
                    "GPU",
                    None,
                    group_idx=0,
                    kv_cache_spec_kind="full_attention",
                )
            ],
            3,
        ),
        [
            "stored [11 18446744073709551615] root tokens [1 127 128 255 256 65535 65536 4294967295] size 4 gpu group 0 full",
            "rank 3",
        ],
    )
    h = [hashlib.sha256(bytes([i])).digest() for i in range(3)]
    low = [int.from_bytes(x[-8:], "big") for x in h]
    add(
        "vllm map: byte hashes with parent",
        b([BlockStored([h[1]], h[0], [7, 8], 2, None, "GPU", None)]),
        [f"stored [{low[1]}] parent {low[0]} tokens [7 8] size 2 gpu", "rank 0"],
    )
    add(
        "vllm map: lora and salt among the extra keys",
        b(
            [
                BlockStored(
                    [1, 2],
                    None,
                    [5, 6, 7, 8],
                    2,
                    4,
                    "GPU",
                    "sql",
                    extra_keys=[["sql", "tenant-a"], ["sql"]],
                )
            ]
        ),
        [
            'stored [1 2] root tokens [5 6 7 8] size 2 gpu lora "sql" lora id 4 salt "tenant-a"',
            "rank 0",
        ],
    )
    add(
        "vllm map: an image in the second block",
        b(
            [
                BlockStored(
                    [1, 2],
                    None,
                    [5, 6, 7, 8],
                    2,
                    None,
                    "GPU",
                    None,
                    extra_keys=[None, [["9f", 12]]],
                )
            ]
        ),
        [
            "stored [1 2] root tokens [5 6 7 8] size 2 gpu extra [- 9192a239660c]",
            "rank 0",
        ],
    )
    add(
        "vllm map: sliding window group",
        b(
            [
                BlockStored(
                    [1],
                    5,
                    [5, 6],
                    2,
                    None,
                    "GPU",
                    None,
                    group_idx=1,
                    kv_cache_spec_kind="sliding_window",
                    kv_cache_spec_sliding_window=512,
                )
            ]
        ),
        ["stored [1] parent 5 tokens [5 6] size 2 gpu group 1 other", "rank 0"],
    )
    add(
        "vllm map: offloaded, hashes only",
        b(
            [
                BlockStored(
                    [1, 2],
                    None,
                    [],
                    0,
                    None,
                    "CPU",
                    None,
                    locality="LOCAL",
                    ownership="t0",
                ),
                BlockRemoved([1], "STORAGE"),
            ]
        ),
        [
            "stored [1 2] root tokens [] size 0 elsewhere",
            "removed [1] elsewhere group -1",
            "rank 0",
        ],
    )

    # arrays, as older releases
    class AE(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
        pass

    class AStored(AE, tag="BlockStored"):
        block_hashes: list
        parent_block_hash: Any
        token_ids: list
        block_size: int
        lora_id: int | None
        medium: str | None = None
        lora_name: str | None = None
        extra_keys: Any = None
        group_idx: int | None = None

    class ARemoved(AE, tag="BlockRemoved"):
        block_hashes: list
        medium: str | None = None
        group_idx: int | None = None

    class ACleared(AE, tag="AllBlocksCleared"):
        pass

    add(
        "vllm array: stored, removed, cleared",
        enc.encode(
            Batch(
                TS,
                [
                    AStored([1, 2], 9, [5, 6, 7, 8], 2, None, "GPU"),
                    ARemoved([1], "GPU"),
                    ACleared(),
                ],
                1,
            )
        ),
        [
            "stored [1 2] parent 9 tokens [5 6 7 8] size 2 gpu",
            "removed [1] gpu group -1",
            "cleared",
            "rank 1",
        ],
    )
    add(
        "vllm array: no medium, no rank",
        enc.encode([TS, [["BlockStored", [1], None, [5, 6], 2, None], ["BlockRemoved", [1]]]]),
        ["stored [1] root tokens [5 6] size 2 gpu", "removed [1] gpu group -1"],
    )
    add(
        "vllm array: group and extra keys",
        enc.encode(
            [
                TS,
                [
                    [
                        "BlockStored",
                        [1],
                        None,
                        [5, 6],
                        2,
                        7,
                        "GPU",
                        "sql",
                        [["sql"]],
                        1,
                        "mla_attention",
                        None,
                    ],
                    ["BlockRemoved", [1], "GPU", 1],
                ],
                0,
            ]
        ),
        [
            'stored [1] root tokens [5 6] size 2 gpu lora "sql" lora id 7 group 1 full',
            "removed [1] gpu group 1",
            "rank 0",
        ],
    )

    # SGLang
    class SGStored(E, tag="BlockStored"):
        block_hashes: list
        parent_block_hash: Any
        token_ids: list
        block_size: int
        lora_id: int | None = None
        medium: str | None = None
        cache_salt: str | None = None
        session_id: str | None = None
        lora_name: str | None = None

    add(
        "sglang: signed hashes, salt, session",
        b(
            [
                SGStored(
                    [-5, 2**63 - 1],
                    -(2**63),
                    [1, 2, 3, 4],
                    2,
                    medium="CPU_PINNED",
                    cache_salt="s",
                    session_id="x",
                )
            ]
        ),
        [
            'stored [18446744073709551611 9223372036854775807] parent 9223372036854775808 tokens [1 2 3 4] size 2 elsewhere salt "s"',
            "rank 0",
        ],
    )
    add(
        "sglang: pairs of speculative decoding",
        b([SGStored([1], None, [(1, 2), (2, 3)], 2)]),
        ["stored [1] root tokens [1 2] size 2 gpu", "rank 0"],
    )
    # TensorRT-LLM
    add(
        "tensorrt-llm: map with nil fields and mm_keys",
        enc.encode(
            [
                TS,
                [
                    {
                        "type": "BlockStored",
                        "block_hashes": [2**63 + 1],
                        "parent_block_hash": None,
                        "token_ids": [1, 2],
                        "block_size": 2,
                        "lora_id": None,
                        "medium": "GPU",
                        "mm_keys": None,
                    }
                ],
                5,
            ]
        ),
        ["stored [9223372036854775809] root tokens [1 2] size 2 gpu", "rank 5"],
    )
    # what is not known
    add(
        "unknown type and key, type last",
        enc.encode(
            [
                TS,
                [
                    {"x": {"y": [1, 2.5, b"z", None, True]}, "type": "BlockInactive"},
                    {"block_hashes": [4], "new": [[]], "type": "BlockRemoved"},
                    ["Renamed", 1, {"a": -1}],
                ],
                0,
                "more",
            ]
        ),
        ["removed [4] gpu group -1", "rank 0", "unknown types 2 keys 4"],
    )
    add(
        "tensorrt-llm: mm_keys that are not by block",
        enc.encode(
            [
                TS,
                [
                    {
                        "type": "BlockStored",
                        "block_hashes": [1, 2],
                        "parent_block_hash": None,
                        "token_ids": [1, 2, 3, 4],
                        "block_size": 2,
                        "mm_keys": [["h", 0]],
                    }
                ],
                5,
            ]
        ),
        [
            "stored [1 2] root tokens [1 2 3 4] size 2 gpu extra [92a16800 92a16800]",
            "rank 5",
        ],
    )
    add("an empty batch", enc.encode([TS, [], 0]), ["rank 0"])
    return out


with open("golden.json", "w") as file:
    json.dump(cases(), file, indent=1)
