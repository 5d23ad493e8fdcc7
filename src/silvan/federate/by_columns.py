"""Making a federation by columns in this process: tables of different columns about the same rows."""

import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

from silvan.algorithms.vertical.columns import (
    ColumnFederation,
    Columns,
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
from silvan.federate.by_rows import SumsName, make_gate, make_sums
from silvan.federation.journal import Journal
from silvan.federation.party import Party, derived_key
from silvan.federation.signed import make_signers
from silvan.federation.site import Site
from silvan.privacy.gate.gate import Policy
from silvan.privacy.gate.site_folder import make_folders
from silvan.privacy.identity import Match, agree_key, get_to_know, in_common
from silvan.privacy.seal import public_key


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
    sums: SumsName = "trusted",
    policy: Policy | None = None,
    ledgers: str | Path | None = None,
    signed: bool = False,
    cold: bool = False,
    timeout: float | None = None,
    journal: str | None = None,
    n_jobs: int | None = None,
) -> ColumnFederation:
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
    _check(tables, id, test, random_state, task, exclude, match, journal)
    name = "label" if label is None else label
    if schema is not None and label is not None and schema.label.name != label:
        raise InputError(f"the schema's label is {schema.label.name!r}, got label={label!r}")
    policy = Policy() if policy is None else policy
    names = [str(party) for party in tables]
    kept, folders = Journal(journal), make_folders(ledgers, names)
    stores = {party: kept.store(party) for party in names}
    adding, cover = make_sums(sums, {party: public_key(stores[party]) for party in names} if signed else None)
    signer, signers = make_signers(names, {party: f.key for party, f in folders.items()}) if signed else (None, {})
    members: dict[str, Site] = {
        str(party): Party(
            str(party),
            table,
            store=stores[str(party)],
            id_column=id,
            given_key=None if random_state is None else derived_key(int(random_state), "parties"),
            given_secret=None if random_state is None else derived_key(int(random_state), f"secret of {party}"),
            label=name,
            exclude=tuple(exclude),
            outbox=make_gate(policy, folders.get(str(party))),
            cover=cover,
            signer=signers.get(str(party)),
            n_jobs=n_jobs,
        )
        for party, table in tables.items()
    }
    study = f"columns of {', '.join(members)}; id {id}; label {name}; test {test}; random_state {random_state}"
    federation = ColumnFederation(members, adding, cold=cold, timeout=timeout, journal=kept, study=study, signer=signer)
    if journal is not None:
        prints = [member.fingerprint() for member in members.values()]
        federation.journal.belongs_to(f"{study}; exclude {list(exclude)}; match {match}; policy {policy}; {prints}")

    def settle() -> None:
        if random_state is None:
            agree_key(federation)
        _align(federation, id, name, label is not None, test, task, schema, match)
        parties = federation.members.values()
        unknown = [column for column in exclude if not any(column in party.excluded for party in parties)]
        if unknown:
            raise InputError(f"exclude names {unknown[0]!r}, which is not a column of any party")

    if policy.approve:
        federation.agree_later(settle)
    else:
        settle()
    return federation


def _align(
    federation: ColumnFederation,
    id_column: str,
    label: str,
    required: bool,
    test: float,
    task: Task | None,
    schema: Schema | None,
    match: Match,
) -> None:
    replies = get_to_know(federation, id_column, digests=match == "keyed")
    holder = owner_of(replies, label, required)
    if match == "keyed":
        known = {name: party.digests for name, party in replies.items()}
        common = in_common(known)
    else:
        from silvan.privacy.psi import find_common

        known, common = None, find_common(federation, holder or federation.sites[0])
    if schema is None:
        features, found = describe(federation, rows_blob(federation, common), replies, task)
        described = found or Label(label)
    else:
        features, described = given_features(schema, replies), schema.label
    federation.schema = Schema(tuple(f for own in features.values() for f in own), described)
    federation.columns = Columns(stretches(features), holder, common, hold_out(common, test), known)
    federation.differences = left_out(replies, len(common))
    federation.rows = dict.fromkeys(replies, len(federation.columns.training))
    for text in federation.differences.warnings:
        warnings.warn(text, stacklevel=3)


def _check(
    tables: Any,
    id_column: Any,
    test: float,
    random_state: Any,
    task: str | None,
    exclude: Sequence[str],
    match: str,
    journal: str | None,
) -> None:
    if not isinstance(tables, Mapping) or not tables:
        raise InputError("tables must be a dict of tables by party, at least one")
    if len({str(name) for name in tables}) < len(tables):
        raise InputError("two parties have names that read alike; give every party a name of its own")
    if not isinstance(id_column, str) or not id_column:
        raise InputError(f"id must be the name of a column, got {id_column!r}")
    if not 0.0 <= test < 1.0:
        raise InputError(f"test must be at least 0 and below 1, got {test}")
    if task not in (None, "classification", "regression"):
        raise InputError(f"task must be None, 'classification' or 'regression', got {task!r}")
    if random_state is not None and (
        isinstance(random_state, bool) or not isinstance(random_state, Integral) or random_state < 0
    ):
        raise InputError(f"random_state must be None or a whole number of at least 0, got {random_state!r}")
    if isinstance(exclude, str):
        raise InputError(f"exclude must be a list of columns, got {exclude!r}")
    if match not in ("keyed", "psi"):
        raise InputError(f"match must be 'keyed' or 'psi', got {match!r}")
    if journal is not None and random_state is None:
        raise InputError("a journal needs a random_state: a key that parties agreed on does not outlive the process")
