"""frames.py - control frames as they go over a socket (docs/wire.md, section 2), for relays of tests."""

import struct


def framed(body):
    return struct.pack("<I", len(body)) + body


def read_frame(source):
    """The next frame with its length; None: the connection has ended."""
    data = b""
    while len(data) < 4 or len(data) < 4 + struct.unpack("<I", data[:4])[0]:
        more = source.recv(4 - len(data) if len(data) < 4 else 4 + struct.unpack("<I", data[:4])[0] - len(data))
        if not more:
            return None
        data += more
    return data
