"""OAuth by a provider of the operator's: its users are the clients, each apart from the others, with whatever program."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fastmcp.client.transports import StreamableHttpTransport
from fastmcp.exceptions import McpError

from tests.support.authorization_server import AUDIENCE, CLIENT, LATE, NOBODY, SECRET, Browser, Issuer, bound, issuing, port_of
from tests.support.command_line import BOUND
from tests.support.mcp_clients import ERAS, Agent, connected
from tests.support.mcp_server import Server, create_token, serving

PROXY = f"""
import os
from fastmcp.server.auth.oidc_proxy import OIDCProxy

def provider():
    upstream = dict(client_id="{CLIENT}", client_secret="{SECRET}", audience="{AUDIENCE}")
    where = os.environ["ISSUER"] + "/.well-known/openid-configuration"
    return OIDCProxy(config_url=where, base_url=os.environ["HERE"], **upstream)
"""


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with issuing() as issuer:
        yield issuer


@contextmanager
def provided(cwd: Path, source: str, *options: str, **env: str) -> Iterator[Server]:
    """A server whose provider a module makes; its port is known before it is there, since the provider names it."""
    (cwd / "auth.py").write_text(source)
    with bound() as listener:
        port = str(port_of(listener))
        here = {"HERE": f"http://127.0.0.1:{port}", "FASTMCP_HOME": str(cwd / "fastmcp")}
        with serving(cwd, "--port", port, "--auth", "auth.py:provider", *options, **here, **env) as server:
            yield server


@contextmanager
def logged_in(server: Server, user: str, era: str = "auto", *, scope: str | None = None) -> Iterator[Agent]:
    with connected(StreamableHttpTransport(server.url, auth=Browser(server.url, user, scope=scope)), era) as agent:
        yield agent


@pytest.fixture(scope="module")
def server(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str]]:
    directory = tmp_path_factory.mktemp("oauth")
    known = create_token(directory / "tokens", "bob")
    options = ("--auth-scopes", "execute", "--tokens", str(directory / "tokens"), "--max-sessions", "2")
    with provided(directory, PROXY, *options, ISSUER=issuer.url) as server:
        yield server, known


@pytest.mark.parametrize("era", ERAS)
def test_logged_in_users_have_sessions_of_their_own(server: tuple[Server, str], era: str) -> None:
    running, known = server
    with (
        logged_in(running, f"alice-{era}", era) as alice,
        logged_in(running, f"carol-{era}", era) as carol,
        running.client(era, authorization=f"Bearer {known}") as bob,
    ):
        alice.text("execute_code", code="x = 'hers'")
        assert "'hers'" in alice.text("execute_code", code="x")
        for other in (carol, bob):
            assert "NameError" in other.text("execute_code", code="x")
        created = alice.call("create_session").structured_content
        assert created is not None
        foreign = carol.text("execute_code", code="1", session=created["session"])
        unknown = carol.text("execute_code", code="1", session="ks-" + "0" * 32)
        assert foreign.replace(created["session"], "") == unknown.replace("ks-" + "0" * 32, "")
        assert alice.text("execute_code", code="1", session=created["session"]) == "1"


def test_a_user_is_one_client_with_whatever_program(server: tuple[Server, str]) -> None:
    running, _ = server
    with logged_in(running, "erin") as item, logged_in(running, "erin") as other, logged_in(running, "frank") as frank:
        item.text("execute_code", code="x = 'from the one'")
        assert "from the one" in other.text("execute_code", code="x")
        assert other.call("create_session").is_error is False
        for agent in (item, other):
            assert "your limit is 2" in agent.text("create_session")
        assert frank.call("create_session").is_error is False


def test_a_user_allows_a_program_on_a_page_of_the_server(server: tuple[Server, str]) -> None:
    running, _ = server
    browser = Browser(running.url, "grace")
    with connected(StreamableHttpTransport(running.url, auth=browser), "auto") as agent:
        assert agent.text("execute_code", code="1") == "1"
    assert browser.seen == ["/authorize", "/consent", "/consent", "/authorize", "/auth/callback"]


def test_a_token_that_ended_or_was_never_made_is_none(server: tuple[Server, str], issuer: Issuer) -> None:
    running, known = server
    for token in ("", "wrong", known[:-1], issuer.token("alice")):  # the issuer's own is for the proxy, not for here
        assert running.ask("POST", "/mcp", b"{}", authorization=f"Bearer {token}")[0] == 401
    late = Browser(running.url, LATE)
    with pytest.raises(McpError), connected(StreamableHttpTransport(running.url, auth=late), "auto"):
        pass
    assert running.ask("POST", "/mcp", b"{}", authorization=f"Bearer {late.token}")[0] == 401


@pytest.mark.parametrize("era", ERAS)
def test_a_token_that_names_no_user_is_refused_and_says_why(server: tuple[Server, str], era: str) -> None:
    with pytest.raises(McpError, match="must have a `sub`"), logged_in(server[0], NOBODY, era):
        pass


def test_the_providers_addresses_need_no_token_and_have_the_same_gate(server: tuple[Server, str]) -> None:
    running, known = server
    here = running.url.removesuffix("/mcp")
    status, reported = running.ask("GET", "/.well-known/oauth-protected-resource/mcp")
    assert (status, reported["resource"], reported["authorization_servers"]) == (200, running.url, [f"{here}/"])
    status, reported = running.ask("GET", "/.well-known/oauth-authorization-server")
    assert (status, reported["registration_endpoint"], reported["token_endpoint"]) == (200, f"{here}/register", f"{here}/token")
    for method, path in (("GET", "/authorize"), ("POST", "/token"), ("POST", "/register"), ("GET", "/auth/callback")):
        assert running.ask(method, path)[0] in (400, 401)
        assert running.ask(method, path, host="evil.example")[0] == 403
        assert running.ask(method, path, origin="https://evil.example")[0] == 403
        assert running.ask(method, path, b"", **{"content-length": str(10**9)})[0] == 413
    assert running.ask("GET", "/metrics")[0] == 401
    assert running.ask("GET", "/metrics", authorization=f"Bearer {known}")[0] == 403


OWN = """
import os
from fastmcp.server.auth.auth import ClientRegistrationOptions
from fastmcp.server.auth.providers.in_memory import InMemoryOAuthProvider

class Provider(InMemoryOAuthProvider):
    async def load_access_token(self, token):
        found = await super().load_access_token(token)
        return found and found.model_copy(update={"subject": os.environ["NAMED"] or None})

registration = ClientRegistrationOptions(enabled=True, valid_scopes=["read", "execute"])
provider = Provider(base_url=os.environ["HERE"], client_registration_options=registration)
"""


def test_scopes_are_those_of_the_tokens_unless_the_configuration_lists_them(tmp_path: Path) -> None:
    with provided(tmp_path, OWN, NAMED="alice") as running:
        with logged_in(running, "alice", scope="read") as agent:
            assert "needs a token with the scope execute" in agent.text("execute_code", code="1")
            assert agent.call("list_sessions").is_error is False
        with logged_in(running, "alice", scope="execute") as agent:
            assert agent.text("execute_code", code="1") == "1"


@pytest.mark.nightly  # in the gate the proxy's token names no user
def test_a_fastmcp_provider_that_names_only_programs_admits_no_user(tmp_path: Path) -> None:
    with provided(tmp_path, OWN, "--auth-scopes", "execute", NAMED="") as running:
        with pytest.raises(McpError, match="must have a `sub`"), logged_in(running, "alice"):
            pass
        assert "token_without_subject" in (tmp_path / "stderr.txt").read_text()


SEVERAL = """
import os
from fastmcp.server.auth import MultiAuth
from fastmcp.server.auth.providers.introspection import IntrospectionTokenVerifier
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

issuer = os.environ["ISSUER"]
asking = dict(introspection_url=issuer + "/introspect", client_id="here", client_secret="secret", required_scopes=["ours"])
known = {"known": {"client_id": "app", "sub": "alice", "scopes": ["ours"]}}

def provider():
    verifiers = {"asked": IntrospectionTokenVerifier(**asking), "known": StaticTokenVerifier(known)}
    return MultiAuth(verifiers=verifiers, required_scopes=["ours"])
"""


def test_users_of_the_same_name_of_two_providers_are_two(issuer: Issuer, tmp_path: Path) -> None:
    token = create_token(tmp_path / "tokens", "alice")
    options = ("--auth-scopes", "execute", "--tokens", str(tmp_path / "tokens"))
    with provided(tmp_path, SEVERAL, *options, ISSUER=issuer.url) as running:
        with (
            running.client(authorization="Bearer alice ours") as alice,
            running.client(authorization="Bearer alice ours read") as reader,
            running.client(authorization="Bearer known") as other,
            running.client(authorization="Bearer carol ours") as carol,
            running.client(authorization=f"Bearer {token}") as known,
        ):
            alice.text("execute_code", code="x = 'hers'")
            assert [row["name"] for row in reader.rows("list_sessions", "sessions")] == ["default"]
            assert "needs a token with the scope execute" in reader.text("execute_code", code="x")
            for agent in (other, carol, known):
                assert "NameError" in agent.text("execute_code", code="x")
        assert running.ask("POST", "/mcp", b"{}", authorization="Bearer alice")[0] == 401
        assert running.ask("POST", "/mcp", b"{}", authorization="Bearer wrong ours")[0] == 401


def test_an_old_clients_session_is_its_users(server: tuple[Server, str], issuer: Issuer) -> None:
    running, _ = server
    alice, carol = Browser(running.url, "old-alice"), Browser(running.url, "old-carol")
    for browser in (alice, carol):
        with connected(StreamableHttpTransport(running.url, auth=browser), "auto"):
            pass
    output = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
    accepted = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
    address = urlsplit(running.url)
    connection = HTTPConnection(address.hostname or "", address.port, timeout=BOUND)
    with closing(connection):
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": output})
        connection.request("POST", "/mcp", body, accepted | {"authorization": f"Bearer {alice.token}"})
        answer = connection.getresponse()
        answer.read()
        session = answer.headers["mcp-session-id"]
    ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"}).encode()
    for browser, status in ((carol, 404), (alice, 200)):
        headers = accepted | {"authorization": f"Bearer {browser.token}", "mcp-session-id": session}
        assert running.ask("POST", "/mcp", ping, **headers)[0] == status


def test_bodies_before_the_login_are_small(server: tuple[Server, str]) -> None:
    running, _ = server
    client = b'{"redirect_uris": ["http://localhost/x"], "pad": "%s"}'
    kind = {"Content-Type": "application/json"}
    assert running.ask("POST", "/register", client % b"", **kind)[0] == 201
    for more in ({}, {"Transfer-Encoding": "chunked"}):
        body = client % (b"p" * 2**18)
        chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if more else body
        status, output = running.ask("POST", "/register", chunked, **kind, **more)
        assert (status, output["error"]) == (413, "The body must have at most 262144 bytes.")
