"""Serves the pages of a folder: routes, forms, and a stream of events that keeps an open page up to date.

It listens on localhost unless told otherwise.
"""

import asyncio
import logging
import secrets
import socket
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from silvan.errors import InputError, SilvanError
from silvan.report.html import STYLE
from silvan.web.access import PERSON, Access, Guard
from silvan.web.pages import File, Folder, Page, environment
from silvan.web.people import Person

log = logging.getLogger("silvan.web")

_STATIC = Path(__file__).parent / "static"
_PAUSE, _QUIET = 0.5, 15.0
"""Seconds between two checks of a folder, and before an idle stream sends a heartbeat."""

_ALL = ("", "0.0.0.0", "::", "*")  # noqa: S104  refused below

_MOST_BYTES, _MOST_NOTICES = 20_000, 50

_REPORT = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; frame-ancestors 'none'"
"""The permissions of a report: only to show itself."""

HELP = Page("Help", "help.html.jinja", {})
"""The page that every folder has: it explains the others, and needs no network."""


class Pages:
    """Answers requests for a folder's pages."""

    def __init__(self, folder: Folder, access: Access) -> None:
        self.folder, self.access = folder, access
        self._notices: dict[str, tuple[str, bool]] = {}  # results of actions, and whether they succeeded

    # -- pages

    async def show(self, request: Request) -> Response:
        """Send a page or a file."""
        path = request.path_params["path"].strip("/")
        page: Page | File | None
        try:
            page = await run_in_threadpool(lambda: self._page(path) or self.folder.file(path))
        except (SilvanError, OSError) as error:
            return self.refusal(500, describe(error))
        if page is None:
            return self.refusal(404, "There is no such page.")
        if isinstance(page, File):
            return _send(page)
        notice = self._notices.pop(
            request.query_params.get("notice", ""), None
        )  # shown once, since it may soon be outdated
        template, values = environment().get_template(page.template), self._values(page, path, _person(request), notice)
        return HTMLResponse(await run_in_threadpool(template.render, values))

    def _page(self, path: str) -> Page | None:
        return HELP if path == "help" else self.folder.page(path)

    def _values(self, page: Page, path: str, person: Person, notice: tuple[str, bool] | None = None) -> dict[str, Any]:
        root, links = self.access.root.path, (*self.folder.links, ("/help", "Help"))
        whole = {"folder": self.folder.name, "links": links, "person": person, "root": root}
        whole |= {"form_token": self.access.form_token(person) if person.may_act else ""}
        single = {"title": page.title, "path": f"/{path}", "live": f"{root}/live/{quote(path)}", "notice": notice}
        return {**page.values, **whole, **single}

    def refusal(self, status: int, text: str) -> Response:
        """Return a page that explains why a request is refused."""
        template = environment().get_template("refusal.html.jinja")
        page = template.render(status=status, text=text, root=self.access.root.path)
        return HTMLResponse(page, status)

    # -- updates

    async def events(self, request: Request) -> Response:
        """Send the changing part of a page, now and after every change."""
        path = request.path_params["path"].strip("/")
        stream = self.stream(path, _person(request))
        return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})

    async def stream(self, path: str, person: Person) -> AsyncGenerator[str]:
        """Yield the events of a page."""
        yield "retry: 1000\n\n"
        state: object = None
        sent, quiet = "", 0.0
        while True:
            now = await run_in_threadpool(self._state)
            if now != state or not sent:
                state, text = now, await run_in_threadpool(self.moving, path, person)
                if text != sent:
                    sent, quiet = text, 0.0
                    yield "".join(f"data: {line}\n" for line in text.splitlines()) + "\n"
            await asyncio.sleep(_PAUSE)
            quiet += _PAUSE
            if quiet >= _QUIET:
                quiet = 0.0
                yield ": still here\n\n"

    def _state(self) -> object:
        try:
            return self.folder.state()
        except (SilvanError, OSError) as error:
            return describe(error)

    def moving(self, path: str, person: Person) -> str:
        """Return the changing part of a page as HTML."""
        try:
            page = self._page(path) or Page("", "base.html.jinja", {"problem": "This page no longer exists."})
        except (SilvanError, OSError) as error:
            page = Page("", "base.html.jinja", {"problem": describe(error)})
        template = environment().get_template(page.template)
        context = template.new_context(self._values(page, path, person))
        return "".join(template.blocks["live"](context))

    # -- forms

    async def act(self, request: Request) -> Response:
        """Carry out a form's action, then show the page that it was on."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _MOST_BYTES:
                return self.refusal(413, "That is too much text.")
        form = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        person = _person(request)
        if not self.access.is_form(person, form.get("form", "")):
            return self.refusal(403, "This form was not issued by this page since its last start. Nothing was done.")
        action = self.folder.actions().get(request.path_params["action"])
        if action is None:
            return self.refusal(404, "There is no such action.")
        form["by"] = person.name
        try:
            text, good = await run_in_threadpool(action, form), True
        except (SilvanError, OSError) as error:
            text, good = describe(error), False
        back, name = "/" + form.get("back", "").lstrip("/\\"), secrets.token_hex(8)
        if len(self._notices) >= _MOST_NOTICES:
            del self._notices[next(iter(self._notices))]
        self._notices[name] = text, good
        return RedirectResponse(f"{self.access.root.path}{quote(back)}?notice={name}", status_code=303)


def _person(request: Request) -> Person:
    """Return the person whom the guard recognised."""
    person: Person = request.scope[PERSON]
    return person


def describe(error: Exception) -> str:
    """Return an error as a sentence."""
    if isinstance(error, OSError):
        return f"{error.filename or 'A file'}: {(error.strerror or 'cannot be used').lower()}."
    text = str(error)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def make_app(folder: Folder, access: Access) -> ASGIApp:
    """Return the application that serves a folder's pages."""
    pages = Pages(folder, access)

    async def style(request: Request) -> Response:
        return Response(STYLE.read_text(), media_type="text/css")

    async def mistake(request: Request, error: Exception) -> Response:
        log.error("a bug in silvan: %s", type(error).__name__, exc_info=error)
        return pages.refusal(500, f"A bug in silvan: {type(error).__name__}.")

    app = Starlette(
        routes=[
            Route("/static/report.css", style),
            Mount("/static", StaticFiles(directory=_STATIC)),
            Route("/live/{path:path}", pages.events),
            Route("/act/{action}", pages.act, methods=["POST"]),
            Route("/{path:path}", pages.show),
        ],
        exception_handlers={Exception: mistake},
    )
    return Guard(app, access, pages.refusal)


def _send(file: File) -> Response:
    headers = {"Content-Security-Policy": _REPORT}
    if file.name:
        headers["Content-Disposition"] = f"attachment; filename*=utf-8''{quote(file.name)}"
    return Response(file.data, media_type=file.type, headers=headers)


# -- the socket


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address; raise ``InputError`` if that is impossible, or would open all addresses."""
    if host in _ALL:
        raise InputError.about(
            "host", "must be one address of this machine, the one used to open the page, not all of them"
        )
    try:
        made = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        why = (error.strerror or "no such address").lower()
        raise InputError(f"{host}, port {port} cannot be used ({why}); name another --port or --host") from None
    try:
        yield made
    finally:
        made.close()


def serve(app: ASGIApp, listener: socket.socket) -> None:
    """Serve until interrupted, without logs, since addresses may contain the token."""
    plain: dict[str, Any] = {"http": "h11", "ws": "none", "lifespan": "off", "limit_concurrency": 200}
    silent: dict[str, Any] = {
        "access_log": False,
        "log_level": "critical",
        "server_header": False,
        "proxy_headers": False,
    }
    config = uvicorn.Config(app, timeout_graceful_shutdown=1, **plain, **silent)
    uvicorn.Server(config).run(sockets=[listener])
