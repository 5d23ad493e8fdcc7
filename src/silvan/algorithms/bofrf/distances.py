"""Distances between sites, and clusters of sites around some of them.

A site is a vector of figures. Clusters are found farthest first, as the thesis describes them (Alg. 9): the first
centroid is given or drawn, each further one is the site that is farthest from its own centroid, and every site
belongs to the nearest. Centroids are sites, so a cluster is named by one of its members.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from silvan.errors import InputError

Metric = Literal["manhattan", "euclidean", "minkowski"]
METRICS: tuple[Metric, ...] = get_args(Metric)

_DIGITS = 12
"""Decimals, relative to the largest, to which distances are compared: sums of floats depend on their order."""


def cluster_sites(
    vectors: Mapping[str, Any],
    k: int = 2,
    metric: Metric = "manhattan",
    first: str | None = None,
    random_state: int = 0,
    p: float = 3.0,
) -> dict[str, list[str]]:
    """Divide sites into clusters of those that are near each other.

    Parameters
    ----------
    vectors
        Each site's figures, equally many and in the same order.
    k
        How many clusters.
    metric
        "manhattan", "euclidean" or "minkowski".
    first
        The site that is the first centroid; None: one is drawn.
    random_state
        Decides which one is drawn.
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
        Each site's figures, equally many and in the same order.
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

    Where figures are NaN, two rows are compared by the features that both have, and the sum is scaled up to all
    features that anybody has. ``feature`` says which feature each column belongs to (a feature of several columns is
    there or not as a whole); None: each to its own. Rows with nothing in common have NaN.
    """
    return _norms(table, lambda row, others: np.abs(others - row), power_of(metric, p), feature)


def chance_distances(
    table: np.ndarray,
    rows: Sequence[int] | np.ndarray,
    metric: Metric,
    p: float = 3.0,
    feature: Sequence[int] | np.ndarray | None = None,
) -> np.ndarray:
    """Return about how far apart two sites would be, at most, if both drew their rows from the same source.

    Figures are means of so many rows' values between 0 and 1, so the variance of a value is at most m (1 - m), and is
    that for shares. Differences of means are taken as normal.
    """
    power = power_of(metric, p)
    moment = 2.0 ** (power / 2) * math.gamma((power + 1) / 2) / math.sqrt(math.pi)  # of a standard normal, absolute
    variance = table * (1.0 - table) / np.asarray(rows, np.float64)[:, None]
    found = _norms(variance, lambda row, others: np.sqrt(others + row), power, feature) * moment ** (1.0 / power)
    np.fill_diagonal(found, 0.0)
    return found


def power_of(metric: Metric, p: float) -> float:
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
    """Find k centroids and put every site to the nearest."""
    apart = np.round(apart / (apart.max() or 1.0), _DIGITS)
    centroids = [names.index(first)]
    while len(centroids) < k:
        own = apart[:, centroids].min(axis=1)  # distance to its own centroid
        own[centroids] = -1.0
        centroids.append(int(own.argmax()))
    by_name = sorted(centroids)
    nearest = np.array(by_name)[apart[:, by_name].argmin(axis=1)]
    nearest[centroids] = centroids  # also where two centroids are alike
    return {names[c]: [name for name, n in zip(names, nearest, strict=True) if n == c] for c in centroids}


def draw_first(names: Sequence[str], first: str | None, random_state: int) -> str:
    """Return the first centroid: the one named, or one drawn at random."""
    return names[int(np.random.default_rng(random_state).integers(len(names)))] if first is None else first


# -- checks


def check_clustering(
    names: Sequence[str],
    k: int,
    metric: str,
    first: str | None,
    random_state: int,
    p: float = 3.0,
    called: str = "k",
) -> None:
    """Raise ``InputError`` if clusters cannot be made; ``called`` is what the user calls their number."""
    check_metric(metric, p)
    if isinstance(k, bool) or not isinstance(k, Integral) or not 1 <= k <= len(names):
        raise InputError.wrong(called, f"a whole number from 1 to the {len(names)} sites", k)
    if first is not None and first not in names:
        raise InputError.wrong("first", f"one of the sites ({', '.join(names)}) or None", first)
    if isinstance(random_state, bool) or not isinstance(random_state, Integral) or random_state < 0:
        raise InputError.wrong("random_state", "a whole number of at least 0", random_state)


def check_metric(metric: str, p: float = 3.0) -> None:
    """Raise ``InputError`` for an unknown metric, or a power that is none."""
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
