"""FLARE's server process as silvan starts it: on one port with joining (``one_port.py``), and with a bug fixed.

A FLARE server attaches a signature to all messages, which it creates once. If a site's message arrives after the server
began to listen but before it has read its own certificate, as happens when a server restarts while sites try to reach
it, FLARE 2.9 stores an empty signature permanently: nobody accepts the server's messages until it is restarted. Here a
failed signature is created again for the next message.
"""

import sys
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.server.server_train import main as run_server
from nvflare.private.fed.app.server.server_train import parse_arguments
from nvflare.private.fed.app.utils import version_check
from nvflare.private.fed.server.fed_server import FederatedServer

from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.enrol import write_log
from silvan.deploy.service.one_port import Gatekeeper, listen_on_one_port

_UNSIGNED = "NA"
"""What FLARE keeps in place of a signature that it could not make."""


def sign_again(server_class: Any) -> None:
    """Make servers create the signature of their messages again until it succeeds."""
    sign = server_class._add_auth_headers

    def sign_if_unsigned(server: Any, message: Any) -> None:
        if server.my_own_token_signature == _UNSIGNED:
            server.my_own_token_signature = None
        sign(server, message)

    server_class._add_auth_headers = sign_if_unsigned


def forget_sites(gatekeeper: Gatekeeper, server_class: Any) -> None:
    """Make servers forget that a site is there once its connections are closed for good."""
    deploy = server_class.deploy

    def deploy_and_remember(server: Any, *given: Any, **named: Any) -> Any:
        def forget(site: str) -> None:
            for token, client in list(server.client_manager.get_clients().items()):
                if client.name == site:
                    server.logout_client(token)

        gatekeeper.forget = forget
        return deploy(server, *given, **named)

    server_class.deploy = deploy_and_remember


def main() -> None:
    """Run FLARE's server, as FLARE's own module does."""
    sign_again(FederatedServer)
    version_check()
    given = parse_arguments()
    hub = CoordinatorFiles(Path(given.workspace).parent)
    write_log(hub)
    forget_sites(listen_on_one_port(hub), FederatedServer)
    sys.exit(MainProcessMonitor.run(main_func=run_server, run_dir=given.workspace, args=given))


if __name__ == "__main__":
    main()
