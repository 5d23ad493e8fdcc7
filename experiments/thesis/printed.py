"""The printed tables of the thesis and what follows from them without data: distances, clusters and Z scores."""

from collections.abc import Iterator
from itertools import product

from experiments.bofrf.combinations import SITES, N, z_scores
from experiments.reproduce.paper import Record, Run

import silvan as sv
from silvan.algorithms.bofrf.clusters import Metric

VECTORS = {
    "CZ": (0.72, 0.68, 0.59, 0.57, 0.82, 0.53, 0.82, 0.60, 0.31, 0.87, 0.92, 0.72, 0.63, 0.86, 0.66),
    "DE": (0.79, 0.45, 0.75, 0.70, 0.81, 0.61, 0.83, 0.64, 0.79, 0.70, 0.91, 0.81, 0.75, 0.90, 0.65),
    "EN": (0.72, 0.74, 0.38, 0.64, 0.87, 0.62, 0.87, 0.93, 0.88, 0.93, 0.93, 0.75, 0.86, 0.88, 0.65),
    "FI": (0.75, 0.41, 0.72, 0.29, 0.82, 0.54, 0.90, 0.75, 0.74, 0.87, 0.96, 0.91, 0.85, 0.93, 0.33),
    "FR": (0.76, 0.68, 0.53, 0.71, 0.58, 0.58, 0.84, 0.94, 0.88, 0.70, 0.92, 0.80, 0.89, 0.83, 0.57),
    "IL": (0.71, 0.66, 0.50, 0.77, 0.78, 0.84, 0.96, 0.75, 0.75, 0.87, 0.95, 0.76, 0.70, 0.93, 0.77),
    "IT": (0.73, 0.59, 0.57, 0.72, 0.62, 0.79, 0.92, 0.68, 0.67, 0.91, 0.90, 0.80, 0.81, 0.94, 0.84),
    "NL": (0.67, 0.47, 0.77, 0.53, 0.78, 0.56, 0.81, 0.74, 0.91, 0.75, 0.94, 0.72, 0.79, 0.87, 0.71),
}
"""Table C.1: the characteristic vectors."""

MEANS = {
    "auc": {
        "CZ": (0.659, 0.026, 0.630, 0.016),
        "DE": (0.688, 0.005, 0.645, 0.021),
        "EN": (0.692, 0.012, 0.681, 0.011),
        "FI": (0.715, 0.019, 0.687, 0.011),
        "FR": (0.714, 0.005, 0.685, 0.004),
        "IL": (0.777, 0.003, 0.751, 0.005),
        "IT": (0.705, 0.015, 0.687, 0.013),
        "NL": (0.781, 0.003, 0.794, 0.008),
    },
    "acc": {
        "CZ": (0.717, 0.017, 0.692, 0.010),
        "DE": (0.663, 0.010, 0.641, 0.014),
        "EN": (0.697, 0.010, 0.686, 0.013),
        "FI": (0.702, 0.005, 0.631, 0.048),
        "FR": (0.646, 0.014, 0.603, 0.013),
        "IL": (0.848, 0.003, 0.834, 0.005),
        "IT": (0.862, 0.008, 0.861, 0.005),
        "NL": (0.773, 0.008, 0.763, 0.016),
    },
}
"""Tables 7.7 and 7.8: mean and standard deviation of BOFRF, and of BOPPID."""

CLUSTERS: dict[str, tuple[Metric, int, str]] = {
    "7.11": ("manhattan", 2, "CZ"),
    "7.12": ("euclidean", 2, "DE"),
    "7.13": ("euclidean", 3, "DE"),
}
"""Metric, number of clusters and first centroid of the three experiments."""

HALF = 0.0005
"""How far a printed figure may be from what was rounded."""


def numbered(members: dict[str, list[str]]) -> dict[str, int]:
    """Return cluster numbers as the thesis does: the first centroid has 1; of three, the last found has 2."""
    order = list(members)
    places = {1: 1, 2: 2} if len(order) == 2 else {1: 1, 2: 3, 3: 2}
    return {site: places[i] for i, centroid in enumerate(order, start=1) for site in members[centroid]}


def follow(what: str) -> Iterator[Record]:
    """Compute one kind of table from printed ones."""
    if what in ("manhattan", "euclidean"):
        apart = sv.site_distances(VECTORS, what)
        for site, row in zip(VECTORS, apart.tolist(), strict=True):
            yield {"site": site} | {other: d for other, d in zip(VECTORS, row, strict=True) if other != site}
    elif what == "clusters":
        found = {t: numbered(sv.cluster_sites(VECTORS, k, metric, first)) for t, (metric, k, first) in CLUSTERS.items()}
        for site in VECTORS:
            yield {"site": site} | {f"clusters_{t}": numbers[site] for t, numbers in found.items()}
    else:
        for site in SITES:
            yield {"site": site} | {k: v for figure in MEANS for k, v in _scores(figure, site).items()}


def _scores(figure: str, site: str) -> Record:
    """Return Z by the thesis's Eq. 7.2 and for two samples, with bounds on the latter due to rounding."""
    a, s, b, t = MEANS[figure][site]
    one, two = z_scores((a, s), (b, t), N)
    ends = [
        z_scores((a + i * HALF, s + k * HALF), (b + j * HALF, t + k * HALF), N)[1]
        for i, j, k in product((-1, 1), repeat=3)
    ]
    return {f"{figure}_z": two, f"{figure}_eq": one, f"{figure}_low": min(ends), f"{figure}_high": max(ends)}


RUN = Run("printed", lambda quick: [{"what": w} for w in ("manhattan", "euclidean", "clusters", "scores")], follow)
