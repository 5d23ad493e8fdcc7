"""Who may see the page: people with a token, under one of its own addresses; and the headers of every answer.

A token is in the address that a command prints, and from then on in a cookie. Other pages in the same browser cannot
act in somebody's name: the cookie is sent with requests of this page only, and a form carries a second token, which no
other page can read. Requests under another name than the page's own are refused, so that a name which is made to lead
to this machine (DNS rebinding) opens nothing. Who may only look has no form that does anything.
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
"""What needs no token: files that are the same everywhere."""

PERSON = "silvan.person"
"""Where a request has who asks."""

USER_HEADER = "x-remote-user"
"""The header in which a reverse proxy says who somebody is; its own token is in ``Authorization: Bearer``."""

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


class Root(NamedTuple):
    """Where a reverse proxy serves the page: its origin, and the path before all paths; both empty without a proxy."""

    origin: str = ""
    path: str = ""

    @classmethod
    def parse(cls, text: str) -> "Root":
        """Read ``/north`` or ``https://apps.example.org/north``."""
        parts = urlsplit(text)
        path = parts.path.rstrip("/")
        known = parts.scheme in ("http", "https") and parts.netloc if parts.scheme or parts.netloc else True
        clean = not (parts.query or parts.fragment or "//" in path or "@" in parts.netloc)
        if not known or not clean or (path and not path.startswith("/")):
            raise InputError.wrong("root-path", "a path such as /north, or an address: https://HOST/north", text)
        return cls(f"{parts.scheme}://{parts.netloc.lower()}" if parts.netloc else "", path)

    def strip(self, path: str) -> str:
        """Return a path as the page knows it, whether the proxy took what is before it off or not."""
        return path[len(self.path) :] or "/" if self.path and f"{path}/".startswith(f"{self.path}/") else path


class Access:
    """The names under which the page may be asked for, and who may ask."""

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
        own = self.starter = Person(starter, "approve", digest(self.token.encode()))
        self.people = People(None, own) if people is None else People(people.path and people.path.parent, own)
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
        """The address to open, with the token of who started the page."""
        return f"{self.base}?token={self.token}"

    @property
    def address_once(self) -> str:
        """The address that ``--open`` opens, with a token that is good for one use: history and logs keep addresses."""
        return f"{self.base}?token={self._once}"

    def redeem(self, token: str) -> bool:
        """Whether a token is the one of ``address_once``; it is not known again."""
        if not hmac.compare_digest(token.encode(), self._once.encode()):
            return False
        self._once = secrets.token_urlsafe(32)
        return True

    def form_token(self, person: Person) -> str:
        """Return what every form of a person carries; each start of the page makes another."""
        return hmac.digest(self._secret, f"silvan form\0{person.name}\0{person.token}".encode(), "sha256").hex()

    def is_form(self, person: Person, token: str) -> bool:
        """Whether this page issued the form to this person."""
        return hmac.compare_digest(token.encode(), self.form_token(person).encode())


class Guard:
    """Refuses requests of nobody known, of other names and of other pages; adds headers to all answers."""

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

        scope = {**scope, "path": self._access.root.strip(scope["path"])}
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
            if access.redeem(given[-1]):
                return self._take_token(scope, query, access.token)
            known = access.people.by_token(given[-1])
            usable = known is not None and known.right != "proxy"
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
                    f"{person.name} may look at this page and not act on it; ask its owner for a token that may "
                    "approve (`silvan web FOLDER --add NAME --right approve`). Nothing was done.",
                )
        scope[PERSON] = person
        return None

    def _who(self, headers: Headers) -> "Person | Response":
        """Return who asks, by a proxy's word or by a cookie, or what they are answered."""
        people = self._access.people
        kind, _, bearer = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer":
            proxy = people.by_token(bearer.strip())
            name = headers.get(USER_HEADER, "")
            person = people.by_name(name) if proxy is not None and proxy.right == "proxy" else None
            if person is None:
                return self._refusal(403, "The sign-on knows you, and this page does not: ask its owner to add you.")
            return person
        found = people.by_token(cookie_parser(headers.get("cookie", "")).get(self._access.cookie, ""))
        return self._unknown() if found is None or found.right == "proxy" else found

    def _take_token(self, scope: Scope, query: list[tuple[str, str]], token: str) -> Response:
        """Keep the token in a cookie, and take it out of the address."""
        root = self._access.root
        rest = urlencode([(name, value) for name, value in query if name != "token"])
        path = "/" + scope["path"].lstrip("/\\")  # never the address of another machine
        response = RedirectResponse(root.path + path + (f"?{rest}" if rest else ""), status_code=303)
        secure = root.origin.startswith("https:")
        named = {"httponly": True, "samesite": "strict", "path": root.path or "/", "secure": secure}
        response.set_cookie(self._access.cookie, token, **named)  # type: ignore[arg-type]
        return response

    def _unknown(self) -> Response:
        return self._refusal(
            401,
            "This page is for people who have a token. Open the address that `silvan web` printed, with the token at "
            "its end; each start makes a new one, and a person who was added keeps theirs.",
        )


def _with_port(name: str, port: int) -> str:
    return f"[{name}]:{port}" if ":" in name else f"{name.lower()}:{port}"
