"""Serves figures for Prometheus, on this machine's loopback address only."""

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from silvan.errors import InputError


def make_metrics_server(port: int, figures: Callable[[], str]) -> ThreadingHTTPServer:
    """Return a server of ``/metrics`` on 127.0.0.1; raise ``InputError`` if the port is in use."""

    class Handler(BaseHTTPRequestHandler):
        server_version, sys_version, timeout = "silvan", "", 20

        def do_GET(self) -> None:
            """Send the figures."""
            known = self.path == "/metrics"
            body = (figures() if known else "there is nothing here\n").encode()
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as http.server calls it
            """Print nothing."""

    try:
        return ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError(f"port {port} cannot be used ({(error.strerror or '').lower()}); name another") from None
