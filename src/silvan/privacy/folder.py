"""A site's folder: its key, its ledger, and the studies that its owner approved."""

from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from urllib.parse import quote

from silvan.errors import InputError
from silvan.federation.keys import Key, read_public
from silvan.files import write_whole
from silvan.privacy.approval import APPROVALS, Approvals
from silvan.privacy.ledger import LEDGER, Ledger

KEY, PUBLIC = "site.key", "site.pub"


class SiteFolder:
    """What a site keeps for good, in files that its owner can read."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @cached_property
    def key(self) -> Key:
        """The site's key; made when it is first needed."""
        self.path.mkdir(parents=True, exist_ok=True)
        key = Key.at(self.path / KEY)
        if not (self.path / PUBLIC).exists():
            write_whole(self.path / PUBLIC, f"{key.public.hex()}\n".encode())
        return key

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger, to write to."""
        return Ledger(self.path, self.key)

    @cached_property
    def approvals(self) -> Approvals:
        """The studies that the owner approved."""
        return Approvals(self.path / APPROVALS)

    def public(self) -> bytes:
        """Read the site's public key."""
        if not (self.path / PUBLIC).is_file():
            raise InputError(f"{self.path / PUBLIC}: there is no public key; pass the one that the site is known by")
        return read_public((self.path / PUBLIC).read_text())


def folder_at(path: str | Path) -> SiteFolder:
    """Find a site's folder by its path, or by that of its ledger."""
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: there is no such folder; give that of a site, or its {LEDGER}")
    return SiteFolder(path.parent if path.is_file() else path)


def make_folders(path: str | Path | None, sites: Iterable[str]) -> dict[str, SiteFolder]:
    """Give each site of a process a folder of its own inside one; none if there is no path."""
    return {} if path is None else {site: SiteFolder(Path(path) / quote(site, safe=" ")) for site in sites}
