"""Unix sockets in front of the TCP ports of a kernel that can have no unix sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress
from typing import Any

_SOONEST, _LATEST = 0.005, 0.1
_PIECE = 64 * 1024


def serve(bridge: dict[str, Any]) -> None:
    """Listen in a thread on each socket once its port is open, until this process ends."""
    threading.Thread(
        target=lambda: asyncio.run(_serve(bridge["address"], bridge["sockets"])), name="bridge", daemon=True
    ).start()


async def _serve(address: str, sockets: dict[str, int]) -> None:
    await asyncio.gather(*(_listen(path, address, port) for path, port in sockets.items()))


async def _listen(path: str, address: str, port: int) -> None:
    """Make the socket once the port is open, so that a connection always reaches the kernel."""
    await _opened(address, port)

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _join(reader, writer, address, port)
        except OSError:
            writer.transport.abort()

    # It gets its name once it accepts connections: until then no client is refused.
    unfinished = f"{path}~"
    server = await asyncio.start_unix_server(connected, unfinished, limit=_PIECE)
    os.rename(unfinished, path)  # noqa: PTH104 - a path as it is
    await server.serve_forever()


async def _opened(address: str, port: int) -> None:
    pause = _SOONEST
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return
        await asyncio.sleep(pause)
        pause = min(_LATEST, pause * 2)


async def _join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, port: int) -> None:
    """Copy both ways until both ends have closed; if one end breaks, so does the other.

    Raises:
        OSError: an end broke, or the port is closed.
    """
    far_reader, far_writer = await asyncio.open_connection(address, port, limit=_PIECE)
    far_writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    ways = [asyncio.ensure_future(_pass(reader, far_writer)), asyncio.ensure_future(_pass(far_reader, writer))]
    try:
        await asyncio.gather(*ways)
    except OSError:
        for way in ways:
            way.cancel()
        far_writer.transport.abort()
        raise
    far_writer.close()  # what is on its way arrives
    writer.close()


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy one way, piece by piece: the next piece is read once the last one was taken."""
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
