"""The other side of tests in libzmq: a SUB, or a DEALER that asks for a replay.

    libzmq_sub.py sub ENDPOINT TOPIC     prints "subscribed", then each message
    libzmq_sub.py replay ENDPOINT START  prints the messages up to the end of the replay

A message is printed as its frames in hexadecimal, "-" for an empty one.
"""

import struct
import sys

import zmq


def show(frames: list[bytes]) -> None:
    """Prints a message."""
    print(*[f.hex() or "-" for f in frames], flush=True)


mode, endpoint, argument = sys.argv[1:]
context = zmq.Context()
if mode == "sub":
    socket = context.socket(zmq.SUB)
    socket.setsockopt(zmq.HEARTBEAT_IVL, 50)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2000)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt_string(zmq.SUBSCRIBE, argument)
    socket.connect(endpoint)
    print("subscribed", flush=True)
    while True:
        show(socket.recv_multipart())
socket = context.socket(zmq.DEALER)
socket.connect(endpoint)
socket.send_multipart([b"", struct.pack(">Q", int(argument))])
while True:
    frames = socket.recv_multipart()
    show(frames)
    if frames[-2] == b"\xff" * 8:
        break
