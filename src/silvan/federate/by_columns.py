"""Make a federation of columns in this process: tables of different columns about the same rows."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Unpack

from silvan.algorithms.vertical.columns import (
    describe,
    given_features,
    hold_out,
    left_out,
    owner_of,
    rows_blob,
    stretches,
)
from silvan.data.encode import Task
from silvan.data.schema import Label, Schema
from silvan.errors import InputError
from silvan.federate.options import OptionKeywords, Protection, check_common, check_excluded, read_options
from silvan.federation.agreement.agreement import Agreement, Columns
from silvan.federation.federation import Federation
from silvan.federation.party import Party, derived_key
from silvan.federation.site import Site
from silvan.federation.site_table import SiteSettings
from silvan.privacy.identity import Match, agree_key, common_digests, introduce_parties
from silvan.privacy.psi import find_common


@dataclass(frozen=True)
class _Alignment:
    """How rows are matched, and what is known of columns beforehand."""

    id_column: str
    label: str
    label_required: bool
    test: float
    task: Task | None
    schema: Schema | None
    match: Match


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
    match: Match = "keyed",
    **options: Unpack[OptionKeywords],
) -> Federation:
    """Make a federation of parties that hold different columns of the same rows.

    Rows are matched by an id; those that some party lacks take no part. Nobody is shown an id.

    Parameters
    ----------
    tables
        A dict of tables by party: data frames or paths.
    id
        The column that tells rows apart; every table has it.
    label
        The column to predict, which exactly one party holds. None: "label", and it may be lacking; then rows can
        only be scored.
    test
        Share of the rows in common kept for judging, drawn by a keyed hash of the id.
    random_state
        The key by which ids are hashed, rows drawn and the test part chosen derives from it. None: the parties agree
        on a key that nobody else knows, and every federation draws other rows.
    task
        "classification" or "regression"; None: regression if the label is floating point with fractions.
    schema
        What the columns mean, if it is agreed already; found by asking the parties otherwise.
    exclude
        Columns that are not features.
    match
        "keyed": the coordinator sees keyed digests of all ids. "psi": only of those in common, by private set
        intersection (needs ``silvan[psi]``).
    sums
        How ``total`` hides its parts: "trusted", "ring" or "masked".
    policy
        What every party lets out.
    ledgers
        A folder where each party keeps a folder of its own, with its key, its ledger of all that left and the studies
        that were approved.
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
    check_common(test, task, random_state, exclude, may_be_none=True)
    given = read_options("federate_columns", options)
    _check(tables, id, match)
    if given.quorum is not None:
        raise InputError("quorum is for federations by rows: of columns, every party is needed")
    if given.journal is not None and random_state is None:
        raise InputError("a journal needs a random_state: a key that parties agreed on does not outlive the process")
    name = "label" if label is None else label
    if schema is not None and label is not None and schema.label.name != label:
        raise InputError(f"the schema's label is {schema.label.name!r}, got label={label!r}")
    protection = Protection([str(party) for party in tables], given, pinned_seals=False)
    settings = SiteSettings(label=name, exclude=tuple(exclude), n_jobs=given.n_jobs)
    parties: dict[str, Site] = {}
    for party, table in ((str(party), table) for party, table in tables.items()):
        keys = {} if random_state is None else _keys_of(party, int(random_state))
        parties[party] = Party(party, table, settings, id_column=id, **keys, **protection.of(party))
    study = f"columns of {', '.join(parties)}; id {id}; label {name}; test {test}; random_state {random_state}"
    federation = protection.federation(parties, study, given)
    if given.journal is not None:
        prints = [party.fingerprint() for party in parties.values()]
        federation.journal.belongs_to(
            f"{study}; exclude {list(exclude)}; match {match}; policy {protection.policy}; {prints}"
        )

    def agree() -> Agreement:
        if random_state is None:
            agree_key(federation)
        agreement = _align(federation, _Alignment(id, name, label is not None, test, task, schema, match))
        check_excluded(exclude, federation.local_sites, "of any party")
        return agreement

    federation.agree_later(agree)
    if not protection.policy.approve:
        _ = federation.agreement  # parties are asked now, so that trouble shows where the federation is made
    return federation


def _keys_of(party: str, random_state: int) -> dict[str, bytes]:
    """Derive the keys of a study that must be repeatable: all parties' key, and a party's own secret."""
    return {
        "given_key": derived_key(random_state, "parties"),
        "given_secret": derived_key(random_state, f"secret of {party}"),
    }


def _align(federation: Federation, how: _Alignment) -> Agreement:
    """Find the rows in common and what the parties' columns are."""
    replies = introduce_parties(federation, how.id_column, digests=how.match == "keyed")
    holder = owner_of(replies, how.label, how.label_required)
    if how.match == "keyed":
        known = {name: party.digests for name, party in replies.items()}
        common = common_digests(known)
    else:
        known, common = None, find_common(federation, holder or federation.sites[0])
    if how.schema is None:
        features, found = describe(federation, rows_blob(federation, common), replies, how.task)
        label = found or Label(how.label)
    else:
        features, label = given_features(how.schema, replies), how.schema.label
    columns = Columns(stretches(features), holder, common, hold_out(common, how.test), known)
    differences = left_out(replies, len(common))
    for text in differences.warnings:
        warnings.warn(text, stacklevel=5)
    return Agreement(
        Schema(tuple(f for own in features.values() for f in own), label),
        differences,
        dict.fromkeys(replies, len(columns.training)),
        columns,
    )


def _check(tables: Any, id_column: Any, match: str) -> None:
    if not isinstance(tables, Mapping) or not tables:
        raise InputError("tables must be a dict of tables by party, at least one")
    if len({str(name) for name in tables}) < len(tables):
        raise InputError("two parties have names that read alike; give every party a name of its own")
    if not isinstance(id_column, str) or not id_column:
        raise InputError(f"id must be the name of a column, got {id_column!r}")
    if match not in ("keyed", "psi"):
        raise InputError(f"match must be 'keyed' or 'psi', got {match!r}")
