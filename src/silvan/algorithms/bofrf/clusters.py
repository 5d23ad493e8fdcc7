"""Clusters of sites whose rows look alike, found before anything is trained (thesis, chapter 5).

A site is described by its characteristic vector: of a numeric feature the mean of its values scaled to 0-1, of a
categorical one the share of each category. All sites must scale alike, and no site's extremes may show. So the
ends of a scale are the bounds of the schema, or else come from the summed counts in the cells of the public grid: the
outer ends of the cells that hold the ``FLOOR``-th lowest and highest row of all sites. Two rounds; one if the schema
has all bounds.
"""

from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.bofrf.distances import Metric, check_clustering, distances, draw_first, farthest_first
from silvan.algorithms.requests import schema_of
from silvan.algorithms.shared_bins import coarse_total
from silvan.data.bins.grid import Grid
from silvan.data.schema import Feature, Schema
from silvan.errors import AgreementError, FormatError, RefusedError
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Ask, Blob, Reply
from silvan.federation.site import Site, answers

DIGITS = 3
"""Decimals of a figure that leaves a site."""

SCALES = 4
"""The most scales on which a site describes a feature: means on many scales would show where single rows lie."""

_LARGEST = float(np.finfo(np.float32).max)
"""The largest value that a row can have."""

_SCALES = "scales of characteristics"
"""The key under which a site's store keeps the scales."""


class Characteristics(Reply, frozen=True, kw_only=True):
    """A site's characteristic vector: means and shares to three decimals, NaN of a feature with too few values."""

    vector: np.ndarray


class Characterise(Ask[Characteristics], frozen=True, kw_only=True):
    """The mean of every numeric column on a common scale of 0 to 1, and the share of every category."""

    once: ClassVar[bool] = True

    schema: Blob
    bounds: np.ndarray  # (features, 2), the ends of each scale; NaN: leave the feature out


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
    if (low >= high).any():
        raise FormatError("the bounds must rise")


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
    """Clusters of sites, members by centroid as ``cluster_sites`` gives them, and how far the sites are apart."""

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
    p: float = 3.0,
) -> Clustering:
    """Divide a federation's sites into clusters by the distances between them."""
    check_clustering(federation.active, k, metric, first, random_state, p, called="clusters")
    vectors = characterise(federation, schema)
    names = list(vectors)  # some may have been lost on the way
    check_clustering(names, k, metric, first, random_state, p, called="clusters")
    apart = find_distances(vectors, schema, metric, p)
    members = farthest_first(names, apart, k, draw_first(names, first, random_state))
    return Clustering(members, names, apart)


def find_distances(
    vectors: dict[str, np.ndarray], schema: Schema, metric: Metric = "manhattan", p: float = 3.0
) -> np.ndarray:
    """Return the distances between characteristic vectors; features that one of two sites lacks are left out."""
    apart = distances(np.stack(list(vectors.values())), metric, p, feature=owners(schema))
    if np.isnan(apart).any():
        alone = np.flatnonzero(np.isnan(apart.diagonal()))  # the sites that have too little themselves
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
            raise FormatError("its vector is of another size than asked for")
        absent = np.add.reduceat(np.isnan(vector), starts, dtype=np.int64)
        if ((vector < 0.0) | (vector > 1.0)).any() or not ((absent == 0) | (absent == sizes)).all():
            raise FormatError("its figures are not between 0 and 1")
        if (~categorical & np.isnan(bounds[:, 0]) & (absent == 0)).any():
            raise FormatError("it describes a feature that was left out")
        off = np.abs(np.add.reduceat(vector, starts) - 1.0)
        if (off > sizes * 10.0**-DIGITS)[categorical & (absent == 0)].any():
            raise FormatError("its shares do not add up")

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
    """Return the outer ends of the cells that hold the FLOOR-th lowest and the FLOOR-th highest row."""
    below = np.cumsum(counts, dtype=np.int64)
    n = int(below[-1])
    if n < FLOOR:
        return np.nan, np.nan
    rank = min(FLOOR, (n + 1) // 2)
    return table_grid.bounds(int(np.searchsorted(below, rank)), int(np.searchsorted(below, n - rank + 1)))


def _edge_bounds(edges: tuple[float, ...]) -> tuple[float, float]:
    """Return the outermost of given cut points; if there is one only, the two ends of a tiny step there."""
    if not edges:
        return np.nan, np.nan
    low, high = edges[0], edges[-1]
    return low, max(high, float(np.nextafter(low, np.inf)))


def _sizes(schema: Schema) -> np.ndarray:
    """Return how many figures of a vector each feature has."""
    return np.array([max(f.n_codes, 1) for f in schema.features], np.int64)


def owners(schema: Schema) -> np.ndarray:
    """Return the feature that each figure of a vector belongs to."""
    return np.repeat(np.arange(len(schema.features)), _sizes(schema))


def figure_names(schema: Schema) -> list[str]:
    """Name the figures of a vector: a feature, or a feature and its category."""
    names = []
    for feature in schema.features:
        if feature.categorical:
            words = [*(feature.categories or ()), *(["other"] if feature.other else [])]
            names += [f"{feature.name} = {word}" for word in words] or [feature.name]
        else:
            names.append(feature.name)
    return names
