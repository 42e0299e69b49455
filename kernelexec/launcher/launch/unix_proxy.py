"""A proxy from unix sockets to the TCP ports of a kernel without support for unix sockets."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress
from typing import Any

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.1
_PIECE = 64 * 1024


def serve(options: dict[str, Any]) -> None:
    """Listen in a thread on each socket once the port is open, until this process ends."""
    threading.Thread(
        target=lambda: asyncio.run(_serve(options["address"], options["sockets"])), name="bridge", daemon=True
    ).start()


async def _serve(address: str, sockets: dict[str, int]) -> None:
    await asyncio.gather(*(_listen(path, address, port) for path, port in sockets.items()))


async def _listen(path: str, address: str, port: int) -> None:
    """Listen once the port is open, so each connection reaches the kernel."""
    await _wait_for_port(address, port)

    async def handle_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _connect(reader, writer, address, port)
        except OSError:
            writer.transport.abort()

    # The socket gets its name once it accepts connections, so no client is refused.
    unfinished = f"{path}~"
    server = await asyncio.start_unix_server(handle_client, unfinished, limit=_PIECE)
    os.rename(unfinished, path)  # noqa: PTH104 - a plain path
    await server.serve_forever()


async def _wait_for_port(address: str, port: int) -> None:
    pause = _FIRST_PAUSE_SECONDS
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(address, port)
            writer.close()
            return
        await asyncio.sleep(pause)
        pause = min(_LONGEST_PAUSE_SECONDS, pause * 2)


async def _connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: str, port: int) -> None:
    """Copy both ways until both ends have closed.

    Raises:
        OSError: a connection broke. The other connection is broken off too.
    """
    far_reader, far_writer = await asyncio.open_connection(address, port, limit=_PIECE)
    far_writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    tasks = [asyncio.ensure_future(_copy(reader, far_writer)), asyncio.ensure_future(_copy(far_reader, writer))]
    try:
        await asyncio.gather(*tasks)
    except OSError:
        for way in tasks:
            way.cancel()
        far_writer.transport.abort()
        raise
    far_writer.close()  # data on its way still arrives
    writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy in a single direction. The next read waits until the writer has taken the last piece."""
    while piece := await reader.read(_PIECE):
        writer.write(piece)
        await writer.drain()
    # Only this direction has ended: the other may still carry a reply.
    if writer.can_write_eof():
        writer.write_eof()
