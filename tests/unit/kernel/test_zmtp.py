"""ZMTP: bytes in, messages out, whatever the bytes; and real ZeroMQ sockets at the other end."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import zmq
import zmq.asyncio

from kernelexec.config import MIB
from kernelexec.errors import KernelConnectionFailed
from kernelexec.kernel.wire import channels
from kernelexec.kernel.wire.channels import Channel
from kernelexec.kernel.wire.zmtp import (
    GREETING,
    Decoder,
    Multipart,
    ProtocolError,
    Ready,
    frame,
    message,
    ready_command,
)
from kernelexec.provisioning.runtime.unix_sockets import open_pinned
from tests.support.night import at_night

MORE, LONG, COMMAND = 1, 2, 4
LIMIT = 400
CHUNK = 64
PATIENCE = 30
HELLO = GREETING + ready_command(b"ROUTER")
STREAM = b"".join(
    (
        HELLO,
        message([b"one"]),
        message([b"", b"two", b"x" * 255, b""]),
        message([b"x" * 256, b"long"]),
        frame(b"\x04PING\x00\x0actx", COMMAND),
        message([b"a", b"y" * 500, b"b"]),
        message([b"z" * 300, b"w" * 200, b"v" * 100]),
        message([b"last"]),
    )
)
EVENTS = [
    Ready(),
    Multipart((b"one",)),
    Multipart((b"", b"two", b"x" * 255, b"")),
    Multipart((b"x" * 256, b"long")),
    Multipart((b"a", None, b"b"), 500),
    Multipart((b"z" * 300, None, b"v" * 100), 200),
    Multipart((b"last",)),
]


def events_of(*chunks: bytes, limit: int = LIMIT) -> list[Ready | Multipart]:
    decoder = Decoder(limit)
    return [event for chunk in chunks for event in decoder.feed(chunk) if event is not None]


def held_by(decoder: Decoder) -> int:
    return len(decoder._buffer) + sum(len(body or b"") for body in decoder._frames)


@pytest.mark.parametrize("unit", [frame(b"", COMMAND), frame(b"", MORE), frame(b"x" * 10, MORE)], ids=repr)
def test_frames_that_complete_nothing_let_the_caller_go_on(unit: bytes) -> None:
    decoder, count = Decoder(LIMIT), 10_000
    assert list(decoder.feed(HELLO)) == [Ready()]
    assert list(decoder.feed(unit * count)).count(None) >= count // 200


def test_handshake_and_messages_are_read_in_order() -> None:
    assert events_of(STREAM) == EVENTS


def test_a_cut_at_any_byte_changes_nothing() -> None:
    for cut in range(len(STREAM) + 1):
        assert events_of(STREAM[:cut], STREAM[cut:]) == EVENTS


@pytest.mark.parametrize("size", [1, 2, 3, 7, 63, 64, 65, 255, 256])
def test_pieces_of_any_size_change_nothing(size: int) -> None:
    assert events_of(*(STREAM[at : at + size] for at in range(0, len(STREAM), size))) == EVENTS


def test_pieces_at_random_change_nothing() -> None:
    rng = random.Random(1)  # noqa: S311 - a reproducible test, no secret
    for _ in range(300):
        cuts = sorted(rng.sample(range(len(STREAM)), rng.randrange(1, 40)))
        pieces = [STREAM[a:b] for a, b in zip([0, *cuts], [*cuts, len(STREAM)], strict=True)]
        assert events_of(*pieces) == EVENTS


def test_an_event_comes_with_its_last_byte() -> None:
    decoder = Decoder(LIMIT)
    assert list(decoder.feed(HELLO[:-1])) == []
    assert list(decoder.feed(HELLO[-1:])) == [Ready()]
    assert list(decoder.feed(message([b"a", b"bc"])[:-1])) == []
    assert list(decoder.feed(b"c")) == [Multipart((b"a", b"bc"))]


@pytest.mark.parametrize(
    ("sizes", "kept", "dropped"),
    [
        ([LIMIT], [True], 0),
        ([LIMIT + 1], [False], LIMIT + 1),
        ([10, LIMIT - 10], [True, True], 0),
        ([10, LIMIT - 9], [True, False], LIMIT - 9),
        ([LIMIT + 1, 10, LIMIT + 2, 10], [False, True, False, True], 2 * LIMIT + 3),
        ([LIMIT, 1, 0], [True, False, True], 1),
    ],
)
def test_frames_over_the_limit_are_skipped_and_counted(sizes: list[int], kept: list[bool], dropped: int) -> None:
    bodies = [bytes([65 + n]) * size for n, size in enumerate(sizes)]
    expected = tuple(body if keep else None for body, keep in zip(bodies, kept, strict=True))
    _, actual, after = events_of(HELLO + message(bodies) + message([b"after"]))
    assert actual == Multipart(expected, dropped)
    assert after == Multipart((b"after",))


def test_a_frame_of_many_gigabytes_is_skipped_without_being_held() -> None:
    decoder = Decoder(LIMIT)
    list(decoder.feed(HELLO + bytes((LONG,)) + struct.pack(">Q", 2**63)))
    for _ in range(100):
        assert list(decoder.feed(b"x" * 100_000)) == []
        assert held_by(decoder) == 0


def test_a_message_keeps_its_first_64_frames_and_counts_the_rest() -> None:
    bodies = [b"%03d" % n for n in range(100)]
    assert events_of(HELLO + message(bodies) + message([b"after"])) == [
        Ready(),
        Multipart(tuple(bodies[:64]), 36 * 3),
        Multipart((b"after",)),
    ]


def test_a_message_of_exactly_64_frames_is_whole() -> None:
    bodies = [b"x"] * 64
    assert events_of(HELLO + message(bodies))[1] == Multipart(tuple(bodies))


def test_a_message_without_an_end_holds_no_more_than_the_limit() -> None:
    decoder = Decoder(LIMIT)
    list(decoder.feed(HELLO))
    for _ in range(10_000):
        assert list(decoder.feed(frame(b"x" * 7, MORE))) == []
    assert held_by(decoder) <= LIMIT
    assert len(decoder._frames) == 64


GREETINGS = {
    "ZMTP 1.0": b"\x01\x00",
    "ZMTP 1.0 with a long identity": b"\xff\x00\x00\x00\x00\x00\x00\x01\x00\x00",
    "ZMTP 2.0": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x05\x00\x00",
    "ZMTP 2.1": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x02\x05\x00\x00",
    "PLAIN": GREETING.replace(b"NULL\x00", b"PLAIN"),
    "CURVE": GREETING.replace(b"NULL\x00", b"CURVE"),
    "no mechanism": GREETING.replace(b"NULL", b"\x00\x00\x00\x00"),
    "a mechanism that begins with NULL": GREETING.replace(b"NULL\x00", b"NULLX"),
    "HTTP": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "SSH": b"SSH-2.0-OpenSSH_9.6\r\n",
    "zeros": b"\x00" * 64,
    "ones": b"\xff" * 8 + b"\xfe" + b"\x00" * 55,
}


@pytest.mark.parametrize("greeting", GREETINGS.values(), ids=GREETINGS)
def test_a_greeting_that_is_not_zmtp_3_with_null_is_refused(greeting: bytes) -> None:
    with pytest.raises(ProtocolError):
        events_of(greeting)
    with pytest.raises(ProtocolError):
        events_of(*(bytes((byte,)) for byte in greeting))


@pytest.mark.parametrize("version", [b"\x03\x00", b"\x03\x01", b"\x04\x00"])
def test_a_greeting_of_version_3_or_later_is_taken(version: bytes) -> None:
    assert events_of(GREETING.replace(b"\x7f\x03\x00", b"\x7f" + version) + ready_command(b"PUB")) == [Ready()]


@pytest.mark.parametrize("flags", [COMMAND | MORE, COMMAND | MORE | LONG, 8, 16, 0x80, 0xFF])
def test_flags_that_zmtp_3_does_not_have_are_refused(flags: int) -> None:
    with pytest.raises(ProtocolError, match=f"0x{flags:02x}"):
        events_of(HELLO + bytes((flags, 1)) + b"x")


def test_messages_before_a_breach_are_delivered() -> None:
    events = Decoder(LIMIT).feed(HELLO + message([b"a"]) + b"\xff\xff")
    assert [next(events), next(events)] == [Ready(), Multipart((b"a",))]
    with pytest.raises(ProtocolError):
        next(events)


def test_an_error_command_is_the_end() -> None:
    with pytest.raises(ProtocolError, match="No such mechanism"):
        events_of(GREETING + frame(b"\x05ERROR\x11No such mechanism", COMMAND))


def test_commands_that_mean_nothing_to_us_are_passed_over() -> None:
    unknown = [frame(body, COMMAND) for body in (b"", b"\x09SUBSCRIBE", b"\xff", b"\x05READX", b"x" * 300, b"y" * 1000)]
    assert events_of(HELLO + b"".join(unknown) + message([b"a"])) == [Ready(), Multipart((b"a",))]


def test_a_second_ready_says_nothing_new() -> None:
    assert events_of(HELLO + ready_command(b"ROUTER")) == [Ready()]


def random_stream(rng: random.Random) -> bytes:
    noise = rng.randbytes(rng.randrange(2000))
    kind = rng.randrange(4)
    if kind == 0:
        return noise
    if kind == 1:
        return GREETING + noise
    if kind == 2:
        valid = [frame(rng.randbytes(rng.randrange(600)), rng.choice([0, MORE, COMMAND])) for _ in range(rng.randrange(100))]
        return HELLO + b"".join(valid)
    broken = bytearray(STREAM)
    for _ in range(rng.randrange(1, 10)):
        broken[rng.randrange(len(GREETING) * rng.randrange(2), len(broken))] = rng.randrange(256)
    return bytes(broken)


@pytest.mark.parametrize("seed", [2, *at_night(3, 4)])
def test_random_bytes_raise_nothing_but_protocol_errors_and_stay_bounded(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a reproducible test, no secret
    for _ in range(1000):
        stream, decoder, at = random_stream(rng), Decoder(LIMIT), 0
        while at < len(stream):
            size = rng.randrange(1, CHUNK + 1)
            try:
                for event in decoder.feed(stream[at : at + size]):
                    assert not isinstance(event, Multipart) or sum(len(body or b"") for body in event.frames) <= LIMIT
            except ProtocolError:
                break
            finally:
                assert held_by(decoder) <= LIMIT + CHUNK
            at += size


class Peer:
    """A bound ZeroMQ socket and the channel that is connected to it."""

    def __init__(self, bound: zmq.asyncio.Socket, channel: Channel, got: asyncio.Queue[Multipart]) -> None:
        self.bound, self.channel, self.got = bound, channel, got


def with_peer(path: Path, kind: int, use: Callable[[Peer], Awaitable[None]], limit: int = 10_000_000) -> None:
    async def run() -> None:
        with zmq.asyncio.Context() as context, context.socket(kind) as bound:
            bound.linger = 0
            bound.bind(f"ipc://{path}/s")
            got: asyncio.Queue[Multipart] = asyncio.Queue()
            socket_type, identity = (b"DEALER", b"me") if kind == zmq.ROUTER else (b"SUB", b"")
            channel = Channel(socket_type, identity, limit, got.put_nowait, lambda *_: None)
            await channel.connect(open_pinned(path / "s", uid=os.getuid(), belongs=os.getpid().__eq__))
            await use(Peer(bound, channel, got))
            channel.abort()
            await channel.closed.wait()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


@pytest.mark.parametrize("size", [0, 1, 255, 256, 65_536, 5_000_000])
def test_a_router_and_a_channel_talk_both_ways(short_path: Path, size: int) -> None:
    async def talk(peer: Peer) -> None:
        peer.channel.send([b"", b"q" * size, b"end"])
        assert await peer.bound.recv_multipart() == [b"me", b"", b"q" * size, b"end"]
        await peer.bound.send_multipart([b"me", b"a" * size, b"", b"end"])
        assert await peer.got.get() == Multipart((b"a" * size, b"", b"end"))

    with_peer(short_path, zmq.ROUTER, talk)


def test_a_publisher_is_subscribed_to_and_heard(short_path: Path) -> None:
    async def talk(peer: Peer) -> None:
        peer.channel.send([b"\x01"])
        assert await peer.bound.recv_multipart() == [b"\x01"]
        for n in range(100):
            await peer.bound.send_multipart([b"topic", b"%d" % n * 1000])
        assert [await peer.got.get() for n in range(100)] == [Multipart((b"topic", b"%d" % n * 1000)) for n in range(100)]

    with_peer(short_path, zmq.XPUB, talk)


def test_a_large_frame_of_a_real_peer_is_skipped_and_the_next_message_comes(short_path: Path) -> None:
    async def talk(peer: Peer) -> None:
        await peer.bound.send_multipart([b"me", b"head", b"x" * 5_000_000, b"tail"])
        await peer.bound.send_multipart([b"me", b"next"])
        assert await peer.got.get() == Multipart((b"head", None, b"tail"), 5_000_000)
        assert await peer.got.get() == Multipart((b"next",))

    with_peer(short_path, zmq.ROUTER, talk, limit=100_000)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", GREETINGS["ZMTP 2.0"], GREETING, b""])
def test_a_peer_that_does_not_shake_hands_gets_no_request(answer: bytes) -> None:
    async def run(ours: socket.socket) -> None:
        lost: list[Channel] = []
        channel = Channel(b"DEALER", b"me", LIMIT, lambda _: None, lambda gone, _: lost.append(gone))
        with pytest.raises(KernelConnectionFailed, match="no handshake"):
            await channel.connect(ours)
        with pytest.raises(KernelConnectionFailed):
            channel.send([b"request"])
        assert lost == [channel]

    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        asyncio.run(asyncio.wait_for(run(ours), PATIENCE))
        assert (GREETING + ready_command(b"DEALER", b"me")).startswith(theirs.recv(1000))


def with_silent_peer(use: Callable[[Channel, socket.socket], Awaitable[None]]) -> None:
    """Call with a channel and its peer, which has shaken hands and reads nothing by itself."""

    async def run(ours: socket.socket, theirs: socket.socket) -> None:
        channel = Channel(b"DEALER", b"me", LIMIT, lambda _: None, lambda *_: None)
        await channel.connect(ours)
        await use(channel, theirs)
        channel.abort()
        await channel.closed.wait()

    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        theirs.setblocking(False)  # noqa: FBT003 - as above
        theirs.sendall(HELLO)
        asyncio.run(asyncio.wait_for(run(ours, theirs), PATIENCE))


def test_a_flood_of_empty_messages_leaves_others_their_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_TURN_SECONDS", 0.0)
    got: list[Multipart] = []

    async def run(ours: socket.socket, theirs: socket.socket) -> None:
        channel, turns = Channel(b"SUB", b"", LIMIT, got.append, lambda *_: None), 0
        await channel.connect(ours)
        for flood in (bytes(2000), message([b"next"]) * 1000):  # an empty message has two bytes
            theirs.sendall(flood)
            until_then = len(got) + 1000
            while len(got) < until_then:
                await asyncio.sleep(0)
                turns += 1
        assert got == [Multipart((b"",))] * 1000 + [Multipart((b"next",))] * 1000
        assert turns >= 2000
        theirs.shutdown(socket.SHUT_WR)  # all has been read, so the end is seen
        await channel.closed.wait()

    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        theirs.sendall(HELLO)
        asyncio.run(asyncio.wait_for(run(ours, theirs), PATIENCE))


def test_a_peer_that_reads_nothing_loses_the_connection() -> None:
    async def flood(channel: Channel, _: socket.socket) -> None:
        messages = iter([[bytes(MIB)]] * 80)
        with pytest.raises(KernelConnectionFailed, match="unread"):
            deque(map(channel.send, messages), maxlen=0)
        assert channel.is_overrun
        assert channel.is_closed
        await channel.closed.wait()
        with pytest.raises(KernelConnectionFailed, match="unread"):
            channel.send([b""])

    with_silent_peer(flood)


def test_a_message_of_any_size_is_sent_though_others_wait_and_all_come_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_WAITING_MAX_BYTES", MIB)
    sizes = [0, 2 * MIB, *range(0, 40_000, 1000), 3 * MIB, 1, 2]
    parts = [bytes([number % 256]) * size for number, size in enumerate(sizes)]

    async def read_late(channel: Channel, theirs: socket.socket) -> None:
        for part in parts:
            channel.send([part])
        loop, left = asyncio.get_running_loop(), b"".join(message([part]) for part in parts)
        left = HELLO.replace(b"ROUTER", b"DEALER")[:64] + ready_command(b"DEALER", b"me") + left
        at = 0
        while at < len(left):
            chunk = await loop.sock_recv(theirs, MIB)
            assert chunk == left[at : at + len(chunk)]
            at += len(chunk)
        assert not channel.is_overrun

    with_silent_peer(read_late)
