"""Who may talk to the studio: this machine only, unless a token was set, and then only with the token.

A page that can start runs must not listen to every web site the user has open. So a request must name the studio's
own host (a foreign site cannot do that: DNS rebinding ends here), and a browser's Origin must be the studio itself.
The check sits below the routes, so it covers pages, files and the live connection alike.
"""

from __future__ import annotations

import hmac
import ipaddress
from http.cookies import SimpleCookie
from urllib.parse import parse_qs, urlsplit

from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from nbafl.errors import UsageError
from nbafl.studio import plain

COOKIE = "nbafl_studio"
SHORTEST_TOKEN = 12
LONGEST_FORM = 4096


def is_loopback(host: str) -> bool:
    """Whether a host name means this machine and nothing else."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_exposure(host: str, token: str | None) -> None:
    """Refuse to open the studio to other machines without a token that cannot be guessed."""
    if token is None and not is_loopback(host):
        raise UsageError("token", None, f"given (at least {SHORTEST_TOKEN} characters) when host is {host!r}")
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise UsageError("token", token, f"at least {SHORTEST_TOKEN} printable ASCII characters")


class Guard:
    """ASGI middleware in front of everything the studio serves."""

    def __init__(self, app: ASGIApp, token: str | None = None) -> None:
        self.app = app
        self.token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]
        }
        if not self._same_place(headers):
            await _answer(scope, receive, send, 403, "This address does not belong to the studio.")
        elif self.token is None or self._has_token(headers):
            await self.app(scope, receive, send)
        else:
            await self._ask_for_token(scope, receive, send)

    def _same_place(self, headers: dict[str, str]) -> bool:
        """The Host is ours, and a browser's Origin is the same place as the Host."""
        host = headers.get("host", "")
        if self.token is None and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return False
        origin = headers.get("origin")
        return origin is None or urlsplit(origin).netloc == host

    def _has_token(self, headers: dict[str, str]) -> bool:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        return self._is_token(bearer) or (cookie is not None and self._is_token(cookie.value))

    def _is_token(self, candidate: str) -> bool:
        return hmac.compare_digest(candidate.encode(), (self.token or "").encode())

    async def _ask_for_token(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The token may come once, in the link (?token=) or in the form; from then on it is a cookie."""
        if scope["type"] == "http" and scope["method"] in ("GET", "POST"):
            source = scope.get("query_string", b"") if scope["method"] == "GET" else await _body(receive)
            given = parse_qs(source.decode("latin-1")).get("token", [""])[0]
            if self._is_token(given):
                await _redirect(scope.get("path", "/"), given)(scope, receive, send)
                return
            sentence = (
                "That is not the token." if given else "The studio asks for the token it was started with."
            )
        else:
            sentence = "The studio asks for the token it was started with."
        await _answer(scope, receive, send, 401, sentence)


async def _body(receive: Receive) -> bytes:
    content = b""
    while len(content) <= LONGEST_FORM:
        message = await receive()
        content += message.get("body", b"")
        if not message.get("more_body"):
            break
    return content[:LONGEST_FORM]


def _redirect(path: str, token: str) -> Response:
    # A path of two slashes would be read as another host.
    response = RedirectResponse("/" + path.lstrip("/"), status_code=303)
    response.set_cookie(COOKIE, token, httponly=True, samesite="strict")
    return response


async def _answer(scope: Scope, receive: Receive, send: Send, status: int, sentence: str) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1008, "reason": sentence})
        return
    page = plain.page(sentence, _ASK if status == 401 else "")
    response = HTMLResponse(page, status, {"cache-control": "no-store"})
    if scope["method"] == "HEAD":
        response.body = b""
    await response(scope, receive, send)


_ASK = (
    '<form method="post"><label>Token <input name="token" type="password" autofocus autocomplete="current-password">'
    "</label> <button>Open</button></form>"
)
