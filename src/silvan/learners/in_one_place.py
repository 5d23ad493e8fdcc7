"""All sites' rows in one place, and each site's alone: for baselines, in one process only."""

from dataclasses import replace
from typing import Any

import numpy as np

from silvan.algorithms.boosting.adaboost import local_boost
from silvan.algorithms.boosting.stumps import Boosting
from silvan.algorithms.horizontal.histogram_forest import binned
from silvan.algorithms.keyed_rows import RowSamples, local_forest, possible_draw
from silvan.algorithms.shared_bins import count_labels, pooled_bins
from silvan.algorithms.vertical.columns import (
    columns_of,
    encode_labels,
    encode_rows,
    label_holder_of,
    row_draws,
    rows_blob,
)
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Blob
from silvan.federation.part import Part
from silvan.federation.party import Party
from silvan.federation.site import Site
from silvan.forest.forest import Forest
from silvan.privacy.identity.identity import places_of
from silvan.tree.fit import Settings, grow_forest
from silvan.tree.leaf_curves import with_curves
from silvan.tree.sampling import SamplingKeys, rows_of_trees
from silvan.util.threads import thread_count


def pooled_rows(federation: Federation, schema: Schema) -> tuple[Part, np.ndarray]:
    """Return all training rows that trees sample from, and the sampling key."""
    if federation.columns is not None:
        label_holder_of(federation.columns)
        return joined(federation, federation.columns.training), row_key_of(federation)
    parts = [federation.site(name).rows_to_sample(schema) for name in federation.active]
    return Part.joined(parts), federation.site(federation.active[0]).sampling_key


def alone_at(federation: Federation) -> list[str]:
    """List the sites that can train a local model."""
    owners = federation.owners
    return [name for name in federation.active if federation.columns is None or len(owners[name])]


def alone(federation: Federation, name: str, schema: Schema) -> tuple[Site, Schema]:
    """Return a site's local training data and its schema; for a party, as if it had the label."""
    if federation.columns is None:
        return federation.site(name), schema
    label_holder_of(federation.columns)
    own, everything = federation.owners[name], joined(federation, federation.columns.training)
    part = Part(np.ascontiguousarray(everything.X[:, own.start : own.stop]), everything.y, everything.row_keys)
    return AloneParty(federation.party(name), part, row_key_of(federation)), own_schema(federation, name)


def settings_alone(federation: Federation, name: str, settings: Settings) -> Settings:
    """Return the settings of local trees; for a party, those for its columns."""
    own = range(len(settings.signs)) if federation.columns is None else federation.owners[name]
    return replace(settings, monotonic_cst=settings.signs[own.start : own.stop])


def local_models(
    federation: Federation, schema: Schema, model: Settings | Boosting, feature_key: np.ndarray
) -> dict[str, Forest]:
    """Train each site's local model; a party's forest uses its own columns."""
    found = {}
    for name in alone_at(federation):
        if isinstance(model, Boosting):
            found[name] = local_boost(federation.site(name), schema, model)
            continue
        settings = settings_alone(federation, name, model)
        found[name] = local_forest(*alone(federation, name, schema), settings, feature_key, model.n_estimators)
    return found


class AloneParty(Site):
    """A party's columns with the label, as one site: the baseline of a party that does not join."""

    def __init__(self, party: Party, rows: Part, row_key: np.ndarray) -> None:
        super().__init__(party.name, party.source, sampling_key=row_key, n_jobs=party.n_jobs)
        self.rows = rows

    def part(self, schema: Schema, test: bool = False, *, strict: bool = True) -> Part:
        """Return the training rows."""
        return self.rows


def sampled_rows(federation: Federation, schema: Schema, draws: RowSamples) -> np.ndarray:
    """Return which rows each tree sampled: bool (trees, all sites' training rows).

    Trees grown from sums come first and sample rows of all sites; a site's trees sample its rows only.
    """
    if not draws.owners:
        rows, key = pooled_rows(federation, schema)
        return rows_of_trees(key, rows.one_of_each().row_keys, 0, sum(draws.sizes), draws.bootstrap)
    n_trees = {"": 0, **dict.fromkeys(federation.active, 0), **dict(zip(draws.owners, draws.sizes, strict=True))}
    tree = n_trees.pop("")
    parts = {name: federation.site(name).part(schema) for name in n_trees}
    drawn = np.zeros((sum(draws.sizes), sum(map(len, parts.values()))), np.bool_)
    if tree:
        drawn[:tree] = sampled_rows(federation, schema, RowSamples((tree,), bootstrap=draws.bootstrap))
    row = 0
    for name, n in n_trees.items():
        site, part = federation.site(name), parts[name]
        possible = possible_draw(site, part, draws.bootstrap, n) if n else False
        own = rows_of_trees(site.sampling_key, part.row_keys, 0, n, possible)
        drawn[tree : tree + n, row : row + len(part)] = own
        tree, row = tree + n, row + len(part)
    return drawn


# -- columns


def own_schema(federation: Federation, name: str) -> Schema:
    """Return the schema of one party's columns."""
    own = federation.owners[name]
    return Schema(federation.schema.features[own.start : own.stop], federation.schema.label)


def joined(federation: Federation, digests: np.ndarray) -> Part:
    """Join the parties' columns of some rows, with the label if there is one."""
    blob = rows_blob(federation, digests)
    columns = [
        encode_rows(_informed(federation, name, blob), own_schema(federation, name), blob) for name in federation.owners
    ]
    y, words = np.zeros(0), np.zeros(len(digests), np.uint64)
    if federation.label_holder is not None:
        y = encode_labels(_informed(federation, federation.label_holder, blob), federation.schema.label, blob)
        words = row_draws(_informed(federation, federation.label_holder, blob), columns_of(federation).draws, blob)[1]
    return Part(np.ascontiguousarray(np.concatenate(columns, axis=1)), y, words)


def row_key_of(federation: Federation) -> np.ndarray:
    """Return the sampling key of all parties."""
    columns = columns_of(federation)
    blob = rows_blob(federation, columns.training)
    return row_draws(_informed(federation, federation.sites[0], blob), columns.draws, blob)[0]


def joined_test_rows(federation: Federation) -> Part:
    """Return the test rows, of all columns."""
    columns = columns_of(federation)
    label_holder_of(columns)
    if not len(columns.test):
        raise InputError("there are no test rows: set test=0.2 when the federation is made, or pass a table")
    return joined(federation, columns.test)


def id_column(federation: Federation) -> str:
    """Return the name of the id column."""
    return federation.party(federation.sites[0]).id_column


def list_rows(federation: Federation, digests: np.ndarray) -> tuple[np.ndarray, list[Any]]:
    """List rows in the order of the parties' tables, starting with the first party: the order, and the ids.

    Ids are for the caller, who has the tables; no message contains them.
    """
    orders, ids, blob = [], [], rows_blob(federation, digests)
    left = np.ones(len(digests), np.bool_)
    for name in federation.sites:
        places = places_of(_informed(federation, name, blob), blob)
        here = np.flatnonzero(left & (places >= 0))
        here = here[np.argsort(places[here])]
        orders.append(here)
        ids += federation.party(name).rows_at(places[here])[id_column(federation)].to_list()
        left[here] = False
    return np.concatenate(orders), ids


def _informed(federation: Federation, name: str, blob: Blob) -> Party:
    """Return a party after storing a blob there without a message."""
    one = federation.party(name)
    one.store.put(f"blob {blob.hash}", federation.content(blob))
    return one


def pooled_forest(federation: Federation, schema: Schema, settings: Settings, feature_key: np.ndarray) -> Forest:
    """Grow the forest of all sites' training rows, with all rows at hand."""
    rows, row_key = pooled_rows(federation, schema)
    bins = pooled_bins(rows.one_of_each(), schema, settings.max_bins)
    measure = settings.measure(schema, count_labels(rows, schema))
    first = federation.site(federation.active[0])
    threads = thread_count(first.n_jobs)
    table = binned(rows, bins, measure, threads)
    plan = settings.federated_plan(len(schema.features))
    # between parties, only they know what decides between equal gains
    keys = SamplingKeys(row_key, feature_key, feature_key if federation.columns is None else row_key)
    forest = grow_forest(table, measure, schema, settings, plan, keys, threads, first.device)
    if not measure.times:
        return forest
    drawn = rows_of_trees(row_key, rows.row_keys, 0, len(forest), settings.row_sampling)
    return with_curves(forest, measure, rows.X, measure.codes(rows.y), drawn, threads)
