"""Advice on which sites should train together, from distances between sites, before anything is trained.

Clusters are suggested by one rule. All numbers from 2 to ``MOST`` (and fewer than the sites) are tried, with every
site as the first centroid unless one is named. Divisions with two centroids less than ``FAR`` times as far apart as
expected by chance are left out; among the others, the clusters with the highest mean silhouette are suggested, in a
tie the fewest. If none reaches ``LEAST``, one cluster of all sites is suggested.
"""

from dataclasses import dataclass
from html import escape
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from silvan.algorithms.bofrf.clusters import (
    Metric,
    chance_distances,
    characterise,
    check_clustering,
    entry_names,
    farthest_first,
    find_distances,
    owners,
)
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.util.readable import format_count

if TYPE_CHECKING:
    import polars as pl

LEAST = 0.25  # a mean silhouette below this is commonly read as no clear clusters
FAR = 2.0  # by chance, hardly any pair of sites is this many times as far apart as the average pair
MOST = 10  # maximum number of clusters to try
WIDE = 12  # maximum number of sites whose distances are printed; ``Advice.frame`` has those of more


@dataclass(frozen=True, repr=False, eq=False)
class Advice:
    """Distances between sites, clusters of them, and both in plain words; ``advise`` makes it, ``print`` shows it.

    Parameters
    ----------
    sites
        The sites, in the order of the rows and columns of ``distances``.
    distances
        The distance of every site to every other.
    chance
        The approximate maximum of the average distance if all sites sampled the same source.
    metric
        The distance that was used: "manhattan", "euclidean" or "minkowski".
    clusters
        Members by centroid, as ``cluster_sites`` returns them.
    suggested
        Whether the number of clusters was suggested, not requested.
    silhouettes
        The best mean silhouette for each number of clusters that was tried; empty if there are only two sites.
    entries, vectors
        The names of the entries of a characteristic vector, and each site's vector; NaN if it has too few
        values.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> large = X[:, 0] > 15
    >>> fed = sv.federate_rows({"north": (X[large, :3], y[large]), "south": (X[~large, :3], y[~large])})
    >>> advice = sv.advise(fed)
    >>> print(advice)
    Manhattan distances
           north  south
    north      -   0.99
    south   0.99      -
    <BLANKLINE>
    north is nearest to south (0.99); it differs most in x2 (0.66, elsewhere 0.24).
    south is nearest to north (0.99); it differs most in x2 (0.24, elsewhere 0.66).
    Two sites are too few to suggest clusters:
    - north and south, around north
    BOFRF() trains all sites together.
    """

    sites: list[str]
    distances: np.ndarray
    chance: np.ndarray
    metric: Metric
    clusters: dict[str, list[str]]
    suggested: bool
    silhouettes: dict[int, float]
    entries: list[str]
    vectors: dict[str, np.ndarray]

    @property
    def k(self) -> int:
        """The number of clusters."""
        return len(self.clusters)

    def nearest(self, site: str) -> list[tuple[str, float]]:
        """Return the other sites and their distances, the nearest first."""
        if site not in self.sites:
            raise InputError(f"there is no site {site!r}; the sites are {', '.join(self.sites)}")
        row = self.distances[self.sites.index(site)]
        order = [i for i in np.argsort(row, kind="stable") if self.sites[i] != site]
        return [(self.sites[i], float(row[i])) for i in order]

    def frame(self) -> "pl.DataFrame":
        """Return a table with a row for each site: its cluster, the nearest and farthest site, and all distances."""
        import polars as pl

        cluster_of = {site: centroid for centroid, members in self.clusters.items() for site in members}
        return pl.DataFrame(
            [
                {
                    "site": site,
                    "cluster": cluster_of[site],
                    "nearest": self.nearest(site)[0][0],
                    "farthest": self.nearest(site)[-1][0],
                    **{f"to {other}": float(d) for other, d in zip(self.sites, self.distances[i], strict=True)},
                }
                for i, site in enumerate(self.sites)
            ]
        )

    def sentences(self) -> list[str]:
        """Return the advice in sentences: one about each site, then the clusters, and the learner to use."""
        clusters = [f"- {_listed(members)}, around {centroid}" for centroid, members in self.clusters.items()]
        return [*map(self._describe_site, self.sites), self._describe_number(), *clusters, self._describe_learner()]

    def _describe_site(self, site: str) -> str:
        (nearest, distance), *others = self.nearest(site)
        text = f"{site} is nearest to {nearest} ({distance:.2f}{self._describe_chance(site, nearest)})"
        if len(others) > 1:
            text += f", then {others[0][0]} ({others[0][1]:.2f}),"
        if others:
            text += f" and farthest from {others[-1][0]} ({others[-1][1]:.2f})"
        odd = self.oddest(site)
        if odd is None:
            return f"{text}."
        name, here, elsewhere = odd
        return f"{text}; it differs most in {name} ({here:.2f}, elsewhere {elsewhere:.2f})."

    def oddest(self, site: str) -> tuple[str, float, float] | None:
        """Return the statistic in which a site differs most from the mean of the others: name, here, elsewhere."""
        table = np.stack(list(self.vectors.values()))
        here = table[self.sites.index(site)]
        others = np.delete(table, self.sites.index(site), axis=0)
        n_known = np.count_nonzero(~np.isnan(others), axis=0)
        elsewhere = np.nansum(others, axis=0) / np.maximum(n_known, 1)
        gap = np.where((n_known > 0) & ~np.isnan(here), np.abs(here - elsewhere), -1.0)
        most = int(gap.argmax())
        return (self.entries[most], float(here[most]), float(elsewhere[most])) if gap[most] > 0.0 else None

    def _describe_chance(self, site: str, other: str) -> str:
        at = self.sites.index(site), self.sites.index(other)
        return ", as chance may give" if self.distances[at] <= FAR * self.chance[at] else ""

    def _describe_number(self) -> str:
        if self.k == 1:
            if not self.suggested:
                return "One cluster, as asked for:"
            if not self.silhouettes:
                return "Two sites are too few to suggest clusters:"
            best = max(self.silhouettes.values())
            why = "no division is clear" if best < LEAST else "the sites are no farther apart than chance may give"
            return f"No clusters are suggested, {why} (best mean silhouette {best:.2f}):"
        how = " are suggested" if self.suggested else ", as asked for"
        score = f" (mean silhouette {self.silhouettes[self.k]:.2f})" if self.k in self.silhouettes else ""
        return f"{format_count(self.k).capitalize()} clusters{how}{score}:"

    def _describe_learner(self) -> str:
        if self.k == 1:
            return "BOFRF() trains all sites together."
        first = next(iter(self.clusters))
        return f"BOFRF(clusters={self.k}, metric={self.metric!r}, first={first!r}) trains each cluster apart."

    def __str__(self) -> str:
        matrix = [*self._matrix(), ""] if len(self.sites) <= WIDE else []
        return "\n".join([*matrix, *self.sentences()])

    def _matrix(self) -> list[str]:
        width = max(5, *map(len, self.sites))
        rows = (
            [site, *("-" if i == j else f"{d:.2f}" for j, d in enumerate(self.distances[i]))]
            for i, site in enumerate(self.sites)
        )
        lines = [f"{first:{width}}" + "".join(f"  {cell:>{width}}" for cell in cells) for first, *cells in rows]
        return [
            f"{self.metric.capitalize()} distances",
            " " * width + "".join(f"  {site:>{width}}" for site in self.sites),
            *lines,
        ]

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return what ``print`` shows, for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"


def advise(
    federation: Federation, k: int | None = None, metric: Metric = "manhattan", first: str | None = None
) -> Advice:
    """Compare sites by their rows and suggest which should train together, before anything is trained.

    Takes two rounds, or one if the schema has bounds for all numeric features. The coordinator sees each site's
    means and shares, to three decimals.

    Parameters
    ----------
    federation
        The sites to compare, by their training rows.
    k
        The number of clusters; None: the suggested number. From 2 to 10, it is the one with the highest mean
        silhouette, if that is at least 0.25 and all centroids are farther apart than chance explains.
    metric
        The distance between sites: "manhattan", "euclidean" or "minkowski" (with power 3).
    first
        The site that is the first centroid; None: the one that gives the clearest clusters.

    Returns
    -------
    Advice
        Distances between the sites and clusters of them; ``print`` shows both in plain words.

    Examples
    --------
    >>> import silvan as sv
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> large = X[:, 0] > 15
    >>> tables = {"north": X[large][::2], "south": X[large][1::2], "west": X[~large]}
    >>> labels = {"north": y[large][::2], "south": y[large][1::2], "west": y[~large]}
    >>> fed = sv.federate_rows({site: (tables[site], labels[site]) for site in tables})
    >>> sv.advise(fed).clusters
    {'north': ['north', 'south'], 'west': ['west']}
    """
    if not isinstance(federation, Federation):
        raise InputError(f"advise takes a federation (see federate_rows), got {type(federation).__name__}")
    check_clustering(federation.active, 1 if k is None else k, metric, first, 0)
    if len(federation.active) < 2:
        raise InputError.about("federation", "must have at least two sites: one alone is near to nobody")
    schema = federation.schema
    vectors = characterise(federation, schema)
    sites = list(vectors)
    check_clustering(sites, 1 if k is None else k, metric, first, 0)
    apart, rows = find_distances(vectors, schema, metric), [federation.rows[site] for site in sites]
    chance = chance_distances(np.stack(list(vectors.values())), rows, metric, feature=owners(schema))
    tried = _try(sites, apart, k, first)
    return Advice(
        sites=sites,
        distances=apart,
        chance=chance,
        metric=metric,
        clusters=_choose_clusters(sites, apart, chance, tried, k, first),
        suggested=k is None,
        silhouettes={n: one[0] for n, one in tried.items()},
        entries=entry_names(schema),
        vectors=vectors,
    )


Clusters = dict[str, list[str]]


def _try(sites: list[str], apart: np.ndarray, k: int | None, first: str | None) -> dict[int, tuple[float, Clusters]]:
    """Find the clearest clusters for each number of them, and their mean silhouette."""
    found = {}
    for n in range(2, min(MOST, len(sites) - 1) + 1) if k is None else [k] * (1 < k < len(sites)):
        tried = (farthest_first(sites, apart, n, start) for start in ([first] if first else sites))
        scored = [(_silhouette(sites, apart, clusters), clusters) for clusters in tried]
        found[n] = max(scored, key=lambda one: round(one[0], 9))
    return found


def _choose_clusters(
    sites: list[str],
    apart: np.ndarray,
    chance: np.ndarray,
    tried: dict[int, tuple[float, Clusters]],
    k: int | None,
    first: str | None,
) -> Clusters:
    """Return the requested clusters, or those suggested by the rule at the top of this file."""
    if k is not None:
        return tried[k][1] if k in tried else farthest_first(sites, apart, k, first or sites[0])
    pairs = {n: list(combinations(map(sites.index, one[1]), 2)) for n, one in tried.items()}  # of centroids
    far = [one for n, one in tried.items() if all(apart[pair] > FAR * chance[pair] for pair in pairs[n])]
    score, clusters = max(far, key=lambda one: one[0], default=(0.0, {}))
    if score < LEAST:
        return farthest_first(sites, apart, 1, first or sites[int(apart.sum(axis=0).argmin())])
    return clusters


def _silhouette(sites: list[str], apart: np.ndarray, clusters: Clusters) -> float:
    from sklearn.metrics import silhouette_score

    number_of = {site: i for i, members in enumerate(clusters.values()) for site in members}
    return float(silhouette_score(apart, [number_of[site] for site in sites], metric="precomputed"))


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
