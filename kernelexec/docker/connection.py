"""Connections to the engine: its address, and its unix socket. Unlike docker's own, a failed one leaves no socket open."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack

from docker.api.client import APIClient
from docker.transport import unixconn


def host() -> str:
    """Return the engine's address from ``DOCKER_HOST``, or its default."""
    return os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"


def socket_at(address: str) -> str | None:
    """Return the path of the unix socket of an address; None for other kinds of addresses."""
    return "/" + address.removeprefix("unix://").lstrip("/") if address.startswith("unix://") else None


#: How long the engine may take to accept a connection, in seconds.
_CONNECT_SECONDS = 1.5


def connect_client(client: APIClient) -> APIClient:
    """Make a client open such connections; return the same client."""
    if (path := socket_at(host())) is not None:
        client.mount("http+docker://", _Adapter(path, client.timeout))  # type: ignore[no-untyped-call]
    return client


class _Connection(unixconn.UnixHTTPConnection):
    def connect(self) -> None:
        with ExitStack() as failed:
            sock = failed.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            sock.settimeout(_CONNECT_SECONDS)
            sock.connect(self.unix_socket)
            sock.settimeout(self.timeout)
            failed.pop_all()
        self.sock = sock


class _Pool(unixconn.UnixHTTPConnectionPool):
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)  # type: ignore[no-untyped-call]


class _Adapter(unixconn.UnixHTTPAdapter):
    """Requests of all addresses share connections: docker's own adapter keeps one open for each of the last 25."""

    def get_connection(self, _url: str, _proxies: object = None) -> _Pool:
        with self.pools.lock:
            pool = self.pools.get(self.socket_path)
            if pool is None:
                pool = _Pool("localhost", self.socket_path, self.timeout, self.max_pool_size)  # type: ignore[no-untyped-call]
                self.pools[self.socket_path] = pool
        return pool
