"""Names that lead out of a folder: in invitations, and of sites in one process.

The author of an invitation names the site, and by default the site's folder has that name.
"""

import os
import tempfile
from pathlib import Path

import msgspec
from experiments.attacks.outcome import Outcome

from silvan.deploy.membership.coordinator_folder import Invite
from silvan.errors import FormatError, InputError
from silvan.privacy.site_folder import make_folders
from silvan.util.sqlite_file import open_database

NAMES = ("../../etc", "..", ".", "/tmp/elsewhere", "a/b", "a\\b", ".ssh", "a\nb", "", "A", "x" * 200, "server", "a\0b")  # noqa: S108
GOOD = {
    "federation": "heart",
    "site": "north",
    "host": "localhost",
    "port": 8103,
    "root": "",
    "coordinator": "00" * 32,
    "secret": "s",
    "until": "",
}
OTHERS = {"federation": "../x", "host": "a b;c/d", "port": 0, "coordinator": "no key"}


def run(small: bool) -> list[Outcome]:
    """Read invitations with malicious names; check where files are created and who may read them."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made) / "sites"
        taken = [name for name in NAMES if _is_taken(folder.parent, site=name)]
        other = [field for field, value in OTHERS.items() if _is_taken(folder.parent, **{field: value})]
        places = make_folders(folder, ["..", ".", "../..", ".ssh"]).values()
        outside = [place for place in places if place.path.resolve().parent != folder.resolve()]
        open_ = _readable(Path(made))
    return [
        Outcome(f"{len(NAMES)} names of sites in invitations", "13", len(taken)),
        Outcome(f"{len(OTHERS)} other fields of invitations", "4", len(other)),
        Outcome("4 names of sites in one process, outside their folder", "2", len(outside)),
        Outcome("1 database that others on the machine may read", "1", open_),
    ]


def _is_taken(folder: Path, **changed: object) -> bool:
    path = folder / "x.invite"
    path.write_bytes(msgspec.json.encode({**GOOD, **changed}))
    try:
        Invite.read(path)
    except (FormatError, InputError):
        return False
    return True


def _readable(folder: Path) -> int:
    mask = os.umask(0o022)
    try:
        open_database(folder / "budget.sqlite", "the budget", 1, "CREATE TABLE x (y);").close()
    finally:
        os.umask(mask)
    return int(bool((folder / "budget.sqlite").stat().st_mode & 0o077))
