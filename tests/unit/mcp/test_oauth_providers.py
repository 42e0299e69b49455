"""A provider from a module of the operator: its users, their rights, and invalid providers."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec.mcp.authentication import OperatorProvider


@pytest.mark.parametrize(
    ("scopes", "named", "granted"),
    [
        (None, ["openid"], ["openid"]),
        (None, ["openid", "read", "admin"], ["openid", "read", "admin"]),
        (("execute",), ["openid"], ["openid", "execute"]),
        (("execute",), ["read"], ["read"]),
        (("read",), ["execute", "admin"], ["read"]),  # no more than everybody has
        (("execute", "admin"), ["admin", "read"], ["read", "admin"]),
    ],
    ids=str,
)
@pytest.mark.anyio
async def test_users_have_the_scopes_of_the_configuration(
    scopes: tuple[str, ...] | None, named: list[str], granted: list[str], tmp_path: Path
) -> None:
    known = {"token": {"client_id": "app", "sub": "alice", "scopes": named}}
    source = f"from fastmcp.server.auth.providers.jwt import StaticTokenVerifier\nprovider = StaticTokenVerifier({known})"
    (tmp_path / "auth.py").write_text(source)
    actual = await OperatorProvider(f"{tmp_path / 'auth.py'}:provider", scopes).load().verify_token("token")
    assert actual is not None
    assert (actual.scopes, actual.subject) == (granted, "alice")


NESTED = """
from fastmcp.server.auth import MultiAuth
from fastmcp.server.auth.providers.jwt import StaticTokenVerifier

def knowing(token, **claims):
    return StaticTokenVerifier({token: {"client_id": "app", "sub": "alice", "scopes": []} | claims})

inner = MultiAuth(verifiers={"a": knowing("a"), "b": knowing("b")})
outer = {"inner": inner, "c": knowing("c"), "b": knowing("d"), "program": knowing("e", client_id="other")}
outer |= {"word": knowing("f", assertion_iss="https://one.example"), "other word": knowing("g", assertion_iss="https://two.example")}
provider = MultiAuth(verifiers=outer)
alone = MultiAuth(server=knowing("a"), server_source_id="x", verifiers={"y": knowing("h", client_id="other")})
asserting = StaticTokenVerifier({
    name: {"client_id": "app", "iss": "https://here.example", "sub": "alice", "scopes": [], "assertion_iss": f"https://{name}.example"}
    for name in ("one", "two")
})
programs = StaticTokenVerifier({
    name: {"client_id": name, "iss": "https://here.example", "sub": "alice", "scopes": []} for name in "pq"
})
"""


@pytest.mark.parametrize(
    ("name", "tokens", "users"),
    [("provider", "abcdefg", 7), ("alone", "ah", 2), ("asserting", ["one", "two"], 2), ("programs", "pq", 1)],
)
@pytest.mark.anyio
async def test_the_provider_is_part_of_a_users_identity(name: str, tokens: list[str], users: int, tmp_path: Path) -> None:
    (tmp_path / "auth.py").write_text(NESTED)
    provider = OperatorProvider(f"{tmp_path / 'auth.py'}:{name}", ("read",)).load()
    actual = [await provider.verify_token(token) for token in tokens]
    assert all(actual)
    assert len({(item.client_id, item.claims.get("iss"), item.claims["sub"]) for item in actual if item is not None}) == users
