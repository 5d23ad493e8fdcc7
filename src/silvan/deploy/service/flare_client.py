"""FLARE's client process as silvan starts it: it ends with a message if the coordinator no longer accepts it.

FLARE would try to connect for ever. So whenever a connection has ended, the client asks the coordinator whether the
site is still in the federation: it may have been removed, or stopped because two processes ran under its name.
"""

import os
import secrets
import sys
from pathlib import Path
from typing import Any

from nvflare.fuel.f3.drivers import tcp_driver
from nvflare.fuel.f3.drivers.tcp_driver import TcpDriver
from nvflare.fuel.f3.mpm import MainProcessMonitor
from nvflare.private.fed.app.client.client_train import main as run_client
from nvflare.private.fed.app.client.client_train import parse_arguments
from nvflare.private.fed.app.utils import version_check

from silvan.deploy.membership.enrol import PROCESS, ask_coordinator
from silvan.deploy.membership.site_log import note_error
from silvan.deploy.membership.startup_kit import MEMBER
from silvan.errors import FederationError, SilvanError

REFUSED = 3
"""The exit code of a site that the coordinator no longer accepts."""


def name_this_process() -> None:
    """Identify the process of each connection, so that the coordinator distinguishes a site's restart from its copy."""
    make, name = tcp_driver.get_ssl_context, PROCESS + secrets.token_hex(16)

    def make_named(params: dict[str, Any], ssl_server: bool) -> Any:
        context = make(params, ssl_server)
        if context is not None and not ssl_server:
            context.set_alpn_protocols([name])
        return context

    tcp_driver.get_ssl_context = make_named


def end_when_refused(folder: Path) -> None:
    """End this process if a connection has ended because the site may not connect any more."""
    connect = TcpDriver.connect

    def connect_and_look(driver: Any, connector: Any) -> None:
        try:
            connect(driver, connector)
        finally:
            why = why_refused(folder)
            if why:
                note_error(folder, "", FederationError(why))
                print(why, file=sys.stderr, flush=True)
                os._exit(REFUSED)  # FLARE's threads would keep the process from ending

    TcpDriver.connect = connect_and_look


def why_refused(folder: Path) -> str:
    """Return why the coordinator refuses a site; empty if it does not, or if it does not respond."""
    from silvan.deploy.membership.joined_site import (
        JoinedSite,  # with policies and studies, which few such processes need
    )

    member = JoinedSite(folder)
    try:
        told = ask_coordinator(*member.membership.service)
    except SilvanError:
        return ""
    try:
        member.check_admitted(told)
    except FederationError as error:
        return str(error)
    return ""


def main() -> None:
    """Run FLARE's client, as FLARE's own module does."""
    version_check()
    given = parse_arguments()
    folder = Path(given.workspace).parent
    if (folder / MEMBER).is_file():
        name_this_process()
        end_when_refused(folder)
    sys.exit(MainProcessMonitor.run(main_func=run_client, run_dir=given.workspace, args=given))


if __name__ == "__main__":
    main()
