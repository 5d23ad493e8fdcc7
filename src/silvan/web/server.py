"""Listens for browsers, on this machine's own address unless another is named, and serves the page until stopped."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from silvan.errors import InputError

_ALL = ("", "0.0.0.0", "::", "*")  # noqa: S104  these are refused


@contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Listen at an address; raise ``InputError`` if that cannot be done, or would be at all addresses."""
    if host in _ALL:
        raise InputError.about(
            "host", "must be one address of this machine, by which the page is then opened, not all of them"
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
    """Serve until interrupted; nothing is logged, since addresses may hold the token."""
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        access_log=False,
        log_level="critical",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=1,
        limit_concurrency=200,
    )
    uvicorn.Server(config).run(sockets=[listener])
