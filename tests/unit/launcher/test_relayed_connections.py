"""The connections of a relay: nothing twice and nothing missing, wherever its stream is cut."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable

import pytest

from kernelexec.launcher.relayed_connections import (
    ACK,
    CREDIT,
    DATA,
    HELLO,
    OPEN,
    PIECE_BYTES,
    READY,
    WINDOW_BYTES,
    Link,
    LinkError,
    RelayedConnections,
    _frame,
)

A, B, C = b"a" * 16, b"b" * 16, b"c" * 16


class Side:
    """One side of a link, with the bytes that it has written to the present stream."""

    def __init__(self, instance: bytes) -> None:
        self.taken: list[bytes] = []
        self.renewed = 0
        self.link = Link(lambda _kind, _number, content: self.taken.append(content), instance, self.renew)
        self.written = bytearray()

    def renew(self) -> None:
        self.renewed += 1

    def connect(self) -> None:
        self.written.clear()
        self.link.connect(self.written.extend)


def carry(source: Side, target: Side, size: int) -> None:
    """Carry some bytes of the stream."""
    data = bytes(source.written[:size])
    del source.written[:size]
    target.link.feed(data)


@pytest.mark.parametrize("seed", range(20))
def test_frames_arrive_once_and_in_order_however_the_stream_is_cut(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - a test's
    near, far = Side(A), Side(B)
    sent: dict[bytes, list[bytes]] = {A: [], B: []}
    near.connect()
    far.connect()
    for number in range(400):
        for side, instance in ((near, A), (far, B)):
            if chance.random() < 0.6:
                content = b"%d" % number
                side.link.send(DATA, 1, content)
                sent[instance].append(content)
        carry(near, far, chance.randrange(200))
        carry(far, near, chance.randrange(200))
        if chance.random() < 0.05:  # what is on its way is lost
            near.link.disconnect()
            far.link.disconnect()
            if chance.random() < 0.5:
                near.link.send(DATA, 1, b"meanwhile")
                sent[A].append(b"meanwhile")
            near.connect()
            far.connect()
    for _ in range(5):
        carry(near, far, 10**6)
        carry(far, near, 10**6)
    assert (far.taken, near.taken) == (sent[A], sent[B])
    assert (near.renewed, far.renewed) == (0, 0)


def test_another_instance_begins_anew() -> None:
    near, far = Side(A), Side(B)
    near.connect()
    far.connect()
    near.link.send(DATA, 1, b"of the first")
    carry(far, near, 10**6)
    carry(near, far, 10**6)
    other = Side(C)
    other.connect()
    far.link.disconnect()
    far.connect()
    far.link.send(DATA, 1, b"for the first, lost with it")
    other.link.send(OPEN, 1, b"of the second")
    carry(other, far, 10**6)
    carry(far, other, 10**6)
    carry(other, far, 10**6)
    assert (far.taken, other.taken, far.renewed) == ([b"of the first", b"of the second"], [], 1)


BAD = {
    "no greeting": _frame(DATA, 1, b"x"),
    "no kind": _frame(HELLO, 0, A + b"\0" * 24) + _frame(READY + 1, 0, b""),
    "a frame too large": _frame(HELLO, 0, A + b"\0" * 24) + _frame(DATA, 1, b"x" * (PIECE_BYTES + 1)),
    "a greeting too short": _frame(HELLO, 0, b"x"),
    "frames that were never sent": _frame(HELLO, 0, A + b"\0" * 24) + _frame(ACK, 0, (5).to_bytes(8, "big")),
    "a second greeting": 2 * _frame(HELLO, 0, A + b"\0" * 24),
    "no number": _frame(HELLO, 0, A + b"\0" * 24) + _frame(ACK, 0, b"x"),
}


@pytest.mark.parametrize("case", BAD)
def test_bytes_that_are_none_of_a_link_are_refused(case: str) -> None:
    side = Side(B)
    side.connect()
    with pytest.raises(LinkError):
        side.link.feed(BAD[case])


def test_a_side_that_reports_nothing_is_given_up() -> None:
    side = Side(A)
    side.connect()
    side.link.feed(_frame(HELLO, 0, B + b"\0" * 24))
    for _ in range(1100):
        side.link.send(DATA, 1, b"x" * PIECE_BYTES)
    with pytest.raises(LinkError, match="does not report"):
        side.link.feed(b"")


class Pair:
    """Both sides of a relay in one loop, each with one end of a socket."""

    def __init__(self) -> None:
        self.near = RelayedConnections(A, take=lambda *_: None)
        self.far = RelayedConnections(B, take=lambda *_: None)
        loop = asyncio.get_running_loop()
        self.near.link.connect(lambda data: self._later(loop, self.far.link.feed, data))
        self.far.link.connect(lambda data: self._later(loop, self.near.link.feed, data))

    @staticmethod
    def _later(loop: asyncio.AbstractEventLoop, feed: Callable[[bytes], None], data: bytes) -> None:
        loop.call_soon(feed, data)

    async def join(self, side: RelayedConnections) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        connection = side.add(1)
        await asyncio.get_running_loop().create_connection(lambda: connection, sock=theirs)
        return ours


async def take(sock: socket.socket, size: int) -> bytes:
    data, loop = b"", asyncio.get_running_loop()
    while len(data) < size:
        data += await loop.sock_recv(sock, 65536)
    return data


def test_a_reader_that_stops_stops_the_writer_and_goes_on() -> None:
    async def run() -> None:
        pair, loop = Pair(), asyncio.get_running_loop()
        near, far = await pair.join(pair.near), await pair.join(pair.far)
        content = random.Random(1).randbytes(8 * WINDOW_BYTES)  # noqa: S311 - a test's
        sending = asyncio.create_task(loop.sock_sendall(near, content))
        done, _ = await asyncio.wait([sending], timeout=0.5)
        assert not done  # the windows are full
        assert await take(far, len(content)) == content
        await sending
        await loop.sock_sendall(far, b"answer")
        assert await take(near, 6) == b"answer"
        near.close()
        assert await loop.sock_recv(far, 1) == b""
        far.close()

    asyncio.run(run())


REFUSED = {
    "more bytes than it may send": _frame(DATA, 1, b"x" * PIECE_BYTES) * (2 * WINDOW_BYTES // PIECE_BYTES),
    "no bytes": _frame(DATA, 1, b""),
    "more credit than bytes were sent": _frame(CREDIT, 1, (1).to_bytes(8, "big")),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_connection_that_breaks_the_rules_is_refused(case: str) -> None:
    async def run() -> None:
        side = RelayedConnections(A, take=lambda *_: None)
        side.link.connect(lambda _: None)
        side.link.feed(_frame(HELLO, 0, B + b"\0" * 24))
        side.add(1)
        side.link.feed(_frame(CREDIT, 7, b"\0" * 8))  # of a connection that has ended
        with pytest.raises(LinkError):
            side.link.feed(REFUSED[case])

    asyncio.run(run())
