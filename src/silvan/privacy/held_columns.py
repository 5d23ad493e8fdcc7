"""Signed lists of each site's columns: summing a column that only one site has would reveal that site's table.

A site does not see the tables of the others, and cannot rely on the coordinator. So every site signs a list of its
columns, and the coordinator passes the lists on. With ``Policy(min_sites=...)`` a site takes part in a sum only if each
of its own columns in it is known to be at so many sites of the sum.
"""

from collections.abc import Sequence
from typing import ClassVar

import msgspec

from silvan.errors import FormatError, RefusedError
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Derived, Fixed, PartitionsWay, Reply, SignedReply
from silvan.federation.site import Site, answers
from silvan.federation.store import digest
from silvan.util.readable import count_of

# -- messages


class HeldColumns(SignedReply, frozen=True, kw_only=True):
    """Which of the columns the site has; it signs the list."""

    columns: list[str]

    def work(self) -> bytes:
        """Return what is signed."""
        return msgspec.msgpack.encode(sorted(self.columns))


class ListColumns(Ask[HeldColumns], frozen=True, kw_only=True):
    """Which of some columns the site has."""

    partitions: ClassVar[PartitionsWay] = "site"

    columns: Fixed[list[str]]


class ColumnsNoted(Reply, frozen=True, kw_only=True):
    """Confirmation that the site knows the columns of the other sites."""


class NoteColumns(Ask[ColumnsNoted], frozen=True, kw_only=True):
    """Remember which columns the other sites have, as they signed it."""

    of_rows: ClassVar[bool] = False
    partitions: ClassVar[PartitionsWay] = "site"

    lists: Derived[list[Blob]]


# -- at a site


@answers(ListColumns)
def list_columns(site: Site, request: ListColumns) -> HeldColumns:
    """List the columns that the site has."""
    present = {*site.table.names} - {site.label}
    return HeldColumns(columns=[name for name in dict.fromkeys(request.columns) if name in present])


@answers(NoteColumns)
def note_columns(site: Site, request: NoteColumns) -> ColumnsNoted:
    """Store each list for the sites that signed it."""
    known = _known(site, site.study)
    for blob in request.lists:
        try:
            columns = msgspec.msgpack.decode(site.blob(blob.hash), type=list[str])
        except msgspec.DecodeError:
            raise FormatError("not a list of columns") from None
        for owner in site.owners(blob.hash):
            known.setdefault(owner.site, set()).update(columns)
    site.store.put(_key(site.study), msgspec.msgpack.encode(known))
    return ColumnsNoted()


def check_columns(site: Site, study: str, columns: Sequence[str], over: Sequence[str], least: int) -> None:
    """Raise ``RefusedError`` if a sum has a column of this site that too few sites of the sum are known to have."""
    own = [name for name in columns if name in site.table.names]
    known = _known(site, study) if own else {}
    for name in own:
        if sum(name in known.get(other, ()) for other in over) < least:
            raise RefusedError(
                f"the site's policy asks for sums over at least {count_of(least, 'site')}, and fewer are known to have "
                "one of the columns: exclude what only some sites have"
            )


def _known(site: Site, study: str) -> dict[str, set[str]]:
    return msgspec.msgpack.decode(site.store.get(_key(study)) or b"\x80", type=dict[str, set[str]])


def _key(study: str) -> str:
    return f"columns of sites {digest(study.encode())}"


# -- at the coordinator


def share_columns(federation: Federation, columns: Sequence[str]) -> None:
    """Ask every site for its columns, and pass the lists on: two rounds, counted separately."""
    wanted = list(dict.fromkeys(columns))

    def check(site: str, reply: HeldColumns) -> None:
        if not set(reply.columns) <= set(wanted):
            raise FormatError("its columns are not those asked about")

    with federation.counted_apart():
        replies: dict[str, HeldColumns] = federation.ask(ListColumns(columns=wanted), check=check)
        lists = {blob.hash: blob for blob in (federation.work(site, reply) for site, reply in replies.items())}
        federation.ask(NoteColumns(lists=list(lists.values())))
