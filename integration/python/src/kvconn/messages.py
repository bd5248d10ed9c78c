"""The bodies of requests, and what answers hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from kvconn.errors import ProtocolError
from kvconn.frames import HASH_BYTES, MAX_TIERS, VERSIONS, pack_u32s, unpack_u32s
from kvconn.frames import field as field_of

T = TypeVar("T")

Body = dict[str, Any]


class Offer(NamedTuple):
    """What the leader promises beyond what the engine holds."""

    tokens: int
    asynchronous: bool
    tiers: Mapping[str, int] = MappingProxyType({})
    """The offered tokens by the tier that they lie in, if that was asked for."""
    refused: int = 0
    """Tokens after the offer that are stored too, but take longer to load than to compute."""


class Span(NamedTuple):
    """The tokens [start, end) stand for other content, such as an image, which `id` identifies."""

    start: int
    end: int
    id: bytes


class Alloc(NamedTuple):
    """The engine allocated blocks and wants `external` tokens after `computed` loaded.

    `blocks` is the whole block table, one list for each layer group. `group_computed` says what the
    engine holds in each group where that differs.
    """

    request: str
    blocks: Sequence[Sequence[int]]
    computed: int
    external: int
    group_computed: Sequence[int] = ()


class Scheduled(NamedTuple):
    """This step computes `count` tokens of a request after `computed`.

    `blocks` extends the request's block table of each layer group, or replaces it with `reset`;
    `tokens` are those that the leader does not know yet, `start` the index of the first.
    """

    request: str
    blocks: Sequence[Sequence[int]]
    reset: bool
    computed: int
    count: int
    tokens: Sequence[int]
    start: int = 0


@dataclass(slots=True)
class Step:
    """One iteration of the engine's scheduler."""

    allocs: list[Alloc] = field(default_factory=list)
    scheduled: list[Scheduled] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    finished: list[str] = field(default_factory=list)
    tell_saves: bool = False
    """Ask for `StepReply.saves`."""
    adapters: list[tuple[str, str]] = field(default_factory=list)
    """The LoRA adapters of new requests, MAX_STEP_ADAPTERS at most: the name, and what requests with it have as `lora`.

    That is empty where nothing is loaded or saved with it.
    """

    def __bool__(self) -> bool:
        return bool(self.allocs or self.scheduled or self.preempted or self.finished or self.adapters)


class PlannedLoad(NamedTuple):
    """The engine's blocks that a request's load will fill, those of all layer groups together."""

    request: str
    blocks: list[int]


class PlannedSave(NamedTuple):
    """A step saves `count` blocks of a request's layer group, from the one with index `first` on."""

    request: str
    group: int
    first: int
    count: int


class StepReply(NamedTuple):
    """The leader's plan: `meta`, opaque, is for every rank's worker; `loads` lists the loads in it."""

    meta: bytes
    loads: list[PlannedLoad]
    saves: Sequence[PlannedSave] = ()
    """What the plan saves, if that was asked for."""


class TierBlocks(NamedTuple):
    """What a load got from one tier."""

    blocks: int
    bytes: int


class FinishedLoad(NamedTuple):
    """A load that has ended; the bytes of `failed_blocks` must not be used."""

    request: str
    failed_blocks: list[int]
    tiers: Mapping[str, TierBlocks] = MappingProxyType({})
    """The other blocks, by the tier that they came from."""
    seconds: float = 0.0
    """The time from the load's start to its end, 0 where the daemon did not tell."""


class SaveResult(NamedTuple):
    """How many blocks a save copied out of engine memory, dropped for want of room, and found stored already."""

    taken: int = 0
    dropped: int = 0
    present: int = 0


class Run(NamedTuple):
    """Equally shaped pieces of a block, see docs/protocol.md; bytes except `region` and `layers`."""

    region: int
    offset: int
    layers: int
    layer_stride: int
    block_stride: int
    size: int


class GroupLayout(NamedTuple):
    """How a block of one layer group lies in memory; no runs where the rank has no layers of it."""

    blocks: int
    runs: Sequence[Run]


class Part(NamedTuple):
    """Consecutive blocks of a prompt and layer group, named by the engine's own prefix hashes of 32 bytes.

    `parent` is the hash before the first, empty at the root, None in a load if it is not known; `slots` are the
    engine's block ids.
    """

    group: int
    parent: bytes | None
    hashes: Sequence[bytes]
    slots: Sequence[int]


class StoredPut(NamedTuple):
    """A save by key, or one that is reported later, that has ended: its slots are the engine's again.

    The numbers are as in SaveResult.
    """

    request: str
    taken: int
    dropped: int
    present: int


class Polled(NamedTuple):
    """What has ended since the last poll."""

    finished: list[FinishedLoad]
    stored: list[StoredPut]


def hello(
    role: str,
    client: str,
    engine: str,
    manifest: bytes,
    rank: int = 0,
    staged: bool = False,
    versions: tuple[int, int] = VERSIONS,
    session: bytes = b"",
) -> Body:
    """Body of the first request; `session` names that of a channel."""
    body = {
        "versions": list(versions),
        "role": role,
        "client": client,
        "engine": engine,
        "manifest": manifest,
        "rank": rank,
        "staged": staged,
    }
    if session:
        body["session"] = session
    return body


def match(
    request: str,
    tokens: Sequence[int],
    *,
    start: int = 0,
    prompt: int = 0,
    computed: int = 0,
    spans: Sequence[Span] = (),
    salt: str = "",
    lora: str = "",
    no_load: bool = False,
    no_save: bool = False,
    tiers: bool = False,
    trace: str = "",
) -> Body:
    """Body of a match."""
    body = {
        "r": request,
        "from": start,
        "tokens": pack_u32s(tokens),
        "prompt": prompt,
        "computed": computed,
        "spans": spans,
        "salt": salt,
        "lora": lora,
        "no_load": no_load,
        "no_save": no_save,
    }
    if tiers:
        body["tiers"] = True
    if trace:
        body["trace"] = trace
    return body


def offer(reply: Body) -> Offer:
    """Answer to match."""
    tiers = _tiers(reply.get("tiers") or {}, int)
    return Offer(field_of(reply, "tokens", int), field_of(reply, "async", bool), tiers, field_of(reply, "refused", int))


def step(told: Step) -> Body:
    """Body of a step."""
    body = {
        "allocs": [
            {
                "r": a.request,
                "blocks": _tables(a.blocks),
                "group_computed": a.group_computed,
                "computed": a.computed,
                "external": a.external,
            }
            for a in told.allocs
        ],
        "scheduled": [
            {
                "r": s.request,
                "blocks": _tables(s.blocks),
                "reset": s.reset,
                "computed": s.computed,
                "count": s.count,
                "from": s.start,
                "tokens": pack_u32s(s.tokens),
            }
            for s in told.scheduled
        ],
        "preempted": told.preempted,
        "finished": told.finished,
    }
    if told.tell_saves:
        body["tell_saves"] = True
    if told.adapters:
        body["adapters"] = told.adapters
    return body


def _tables(tables: Sequence[Sequence[int]]) -> list[bytes]:
    return [pack_u32s(table) for table in tables]


def step_reply(reply: Body) -> StepReply:
    """Answer to step."""
    saves = tuple(_planned_save(s) for s in field_of(reply, "saves", list))
    return StepReply(field_of(reply, "meta", bytes), [PlannedLoad(*p) for p in _pairs(reply, "loads")], saves)


def _planned_save(entry: Any) -> PlannedSave:
    if not (
        isinstance(entry, list)
        and len(entry) == len(PlannedSave._fields)
        and isinstance(entry[0], str)
        and all(isinstance(n, int) for n in entry[1:])
    ):
        raise ProtocolError("field 'saves' is no array of [request, group, first, count]")
    return PlannedSave(*entry)


def loaded(done: Iterable[str], invalid: Iterable[int]) -> Body:
    """Body of loaded."""
    return {"done": list(done), "invalid": pack_u32s(invalid)}


def register(layout: Sequence[GroupLayout]) -> Body:
    """Body of register."""
    return {"groups": [{"blocks": g.blocks, "runs": g.runs} for g in layout]}


def meta(plan: bytes) -> Body:
    """Body of load and save."""
    return {"meta": plan}


def save_later(save: str, plan: bytes, revoked: int) -> Body:
    """Body of a save that poll may report as `save`; `revoked` is the count of revocations at the call."""
    return {"meta": plan, "r": save, "revoked": revoked}


def save_reply(reply: Body) -> SaveResult | None:
    """Answer to such a save: None where poll reports it."""
    return None if field_of(reply, "later", bool) else save_result(reply)


def save_result(reply: Body) -> SaveResult:
    """Answer to save."""
    return SaveResult(*(field_of(reply, key, int) for key in SaveResult._fields))


def finished(reply: Body) -> list[FinishedLoad]:
    """Answer to poll."""
    loads = [FinishedLoad(*p) for p in _pairs(reply, "finished")]
    brought = field_of(reply, "loaded", list)
    if brought and len(brought) != len(loads):
        raise ProtocolError(f"{len(loads)} loads, and what {len(brought)} brought")
    return [_with(load, *_brought(b)) for load, b in zip(loads, brought, strict=True)] if brought else loads


def _with(load: FinishedLoad, tiers: Mapping[str, TierBlocks], seconds: float) -> FinishedLoad:
    return load._replace(tiers=tiers, seconds=seconds)


def _brought(entry: Any) -> tuple[dict[str, TierBlocks], float]:
    """Decode what a load brought: `[microseconds, {tier: [blocks, bytes]}]`."""
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], int)):
        raise ProtocolError("field 'loaded' is no array of [microseconds, tiers]")
    tiers = _tiers(entry[1], list)
    if not all(len(v) == 2 and all(isinstance(n, int) for n in v) for v in tiers.values()):
        raise ProtocolError("a tier of field 'loaded' is not [blocks, bytes]")
    return {tier: TierBlocks(*v) for tier, v in tiers.items()}, entry[0] / 1e6


def _tiers(value: Any, kind: type[T]) -> dict[str, T]:
    if not (
        isinstance(value, dict)
        and len(value) <= MAX_TIERS
        and all(isinstance(tier, str) and isinstance(v, kind) for tier, v in value.items())
    ):
        raise ProtocolError("numbers by tier are no map of tiers, or of too many")
    return value


def cancel(request: str) -> Body:
    """Body of cancel."""
    return {"r": request}


def present(
    request: str,
    hashes: Sequence[bytes],
    *,
    first: int = 0,
    parent: bytes | None = b"",
    held: int = 0,
    no_load: bool = False,
    trace: str = "",
) -> Body:
    """Body of present."""
    body = {
        "r": request,
        "first": first,
        **_parent(parent),
        "hashes": _hashes(hashes),
        "held": held,
        "no_load": no_load,
    }
    if trace:
        body["trace"] = trace
    return body


def bitmaps(reply: Body) -> list[bytes]:
    """Answer to present."""
    groups = field_of(reply, "groups", list)
    if not all(isinstance(bits, bytes) for bits in groups):
        raise ProtocolError("field 'groups' is no array of bitmaps")
    return groups


def offered(bitmaps: list[bytes] | None, groups: int, blocks: int) -> list[bytes]:
    """Return bitmaps of blocks, one for each layer group; without a bit set where that is not what they are."""
    size = (blocks + 7) // 8
    if bitmaps is not None and [len(b) for b in bitmaps] == [size] * groups:
        return bitmaps
    return [bytes(size)] * groups


def move(
    request: str, parts: Sequence[Part], *, of: str = "", salt: str = "", lora: str = "", wait_ms: int = 0
) -> Body:
    """Body of fetch and put; `request` is what poll will report, unless the answer waits for the end.

    Raises ValueError for hashes of another length, or of another number than slots.
    """
    if any(len(p.hashes) != len(p.slots) for p in parts):
        raise ValueError("a part has not as many slots as hashes")
    body = {
        "r": request,
        "of": of,
        "parts": [
            {"group": p.group, **_parent(p.parent), "hashes": _hashes(p.hashes), "slots": pack_u32s(p.slots)}
            for p in parts
        ],
        "salt": salt,
        "lora": lora,
    }
    if wait_ms:
        body["wait_ms"] = wait_ms
    return body


def done(reply: Body, parts: Sequence[Part]) -> list[bytes]:
    """Answer to a fetch or put of parts that has waited: a bitmap for each."""
    bitmaps = field_of(reply, "done", list)
    if not all(isinstance(bits, bytes) for bits in bitmaps) or [len(b) for b in bitmaps] != [_size(p) for p in parts]:
        raise ProtocolError("field 'done' is no array of a bitmap for each part")
    return bitmaps


def not_done(parts: Sequence[Part]) -> list[bytes]:
    """Bitmaps of parts that have nothing done."""
    return [bytes(_size(p)) for p in parts]


def _size(part: Part) -> int:
    return (len(part.hashes) + 7) // 8


def touch(request: str, hashes: Sequence[bytes], tokens: int = 0, seconds: float = 0.0) -> Body:
    """Body of touch."""
    return {"r": request, "hashes": _hashes(hashes), "tokens": tokens, "seconds": float(seconds)}


def polled(reply: Body) -> Polled:
    """Answer to poll, of a daemon that speaks of saves too."""
    stored: list[StoredPut] = []
    for entry in field_of(reply, "stored", list):
        if not (isinstance(entry, list) and [type(v) for v in entry] == [str, int, int, int]):
            raise ProtocolError("field 'stored' is no array of [request, taken, dropped, present]")
        stored.append(StoredPut(*entry))
    return Polled(finished(reply), stored)


def _hashes(hashes: Sequence[bytes]) -> bytes:
    joined = b"".join(hashes)
    if len(joined) != HASH_BYTES * len(hashes):
        raise ValueError(f"a block's hash does not have {HASH_BYTES} bytes")
    return joined


def _parent(parent: bytes | None) -> Body:
    if parent is None:
        return {"any_parent": True}
    if len(parent) not in (0, HASH_BYTES):
        raise ValueError(f"a block's hash does not have {HASH_BYTES} bytes")
    return {"parent": parent}


def count(reply: Body) -> int:
    """Answer to load."""
    return field_of(reply, "n", int)


def _pairs(body: Body, key: str) -> list[tuple[str, list[int]]]:
    """Decode an array of `[request, ids (bin)]`."""
    pairs: list[tuple[str, list[int]]] = []
    for pair in field_of(body, key, list):
        if not (isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], bytes)):
            raise ProtocolError(f"field {key!r} is no array of [request, blocks]")
        pairs.append((pair[0], unpack_u32s(pair[1])))
    return pairs
