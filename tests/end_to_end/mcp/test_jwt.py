"""Signed tokens: a caller needs one of the right signer, for this server, that has not expired."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from joserfc import jwt
from joserfc.jwk import ECKey, RSAKey

from tests.conftest import Command
from tests.support.mcp_clients import ERAS
from tests.support.mcp_server import Server, create_token, serving

ISSUER, AUDIENCE = "https://issuer.example", "kernelexec-here"


WHOLE = ["--jwt-keys", "https://x", "--jwt-issuer", "i", "--jwt-audience", "a"]


@dataclass
class Signer:
    """An authorization server: its keys, and where they are published."""

    keys: dict[str, RSAKey] = field(default_factory=dict)
    url: str = ""

    def add(self, name: str) -> None:
        self.keys[name] = RSAKey.generate_key(2048, {"kid": name})

    def published(self) -> bytes:
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys.values()]}).encode()

    def token(self, name: str = "first", **claims: Any) -> str:
        return signed(self.keys[name], kid=name, **claims)


def signed(key: Any, *, alg: str = "RS256", kid: str | None = None, **claims: Any) -> str:
    message = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "scope": "execute", "exp": int(time.time()) + 600} | claims
    header = {"alg": alg} | ({"kid": kid} if kid else {})
    return jwt.encode(header, {name: value for name, value in message.items() if value is not None}, key, algorithms=[alg])


def forged(secret: bytes) -> str:
    """A token signed with a public key as if that were a secret: a server that believes its header accepts it."""
    message = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "scope": "execute", "exp": int(time.time()) + 600}
    parts = [
        base64.urlsafe_b64encode(json.dumps(item).encode()).rstrip(b"=") for item in ({"alg": "HS256", "kid": "first"}, message)
    ]
    mark = hmac.digest(secret, b".".join(parts), "sha256")
    return b".".join([*parts, base64.urlsafe_b64encode(mark).rstrip(b"=")]).decode()


@contextmanager
def published(signer: Signer) -> Iterator[Signer]:
    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = signer.published()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        signer.url = f"http://127.0.0.1:{server.server_port}/jwks"
        try:
            yield signer
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def signer() -> Iterator[Signer]:
    signer = Signer()
    signer.add("first")
    with published(signer):
        yield signer


@pytest.fixture(scope="module")
def server(signer: Signer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    directory = tmp_path_factory.mktemp("auth")
    known = create_token(directory / "tokens", "bob")
    options = (
        "--jwt-keys",
        signer.url,
        "--jwt-issuer",
        ISSUER,
        "--jwt-audience",
        AUDIENCE,
        "--tokens",
        str(directory / "tokens"),
    )
    with serving(directory, *options, "--public-url", "https://mcp.example") as server:
        yield server, known


def status(server: Server, token: str) -> int:
    return server.ask("POST", "/mcp", b"{}", authorization=f"Bearer {token}")[0]


@pytest.mark.parametrize("era", ERAS)
def test_signed_and_known_tokens_are_clients_of_their_own(server: tuple[Server, str], signer: Signer, era: str) -> None:
    running, known = server
    with (
        running.client(era, authorization=f"Bearer {signer.token(sub=f'alice-{era}')}") as alice,
        running.client(era, authorization=f"Bearer {signer.token(sub=f'carol-{era}')}") as carol,
        running.client(era, authorization=f"Bearer {known}") as bob,
    ):
        alice.text("execute_code", code="x = 'hers'")
        assert "'hers'" in alice.text("execute_code", code="x")
        for other in (carol, bob):
            assert "NameError" in other.text("execute_code", code="x")


def test_scopes_say_what_a_signed_token_is_good_for(server: tuple[Server, str], signer: Signer) -> None:
    running, _ = server
    for claims, may_read in (({"scope": "read"}, True), ({"scope": None, "scp": ["read"]}, True), ({"scope": "openid"}, False)):
        with running.client(authorization=f"Bearer {signer.token(sub='reader', **claims)}") as agent:
            assert "needs a token with the scope execute" in agent.text("execute_code", code="1")
            assert agent.call("list_sessions").is_error is not may_read


def test_tokens_of_others_for_others_and_of_the_past_are_none(server: tuple[Server, str], signer: Signer) -> None:
    running, _ = server
    stranger = RSAKey.generate_key(2048, {"kid": "first"})
    public = signer.keys["first"].as_pem(private=False)
    wrong = {
        "of another key": signed(stranger, kid="first"),
        "of an unknown key": signed(stranger, kid="unknown"),
        "of another issuer": signer.token(iss="https://other.example"),
        "for another server": signer.token(aud="other"),
        "ended": signer.token(exp=int(time.time()) - 60),
        "without an end": signer.token(exp=None),
        "of nobody": signer.token(sub=None),
        "of another algorithm": signed(ECKey.generate_key("P-256"), alg="ES256", kid="first"),
        "with the public key as a secret": forged(public),
        "none at all": "a.b.c",
    }
    head, body, _ = signer.token().split(".")
    wrong["without a signature"] = f"{head}.{body}."
    assert {what: status(running, token) for what, token in wrong.items()} == dict.fromkeys(wrong, 401)
    assert status(running, signer.token()) != 401


def test_clients_learn_where_tokens_are_issued(server: tuple[Server, str]) -> None:
    running, _ = server
    actual, message = running.ask("GET", "/.well-known/oauth-protected-resource/mcp")
    assert actual == 200
    assert message["resource"] == "https://mcp.example/mcp"
    assert [item.rstrip("/") for item in message["authorization_servers"]] == [ISSUER]
    assert message["scopes_supported"] == ["read", "execute", "admin"]


def test_a_new_key_is_found_where_keys_are_published(tmp_path: Path) -> None:
    with published(Signer()) as signer:
        signer.add("first")
        options = ("--jwt-keys", signer.url, "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE)
        with serving(tmp_path, *options) as running:
            signer.add("second")  # which is there when keys are asked for
            assert status(running, signer.token("second")) != 401


def test_a_public_key_in_a_file_needs_no_provider(tmp_path: Path) -> None:
    key = ECKey.generate_key("P-256")
    (tmp_path / "key.pem").write_bytes(key.as_pem(private=False))
    options = ("--jwt-keys", str(tmp_path / "key.pem"), "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE)
    with serving(tmp_path, *options, "--jwt-algorithm", "ES256", "--host", "127.0.0.2") as running:
        with running.client(authorization=f"Bearer {signed(key, alg='ES256')}") as agent:
            assert agent.text("execute_code", code="1") == "1"
        assert status(running, "") == 401


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--jwt-keys", "https://x.example/jwks"], "all three"),
        (["--jwt-algorithm", "RS256", "--public-url", "https://x.example"], "all three"),
        (["--jwt-keys", "nowhere.pem", "--jwt-issuer", "i", "--jwt-audience", "a"], "cannot be read: No such file"),
        (["--jwt-keys", "private.pem", "--jwt-issuer", "i", "--jwt-audience", "a"], "must hold a public key"),
        (["--jwt-keys", "https://x.example", "--jwt-issuer", " ", "--jwt-audience", "a"], "--jwt-issuer must not be empty"),
        ([*WHOLE, "--jwt-algorithm", "none"], "must be one of RS256"),
        ([*WHOLE, "--jwt-algorithm", "HS256"], "must be one of RS256"),
        ([*WHOLE, "--public-url", "https://x.example"], "--jwt-issuer 'i' must be an address"),
        (["--public-url", "x"], "--public-url 'x' must be an address"),
    ],
    ids=str,
)
def test_options_that_would_let_anybody_in_are_refused(
    options: list[str], message: str, tmp_path: Path, in_process: Command
) -> None:
    (tmp_path / "private.pem").write_bytes(ECKey.generate_key("P-256").as_pem(private=True))
    done = in_process(tmp_path, "mcp", "--http", "--isolation", "local", *options)
    assert done.returncode == 125
    assert message in done.stderr
