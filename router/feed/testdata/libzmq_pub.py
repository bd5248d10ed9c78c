"""An engine's event publisher in libzmq, as vLLM's: PUB and replay ROUTER, told what to do on stdin.

It prints "ready PORT REPLAY_PORT". Commands, each answered by "done":

    pub SEQ HEX     publish a batch and keep it for replays
    drop SEQ HEX    only keep it, as if the network had lost it
    fill N HEX      keep this batch under the numbers from 0 to N-1
    forget          forget what was kept
    old | new       reply to replays in the older form of 3 frames, or the newer of 4
    rebind          close the PUB socket and open it again on the same port, as a restart does
"""

import os
import struct
import sys

import zmq

context = zmq.Context()
replay = context.socket(zmq.ROUTER)
replay_port = replay.bind_to_random_port("tcp://127.0.0.1")
pub = context.socket(zmq.PUB)
port = pub.bind_to_random_port("tcp://127.0.0.1")
kept = []
topic_in_replay = True
END = b"\xff" * 8


def serve_replay() -> None:
    """Answers one request for past batches."""
    identity, empty, start = replay.recv_multipart()
    if empty:
        raise ValueError(empty)
    start = struct.unpack(">Q", start)[0]
    for seq, payload in kept:
        if seq >= start:
            number = struct.pack(">Q", seq)
            frames = [b"kv", number, payload] if topic_in_replay else [number, payload]
            replay.send_multipart([identity, b"", *frames])
    end = [b"", END, b""] if topic_in_replay else [END, b""]
    replay.send_multipart([identity, b"", *end])


def command(words: list[str]) -> None:
    """Does what one line says."""
    global pub, topic_in_replay
    name = words[0]
    if name in ("pub", "drop"):
        seq, payload = int(words[1]), bytes.fromhex(words[2])
        kept.append((seq, payload))
        if name == "pub":
            pub.send_multipart([b"kv", struct.pack(">Q", seq), payload])
    elif name == "fill":
        kept.extend((seq, bytes.fromhex(words[2])) for seq in range(int(words[1])))
    elif name == "forget":
        kept.clear()
    elif name in ("old", "new"):
        topic_in_replay = name == "new"
    elif name == "rebind":
        pub.close(linger=0)
        while True:
            pub = context.socket(zmq.PUB)
            try:
                pub.bind(f"tcp://127.0.0.1:{port}")
                break
            except zmq.ZMQError:
                pub.close()
    else:
        raise ValueError(name)
    print("done", flush=True)


print("ready", port, replay_port, flush=True)
poller = zmq.Poller()
poller.register(replay, zmq.POLLIN)
poller.register(sys.stdin.fileno(), zmq.POLLIN)
buffer = b""
while True:
    for source, _ in poller.poll():
        if source is replay or source == replay:
            serve_replay()
            continue
        data = os.read(sys.stdin.fileno(), 1 << 20)
        if not data:
            sys.exit()
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            command(line.decode().split())
