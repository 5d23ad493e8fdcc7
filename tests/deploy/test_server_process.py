"""A server that restarts while sites try to reach it."""

import logging

import pytest

pytest.importorskip("nvflare", reason="nvflare is not installed: pip install 'silvan[flare]' to test real sites")

from nvflare.fuel.f3.message import Message
from nvflare.fuel.sec.authn import CellMessageAuthHeaderKey
from nvflare.private.fed.server.fed_server import FederatedServer

from silvan.deploy.service.flare_server import sign_again


def make_server(ready):
    """Returns FLARE's own way of signing, at a server that has its certificate once it is ready."""

    class Server:
        my_own_auth_client_name = my_own_token = "server"  # noqa: S105  its name
        my_own_token_signature = None
        _add_auth_headers = FederatedServer._add_auth_headers

        def sign_auth_token(self, name, token):
            return "signature" if ready else "NA"

        @property
        def logger(self):
            return logging.getLogger("test")

    return Server


@pytest.mark.parametrize(("mended", "last"), [(False, "NA"), (True, "signature")])
def test_an_early_message_does_not_break_signing(mended, last):
    """Without our fix FLARE caches the failed signature; if this test fails, FLARE has fixed it."""
    ready = []
    server_class = make_server(ready)
    if mended:
        sign_again(server_class)
    server, sent = server_class(), []
    for _ in range(2):
        message = Message()
        server._add_auth_headers(message)
        sent.append(message.get_header(CellMessageAuthHeaderKey.TOKEN_SIGNATURE))
        ready.append(True)
    assert sent == ["NA", last]
