"""What a coordinator of parties does before anything is learnt: a key for the parties, rows in common, columns."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from silvan.algorithms.vertical.coded_names import named_feature, named_label
from silvan.algorithms.vertical.columns import DescribeColumns, Description, describe, left_out, owner_of, stretches
from silvan.data.encode import Task
from silvan.data.schema import CROWDED, Label, Schema
from silvan.errors import AgreementError
from silvan.federation.agreement import Agreement, Columns
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.federation.party import Party
from silvan.privacy.identity.identity import (
    DealKey,
    Introduce,
    Introduction,
    Match,
    ShowKey,
    TakeKey,
    agree_key,
    common_digests,
    introduce_parties,
)
from silvan.privacy.identity.psi import HideIds, HideTwice, Intersect, find_common
from silvan.util.readable import count_of, format_names
from silvan.util.user_warnings import warn_user


@dataclass(frozen=True)
class Alignment:
    """How rows are matched, and what is known of columns beforehand.

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
    """Return the kinds of messages by which rows are matched."""
    kinds = ShowKey, DealKey, TakeKey, Introduce
    return (*kinds, HideIds, HideTwice, Intersect) if match == "psi" else kinds


def asks_to_align(match: Match) -> tuple[type[Request], ...]:
    """Return the kinds of messages by which rows are matched and columns described."""
    return (*asks_to_match(match), DescribeColumns)


def agree_on_columns(federation: Federation, how: Alignment) -> Agreement:
    """Find the rows in common and what the parties' columns are; the parties have a key of their own by then."""
    agree_key(federation)
    replies = introduce_parties(federation, how.id_column, digests=how.match == "keyed")
    parties = {name: federation.party(name) for name in replies} if federation.local_sites else {}
    names = {name: party.columns for name, party in parties.items()}
    holder = owner_of(replies, names, how.label, how.label_required)
    wanted = () if how.schema is None else how.schema.names
    absent = [n for n in wanted if parties and not any(n in own for own in names.values())]
    if absent:
        raise AgreementError(f"no party has {format_names(absent)}, which the schema names")
    known, common = _match(federation, replies, how.match, holder or federation.sites[0])
    told = describe(federation, common, replies, how.task, holder, how.test)
    features = {name: told.features[name] for name in replies}
    found = sum(map(len, features.values()))
    if found < len(wanted):
        raise AgreementError(f"the parties have {found} of the {count_of(len(wanted), 'column')} that the schema names")
    coded = Schema(tuple(f for own in features.values() for f in own), told.label or Label(how.label))
    columns = Columns(stretches(features), holder, told.common, told.held_out, coded, known, told.draws)
    differences = left_out(replies, len(common))
    schema = _with_names(parties, told, holder, how) if parties else coded
    crowded = [feature.name for feature in schema.features if feature.crowded]
    differences.warnings += [
        f"column {name!r} {CROWDED}; if they matter, its holder can group them" for name in crowded
    ]
    for text in differences.warnings:
        warn_user(text)
    return Agreement(schema, differences, dict.fromkeys(replies, len(columns.training)), columns)


def _with_names(parties: Mapping[str, Party], told: Description, holder: str | None, how: Alignment) -> Schema:
    """Return the schema by name: where all parties are in this process, whoever called has their tables."""
    named = [named_feature(party, feature) for name, party in parties.items() for feature in told.features[name]]
    label = Label(how.label) if how.schema is None else how.schema.label
    if holder is not None and told.label is not None:
        label = named_label(parties[holder], told.label)
    return Schema(tuple(named), label)


def common_rows(federation: Federation, match: Match, label_holder: str) -> np.ndarray:
    """Find the rows that all parties have, for a model that is there to score: their digests."""
    agree_key(federation)
    replies = introduce_parties(federation, None, digests=match == "keyed")
    return _match(federation, replies, match, label_holder)[1]


def _match(
    federation: Federation, replies: dict[str, Introduction], match: Match, label_holder: str
) -> tuple[dict[str, np.ndarray] | None, np.ndarray]:
    """Return the digests of all parties' rows, if the coordinator sees them, and of those in common."""
    if match == "psi":
        return None, find_common(federation, label_holder)
    known = {name: party.digests for name, party in replies.items()}
    return known, common_digests(known)
