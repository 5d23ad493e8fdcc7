"""The coordinator's steps before training over columns: a key for the parties, common rows, columns."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from silvan.algorithms.vertical.coded_names import named_feature, named_label
from silvan.algorithms.vertical.columns import DescribeColumns, describe, left_out, owner_of
from silvan.data.schema import CROWDED, Label, Schema, Task
from silvan.errors import AgreementError
from silvan.federation.agreement import Agreement, Columns
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.federation.party import Match, Party
from silvan.privacy.identity.identity import Introduce, Introduction, common_digests, introduce_parties
from silvan.privacy.identity.psi import HideIds, HideTwice, Intersect, find_common
from silvan.privacy.identity.shared_key import DealKey, TakeKey, share_key
from silvan.util.readable import count_of, format_names
from silvan.util.user_warnings import warn_user


@dataclass(frozen=True)
class Alignment:
    """How rows are matched, and what is known about columns beforehand.

    Without an ``id_column`` every party's own is called as the party likes.
    """

    label: str
    match: Match
    id_column: str | None = None
    label_required: bool = True
    test: float = 0.0
    task: Task | None = None
    schema: Schema | None = None


def asks_to_match(match: Match) -> tuple[type[Request], ...]:
    """Return the kinds of messages that match rows."""
    kinds = DealKey, TakeKey, Introduce
    return (*kinds, HideIds, HideTwice, Intersect) if match == "psi" else kinds


def asks_to_align(match: Match) -> tuple[type[Request], ...]:
    """Return the kinds of messages that match rows and describe columns."""
    return (*asks_to_match(match), DescribeColumns)


def agree_on_columns(federation: Federation, how: Alignment) -> Agreement:
    """Find the common rows and the parties' columns; the parties already share a key."""
    share_key(federation)
    replies = introduce_parties(federation, how.id_column)
    parties = {name: federation.party(name) for name in replies} if federation.local_sites else {}
    names = {name: party.columns for name, party in parties.items()}
    holder = owner_of(replies, names, how.label, how.label_required)
    wanted = () if how.schema is None else how.schema.names
    absent = [n for n in wanted if parties and not any(n in own for own in names.values())]
    if absent:
        raise AgreementError(f"no party has {format_names(absent)}, which the schema names")
    known, common = _match(federation, replies, how.match, holder or federation.sites[0])
    told = describe(federation, common, replies, how.task, how.label, holder, how.test)
    columns, found = replace(told, known=known), len(told.schema.features)
    if found < len(wanted):
        raise AgreementError(f"the parties have {found} of the {count_of(len(wanted), 'column')} that the schema names")
    differences = left_out(replies, len(common))
    schema = _with_names(parties, columns, how) if parties else columns.schema
    crowded = [feature.name for feature in schema.features if feature.crowded]
    differences.warnings += [
        f"column {name!r} {CROWDED}; if they matter, its holder can group them" for name in crowded
    ]
    for text in differences.warnings:
        warn_user(text)
    return Agreement(schema, differences, dict.fromkeys(replies, len(columns.training)), columns)


def _with_names(parties: Mapping[str, Party], columns: Columns, how: Alignment) -> Schema:
    """Return the schema with names: if all parties are in this process, the caller has their tables."""
    coded, holder = columns.schema, columns.label_holder
    named = [named_feature(parties[name], coded.features[i]) for name, own in columns.owners.items() for i in own]
    label = Label(how.label) if how.schema is None else how.schema.label
    return Schema(tuple(named), label if holder is None else named_label(parties[holder], coded.label))


def common_rows(federation: Federation, match: Match, label_holder: str) -> np.ndarray:
    """Find the rows that all parties have, for scoring with an existing model: their digests."""
    share_key(federation)
    replies = introduce_parties(federation, None)
    return _match(federation, replies, match, label_holder)[1]


def _match(
    federation: Federation, replies: dict[str, Introduction], match: Match, label_holder: str
) -> tuple[dict[str, np.ndarray] | None, np.ndarray]:
    """Return the digests of all parties' rows, if the coordinator sees them, and those of common rows."""
    if match == "psi":
        return None, find_common(federation, label_holder)
    known = {name: party.digests for name, party in replies.items()}
    return known, common_digests(known)
