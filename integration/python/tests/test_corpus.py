"""The golden frames that the daemon's own tests keep (docs/protocol.md): what is said, and what is understood."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

from kvconn import client, connection, frames, messages
from kvconn.client import Alloc, GroupLayout, Part, Run, Scheduled, Span, Step
from kvconn.errors import ProtocolError

CORPUS = Path(__file__).resolve().parents[3] / "connector" / "testdata" / "frames"
Fields = dict[str, Any]


def entries(kind: str) -> list[Any]:
    index = CORPUS / "index.json"
    if not index.is_file():
        return [pytest.param({}, marks=pytest.mark.skip(reason="the golden frames are in the project's checkout only"))]
    found = json.loads(index.read_text())["entries"]
    return [pytest.param(e, id=e["file"]) for e in found if e.get("kind") == kind]


def hashes(f: Fields) -> list[bytes]:
    return [bytes.fromhex(h) for h in f["hashes"]]


def parent_of(f: Fields) -> bytes | None:
    return None if f.get("any_parent") else bytes.fromhex(f["parent"])


def present(f: Fields) -> Fields:
    parent = parent_of(f)
    return messages.present(
        f["r"],
        hashes(f),
        first=f["first"],
        parent=parent,
        held=f["held"],
        no_load=f["no_load"],
        trace=f.get("trace", ""),
    )


def move(f: Fields) -> Fields:
    parts = [Part(p["group"], parent_of(p), hashes(p), p["slots"]) for p in f["parts"]]
    return messages.move(f["r"], parts, of=f["of"], salt=f["salt"], lora=f["lora"], wait_ms=f.get("wait_ms", 0))


def match(f: Fields) -> Fields:
    spans = [Span(start, end, bytes.fromhex(content)) for start, end, content in f["spans"]]
    return messages.match(
        f["r"],
        f["tokens"],
        start=f["from"],
        prompt=f["prompt"],
        computed=f["computed"],
        spans=spans,
        salt=f["salt"],
        lora=f["lora"],
        no_load=f["no_load"],
        no_save=f["no_save"],
        tiers=f.get("tiers", False),
        trace=f.get("trace", ""),
    )


def step(f: Fields) -> Fields:
    allocs = [Alloc(a["r"], a["blocks"], a["computed"], a["external"], a["group_computed"]) for a in f["allocs"]]
    scheduled = [
        Scheduled(s["r"], s["blocks"], s["reset"], s["computed"], s["count"], s["tokens"], s["from"])
        for s in f["scheduled"]
    ]
    return messages.step(Step(allocs, scheduled, f["preempted"], f["finished"], f.get("tell_saves", False)))


def finished(f: Fields) -> list[tuple[Any, ...]]:
    brought = f.get("loaded") or [[0, {}]] * len(f["finished"])
    return [
        (request, failed, {tier: tuple(got) for tier, got in tiers.items()}, micros / 1e6)
        for (request, failed), (micros, tiers) in zip(f["finished"], brought, strict=True)
    ]


def hello(f: Fields) -> Fields:
    return messages.hello(
        f["role"],
        f["client"],
        f["engine"],
        f["manifest"].encode(),
        f["rank"],
        f["staged"],
        versions=tuple(f["versions"]),
        session=bytes.fromhex(f.get("session", "")),
    )


def waited(reply: Fields) -> list[bytes]:
    """The answer to a fetch or put, of two blocks and one, that may have waited."""
    hashes = [bytes(32)] * 3
    parts = [Part(0, b"", hashes[:2], [0, 1]), Part(0, b"", hashes[2:], [2])]
    return messages.done(reply, parts) if reply else []


def bitmaps(fields: Fields) -> list[bytes]:
    return [bytes.fromhex(b) for b in fields.get("done", [])]


def register(f: Fields) -> Fields:
    return messages.register([GroupLayout(g["blocks"], [Run(*r) for r in g["runs"]]) for g in f["groups"]])


def plan(f: Fields) -> Fields:
    return messages.meta(bytes.fromhex(f["meta"]))


def save(f: Fields) -> Fields:
    return messages.save_later(f["r"], bytes.fromhex(f["meta"]), f["revoked"]) if "r" in f else plan(f)


REQUESTS: dict[str, Callable[[Fields], Fields]] = {
    "hello": hello,
    "match": match,
    "step": step,
    "loaded": lambda f: messages.loaded(f["done"], f["invalid"]),
    "reset": dict,
    "register": register,
    "unregister": dict,
    "load": plan,
    "save": save,
    "poll": dict,
    "cancel": lambda f: messages.cancel(f["r"]),
    "present": present,
    "fetch": move,
    "put": move,
    "touch": lambda f: messages.touch(f["r"], hashes(f), f["tokens"], f["seconds"]),
}

REPLIES: dict[str, tuple[Callable[[Fields], Any], Callable[[Fields], Any]]] = {
    "hello": (
        lambda body: frames.field(body, "session", bytes),
        lambda f: bytes.fromhex(f.get("session", "")),
    ),
    "match": (messages.offer, lambda f: (f["tokens"], f["async"], f.get("tiers", {}), f.get("refused", 0))),
    "step": (
        messages.step_reply,
        lambda f: (
            bytes.fromhex(f["meta"]),
            [tuple(p) for p in f["loads"]],
            tuple(tuple(s) for s in f.get("saves", ())),
        ),
    ),
    "loaded": (dict, dict),
    "reset": (dict, dict),
    "register": (dict, dict),
    "unregister": (dict, dict),
    "load": (messages.count, lambda f: f["n"]),
    "save": (messages.save_reply, lambda f: None if f.get("later") else (f["taken"], f["dropped"], f["present"])),
    "poll": (messages.polled, lambda f: (finished(f), [tuple(e) for e in f["stored"]])),
    "cancel": (dict, dict),
    "present": (messages.bitmaps, lambda f: [bytes.fromhex(b) for b in f["groups"]]),
    "fetch": (waited, bitmaps),
    "put": (waited, bitmaps),
    "touch": (dict, dict),
}

ERRORS = {
    "protocol": client.ProtocolError,
    "version": client.VersionMismatch,
    "bad_request": client.Rejected,
    "unknown_request": client.UnknownRequest,
    "not_registered": client.NotRegistered,
    "again": client.TryAgain,
    "internal": client.Rejected,
}


@pytest.mark.parametrize("entry", entries("request"))
def test_a_request_is_said_as_the_daemon_expects_it(entry: Fields) -> None:
    golden = (CORPUS / entry["file"]).read_bytes()
    op = frames.Op[entry["op"].upper()]
    said = frames.pack_request(entry["id"], op, REQUESTS[entry["op"]](entry["fields"]), entry.get("fds", 0))
    # The body's length may differ: msgpack has several forms for one number.
    assert said[4 : frames.HEADER_BYTES] == golden[4 : frames.HEADER_BYTES]
    got, want = (msgpack.unpackb(frame[frames.HEADER_BYTES :]) for frame in (said, golden))
    assert got == want


@pytest.mark.parametrize("entry", entries("reply"))
def test_an_answer_is_understood(entry: Fields) -> None:
    golden = (CORPUS / entry["file"]).read_bytes()
    if entry.get("fds"):  # only for clients in handoff mode, which this one is not
        with pytest.raises(ProtocolError):
            frames.unpack_header(golden)
        return
    header = frames.unpack_header(golden)
    assert (header.id, frames.Op(header.op).name.lower(), header.epoch) == (entry["id"], entry["op"], entry["epoch"])
    assert header.length == len(golden) - frames.HEADER_BYTES
    decode, want = REPLIES[entry["op"]]
    assert decode(frames.unpack_body(golden[frames.HEADER_BYTES :])) == want(entry["fields"])


@pytest.mark.parametrize("entry", entries("error"))
def test_an_error_is_told_by_its_code(entry: Fields) -> None:
    golden = (CORPUS / entry["file"]).read_bytes()
    header = frames.unpack_header(golden)
    assert header.kind == frames.Kind.ERROR
    body = frames.unpack_body(golden[frames.HEADER_BYTES :])
    error = connection._answered_error(frames.Op(header.op), body)
    assert type(error) is ERRORS[entry["fields"]["code"]]
    assert "what went wrong" in str(error)
