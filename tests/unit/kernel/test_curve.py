"""CURVE: real ZeroMQ sockets at the other end, and impostors, which learn nothing."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest
import zmq
import zmq.asyncio
import zmq.utils.z85
from nacl.bindings import crypto_box_easy_afternm

from kernelexec.errors import KernelConnectionFailed
from kernelexec.kernel.wire import curve, zmtp
from kernelexec.kernel.wire.channels import Channel
from kernelexec.kernel.wire.zmtp import Multipart, ProtocolError
from tests.support.night import at_night

PATIENCE = 30
LIMIT = 100_000
SECRET = b"nobody but the kernel may read this"
PUBLIC, PRIVATE = zmq.curve_keypair()
KEY = zmq.utils.z85.decode(PUBLIC)


def dialed(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setblocking(False)  # noqa: FBT003 - the socket module's own signature
    return sock


def channel_to(
    server_key: bytes | None, deliver: Callable[[Multipart], None] = lambda _: None, kind: bytes = b"DEALER"
) -> Channel:
    return Channel(kind, b"me" * (kind == b"DEALER"), LIMIT, deliver, lambda *_: None, server_key=server_key)


class Peer:
    """A bound ZeroMQ socket and the channel that is connected to it."""

    def __init__(self, bound: zmq.asyncio.Socket, channel: Channel, got: asyncio.Queue[Multipart]) -> None:
        self.bound, self.channel, self.got = bound, channel, got


@contextmanager
def bound_socket(kind: int, *, curve_server: bool = True) -> Iterator[tuple[zmq.asyncio.Socket, int]]:
    with zmq.asyncio.Context() as context, context.socket(kind) as bound:
        bound.linger = 0
        if curve_server:
            bound.curve_server, bound.curve_publickey, bound.curve_secretkey = True, PUBLIC, PRIVATE
        yield bound, bound.bind_to_random_port("tcp://127.0.0.1")


def with_peer(kind: int, use: Callable[[Peer], Awaitable[None]]) -> None:
    async def run() -> None:
        with bound_socket(kind) as (bound, port):
            got: asyncio.Queue[Multipart] = asyncio.Queue()
            channel = channel_to(KEY, got.put_nowait, b"DEALER" if kind == zmq.ROUTER else b"SUB")
            await channel.connect(dialed(port))
            await use(Peer(bound, channel, got))
            channel.abort()
            await channel.closed.wait()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


def refused(port: int, server_key: bytes | None = KEY) -> str:
    """Why a channel to a port cannot be had."""

    async def run() -> str:
        channel = channel_to(server_key)
        with pytest.raises(KernelConnectionFailed) as caught:
            await channel.connect(dialed(port))
        with pytest.raises(KernelConnectionFailed):
            channel.send([SECRET])
        return str(caught.value)

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


@pytest.mark.parametrize("size", [0, 1, 221, 222, 255, 256, 65_536])
def test_a_router_and_a_channel_talk_both_ways(size: int) -> None:
    async def talk(peer: Peer) -> None:
        for n in range(3):
            peer.channel.send([b"", b"q" * size, b"end%d" % n])
            assert await peer.bound.recv_multipart() == [b"me", b"", b"q" * size, b"end%d" % n]
            await peer.bound.send_multipart([b"me", b"a" * size, b"", b"end%d" % n])
            assert await peer.got.get() == Multipart((b"a" * size, b"", b"end%d" % n))

    with_peer(zmq.ROUTER, talk)


def test_a_publisher_is_subscribed_to_and_heard() -> None:
    async def talk(peer: Peer) -> None:
        peer.channel.send([b"\x01"])
        assert await peer.bound.recv_multipart() == [b"\x01"]
        sent = [(b"topic", b"%d" % n * 1000) for n in range(100)]
        for frames in sent:
            await peer.bound.send_multipart(frames)
        assert [await peer.got.get() for _ in sent] == [Multipart(frames) for frames in sent]

    with_peer(zmq.XPUB, talk)


@pytest.mark.parametrize("size", [LIMIT + 1, 5_000_000])
def test_a_frame_over_the_limit_is_counted_and_skipped_wherever_it_stands_and_the_next_message_comes(size: int) -> None:
    async def talk(peer: Peer) -> None:
        large = b"x" * size
        for frames in ([b"head", large, b"tail"], [b"head", large], [large], [large, b"tail"], [b"next"]):
            await peer.bound.send_multipart([b"me", *frames])
        got = [await peer.got.get() for _ in range(5)]
        assert got == [
            Multipart((b"head", None, b"tail"), size),
            Multipart((b"head", None), size),
            Multipart((None,), size),
            Multipart((None, b"tail"), size),
            Multipart((b"next",)),
        ]

    with_peer(zmq.ROUTER, talk)


def test_a_message_of_exactly_the_limit_is_read() -> None:
    async def talk(peer: Peer) -> None:
        await peer.bound.send_multipart([b"me", b"x" * LIMIT])
        assert await peer.got.get() == Multipart((b"x" * LIMIT,))

    with_peer(zmq.ROUTER, talk)


def test_many_frames_in_one_message_are_bounded() -> None:
    async def talk(peer: Peer) -> None:
        await peer.bound.send_multipart([b"me", *[b"x"] * 1000])
        await peer.bound.send_multipart([b"me", b"next"])
        assert (await peer.got.get()).dropped_bytes == 1000 - 64
        assert await peer.got.get() == Multipart((b"next",))

    with_peer(zmq.ROUTER, talk)


def test_a_server_with_another_key_hears_nothing() -> None:
    with bound_socket(zmq.ROUTER) as (_, port):
        assert "no handshake" in refused(port, zmq.utils.z85.decode(zmq.curve_keypair()[0]))


def test_a_server_without_encryption_hears_nothing() -> None:
    with bound_socket(zmq.ROUTER, curve_server=False) as (_, port):
        assert "no handshake" in refused(port)


def test_a_client_without_encryption_is_refused_by_the_server() -> None:
    with bound_socket(zmq.ROUTER) as (_, port):
        assert "no handshake" in refused(port, None)


def test_a_key_that_is_none_is_refused() -> None:
    with bound_socket(zmq.ROUTER), pytest.raises(ProtocolError, match="is none"):
        curve.CurveDecoder(LIMIT, b"short", b"")


def welcome(size: int) -> bytes:
    return zmtp.command(b"\x07WELCOME" + random.Random(3).randbytes(size))  # noqa: S311 - a reproducible test, no secret


GREETING = zmtp.greeting(b"CURVE")
IMPOSTORS = {
    "a web server": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "ZMTP 1.0": b"\x01\x00",
    "ZMTP 2.0": b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x05\x00\x00",
    "no encryption": zmtp.GREETING + zmtp.ready_command(b"ROUTER"),
    "a greeting": GREETING,
    "a welcome in another box": GREETING + welcome(160),
    "a short welcome": GREETING + welcome(3),
    "an empty frame": GREETING + zmtp.command(b""),
    "ready before its turn": GREETING + zmtp.ready_command(b"ROUTER"),
    "a message before its turn": GREETING + zmtp.message([b"\x07MESSAGE" + bytes(100)]),
    "an error": GREETING + zmtp.command(b"\x05ERROR\x03400"),
    "a huge frame": GREETING + b"\x06" + b"\x00\x00\x00\x7f" * 2 + bytes(300),
    "silence": b"",
}


@pytest.mark.parametrize("answer", IMPOSTORS.values(), ids=IMPOSTORS)
def test_an_impostor_on_the_port_gets_no_byte_of_a_message_and_nothing_that_names_the_kernel(answer: bytes) -> None:
    async def run(ours: socket.socket) -> None:
        channel = channel_to(KEY)
        with pytest.raises(KernelConnectionFailed, match="no handshake"):
            await channel.connect(ours)
        with pytest.raises(KernelConnectionFailed):
            channel.send([SECRET])

    ours, theirs = socket.socketpair()
    with theirs:
        ours.setblocking(False)  # noqa: FBT003 - the socket module's own signature
        theirs.sendall(answer)
        theirs.shutdown(socket.SHUT_WR)
        asyncio.run(asyncio.wait_for(run(ours), PATIENCE))
        heard = b"".join(iter(lambda: theirs.recv(10_000), b""))
    greeted = answer.startswith(GREETING)
    assert heard.startswith(GREETING)
    assert len(heard) == len(GREETING) + 202 * greeted  # HELLO: a new key, and a box of zeros
    assert KEY not in heard
    assert b"DEALER" not in heard


class Relay:
    """A program between the two, which sees every byte and may change the server's."""

    def __init__(self, port: int, change: Callable[[int, bytes], bytes]) -> None:
        self.seen = b""
        self._port, self._change, self._chunks = port, change, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        await asyncio.gather(self._pass(reader, back, lambda _, chunk: chunk), self._pass(there, writer, self._change))

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, change: Callable[[int, bytes], bytes]
    ) -> None:
        try:
            while chunk := await reader.read(100_000):
                self.seen += chunk
                self._chunks += 1
                writer.write(change(self._chunks, chunk))
        except ConnectionError:
            pass
        finally:
            writer.close()


def through_relay(change: Callable[[int, bytes], bytes]) -> tuple[Relay, Multipart | str]:
    """A message there and one back through a relay: what it saw, and what arrived or why the connection ended."""

    async def run() -> tuple[Relay, Multipart | str]:
        with bound_socket(zmq.ROUTER) as (bound, port):
            relay = Relay(port, change)
            server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
            got: asyncio.Queue[Multipart | str] = asyncio.Queue()
            channel = Channel(b"DEALER", b"me", LIMIT, got.put_nowait, lambda _, reason: got.put_nowait(reason), server_key=KEY)
            await channel.connect(dialed(server.sockets[0].getsockname()[1]))
            channel.send([SECRET])
            assert await bound.recv_multipart() == [b"me", SECRET]
            await bound.send_multipart([b"me", SECRET[::-1]])
            arrived = await got.get()
            channel.abort()
            await channel.closed.wait()
            server.close()
            await server.wait_closed()
            return relay, arrived

    return asyncio.run(asyncio.wait_for(run(), PATIENCE))


def test_a_relay_in_between_sees_no_plaintext() -> None:
    relay, arrived = through_relay(lambda _, chunk: chunk)
    assert arrived == Multipart((SECRET[::-1],))
    for text in (SECRET, SECRET[::-1], KEY, b"DEALER", b"ROUTER", b"Identity"):
        assert text not in relay.seen


def is_message(chunk: bytes) -> bool:
    return chunk[2:10] == b"\x07MESSAGE"


CHANGES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "one bit": (lambda chunk: chunk[:-1] + bytes((chunk[-1] ^ 1,)), "does not open"),
    "another number": (lambda chunk: chunk[:17] + bytes((chunk[17] ^ 1,)) + chunk[18:], "does not open"),
    "a shorter box": (lambda chunk: chunk[:1] + b"\x10" + chunk[2:18], "holds no box"),
    "plaintext": (lambda _: zmtp.message([b"x" * 100]), "in the place of a message"),
}


@pytest.mark.parametrize(("change", "reason"), CHANGES.values(), ids=CHANGES)
def test_a_message_that_was_changed_on_the_way_ends_the_connection(change: Callable[[bytes], bytes], reason: str) -> None:
    _, arrived = through_relay(lambda _, chunk: change(chunk) if is_message(chunk) else chunk)
    assert isinstance(arrived, str)
    assert reason in arrived


def test_a_message_that_is_repeated_ends_the_connection() -> None:
    async def run() -> None:
        with bound_socket(zmq.ROUTER) as (bound, port):
            relay = Relay(port, lambda _, chunk: chunk * (1 + is_message(chunk)))
            server = await asyncio.start_server(relay.serve, "127.0.0.1", 0)
            got: list[Multipart | str] = []
            channel = Channel(b"DEALER", b"me", LIMIT, got.append, lambda _, reason: got.append(reason), server_key=KEY)
            await channel.connect(dialed(server.sockets[0].getsockname()[1]))
            await bound.send_multipart([b"me", b"once"])
            await channel.closed.wait()
            assert got == [Multipart((b"once",)), "the peer repeated a message"]
            server.close()
            await server.wait_closed()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))


BOX = b"k" * 32


def shaken() -> curve.CurveDecoder:
    """A decoder whose handshake is done."""
    decoder = curve.CurveDecoder(400, KEY, b"")
    decoder.greeted = decoder._ready = True
    decoder._box = BOX
    return decoder


def sealed(number: int, flags: int, body: bytes) -> bytes:
    """A frame as a server sends it."""
    count = number.to_bytes(8, "big")
    box = crypto_box_easy_afternm(bytes((flags,)) + body, b"CurveZMQMESSAGES" + count, BOX)
    return zmtp.frame(b"\x07MESSAGE" + count + box, 0)


STREAM = b"".join((sealed(1, 1, b"a"), sealed(2, 0, b"x" * 500), sealed(5, 2, b"\x04PING"), sealed(6, 0, b"y" * 400)))


@pytest.mark.parametrize("seed", [4, *at_night(5)])
def test_random_bytes_raise_nothing_but_protocol_errors_and_stay_bounded(seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311 - a reproducible test, no secret
    whole = [Multipart((b"a", None), 500), Multipart((b"y" * 400,))]
    assert list(shaken().feed(STREAM)) == whole
    for _ in range(1000):
        stream, decoder, at = bytearray(STREAM), shaken(), 0
        for _ in range(rng.randrange(4)):
            stream[rng.randrange(len(stream))] = rng.randrange(256)
        while at < len(stream):
            size = rng.randrange(1, 65)
            try:
                for event in decoder.feed(bytes(stream[at : at + size])):
                    assert isinstance(event, Multipart)
                    assert all(body in (None, b"a", b"y" * 400) for body in event.frames)
            except ProtocolError:
                break
            finally:
                held = len(decoder._buffer) + sum(len(body or b"") for body in decoder._frames)
                assert held <= 400 + curve.OVERHEAD_BYTES + 64 + 9
            at += size


@pytest.mark.parametrize("size", [1, 7, 100, 1000])
def test_a_stream_is_read_in_pieces_of_any_size(size: int) -> None:
    async def run() -> None:
        with bound_socket(zmq.ROUTER) as (bound, port):
            got: asyncio.Queue[Multipart] = asyncio.Queue()
            channel = channel_to(KEY, got.put_nowait)
            whole = channel.data_received

            def in_pieces(data: bytes) -> None:
                for start in range(0, len(data), size):
                    whole(data[start : start + size])

            channel.data_received = in_pieces  # type: ignore[method-assign]
            await channel.connect(dialed(port))
            await bound.send_multipart([b"me", b"a" * 300, b"x" * (LIMIT + 1), b"b"])
            assert await got.get() == Multipart((b"a" * 300, None, b"b"), LIMIT + 1)
            channel.abort()
            await channel.closed.wait()

    asyncio.run(asyncio.wait_for(run(), PATIENCE))
