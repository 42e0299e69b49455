"""An authorization server of the tests' own, served on this machine, and a browser whose user has logged in there."""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs, urlencode, urljoin, urlsplit

import uvicorn
from fastmcp.client.auth import OAuth
from httpx2 import AsyncClient, Response
from joserfc import jwt
from joserfc.jwk import RSAKey
from mcp.shared.auth import AuthorizationCodeResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse
from starlette.responses import Response as Answer
from starlette.routing import Route

from tests.support.command_line import BOUND

AUDIENCE, CLIENT, SECRET = "upstream-audience", "kernelexec-at-upstream", "upstream-secret"
#: Users with these names get a token that names no user, or an expired one.
NOBODY, LATE = "nobody", "late"


class Issuer:
    """OpenID Connect, as far as a proxy needs it: it knows one program, and the users with the cookie ``login``."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._key = RSAKey.generate_key(2048, {"kid": "one"})
        self._codes: dict[str, tuple[str, str]] = {}

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/.well-known/openid-configuration", self._configuration),
                Route("/jwks", self._keys),
                Route("/authorize", self._authorize),
                Route("/token", self._token, methods=["POST"]),
                Route("/introspect", self._introspect, methods=["POST"]),
            ]
        )

    def token(self, user: str, **more: Any) -> str:
        end = int(time.time()) + (-60 if user == LATE else 600)
        output = {"iss": self.url, "aud": AUDIENCE, "client_id": CLIENT, "scope": "openid", "exp": end} | more
        return jwt.encode({"alg": "RS256", "kid": "one"}, output | ({} if user == NOBODY else {"sub": user}), self._key)

    async def _configuration(self, _: Request) -> Answer:
        output: dict[str, Any] = {
            "issuer": self.url,
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "jwks_uri": f"{self.url}/jwks",
            "response_types_supported": ["code"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": ["RS256"],
        }
        return JSONResponse(output)

    async def _keys(self, _: Request) -> Answer:
        return JSONResponse({"keys": [self._key.as_dict(private=False)]})

    async def _authorize(self, request: Request) -> Answer:
        asked, user = request.query_params, request.cookies.get("login")
        if user is None or asked["client_id"] != CLIENT or asked["code_challenge_method"] != "S256":
            return JSONResponse({"error": "access_denied"}, 400)
        code = secrets.token_urlsafe()
        self._codes[code] = user, asked["code_challenge"]
        return RedirectResponse(f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}", 302)

    async def _token(self, request: Request) -> Answer:
        form = await request.form()
        known = f"{CLIENT}:{SECRET}"
        basic = f"Basic {base64.b64encode(known.encode()).decode()}"
        posted = f"{form.get('client_id')}:{form.get('client_secret')}"
        user, challenge = self._codes.pop(str(form["code"]), ("", ""))
        proof = base64.urlsafe_b64encode(hashlib.sha256(str(form.get("code_verifier")).encode()).digest()).rstrip(b"=").decode()
        if known != posted and request.headers.get("authorization") != basic:
            return JSONResponse({"error": "invalid_client"}, 401)
        if not user or challenge != proof:
            return JSONResponse({"error": "invalid_grant"}, 400)
        return JSONResponse({"access_token": self.token(user), "token_type": "Bearer", "expires_in": 600, "scope": "openid"})

    async def _introspect(self, request: Request) -> Answer:
        """A token here is a user's name and scopes; it names no issuer, as none is required."""
        user, _, scopes = str((await request.form())["token"]).partition(" ")
        output = {"active": user != "wrong", "client_id": CLIENT, "scope": scopes}
        return JSONResponse(output if user == NOBODY else output | {"sub": user})


def bound() -> socket.socket:
    """A socket that keeps a free port of 127.0.0.1 for the later listener, though it is bound already."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    return listener


def port_of(listener: socket.socket) -> int:
    port: int = listener.getsockname()[1]
    return port


@contextmanager
def issuing() -> Iterator[Issuer]:
    with bound() as listener:
        issuer = Issuer(f"http://127.0.0.1:{port_of(listener)}")
        listener.listen()
        server = uvicorn.Server(uvicorn.Config(issuer.app(), log_config=None, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield issuer
        finally:
            server.should_exit = True
            thread.join(BOUND)


class Browser(OAuth):
    """A client's way to a token, with a browser that follows redirects, has its user's cookie, and allows what it is asked.

    Of what the client asks for its user may allow one scope only.
    """

    def __init__(self, url: str, user: str, *, scope: str | None = None) -> None:
        with warnings.catch_warnings(action="ignore"):  # it says that tokens are forgotten at the end
            super().__init__(url)
        self.user = user
        self.scope = scope
        self.seen: list[str] = []
        self._back = ""

    @property
    def token(self) -> str:
        assert self.context.current_tokens is not None
        return self.context.current_tokens.access_token

    async def redirect_handler(self, authorization_url: str) -> None:
        if self.scope is not None:
            authorization_url = re.sub(r"(?<=[?&]scope=)[^&]*", self.scope, authorization_url)
        async with AsyncClient(cookies={"login": self.user}, timeout=BOUND) as browser:
            answer, where = await browser.get(authorization_url), authorization_url
            while True:
                self.seen.append(urlsplit(where).path)
                if answer.is_redirect:
                    where = urljoin(where, answer.headers["location"])
                    if urlsplit(where).path == "/callback":
                        self._back = where
                        return
                    answer = await browser.get(where)
                else:
                    answer = await self._allow(browser, answer, where)

    async def _allow(self, browser: AsyncClient, page: Response, where: str) -> Response:
        assert page.status_code == 200, page.text
        form = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page.text))
        assert form, page.text
        parts = urlsplit(where)
        return await browser.post(
            where, data=form | {"action": "approve"}, headers={"origin": f"{parts.scheme}://{parts.netloc}"}
        )

    async def callback_handler(self) -> AuthorizationCodeResult:
        output = parse_qs(urlsplit(self._back).query)
        assert "code" in output, self._back
        return AuthorizationCodeResult(code=output["code"][0], state=output["state"][0], iss=output.get("iss", [None])[0])
