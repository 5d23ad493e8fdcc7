"""Clusters of sites with similar rows, determined before training (thesis, chapter 5).

A site is described by its characteristic vector: the mean of each numeric feature, scaled to 0-1, and the share of
each category. All sites need the same scale, and no site's extremes may be disclosed. So a scale ends at the bounds
of the schema, or otherwise at the outer ends of the cells of the public grid with the ``FLOOR``-th lowest and highest
row of all sites, from summed counts. This takes two rounds, or one if the schema has all bounds.

Clustering is farthest first, as the thesis describes it (Alg. 9): the first centroid is given or random, each further
one is the site farthest from its own centroid, and every site belongs to the nearest. Centroids are
sites, so a cluster is named by one of its members.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import msgspec
import numpy as np

from silvan.algorithms.requests import schema_of
from silvan.algorithms.shared_bins import coarse_total
from silvan.data.bins.grid import Grid
from silvan.data.schema import Feature, Schema
from silvan.errors import AgreementError, FormatError, InputError, RefusedError, reject
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Ask, Blob, Reply
from silvan.federation.site import Site, answers

Metric = Literal["manhattan", "euclidean", "minkowski"]
METRICS: tuple[Metric, ...] = get_args(Metric)

_DIGITS = 12  # distances are compared to this many decimals of the largest: sums of floats depend on their order


DIGITS = 3  # decimals of a value that leaves a site
SCALES = 4  # maximum number of scales per feature: means on many scales would locate single rows
_LARGEST = float(np.finfo(np.float32).max)  # the largest value that a row can have
_SCALES = "scales of characteristics"  # the key under which a site's store keeps the scales


class Characteristics(Reply, frozen=True, kw_only=True):
    """A site's characteristic vector: means and shares to three decimals, NaN for a feature with too few values."""

    vector: np.ndarray


class Characterise(Ask[Characteristics], frozen=True, kw_only=True):
    """The mean of every numeric column on a common scale of 0 to 1, and the share of every category."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    bounds: Agreed[np.ndarray]  # (features, 2), the ends of each scale; NaN: leave the feature out


# -- at a site
@answers(Characterise)
def answer_characterise(site: Site, request: Characterise) -> Characteristics:
    """Describe the training rows."""
    schema = schema_of(site, request.schema)
    _check_bounds(request.bounds, schema)
    _limit_scales(site, schema, request.bounds)
    X = site.part(schema).X
    columns = [_figures(X[:, f], feature, *request.bounds[f]) for f, feature in enumerate(schema.features)]
    return Characteristics(vector=np.round(np.concatenate(columns), DIGITS))


def _check_bounds(bounds: np.ndarray, schema: Schema) -> None:
    if bounds.shape != (len(schema.features), 2) or bounds.dtype != np.float64:
        raise FormatError("the bounds are not those of the schema")
    numeric = np.array([not f.categorical for f in schema.features])
    given = ~np.isnan(bounds).any(axis=1)
    low, high = bounds[given].T
    with np.errstate(over="ignore"):
        finite = np.isfinite(high - low).all()
    if not (np.isnan(bounds[~given]).all() and numeric[given].all() and finite):
        raise FormatError("the bounds are not numbers, or not those of numeric features")
    reject((low >= high).any(), "the bounds must rise")


def _limit_scales(site: Site, schema: Schema, bounds: np.ndarray) -> None:
    """Raise ``RefusedError`` if a column was described on too many scales, or by too many lists of categories."""
    known = msgspec.json.decode(site.store.get(_SCALES) or b"{}", type=dict[str, list[str]])
    present, new = set(site.table.names), False
    for feature, ends in zip(schema.features, bounds.tolist(), strict=True):
        if feature.name not in present or (not feature.categorical and np.isnan(ends[0])):
            continue
        scale = msgspec.json.encode(feature.categories if feature.categorical else ends).decode()
        scales = known.setdefault(feature.name, [])
        if scale not in scales:
            if len(scales) >= SCALES:
                raise RefusedError(f"the site describes a column on at most {SCALES} scales")
            scales.append(scale)
            new = True
    if new:
        site.store.put(_SCALES, msgspec.json.encode(known))


def _figures(column: np.ndarray, feature: Feature, low: float, high: float) -> np.ndarray:
    """Return a feature's part of the vector; NaN if it has too few values."""
    values = column[~np.isnan(column)].astype(np.float64)
    n = max(feature.n_codes, 1) if feature.categorical else 1
    if len(values) < FLOOR or (not feature.categorical and np.isnan(low)):
        return np.full(n, np.nan)
    if feature.categorical:
        return np.bincount(values.astype(np.int64), minlength=n) / len(values)
    with np.errstate(over="ignore"):  # a scale may be a single step
        return np.array([np.mean(np.clip((values - low) / (high - low), 0.0, 1.0))])


# -- at the coordinator
class Clustering(NamedTuple):
    """Clusters of sites (members by centroid, as ``cluster_sites`` returns them) and the distances between sites."""

    members: dict[str, list[str]]
    sites: list[str]
    distances: np.ndarray


def find_clusters(
    federation: Federation,
    schema: Schema,
    k: int,
    metric: Metric = "manhattan",
    first: str | None = None,
    random_state: int = 0,
) -> Clustering:
    """Divide a federation's sites into clusters by the distances between them."""
    check_clustering(federation.active, k, metric, first, random_state, called="clusters")
    vectors = characterise(federation, schema)
    names = list(vectors)  # some may have been lost on the way
    check_clustering(names, k, metric, first, random_state, called="clusters")
    apart = find_distances(vectors, schema, metric)
    members = farthest_first(names, apart, k, draw_first(names, first, random_state))
    return Clustering(members, names, apart)


def find_distances(vectors: dict[str, np.ndarray], schema: Schema, metric: Metric = "manhattan") -> np.ndarray:
    """Return the distances between characteristic vectors; features that one of two sites lacks are left out."""
    apart = distances(np.stack(list(vectors.values())), metric, feature=owners(schema))
    if np.isnan(apart).any():
        alone = np.flatnonzero(np.isnan(apart.diagonal()))  # the sites that have too few values themselves
        pair = (alone[0], alone[0]) if len(alone) else np.argwhere(np.isnan(apart))[0]
        a, b = (list(vectors)[i] for i in pair)
        raise AgreementError(
            f"sites {a!r} and {b!r} cannot be compared: no column has at least {FLOOR} values at both"
            if a != b
            else f"site {a!r} cannot be compared: no column has at least {FLOOR} values there; leave the site out"
        )
    return apart


def characterise(federation: Federation, schema: Schema) -> dict[str, np.ndarray]:
    """Ask every site for its characteristic vector."""
    bounds = find_bounds(federation, schema)
    sizes = _sizes(schema)
    starts, categorical = np.cumsum(sizes) - sizes, np.array([f.categorical for f in schema.features])

    def check(site: str, reply: Characteristics) -> None:
        vector = reply.vector
        if vector.shape != (sizes.sum(),) or vector.dtype != np.float64:
            raise FormatError("its vector is of another size than requested")
        absent = np.add.reduceat(np.isnan(vector), starts, dtype=np.int64)
        if ((vector < 0.0) | (vector > 1.0)).any() or not ((absent == 0) | (absent == sizes)).all():
            raise FormatError("its values are not between 0 and 1")
        if (~categorical & np.isnan(bounds[:, 0]) & (absent == 0)).any():
            raise FormatError("it describes a feature that was left out")
        off = np.abs(np.add.reduceat(vector, starts) - 1.0)
        reject((off > sizes * 10.0**-DIGITS)[categorical & (absent == 0)].any(), "its shares do not add up")

    request = Characterise(schema=federation.blob(schema.to_json().encode()), bounds=bounds)
    replies: dict[str, Characteristics] = federation.ask(request, check=check)
    return {site: reply.vector for site, reply in replies.items()}


def find_bounds(federation: Federation, schema: Schema) -> np.ndarray:
    """Find the ends of every numeric feature's scale; NaN for a feature with too few values, and for categories."""
    bounds = np.full((len(schema.features), 2), np.nan)
    unknown = []
    for f, feature in enumerate(schema.features):
        if feature.bounds is not None:
            bounds[f] = np.clip(feature.bounds, -_LARGEST, _LARGEST)
        elif feature.edges is not None:
            bounds[f] = _edge_bounds(feature.edges)
        elif not feature.categorical:
            unknown.append(f)
    if unknown:
        counts = coarse_total(federation, schema).cells
        table_grid = Grid.for_columns(len(schema.features))
        for f in unknown:
            bounds[f] = grid_bounds(counts[f], table_grid)
    return bounds


def grid_bounds(counts: np.ndarray, table_grid: Grid) -> tuple[float, float]:
    """Return the outer ends of the cells of the FLOOR-th lowest and the FLOOR-th highest row."""
    below = np.cumsum(counts, dtype=np.int64)
    n = int(below[-1])
    if n < FLOOR:
        return np.nan, np.nan
    rank = min(FLOOR, (n + 1) // 2)
    return table_grid.bounds(int(np.searchsorted(below, rank)), int(np.searchsorted(below, n - rank + 1)))


def _edge_bounds(edges: tuple[float, ...]) -> tuple[float, float]:
    """Return the outermost of given cut points; if there is only one, the two ends of a tiny step there."""
    if not edges:
        return np.nan, np.nan
    low, high = edges[0], edges[-1]
    return low, max(high, float(np.nextafter(low, np.inf)))


def _sizes(schema: Schema) -> np.ndarray:
    """Return the number of vector entries per feature."""
    return np.array([max(f.n_codes, 1) for f in schema.features], np.int64)


def owners(schema: Schema) -> np.ndarray:
    """Return the feature of each vector entry."""
    return np.repeat(np.arange(len(schema.features)), _sizes(schema))


def entry_names(schema: Schema) -> list[str]:
    """Name the entries of a vector: a feature, or a feature and its category."""
    names = []
    for feature in schema.features:
        if feature.categorical:
            words = [*(feature.categories or ()), *(["other"] if feature.other else [])]
            names += [f"{feature.name} = {word}" for word in words] or [feature.name]
        else:
            names.append(feature.name)
    return names


# -- distances and clusters of any vectors
def cluster_sites(
    vectors: Mapping[str, Any],
    k: int = 2,
    metric: Metric = "manhattan",
    first: str | None = None,
    random_state: int = 0,
    p: float = 3.0,
) -> dict[str, list[str]]:
    """Divide sites into clusters of similar sites.

    Parameters
    ----------
    vectors
        Each site's metrics, equally many and in the same order.
    k
        How many clusters.
    metric
        "manhattan", "euclidean" or "minkowski".
    first
        The first centroid; None: a random site.
    random_state
        The seed of that choice.
    p
        The power of the Minkowski distance; other metrics do not use it.

    Returns
    -------
    dict
        Members by centroid, each centroid among its members. Centroids are in the order they were found, members
        in the order given. Of two sites equally far, or two centroids equally near, the one given first is taken.

    Examples
    --------
    >>> import silvan as sv
    >>> vectors = {"north": [0.1, 0.9], "east": [0.2, 0.8], "south": [0.9, 0.1], "west": [0.7, 0.2]}
    >>> sv.cluster_sites(vectors, k=2, first="north")
    {'north': ['north', 'east'], 'south': ['south', 'west']}
    """
    names, table = _table(vectors)
    check_clustering(names, k, metric, first, random_state, p)
    return farthest_first(names, distances(table, metric, p), k, draw_first(names, first, random_state))


def site_distances(vectors: Mapping[str, Any], metric: Metric = "manhattan", p: float = 3.0) -> np.ndarray:
    """Return the distance of every site to every other, in the order of the sites.

    Parameters
    ----------
    vectors
        Each site's metrics, equally many and in the same order.
    metric
        "manhattan", "euclidean" or "minkowski".
    p
        The power of the Minkowski distance; other metrics do not use it.

    Returns
    -------
    numpy.ndarray
        Distances, (sites, sites).

    Examples
    --------
    >>> import silvan as sv
    >>> sv.site_distances({"north": [0.0, 0.5], "south": [0.25, 1.0]}).tolist()
    [[0.0, 0.75], [0.75, 0.0]]
    """
    _, table = _table(vectors)
    check_metric(metric, p)
    return distances(table, metric, p)


def distances(
    table: np.ndarray, metric: Metric, p: float = 3.0, feature: Sequence[int] | np.ndarray | None = None
) -> np.ndarray:
    """Return the distances between the rows of a table, (rows, rows).

    If values are NaN, two rows are compared by the features that both have, and the sum is scaled up to all features
    that anybody has. ``feature`` maps columns to features (a feature of several columns is present or absent as a
    whole); None: each column is a feature. Rows with nothing in common have NaN.
    """
    return _norms(table, lambda row, others: np.abs(others - row), power_of(metric, p), feature)


def chance_distances(
    table: np.ndarray,
    rows: Sequence[int] | np.ndarray,
    metric: Metric,
    feature: Sequence[int] | np.ndarray | None = None,
) -> np.ndarray:
    """Return the approximate maximum distance of two sites that sample their rows from the same source.

    The vectors are means of values between 0 and 1 over these numbers of rows, so the variance of a value is at most
    m (1 - m), with equality for shares. Differences of means are assumed normal.
    """
    power = power_of(metric)
    moment = 2.0 ** (power / 2) * math.gamma((power + 1) / 2) / math.sqrt(math.pi)  # of a standard normal, absolute
    variance = table * (1.0 - table) / np.asarray(rows, np.float64)[:, None]
    found = _norms(variance, lambda row, others: np.sqrt(others + row), power, feature) * moment ** (1.0 / power)
    np.fill_diagonal(found, 0.0)
    return found


def power_of(metric: Metric, p: float = 3.0) -> float:
    """Return the power of a metric's terms."""
    return {"manhattan": 1.0, "euclidean": 2.0, "minkowski": float(p)}[metric]


def _norms(
    table: np.ndarray,
    apart: Callable[[np.ndarray, np.ndarray], np.ndarray],
    power: float,
    feature: Sequence[int] | np.ndarray | None,
) -> np.ndarray:
    """Add up powers of the differences between two rows, over the features that both have."""
    starts = np.unique(np.arange(table.shape[1]) if feature is None else feature, return_index=True)[1]
    there = ~np.isnan(table)
    features = there[:, starts]
    n_features = np.count_nonzero(features.any(axis=0))
    found = np.zeros((len(table), len(table)))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        for i, row in enumerate(table):
            terms = np.where(there & there[i], apart(row, table), 0.0) ** power
            scale = n_features / (features & features[i]).sum(axis=1)
            found[i] = (terms.sum(axis=1) * scale) ** (1.0 / power)
    if np.isinf(found).any():
        raise InputError.about("vectors", "are too far apart for a distance; scale the figures to 0-1")
    return found


def farthest_first(names: Sequence[str], apart: np.ndarray, k: int, first: str) -> dict[str, list[str]]:
    """Find k centroids and assign every site to the nearest."""
    apart = np.round(apart / (apart.max() or 1.0), _DIGITS)
    centroids = [names.index(first)]
    while len(centroids) < k:
        own = apart[:, centroids].min(axis=1)  # distance to its own centroid
        own[centroids] = -1.0
        centroids.append(int(own.argmax()))
    by_name = sorted(centroids)
    nearest = np.array(by_name)[apart[:, by_name].argmin(axis=1)]
    nearest[centroids] = centroids  # also if two centroids are equal
    return {names[c]: [name for name, n in zip(names, nearest, strict=True) if n == c] for c in centroids}


def draw_first(names: Sequence[str], first: str | None, random_state: int) -> str:
    """Return the first centroid: the named one, or a random one."""
    return names[int(np.random.default_rng(random_state).integers(len(names)))] if first is None else first


def check_clustering(
    names: Sequence[str], k: int, metric: str, first: str | None, random_state: int, p: float = 3.0, called: str = "k"
) -> None:
    """Raise ``InputError`` if clustering is impossible; ``called`` is the user's name for the number of clusters."""
    check_metric(metric, p)
    if isinstance(k, bool) or not isinstance(k, Integral) or not 1 <= k <= len(names):
        raise InputError.wrong(called, f"a whole number from 1 to the {len(names)} sites", k)
    if first is not None and first not in names:
        raise InputError.wrong("first", f"one of the sites ({', '.join(names)}) or None", first)
    if isinstance(random_state, bool) or not isinstance(random_state, Integral) or random_state < 0:
        raise InputError.wrong("random_state", "a whole number of at least 0", random_state)


def check_metric(metric: str, p: float = 3.0) -> None:
    """Raise ``InputError`` for an unknown metric, or an invalid power."""
    if metric not in METRICS:
        raise InputError.wrong("metric", f"one of {', '.join(map(repr, METRICS))}", metric)
    if isinstance(p, bool) or not isinstance(p, Real) or not (1.0 <= p < math.inf):
        raise InputError.wrong("p", "a number of at least 1", p)


def _table(vectors: Any) -> tuple[list[str], np.ndarray]:
    """Check the vectors and return the sites and a table with a row for each."""
    if not isinstance(vectors, Mapping) or not vectors:
        raise InputError.wrong("vectors", "a dict of figures by site with at least one site", vectors)
    rows: dict[str, np.ndarray] = {}
    for name, vector in vectors.items():
        try:
            row = np.asarray(vector)
        except ValueError:
            row = np.empty(0, object)
        if row.ndim != 1 or row.dtype.kind not in "biuf" or not len(row):
            raise InputError(f"the vector of {name!r} must be a list of numbers, at least one")
        if not np.isfinite(row).all():
            raise InputError(f"the vector of {name!r} has NaN or infinite figures; fill them in or leave them out")
        rows[name] = row.astype(np.float64)
    lengths = {name: len(row) for name, row in rows.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name!r}: {n}" for name, n in lengths.items())
        raise InputError.about("vectors", f"must have the same figures at every site; their lengths are {listed}")
    return list(rows), np.stack(list(rows.values()))
