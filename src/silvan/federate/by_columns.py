"""Make a federation of columns in this process: tables of different columns about the same rows."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Unpack

from silvan.data.column_types import Kinds, check_kinds
from silvan.data.groups import NO_GROUPS
from silvan.data.schema import Schema, Task
from silvan.errors import InputError
from silvan.federate.alignment import Alignment, agree_on_columns
from silvan.federate.options import (
    OptionKeywords,
    Options,
    Protection,
    check_common,
    check_excluded,
    check_named,
    shows_options,
)
from silvan.federation.agreement import Agreement
from silvan.federation.federation import Federation
from silvan.federation.party import Match, Party
from silvan.federation.site import Site
from silvan.federation.site_table import SiteSettings

Names = Literal["coded", "shown"]


@shows_options
def federate_columns(
    tables: Mapping[str, Any],
    *,
    id: str,  # noqa: A002
    label: str | None = None,
    test: float = 0.0,
    random_state: int | None = 0,
    task: Task | None = None,
    schema: Schema | None = None,
    exclude: Sequence[str] = (),
    kinds: Kinds | None = None,
    match: Match | None = None,
    names: Names = "coded",
    **options: Unpack[OptionKeywords],
) -> Federation:
    """Make a federation of parties that hold different columns of the same rows.

    Rows are matched by an id; those that some party lacks take no part. Nobody sees an ID: parties agree on a key
    that the coordinator cannot read, and identify a row by a keyed digest.

    Parameters
    ----------
    tables
        A dict of tables by party: data frames or paths.
    id
        The column that identifies rows; every table has it.
    label
        The column to predict, which exactly one party holds. None: "label", which may be missing; then rows can
        only be scored.
    test
        Share of the rows in common held out for evaluation, drawn by a keyed hash of the id.
    random_state
        Decides the test part and, with the label holder's columns, which rows are in which tree: the same tables give
        the same samples again. None: every federation samples other rows.
    task
        "classification" or "regression"; None: regression if the label is floating point with fractions.
    schema
        The meaning of the columns, if agreed already; otherwise the parties agree on it.
    exclude
        Columns that are not features.
    kinds
        The kinds of columns by name, if their cells are ambiguous: "numeric", "categorical" or "date".
    match
        "psi": the coordinator sees keyed digests of the ids in common, found by private set intersection. "keyed": of
        all ids, which takes less time. None: "psi".
    names
        "coded": the coordinator sees numbers for columns, categories and classes; parties keep the names.
        "shown": it sees the names.
    sums
        How ``total`` hides its parts: "trusted", "ring" or "masked".
    policy
        The limits on what every party discloses.
    ledgers
        A folder in which each party has a folder with its key, its ledger of everything that left, and the approved
        studies.
    signed
        Sign and check every message, as between machines.
    cold
        Rebuild the party for every message, as if it had been restarted: slow, for tests.
    quorum
        Must be None: of columns, every party is needed.
    timeout
        Within how many seconds a party must answer; None: any time.
    journal
        A file that keeps every reply, so that an interrupted study goes on where it stopped.
    n_jobs
        Threads; None for all cores.
    device
        Where the pooled baseline grows trees, as for ``federate_rows``; trees over columns grow on the processor.
    transport
        The class that carries messages to parties: ``InProcess``, or one derived from it that loses some.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> bank = pl.DataFrame({"customer": [1, 2, 3], "balance": [10.0, 250.0, 40.0], "label": [0, 1, 0]})
    >>> shop = pl.DataFrame({"customer": [3, 1, 7], "visits": [4, 9, 2]})
    >>> fed = sv.federate_columns({"bank": bank, "shop": shop}, label="label", id="customer")
    >>> fed.rows["shop"], fed.label_holder, fed.schema.names
    (2, 'bank', ('balance', 'visits'))
    """
    if "group" in options:
        raise InputError.about("group", NO_GROUPS)
    check_common(test, task, random_state, exclude, label, may_be_none=True)
    if task == "survival":
        raise InputError.about("task", "'survival' is for sites that hold rows: leaves of shares hold no curves yet")
    given, kinds = Options(**options), check_kinds(kinds or {})
    if any(isinstance(kind, tuple) for kind in kinds.values()):
        raise InputError("kinds: parts of dates are for federations by rows; of columns, a date is its days")
    _check(tables, id, match, names)
    match = match or "psi"
    if given.quorum is not None:
        raise InputError.about("quorum", "is for federations by rows: of columns, every party is needed")
    name = "label" if label is None else label
    if schema is not None and label is not None and schema.label.name != label:
        raise InputError(f"the schema's label is {schema.label.name!r}, got label={label!r}")
    protection = Protection([str(party) for party in tables], given)
    settings = SiteSettings(label=name, exclude=tuple(exclude), kinds=kinds, **given.processing)
    known: dict[str, Any] = {"id_column": id, "match": match, "given": schema, "show_names": names == "shown"}
    known |= {"seals": protection.seals, "seed": None if random_state is None else int(random_state)}
    parties: dict[str, Site] = {
        str(party): Party(str(party), table, settings, **known, **protection.of(str(party)))
        for party, table in tables.items()
    }
    study = f"columns of {', '.join(parties)}; id {id}; label {name}; test {test}; random_state {random_state}"
    federation = protection.federation(parties, study, given)
    if given.journal is not None:
        prints = [party.fingerprint() for party in parties.values()] + ([f"kinds {kinds}"] if kinds else [])
        federation.journal.belongs_to(
            f"{study}; exclude {list(exclude)}; match {match}; names {names}; policy {protection.policy}; {prints}"
        )

    def agree() -> Agreement:
        how = Alignment(name, match, id, label is not None, test, task, schema)
        agreement = agree_on_columns(federation, how)
        check_excluded(exclude, federation.local_sites, "of any party")
        if kinds and schema is None:
            own = [column for party in parties.values() for column in party.table.names]
            check_named(kinds, [*exclude, *own], "of any party")
        return agreement

    federation.agree_later = agree
    if not protection.policy.approve:
        _ = federation.agreement  # parties receive requests now, so that errors appear where the federation is made
    return federation


def _check(tables: Any, id_column: Any, match: str | None, names: str) -> None:
    if not isinstance(tables, Mapping) or not tables:
        raise InputError.about("tables", "must be a dict of tables by party, at least one")
    if len({str(name) for name in tables}) < len(tables):
        raise InputError("two parties have names that read alike; give every party a name of its own")
    if not isinstance(id_column, str) or not id_column:
        raise InputError.wrong("id", "the name of a column", id_column)
    if match not in ("keyed", "psi", None):
        raise InputError.wrong("match", "'keyed' or 'psi', or None for 'psi'", match)
    if names not in ("coded", "shown"):
        raise InputError.wrong("names", "'coded' or 'shown'", names)
