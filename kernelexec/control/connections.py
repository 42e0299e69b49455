"""The connections of a control socket, of which any process of this user may open one, a confined kernel included.

Few of them may be without the key, for a short time; so clients with the key get through while others hold all that they can.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

import anyio
from anyio.abc import ByteStream, SocketListener
from anyio.streams.buffered import BufferedByteReceiveStream

from kernelexec.control.protocol import KEY_BYTES, KEY_SECONDS

#: Connections at the same time that have not sent the key, and clients that have.
KEYLESS_MAX, CLIENTS_MAX = 16, 200
#: Connections that wait to be accepted: a client waits for those before its own.
BACKLOG = 64
#: How long the socket accepts nothing after a failed attempt, such as without a free descriptor, in seconds.
_PAUSE_SECONDS = 1.0
#: How long it accepts nothing after too many connections without the key: their attempts cost the sessions little, in seconds.
_FLOOD_PAUSE_SECONDS = 0.001
#: Errors of a stream whose peer disconnects, is silent or sends too much.
PEER_ERRORS = (
    *(anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream),
    *(anyio.IncompleteRead, anyio.DelimiterNotFound, TimeoutError),
)
logger = logging.getLogger("kernelexec")


class ControlConnections:
    """The open connections of one socket; ``key`` is what its clients send first."""

    def __init__(self, key: str) -> None:
        self._key = key.encode()
        self._keyless: dict[anyio.CancelScope, None] = {}  # the oldest first
        self._clients = 0

    async def serve(self, listener: SocketListener, handle: Callable[[ByteStream], Coroutine[None, None, None]]) -> None:
        """Accept connections until cancelled; ``handle`` has the failures of its own connection."""
        async with listener, anyio.create_task_group() as tasks:
            while True:
                try:
                    stream = await listener.accept()
                except anyio.BrokenResourceError:
                    logger.warning("kernelexec.control_accept_failed", exc_info=True)
                    await anyio.sleep(_PAUSE_SECONDS)
                    continue
                tasks.start_soon(handle, stream)
                if len(self._keyless) >= KEYLESS_MAX:
                    await anyio.sleep(_FLOOD_PAUSE_SECONDS)

    async def receive_key(self, received: BufferedByteReceiveStream) -> bool:
        """Return whether a new connection sends the key in time, before it is the oldest of too many without."""
        line = b""
        with anyio.move_on_after(KEY_SECONDS) as scope, self._hold_keyless(scope):
            line = await received.receive_until(b"\n", KEY_BYTES)
        return hmac.compare_digest(line, self._key)

    @contextmanager
    def hold_client(self) -> Iterator[bool]:
        """Count a client with the key for the duration of the block; the value is whether there is room for it."""
        self._clients += 1
        try:
            yield self._clients <= CLIENTS_MAX
        finally:
            self._clients -= 1

    @contextmanager
    def _hold_keyless(self, scope: anyio.CancelScope) -> Iterator[None]:
        if len(self._keyless) >= KEYLESS_MAX:
            oldest = next(iter(self._keyless))
            del self._keyless[oldest]
            oldest.cancel()
        self._keyless[scope] = None
        try:
            yield
        finally:
            self._keyless.pop(scope, None)
