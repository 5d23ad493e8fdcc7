"""Connecting to a database server's port, with a message that says why it cannot be reached."""

import socket

from silvan.errors import InputError


def open_socket(host: str, port: int, timeout: float, server: str) -> socket.socket:
    """Return a connection to a port of a host; ``server`` is what should listen there, for messages."""
    try:
        return socket.create_connection((host, port), timeout)
    except socket.gaierror:
        raise InputError(f"there is no host {host!r}; check the name in the URL, and the network") from None
    except TimeoutError:
        raise InputError(f"{host!r} does not answer within {timeout:g} s; check host, port, firewall") from None
    except OSError:
        raise InputError(
            f"no {server} server listens at {host!r}, port {port}; check host and port, and that it runs"
        ) from None
