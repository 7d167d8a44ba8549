"""Who may use the page. Everybody on this machine can reach a port on 127.0.0.1, so the port itself says nothing.

- Other users of the machine are refused, whatever they know; root may look anyway.
- Looking takes the token of the printed address, once: it becomes a cookie that only this server is sent.
- What changes a run takes a second token, which is printed apart and sent with each such request.
- `Host` must name this machine itself, or a page elsewhere whose name points to 127.0.0.1 could ask (DNS rebinding).
- `Origin` and `Sec-Fetch-Site` must be this page's: other servers on this machine count as the same site for cookies.
  Only the page itself may be opened from elsewhere (a link in a terminal that is a web page).
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rlz.watch.peer import user_of

HERE = ("127.0.0.1", "localhost", "::1")
CONTROL_HEADER = "x-rlz-token"
COOKIE = "rlz-watch"

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""Of every answer."""


def _token() -> str:
    return secrets.token_urlsafe(18)


@dataclass(frozen=True)
class Tokens:
    """`look`: of the address; `control`: for what changes the run."""

    look: str = field(default_factory=_token)
    control: str = field(default_factory=_token)


class Guard:
    """Lets a request through to `app`, or answers why not."""

    def __init__(self, app: ASGIApp, tokens: Tokens) -> None:
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                added = [(key.lower().encode(), value.encode()) for key, value in HEADERS.items()]
                message["headers"] = [*message["headers"], *((key, value) for key, value in added if key not in names)]
            await send(message)

        refusal = self._refusal(HTTPConnection(scope), scope["method"])
        await (self._app if refusal is None else refusal)(scope, receive, sent)

    def _refusal(self, request: HTTPConnection, method: str) -> Response | None:
        host = request.headers.get("host", "")
        if not _is_own(request):
            return _no(403, "this page belongs to another user of this machine")
        if not _is_here(f"//{host}"):
            return _no(403, f"Host {host[:100]!r} is not this machine: use 127.0.0.1, by way of ssh -L from elsewhere")
        changes = method not in ("GET", "HEAD")
        if not (_same_origin(request.headers, host, needed=changes) or (_opens(request) and not changes)):
            return _no(403, "another page may not ask")
        given = request.query_params.get("token", "")
        if given and _equal(given, self._tokens.look) and request.url.path == "/":
            answer = RedirectResponse("/", status_code=303)
            answer.set_cookie(_cookie(host), self._tokens.look, httponly=True, samesite="lax", path="/")
            return answer
        if not _equal(request.cookies.get(_cookie(host), ""), self._tokens.look):
            return _no(401, "open the address that `rlz watch` has printed, with its token")
        if changes and not _equal(request.headers.get(CONTROL_HEADER, ""), self._tokens.control):
            return _no(403, "this takes the second token that `rlz watch` has printed")
        return None


def _same_origin(headers: Headers, host: str, *, needed: bool) -> bool:
    origin = headers.get("origin")
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        return False
    if origin is None:
        return not needed
    return origin == f"http://{host}"


def _opens(request: HTTPConnection) -> bool:
    return request.url.path == "/" and request.headers.get("sec-fetch-mode") == "navigate"


def _is_own(request: HTTPConnection) -> bool:
    peer, here = request.client, request.scope.get("server")
    if peer is None or here is None or here[1] is None:
        return True
    try:
        user = user_of((peer.host, peer.port), (here[0], here[1]))
    except OSError:  # no IPv4 address: not of a socket
        return True
    return user in (None, 0, os.getuid())


def _is_here(url: str) -> bool:
    try:
        return urlsplit(url).hostname in HERE
    except ValueError:
        return False


def _cookie(host: str) -> str:
    """Cookies do not know ports: two servers on one machine would take each other's away."""
    return f"{COOKIE}-{urlsplit(f'//{host}').port or 80}"


def _equal(given: str, expected: str) -> bool:
    return secrets.compare_digest(given.encode(), expected.encode())


def _no(status: int, reason: str, headers: Mapping[str, str] | None = None) -> Response:
    return PlainTextResponse(f"{reason}\n", status, headers)
