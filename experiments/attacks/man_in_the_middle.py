"""An attacker between a site and the coordinator, who can change the invitation in transit.

The site receives the attacker's coordinator key, root certificate and address, and joins there. The attacker has the
secret of the true invitation and joins in the site's name: with the site's public keys and a certificate for the
attacker's key, so that both ends read the same words; or with the attacker's own keys.
"""

import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from experiments.attacks.outcome import Outcome

from silvan.deploy.membership.certificates import make_key, make_request
from silvan.deploy.membership.coordinator_folder import CoordinatorFiles
from silvan.deploy.membership.enrol import make_server
from silvan.deploy.membership.join_requests import Granted, JoinRequest, proof_key
from silvan.deploy.membership.joined_site import JoinedSite
from silvan.deploy.service.start_stop import free_port
from silvan.errors import SilvanError
from silvan.federation.keys import Key
from silvan.federation.store import MemoryStore

SITE = "north"


def run(small: bool) -> list[Outcome]:
    """Join in a site's name from in between, and compare the words that both ends read."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        true, false = (_make_hub(folder / name) for name in ("true", "false"))
        secret = true.invite(SITE).secret
        passed: list[JoinRequest] = []
        with _serving(false, passed):
            victim = JoinedSite.join(folder / "site", false.invite(SITE), "table.csv", None, {})
        [sent] = passed
        key = make_key(folder / "own.key")
        bare = JoinRequest(site=SITE, secret=secret, request=make_request(key, SITE).decode(), versions=sent.versions)
        theirs = msgspec.structs.replace(sent, secret=secret, request=bare.request)
        own = JoinRequest.make(bare, true.trusted, Key.generate(), MemoryStore(), proof_key(true.key))
        notes, certificates, alike = [], 0, 0
        for asked in (theirs, own):
            try:
                true.admit(asked)
            except SilvanError as error:
                notes.append(str(error).split(":")[0])
                continue
            certificates += asked is theirs
            alike += true.fingerprints()[SITE] == victim.fingerprint
    return [
        Outcome("1 certificate in a site's name, by the site's public keys", "1", certificates, note="; ".join(notes)),
        Outcome("2 ways to intercept with the same words at both ends", "1", alike),
    ]


def _make_hub(folder: Path) -> CoordinatorFiles:
    return CoordinatorFiles.create(folder, "heart", [SITE], "localhost", free_port())


@contextmanager
def _serving(hub: CoordinatorFiles, passed: list[JoinRequest]) -> Iterator[None]:
    """Serve the attacker's coordinator, which keeps the site's requests."""

    class Middle(CoordinatorFiles):
        def admit(self, asked: JoinRequest) -> Granted:
            passed.append(asked)
            return super().admit(asked)

    server = make_server(Middle(hub.path))
    server.server_bind()
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
