"""Blobs of a coordinator: large things that requests refer to by hash, who made them, and who was sent them."""

from collections import defaultdict
from collections.abc import Iterable

from silvan.federation.message import Blob, Owner
from silvan.federation.store import digest


class Blobs:
    """What requests refer to. A blob travels once to each site, unless the site says that it lacks it."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}
        self._makers: dict[str, list[Owner]] = {}
        self._sent: defaultdict[str, set[str]] = defaultdict(set)  # hashes by site

    def add(self, data: bytes) -> Blob:
        """Return a reference to something large."""
        name = digest(data)
        self._contents[name] = data
        return Blob(name)

    def add_work(self, data: bytes, maker: Owner) -> Blob:
        """Return a reference to what a site made and signed."""
        blob = self.add(data)
        known = self._makers.setdefault(blob.hash, [])
        if maker not in known:
            known.append(maker)
        return blob

    def content(self, blob: Blob) -> bytes:
        """Return what a blob stands for."""
        return self._contents[blob.hash]

    def makers(self, blob: Blob) -> list[Owner]:
        """Return the sites that made and signed what a blob holds."""
        return self._makers.get(blob.hash, [])

    def makers_by_hash(self, hashes: Iterable[str]) -> dict[str, list[Owner]]:
        """Return the makers of those blobs that sites made."""
        return {name: self._makers[name] for name in hashes if name in self._makers}

    def not_sent(self, site: str, hashes: Iterable[str]) -> list[str]:
        """Return the blobs that a site was not sent yet."""
        return [name for name in hashes if name not in self._sent[site]]

    def send(self, site: str, hashes: Iterable[str]) -> dict[str, bytes]:
        """Return blobs for a message to a site, which counts as having them from now on."""
        contents = {name: self._contents[name] for name in hashes}
        self._sent[site].update(contents)
        return contents
