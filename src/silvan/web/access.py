"""Who may see the page: whoever has its token, under one of its own addresses; and the headers of every answer.

The token is in the address that the command prints, and from then on in a cookie. Other pages in the same browser
cannot act in the owner's name: the cookie is sent with requests of this page only, and a form carries a second token,
which no other page can read. Requests under another name than the page's own are refused, so that a name which is
made to lead to this machine (DNS rebinding) opens nothing.
"""

import hmac
import secrets
from collections.abc import Callable
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "::1")

OPEN = "/static/"
"""What needs no token: files that are the same everywhere."""

_CONTENT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": _CONTENT,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

Refusal = Callable[[int, str], Response]
"""Makes the page that says why a request is refused, given the status and the text."""


class Access:
    """The page's secret, and the names under which it may be asked for."""

    def __init__(self, port: int, host: str = "127.0.0.1", token: str | None = None) -> None:
        self.port, self.host = port, host
        self.token = secrets.token_urlsafe(32) if token is None else token
        self._once = secrets.token_urlsafe(32)
        self.hosts = {_with_port(name, port) for name in (*LOOPBACK, host)}
        self.cookie = f"silvan_{port}"  # browsers send a machine's cookies to all its ports

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{_with_port(self.host, self.port)}/?token={self.token}"

    @property
    def address_once(self) -> str:
        """The address that ``--open`` opens, with a token that is good for one use: history and logs keep addresses."""
        return f"http://{_with_port(self.host, self.port)}/?token={self._once}"

    def redeem(self, token: str) -> bool:
        """Whether a token is the one of ``address_once``; it is not known again."""
        if not hmac.compare_digest(token.encode(), self._once.encode()):
            return False
        self._once = secrets.token_urlsafe(32)
        return True

    @property
    def form_token(self) -> str:
        """What every form carries; it cannot be told from the cookie without knowing that."""
        return hmac.digest(self.token.encode(), b"silvan form", "sha256").hex()

    def is_form(self, token: str) -> bool:
        """Whether this page issued the form."""
        return hmac.compare_digest(token.encode(), self.form_token.encode())

    def knows(self, token: str) -> bool:
        """Whether a token is the right one."""
        return hmac.compare_digest(token.encode(), self.token.encode())


class Guard:
    """Refuses requests without the token, of other names and of other pages; adds headers to all answers."""

    def __init__(self, app: ASGIApp, access: Access, refusal: Refusal) -> None:
        self._app, self._access, self._refusal = app, access, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        answer = self._answer(scope)
        await (self._app if answer is None else answer)(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return what is answered in place of the page; None if the request may go on."""
        headers, access = Headers(scope=scope), self._access
        host = headers.get("host", "").lower()
        if host not in access.hosts:
            return self._refusal(421, "This page is not known under this name. Open the address that was printed.")
        if scope["path"].startswith(OPEN):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given:
            known = access.knows(given[-1]) or access.redeem(given[-1])
            return self._take_token(scope, query) if known else self._unknown()
        if not access.knows(cookie_parser(headers.get("cookie", "")).get(access.cookie, "")):
            return self._unknown()
        if scope["method"] == "POST" and headers.get("origin") not in (None, f"http://{host}"):
            return self._refusal(403, "Another page tried to act in your name. Nothing was done.")
        return None

    def _take_token(self, scope: Scope, query: list[tuple[str, str]]) -> Response:
        """Keep the token in a cookie, and take it out of the address."""
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never the address of another machine
        response = RedirectResponse(path + (f"?{rest}" if rest else ""), status_code=303)
        response.set_cookie(self._access.cookie, self._access.token, httponly=True, samesite="strict", path="/")
        return response

    def _unknown(self) -> Response:
        return self._refusal(
            401,
            "This page is for who started it. Open the address that `silvan web` printed, with the token at its end; "
            "each start makes a new one.",
        )


def _with_port(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host.lower()}:{port}"
