"""The members of a federation: its sites, what they agreed on, and the site objects that live in this process."""

from collections.abc import Callable, Mapping

from silvan.data.schema import Schema
from silvan.errors import FederationError, InputError
from silvan.federation.agreement import Agreement, Columns, Differences
from silvan.federation.party import Party, party_of
from silvan.federation.site import Site
from silvan.federation.transport import Transport

OVERALL = "all"
"""The name of all sites together in tables of metrics; no site may have it."""


def check_names(sites: list[str]) -> None:
    """Raise ``InputError`` for invalid or repeated site names."""
    if not sites:
        raise InputError("a federation needs at least one site")
    for name in sites:
        if not name.strip() or not name.isprintable() or name == OVERALL or sites.count(name) > 1:
            raise InputError.about("site", f"cannot be called {name!r}; give every site a name of its own")


class Members:
    """The sites of a federation."""

    sites: list[str]
    transport: Transport
    _agreement: Agreement | None
    agree_later: Callable[[], Agreement] | None

    # -- what sites agreed on

    @property
    def agreement(self) -> Agreement:
        """The sites' agreement; they agree now if they have not yet."""
        if self._agreement is None:
            if self.agree_later is None:
                raise FederationError("the sites have not agreed on a schema yet")
            self._agreement = self.agree_later()
        return self._agreement

    @agreement.setter
    def agreement(self, agreement: Agreement) -> None:
        self._agreement = agreement

    @property
    def schema(self) -> Schema:
        """What the columns mean at all sites."""
        return self.agreement.schema

    @property
    def differences(self) -> Differences:
        """How the sites' tables differ."""
        return self.agreement.differences

    @property
    def rows(self) -> dict[str, int]:
        """Training rows by site; empty where policies withhold them."""
        return self.agreement.rows

    @property
    def columns(self) -> Columns | None:
        """Who holds which columns, in a federation by columns; None in one by rows."""
        return self.agreement.columns

    @property
    def owners(self) -> dict[str, range]:
        """Each party's features by index, in a federation by columns."""
        return {} if self.columns is None else self.columns.owners

    @property
    def label_holder(self) -> str | None:
        """The party that holds the label, in a federation by columns; None if rows can only be scored."""
        return None if self.columns is None else self.columns.label_holder

    # -- sites that live in this process

    @property
    def local_sites(self) -> Mapping[str, Site]:
        """The site objects, if they live in this process: for baselines that may see their rows."""
        return self.transport.local_sites

    def site(self, name: str) -> Site:
        """Return a site object; raise an error if sites live in other processes."""
        if not self.local_sites:
            raise InputError("this needs a federation in this process; its sites live elsewhere")
        if name not in self.local_sites:
            raise InputError(f"there is no site {name!r}; the sites are {', '.join(self.sites)}")
        return self.local_sites[name]

    @property
    def limited(self) -> bool:
        """Whether a site in this process cannot hold all of its rows in memory."""
        return any(site.memory is not None or not site.in_one_place for site in self.local_sites.values())

    def party(self, name: str) -> Party:
        """Return a party object; raise an error if parties live in other processes."""
        return party_of(self.site(name))
