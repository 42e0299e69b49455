"""What stands before the HTTP server: the requests that it admits, their size, and the tokens of users."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from kernelexec.errors import InvalidConfig, InvalidRequest
from kernelexec.mcp.authentication import TokenFile, add_token, hash_token
from kernelexec.mcp.callers import ONLY_CLIENT, Caller
from kernelexec.mcp.guard import RequestGuard
from kernelexec.mcp.http_server import HttpOptions, _listen

LIMIT = 100


class Sent:
    """One request through a gate: what came of it, and what the application behind it read."""

    def __init__(
        self, headers: dict[str, str], *pieces: bytes, path: str = "/mcp", method: str = "POST", ready: bool = True
    ) -> None:
        self.read: bytes | None = None
        self.status = 0
        self.answer: Any = None
        coming = [
            {"type": "http.request", "body": piece, "more_body": number < len(pieces)} for number, piece in enumerate(pieces, 1)
        ] or [{"type": "http.request", "body": b"", "more_body": False}]
        self.left = coming
        scope = {
            "type": "http",
            "path": path,
            "method": method,
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        }
        names: dict[str, Any] = {"hosts": ("agents.example",), "origins": ("https://pages.example",)}
        gate = RequestGuard(self._app, path="/mcp", ready=lambda: ready, body_bytes=LIMIT, **names)
        asyncio.run(gate(scope, self._receive, self._send))

    async def _app(self, _scope: Any, receive: Any, send: Any) -> None:
        read = b""
        while (message := await receive())["type"] == "http.request":
            read += message["body"]
            if not message["more_body"]:
                self.read = read
                break
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def _receive(self) -> Any:
        return self.left.pop(0)

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
        else:
            self.answer = json.loads(message["body"])


LET_BY = [
    {"host": "127.0.0.1:8000"},
    {"host": "localhost:8000", "origin": "http://localhost:6274"},
    {"host": "[::1]:8000"},
    {"host": "agents.example"},
    {"host": "Agents.Example:443", "origin": "https://pages.example"},
    {"host": "agents.example:443", "origin": "https://agents.example:443"},
]
SENT_AWAY = [
    {},
    {"host": ""},
    {"host": "evil.example"},
    {"host": "127.0.0.1.evil.example:8000"},
    {"host": "evil.example@agents.example.evil"},
    {"host": "[::1"},
    {"host": "localhost", "origin": "https://evil.example"},
    {"host": "localhost", "origin": "null"},
    {"host": "agents.example", "origin": "http://localhost:3000"},
    {"host": "agents.example", "origin": "https://pages.example.evil"},
    {"host": "agents.example", "origin": "https://[::1"},
]


@pytest.mark.parametrize("headers", LET_BY, ids=str)
def test_requests_for_this_server_from_its_own_pages_come_by(headers: dict[str, str]) -> None:
    sent = Sent(headers, b"a", b"b")
    assert (sent.status, sent.read) == (200, b"ab")


@pytest.mark.parametrize("headers", SENT_AWAY, ids=str)
def test_requests_with_a_foreign_host_or_origin_are_refused_unread(headers: dict[str, str]) -> None:
    sent = Sent(headers, b"a")
    assert (sent.status, sent.read) == (403, None)
    assert "--allowed-" in sent.answer["error"]
    assert len(sent.left) == 1


@pytest.mark.parametrize(
    ("more", "pieces"),
    [
        ({"content-length": str(LIMIT + 1)}, (b"",)),
        ({"content-length": "many"}, (b"",)),
        ({}, (b"x" * 60, b"x" * 60, b"x" * 60)),
    ],
    ids=["said", "nonsense", "sent"],
)
def test_a_body_that_is_too_large_is_not_read_to_its_end(more: dict[str, str], pieces: tuple[bytes, ...]) -> None:
    sent = Sent({"host": "localhost", **more}, *pieces)
    assert (sent.status, sent.read) == (413, None)
    assert sent.left
    assert Sent({"host": "localhost", "content-length": str(LIMIT)}, b"x" * LIMIT).read == b"x" * LIMIT


def test_health_is_public() -> None:
    reported = [
        Sent({"host": "10.0.0.7"}, path=path, method="GET", ready=ready).status
        for path in ("/healthz", "/readyz")
        for ready in (True, False)
    ]
    assert reported == [200, 200, 200, 503]


def test_a_token_gets_a_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    tokens = [add_token(path, "alice", ("read",))]
    path.write_text(path.read_text().rstrip("\n"))  # as some editors leave it
    tokens += [add_token(path, "bob", ("execute",))]
    known = [asyncio.run(TokenFile(path).verify_token(token)) for token in tokens]
    assert [each and each.client_id for each in known] == ["alice", "bob"]


def test_a_token_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = add_token(path, "alice", ("read",))
    other = add_token(path, "bob@example", ("execute",))
    assert path.stat().st_mode & 0o777 == 0o600
    assert token not in path.read_text()
    tokens = TokenFile(path)
    actual = asyncio.run(tokens.verify_token(token))
    assert actual is not None
    assert (actual.client_id, actual.scopes) == ("alice", ["read"])
    assert asyncio.run(tokens.verify_token(token[:-1])) is None
    assert asyncio.run(tokens.verify_token(hash_token(token))) is None
    path.write_text("".join(line for line in path.read_text().splitlines(keepends=True) if not line.startswith("alice")))
    assert asyncio.run(tokens.verify_token(token)) is None
    assert asyncio.run(tokens.verify_token(other)) is not None
    path.unlink()
    assert asyncio.run(tokens.verify_token(other)) is None


@pytest.mark.parametrize(
    "line",
    ["alice", "alice read", f"alice write {'0' * 64}", "alice read abc", f"al/ice read {'0' * 64}", f"a read {'0' * 64} x"],
)
def test_a_line_that_is_no_token_is_refused_by_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "tokens"
    path.touch(0o600)
    path.write_text(f"# ours\n\n{line}\n")
    with pytest.raises(InvalidConfig, match="line 3"):
        TokenFile(path)


def test_tokens_that_others_could_read_or_write_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.touch()
    for mode in (0o644, 0o640, 0o620, 0o604):
        path.chmod(mode)
        with pytest.raises(InvalidConfig, match="chmod 600"):
            TokenFile(path)
    with pytest.raises(InvalidConfig, match="cannot be read"):
        TokenFile(tmp_path / "none")
    for name, scopes in (("a b", ("read",)), ("a", ("root",))):
        with pytest.raises(InvalidConfig):
            add_token(tmp_path / "new", name, scopes)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "server.example"])  # noqa: S104 - that is refused
def test_others_are_let_in_with_tokens_only(host: str) -> None:
    with pytest.raises(InvalidConfig, match="--tokens"):
        HttpOptions(host=host)
    HttpOptions(host=host, tokens=Path("tokens"))
    for own in ("127.0.0.1", "::1", "localhost", "127.9.9.9"):
        HttpOptions(host=own)
    with pytest.raises(InvalidConfig, match="port=70000"):
        HttpOptions(port=70_000)


def test_answers_do_not_wait_for_each_other() -> None:
    with _listen(HttpOptions(port=0)) as listener:  # asyncio switches Nagle's algorithm off for what says that it is TCP
        assert (listener.proto, listener.getsockname()[0]) == (socket.IPPROTO_TCP, "127.0.0.1")


def test_a_session_is_found_by_its_own_agent_only() -> None:
    handle = Caller.make_handle()
    agents = [
        Caller(agent="name a"),
        Caller(agent="name b"),
        Caller(agent="session a"),
        Caller("alice", ""),
        Caller("bob", ""),
        Caller("alice", "name a"),
        Caller("bob", "name a"),
    ]
    names = [agent.resolve_session("work") for agent in agents]
    assert len(set(names)) == len(agents)
    for agent, name in zip(agents, names, strict=True):
        assert [other.owns_session(name) for other in agents].count(True) == 1
        assert agent.owns_session(name)
        assert agent.format_session(name) == "work"
    assert (
        len({agent.resolve_session(handle) for agent in agents}) == 3
    )  # no user, alice and bob: only a handle counts beside that
    assert not any(agent.owns_session(agent.resolve_session(handle)) for agent in agents)
    assert ONLY_CLIENT.resolve_session("work") == "work"
    assert ONLY_CLIENT.owns_session("anything")


def test_without_a_user_there_are_no_names() -> None:
    nobody = Caller()
    with pytest.raises(InvalidRequest, match="Call create_session"):
        nobody.resolve_session("work")
    assert nobody.resolve_session(Caller.make_handle()).startswith("h-")
    assert not nobody.owns_session("work")
    with pytest.raises(InvalidRequest, match="38 characters"):
        Caller(agent="name a").resolve_session("x" * 39)
    with pytest.raises(InvalidRequest, match="session name"):
        Caller(agent="name a").resolve_session("../x")
