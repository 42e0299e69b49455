"""A provider out of a module of the operator's: who its users are, what they may, and what is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernelexec.mcp.http.oauth import Provided
from tests.test_cli import kernelexec


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
async def test_who_has_which_scopes(
    scopes: tuple[str, ...] | None, named: list[str], granted: list[str], tmp_path: Path
) -> None:
    known = {"token": {"client_id": "app", "sub": "alice", "scopes": named}}
    source = f"from fastmcp.server.auth.providers.jwt import StaticTokenVerifier\nprovider = StaticTokenVerifier({known})"
    (tmp_path / "auth.py").write_text(source)
    found = await Provided(f"{tmp_path / 'auth.py'}:provider", scopes).provider().verify_token("token")
    assert found is not None
    assert (found.scopes, found.subject) == (granted, "alice")


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
async def test_whoever_vouches_for_a_user_is_part_of_who_that_is(
    name: str, tokens: list[str], users: int, tmp_path: Path
) -> None:
    (tmp_path / "auth.py").write_text(NESTED)
    provider = Provided(f"{tmp_path / 'auth.py'}:{name}", ("read",)).provider()
    found = [await provider.verify_token(token) for token in tokens]
    assert all(found)
    assert len({(one.client_id, one.claims.get("iss"), one.claims["sub"]) for one in found if one is not None}) == users


BROKEN = """
import os
def needs(): os.environ["MISSING_SECRET"]
def leaves(): raise SystemExit("no configuration")
number = 1
"""


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--auth", "auth.py"], "MODULE:NAME or FILE.py:NAME of a provider is expected"),
        (["--auth", "nowhere.py:provider"], "--auth nowhere.py: there is no such file"),
        (["--auth", "no.such.module:provider"], "--auth no.such.module: there is no such module for"),
        (["--auth", "wrong.py:provider"], "--auth wrong.py: it cannot be imported: SyntaxError"),
        (["--auth", "lacking.py:provider"], "it cannot be imported: ModuleNotFoundError: No module named 'no_such_module'"),
        (["--auth", "broken.py:provider"], "--auth broken.py:provider: there is no 'provider' in it"),
        (["--auth", "broken.py:needs"], "it failed: KeyError: 'MISSING_SECRET'"),
        (["--auth", "broken.py:leaves"], "it failed: SystemExit: no configuration"),
        (["--auth", "broken.py:number"], "it is of the class int: an AuthProvider of fastmcp is expected"),
        (["--auth", "kernelexec.mcp.scopes:SCOPES"], "it is of the class tuple"),
        (["--auth", "auth.py:provider", "--auth-scopes", "execute,all"], "'all' is no scope: there are read, execute, admin"),
        (["--auth-scopes", "execute"], "give --auth too"),
        (["--auth", "broken.py:number", "--jwt-keys", "https://x", "--jwt-issuer", "i", "--jwt-audience", "a"], "one of them"),
        (["--host", "192.0.2.1"], "give --tokens FILE (`kernelexec mcp-token` makes one), --jwt-keys or --auth"),
    ],
    ids=str,
)
def test_what_is_no_provider_is_refused_before_anything_is_served(options: list[str], said: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "wrong.py").write_text("def")
    (tmp_path / "lacking.py").write_text("import no_such_module")
    done = kernelexec(tmp_path, "mcp", "--http", "--isolation", "local", *options)
    assert done.returncode == 125
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("option", ["--tokens", "--auth", "--jwt-keys"])
def test_what_cells_could_change_does_not_say_who_may_call(option: str, tmp_path: Path) -> None:
    own = tmp_path / "work" / "one"
    own.mkdir(parents=True)
    (own / "auth.py").write_text("raise SystemExit('it was run')")
    given = {"--tokens": "work/one/auth.py", "--auth": "work/one/auth.py:provider", "--jwt-keys": "work/one/auth.py"}[option]
    more = ["--jwt-issuer", "i", "--jwt-audience", "a"] if option == "--jwt-keys" else []
    (tmp_path / "link").symlink_to(own)
    for place in (given, given.replace("work/one", "link")):
        done = kernelexec(tmp_path, "mcp", "--http", "--isolation", "local", "--workspace", "work", option, place, *more)
        assert done.returncode == 125
        assert "it lies where a session works, whose cells could change it" in " ".join(done.stderr.split())


def test_a_provider_is_of_a_server_over_http(tmp_path: Path) -> None:
    done = kernelexec(tmp_path, "mcp", "--isolation", "local", "--auth", "auth.py:provider")
    assert (done.returncode, "auth: these are of a server over HTTP" in done.stderr) == (125, True)
