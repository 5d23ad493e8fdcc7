"""Keyed sampling of a site's rows: samples of trees, folds, resamples, and validation rows.

A sample is a hash of a key and a purpose, so that a site gives the same reply after a restart.
``silvan.tree.sampling`` numbers the purposes.
"""

from dataclasses import replace

import msgspec
import numpy as np

from silvan.algorithms.requests import MAX_TREES
from silvan.algorithms.shared_bins import count_labels
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, RefusedError, reject
from silvan.federation.describe import FLOOR
from silvan.federation.part import Part
from silvan.federation.site import Site
from silvan.forest.forest import Forest
from silvan.tree.fit import Settings, fit_forest
from silvan.tree.objectives import Target
from silvan.tree.sampling import (
    DRAW_STEPS,
    FOLDS,
    RESAMPLES,
    VALIDATION,
    RowSampling,
    SamplingKeys,
    draw_limit,
    hash_each,
    key_of_site,
    mix,
    persons_of,
    rows_of_trees,
    siphash,
)
from silvan.util.kernels import njit

U = np.uint64


def hash_rows(key: np.ndarray, row_keys: np.ndarray, purpose: int) -> np.ndarray:
    """Hash every row's key, for one of the purposes in ``silvan.tree.sampling``."""
    out = np.empty(len(row_keys), np.uint64)
    hash_each(key, U(purpose) << U(56), row_keys, out)
    return out


def folds_of(key: np.ndarray, row_keys: np.ndarray, groups: np.ndarray, n_folds: int) -> np.ndarray:
    """Return every row's fold: each group of rows is divided evenly, in an order that the key decides."""
    order = np.lexsort((hash_rows(key, row_keys, FOLDS), groups))
    fold = np.empty(len(order), np.int64)
    fold[order] = np.arange(len(order)) % n_folds
    return fold


@njit(nogil=True, cache=True)
def draw_times(key: np.ndarray, number: int, starts: np.ndarray, order: np.ndarray, times: np.ndarray) -> None:
    """Sample each group with replacement, at its full size; write into ``times`` how often each row was sampled.

    Group g is ``order[starts[g] : starts[g + 1]]``.
    """
    state = siphash(key, U(RESAMPLES) << U(56), U(number))
    times[:] = 0
    for g in range(starts.shape[0] - 1):
        n = starts[g + 1] - starts[g]
        for _ in range(n):
            state += U(0x9E3779B97F4A7C15)
            times[order[starts[g] + np.int64(((mix(state) >> U(32)) * U(n)) >> U(32))]] += 1


_FEW = 64  # with fewer rows, scaled by the share that trees sample, it can happen that no tree samples any
_SMALL = 0.1  # smaller samples of a small table disclose single rows in a tree's sums


def possible_draw(site: Site, part: Part, draw: RowSampling, n_trees: int) -> RowSampling:
    """Return how trees sample rows: all rows, if otherwise no tree would sample any."""
    keys = persons_of(part.row_keys)
    if not draw or len(keys) * draw_limit(draw) >= _FEW * draw_limit(True):
        return draw
    return draw if rows_of_trees(site.sampling_key, keys, 0, n_trees, draw).any() else False


def check_sampling(n_rows: int, draw: RowSampling) -> None:
    """Raise ``RefusedError`` if the share of a site's rows is so small that sums over a tree disclose single rows."""
    if draw and draw < _SMALL and n_rows * draw_limit(draw) < FLOOR * DRAW_STEPS:
        raise RefusedError(
            f"trees sample too few of the site's rows: a share below {_SMALL} must leave {FLOOR} of them"
        )


def drawn_by_place(
    site: Site, part: Part, draw: RowSampling, n_own: int, n_places: int, taken: np.ndarray | None = None
) -> np.ndarray:
    """Return the rows that trees sample at a site, by the trees' position among their owner's: bool (places, rows).

    The first tree of another site samples the same rows as the first of this site's ``n_own`` trees, and so on.
    ``taken`` restricts the rows.
    """
    possible = possible_draw(site, part, draw, n_own or n_places)
    keys = part.row_keys if taken is None else part.row_keys[taken]
    return rows_of_trees(site.sampling_key, keys, 0, n_places, possible)


class RowSamples(msgspec.Struct, frozen=True):
    """The rows that the trees of a model sampled, as far as sites can compute them from their keys.

    ``sizes`` are the numbers of trees of each of ``owners``, one site after the other. Trees with owner "", or without
    owners, were grown from sums and sampled rows of all sites. After leaf re-estimation, the i-th tree of every site
    sampled rows of all sites.
    """

    sizes: tuple[int, ...]
    owners: tuple[str, ...] = ()
    bootstrap: RowSampling = True
    refitted: bool = False


def rows_sampled(
    site: Site, part: Part, draws: RowSamples, taken: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return samples of the site's rows, bool (samples, rows), and the index of each tree's sample, -1 for none.

    ``taken`` restricts the rows.
    """
    owners, sizes = draws.owners or ("",), draws.sizes
    places = np.concatenate([np.arange(size) for size in sizes])
    here = np.repeat([draws.refitted or owner in ("", site.name) for owner in owners], sizes)
    own = [size for owner, size in zip(owners, sizes, strict=True) if owner == site.name]
    n_own = own[0] if own else 0 if draws.owners else sizes[0]
    return drawn_by_place(site, part, draws.bootstrap, n_own, max(sizes), taken), np.where(here, places, -1)


def check_samples(draws: RowSamples, n_trees: int | None = None) -> None:
    """Raise ``FormatError`` for invalid numbers of trees, or if they do not match their sites or trees."""
    owners = draws.owners or ("",)
    if len(draws.sizes) != len(owners) or min(draws.sizes) < 0 or n_trees not in (None, sum(draws.sizes)):
        raise FormatError("the trees' samples do not match their sites")


SHARES = 4  # maximum number of validation shares at a site: two similar ones would single out rows
_SHARES = "shares split off"  # key of the shares in a site's store


def learning_rows(site: Site, schema: Schema, validation: float) -> tuple[Part, Part]:
    """Hold out a share of the training rows by class; return the remaining rows and the held-out ones."""
    reject(not 0.0 <= validation <= 0.5, "the share of rows to split off must be between 0 and a half")
    part = site.part(schema)
    held = np.zeros(len(part), np.bool_)
    if validation > 0.0:
        _limit_shares(site, validation)
        drawn = hash_rows(site.sampling_key, part.row_keys, VALIDATION)
        groups = part.y if schema.n_classes else np.zeros(len(part), np.int64)
        carry = 0.5
        for group in np.unique(groups):
            rows = np.flatnonzero(groups == group)
            share = validation * len(rows) + carry
            held[rows[np.argsort(drawn[rows], kind="stable")[: int(share)]]] = True
            carry = share - int(share)  # carry the rounding error over to the next class
        if held.all():
            held[:] = False
    return part.some(~held), part.some(held)


def rows_of_persons(site: Site, schema: Schema, part: Part) -> Part:
    """Return the rows that trees sample from, for the persons in ``part``."""
    rows = site.rows_to_sample(schema)
    if rows.row_keys.dtype.names is None:
        return part
    return rows.some(np.isin(rows.row_keys["person"], part.row_keys))


def _limit_shares(site: Site, share: float) -> None:
    """Raise ``RefusedError`` if rows were held out by too many different shares, restarts included."""
    known = msgspec.json.decode(site.store.get(_SHARES) or b"[]", type=list[float])
    if share not in known:
        if len(known) >= SHARES:
            raise RefusedError(
                f"the site splits rows off by at most {SHARES} different shares: set validation to one of them"
            )
        site.store.put(_SHARES, msgspec.json.encode([*known, share]))


# -- local forests, to compare with and to send
def _target(settings: Settings, schema: Schema, part: Part) -> Target:
    """Return the target of rows that trees sample; for persons with several rows, consistent with counts."""
    if part.row_keys.dtype.names is None:
        return settings.target(schema, part.y)
    measure = settings.measure(schema, count_labels(part, schema))
    return Target.of(measure, part.y)


def local_forest(
    site: Site, schema: Schema, settings: Settings, feature_key: np.ndarray, n_trees: int, part: Part | None = None
) -> Forest:
    """Grow trees on a site's training rows, or on those of ``part``, which has one row per person."""
    if not 1 <= n_trees <= MAX_TREES:
        raise InputError(f"the trees of a site must be 1 to {MAX_TREES}, got {n_trees}")
    reject(feature_key.shape != (2,) or feature_key.dtype != np.uint64, "a key is two numbers of 64 bits")
    part = site.rows_to_sample(schema) if part is None else rows_of_persons(site, schema, part)
    target = _target(settings, schema, part)
    if not possible_draw(site, part, settings.row_sampling, n_trees):
        settings = replace(settings, bootstrap=False, max_samples=None)
    return fit_forest(
        part.X,
        target,
        schema,
        replace(settings, n_estimators=n_trees),
        SamplingKeys(site.sampling_key, key_of_site(feature_key, site.name)),
        row_keys=part.row_keys,
        n_jobs=site.n_jobs,
        device=site.device,
        floor=FLOOR,
    ).forest
