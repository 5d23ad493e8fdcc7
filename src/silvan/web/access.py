"""Who may see the page: people with a token, under one of its own addresses; and the headers of every response.

The printed address contains a token, which then moves to a cookie. Other pages in the same browser cannot act in
somebody's name: the browser sends the cookie only with requests from this page, and each form carries a second token
that no other page can read. Requests for a host name other than the page's own are refused, which stops DNS rebinding.
People who may only view have no working form.
"""

import hmac
import secrets
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from silvan.errors import InputError
from silvan.federation.store import digest
from silvan.web.people import People, Person

LOOPBACK = ("127.0.0.1", "localhost", "::1")

OPEN = "/static/"
"""Paths that need no token: files that are the same everywhere."""

PERSON = "silvan.person"
"""The key of a request's scope that holds the person."""

USER_HEADER = "x-remote-user"
"""The header in which a reverse proxy names the person; the proxy's own token is in ``Authorization: Bearer``."""

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
"""Makes the page that explains a refusal, given the status and the text."""


class Root(NamedTuple):
    """Where a reverse proxy serves the page: its origin and path prefix; both empty without a proxy."""

    origin: str = ""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Root":
        """Read ``/north`` or ``https://apps.example.org/north``."""
        parts = urlsplit(text)
        path = parts.path.rstrip("/")
        origin = parts.scheme in ("http", "https") and parts.netloc if parts.scheme or parts.netloc else True
        clean = not (parts.query or parts.fragment or "//" in path or "@" in parts.netloc)
        if not origin or not clean or (path and not path.startswith("/")):
            raise InputError.wrong("root-path", "a path such as /north, or an address: https://HOST/north", text)
        return cls(f"{parts.scheme}://{parts.netloc.lower()}" if parts.netloc else "", path)

    def strip(self, path: str) -> str:
        """Return a path without the prefix, whether or not the proxy has already removed it."""
        return path[len(self.path) :] or "/" if self.path and f"{path}/".startswith(f"{self.path}/") else path


class Access:
    """The addresses under which the page may be requested, and who may request it."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        token: str | None = None,
        *,
        people: People | None = None,
        starter: str = "",
        root: Root = Root(),  # noqa: B008  frozen
    ) -> None:
        self.port, self.host, self.root = port, host, root
        self.token = secrets.token_urlsafe(32) if token is None else token
        self.starter = Person(starter, "approve", digest(self.token.encode()))
        folder = None if people is None or people.path is None else people.path.parent
        self.people = People(folder, self.starter)
        self._once = secrets.token_urlsafe(32)
        self.hosts = {_with_port(name, port) for name in (*LOOPBACK, host)}
        if root.origin:
            self.hosts.add(root.origin.partition("://")[2])
        self.cookie = f"silvan_{port}"  # browsers send a machine's cookies to all its ports
        self._secret = secrets.token_bytes(32)

    @property
    def base(self) -> str:
        """The address of the page, without a token."""
        return f"{self.root.origin or f'http://{_with_port(self.host, self.port)}'}{self.root.path}/"

    @property
    def address(self) -> str:
        """The address to open, with the token of the person who started the page."""
        return f"{self.base}?token={self.token}"

    @property
    def address_once(self) -> str:
        """The address for ``--open``, with a token that works once, since histories and logs keep addresses."""
        return f"{self.base}?token={self._once}"

    def redeem(self, token: str) -> bool:
        """Whether a token is that of ``address_once``, which then becomes invalid."""
        if not hmac.compare_digest(token.encode(), self._once.encode()):
            return False
        self._once = secrets.token_urlsafe(32)
        return True

    def form_token(self, person: Person) -> str:
        """Return the token of a person's forms, which changes with each start of the page."""
        return hmac.digest(self._secret, f"silvan form\0{person.name}\0{person.token}".encode(), "sha256").hex()

    def is_form(self, person: Person, token: str) -> bool:
        """Whether this page issued the form to this person."""
        return hmac.compare_digest(token.encode(), self.form_token(person).encode())


class Guard:
    """Refuses requests from unknown people, other host names and other pages; adds headers to all responses."""

    def __init__(self, app: ASGIApp, access: Access, refusal: Refusal) -> None:
        self._app, self._access, self._refusal = app, access, refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        scope = {**scope, "path": self._access.root.strip(scope["path"])}
        answer = self._answer(scope)
        await (self._app if answer is None else answer)(scope, receive, with_headers)

    def _answer(self, scope: Scope) -> Response | None:
        """Return the response in place of the page; None if the request may proceed."""
        headers, access = Headers(scope=scope), self._access
        host = headers.get("host", "").lower()
        if host not in access.hosts:
            return self._refusal(421, "The page has another address. Open the one that was printed.")
        if scope["path"].startswith(OPEN):
            return None
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        given = [value for name, value in query if name == "token"]
        if given:
            if access.redeem(given[-1]):
                return self._take_token(scope, query, access.token)
            person_of = access.people.by_token(given[-1])
            usable = person_of is not None and person_of.right != "proxy"
            return self._take_token(scope, query, given[-1]) if usable else self._unknown()
        person = self._who(headers)
        if not isinstance(person, Person):
            return person
        if scope["method"] == "POST":
            if headers.get("origin") not in (None, f"http://{host}", access.root.origin or None):
                return self._refusal(403, "Another page tried to act in your name. Nothing was done.")
            if not person.may_act:
                return self._refusal(
                    403,
                    f"{person.name} may only view this page; ask its owner for a token with the right to approve "
                    "(`silvan web FOLDER --add NAME --right approve`). Nothing was done.",
                )
        scope[PERSON] = person
        return None

    def _who(self, headers: Headers) -> "Person | Response":
        """Return the person named by a proxy or a cookie, or a refusal."""
        people = self._access.people
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            proxy = people.by_token(bearer.strip())
            name = headers.get(USER_HEADER, "")
            person = people.by_name(name) if proxy is not None and proxy.right == "proxy" else None
            if person is None:
                return self._refusal(
                    403, "You are signed on, but this page does not know you: ask its owner to add you."
                )
            return person
        found = people.by_token(cookie_parser(headers.get("cookie", "")).get(self._access.cookie, ""))
        return self._unknown() if found is None or found.right == "proxy" else found

    def _take_token(self, scope: Scope, query: list[tuple[str, str]], token: str) -> Response:
        """Move the token from the address to a cookie."""
        root = self._access.root
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never another machine's address
        response = RedirectResponse(root.path + path + (f"?{rest}" if rest else ""), status_code=303)
        secure = root.origin.startswith("https:")
        named = {"httponly": True, "samesite": "strict", "path": root.path or "/", "secure": secure}
        response.set_cookie(self._access.cookie, token, **named)  # type: ignore[arg-type]
        return response

    def _unknown(self) -> Response:
        return self._refusal(
            401,
            "This page needs a token. Open the address that `silvan web` printed, which ends with the token; each "
            "start makes a new one, while people who were added keep theirs.",
        )


def _with_port(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name.lower()}:{port}"
