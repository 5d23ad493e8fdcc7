"""The learner BOFRF: base, personalised or clustered."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.bofrf.choose import TAUS, Choose, Chosen, choose_all
from silvan.algorithms.bofrf.clusters import Characterise, find_clusters
from silvan.algorithms.bofrf.tune import as_search
from silvan.algorithms.bofrf.weigh import BringTrees, ExchangeSettings, ScoreTrees, Weighted, warn_if_none, weigh
from silvan.algorithms.class_counts import asks_for_classes, balance_classes
from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.out_of_bag import asks_for_threshold
from silvan.algorithms.horizontal.merged_forest import limit_trees
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.refit_leaves import CountLeafLabels, CountLeafRows
from silvan.algorithms.shared_bins import CountGrid
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.forest import Forest
from silvan.learners.base import Learner
from silvan.learners.registry import BOFRFParameters
from silvan.learners.result import Result, SiteTrees
from silvan.metrics import MCC
from silvan.tree.fit import Settings
from silvan.util.readable import count_of


class BOFRF(BOFRFParameters, Learner):
    """Local trees of all sites, weighted by their metrics at all sites; each site chooses the ensemble it uses.

    Every site grows ``n_estimators`` trees, or provides a pretrained forest (``federate_rows(..., forests=)``). A
    tree's weight is the Matthews correlation of its votes on all sites' training rows if that is above ``tau``, and 0
    otherwise.

    Attributes
    ----------
    forest_
        The global ensemble, a ``Forest`` whose trees vote; None if there are several clusters.
    forests_
        The ensemble that each site should use, by site.
    own_
        The ensemble of each site's own trees, by site.
    globals_
        The ensemble of all trees that a site uses unless it uses its own, by site.
    strategies_
        What each site chose: "global", "own" (its own weighted trees) or "local" (its local forest, unchanged).
    taus_
        The tau of each site's ensemble.
    chosen_
        The basis of each site's choice: measure, number of rows, metrics.
    weights_, owners_
        Each tree's weight before tau is applied, and its site, in the order of ``forest_``.
    clusters_
        The sites of each cluster, by centroid; None without ``clusters``.
    distances_
        With ``clusters``, the distances of each site from all sites, in the same order.
    settings_
        The parameters of each site's trees.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.BOFRF(n_estimators=20, max_depth=4).fit(fed)
    >>> model.rounds_, len(model.forest_)
    (3, 80)
    >>> model.predict(sv.datasets.heart_disease()[:2])
    array([1, 1])
    """

    sends_trees: ClassVar[bool] = True
    chooses_threshold: ClassVar[bool] = True
    restorable: ClassVar[bool] = False

    tune: Any  # also a Search

    @property
    def expected_rounds(self) -> int | None:
        """The maximum number of training rounds, if known in advance."""
        if self.clusters is not None:
            return None
        more = (self.class_weight == "balanced") + self.rounds_to_trust
        return 3 + 2 * bool(self.refit_leaves) + more

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the requests that fitting may make."""
        clustered = (Characterise, CountGrid) if self.clusters is not None else ()
        counted = (CountLeafRows, CountLeafLabels) if self.refit_leaves else ()
        balanced = asks_for_classes(self.class_weight)
        return (*clustered, *balanced, BringTrees, ScoreTrees, *counted, Choose, *asks_for_threshold(self.threshold))

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Exchange and weight the sites' trees, and let every site choose what to use."""
        validation, search = self._check(settings), as_search(self.tune)
        settings = limit_trees(settings, self.max_trees, self.refit_leaves)
        schema = self.schema_
        settings = balance_classes(federation, schema, settings)
        self.clusters_: dict[str, list[str]] | None = None
        self.distances_: dict[str, list[float]] = {}
        if self.clusters is not None:
            found = find_clusters(federation, schema, self.clusters, self.metric, self.first, self.random_state)
            _check_sizes(found.members, federation)
            self.clusters_ = found.members
            self.distances_ = {site: row.tolist() for site, row in zip(found.sites, found.distances, strict=True)}
        oob = self.protocol == "honest" and not validation
        exchange = ExchangeSettings(
            validation, oob, search, self.equal, self.max_trees, self.refit_leaves, self.weigh_by
        )
        weighted = weigh(federation, schema, settings, feature_key, self.clusters_, exchange)
        warn_if_none(weighted, self.tau)
        taus = [self.tau, *(tau for tau in TAUS if tau != self.tau)] if self.personal else [self.tau]
        chosen = choose_all(
            federation,
            schema,
            weighted,
            taus,
            protocol=self.protocol,
            validation=validation,
            bootstrap=settings.row_sampling,
        )
        self._keep(weighted, chosen, taus)

    def _keep(self, weighted: dict[str, Weighted], chosen: dict[str, Chosen], taus: list[float]) -> None:
        """Set the attributes of a fitted learner."""
        groups = list(weighted.values())
        together = {name: one.ensemble(self.tau) for name, one in weighted.items()}
        self.forest_ = next(iter(together.values())) if len(together) == 1 else None
        self.weights_ = np.concatenate([one.alphas for one in groups])
        self.owners_ = np.concatenate([one.owners for one in groups])
        self.chosen_ = chosen
        self.strategies_ = {site: reply.strategy for site, reply in chosen.items()}
        self.taus_ = {site: taus[reply.tau] for site, reply in chosen.items()}
        self.own_: dict[str, Forest] = {}
        self.globals_: dict[str, Forest] = {}
        self.forests_ = {}
        self.settings_: dict[str, Settings] = {}
        self._local: dict[str, Forest] = {}
        self._site_forests = any(reply.pretrained for one in groups for reply in one.members.values())
        for name, one in weighted.items():
            for site, reply in one.members.items():
                if site not in chosen:
                    continue  # lost on the way
                self.settings_[site] = reply.settings
                self._local[site] = one.forests[site]
                self.own_[site] = one.ensemble(self.tau, site)
                self.globals_[site] = together[name]
                tau, own = self.taus_[site], self.strategies_[site] == "own"
                if self.strategies_[site] == "local":
                    self.forests_[site] = one.forests[site]
                    continue
                agreed = self.own_[site] if own else self.globals_[site]
                self.forests_[site] = agreed if tau == self.tau else one.ensemble(tau, site if own else None)

    def result(self) -> Result:
        """Return the result, with the weights of trees and the clusters of sites."""
        found, weights = super().result(), self._weights_by_site()
        return replace(found, weights=weights, clusters=self.clusters_ or {}, distances=self.distances_)

    def _weights_by_site(self) -> list[SiteTrees]:
        """Return for each site's trees: their number, the number used, their weights and their share of all votes.

        Weights are those before ``tau``: ``least``, ``median``, ``most``.
        """
        found = []
        for site, together in self.globals_.items():
            cluster = [other for other, forest in self.globals_.items() if forest is together]
            owners = self.owners_[np.isin(self.owners_, cluster)]
            alphas = self.weights_[self.owners_ == site]
            own, total = together.weights[owners == site], float(together.weights.sum())
            least, median, most = (round(float(of(alphas)), 3) for of in (np.min, np.median, np.max))
            share = round(float(own.sum()) / total, 4) if total else 0.0
            found.append(SiteTrees(site, len(alphas), int((own > 0).sum()), least, median, most, share))
        return found

    def _check(self, settings: Settings) -> float:
        """Raise ``InputError`` for conflicting parameters; return the share of rows to hold out."""
        if self.first is not None and self.clusters is None:
            raise InputError(f"first={self.first!r} is the first centroid of clusters: set clusters, or leave it out")
        if self.weigh_by != MCC and not self.schema_.n_classes:
            raise InputError.about("weigh_by", "is for classes; trees of numbers are weighted by their skill")
        if self.schema_.label.event is not None and (self.tune or self.clusters is not None):
            raise InputError.about("tune" if self.tune else "clusters", "is not for survival: it compares other labels")
        share = self.validation
        if share is not None and self.protocol == "paper":
            raise InputError("protocol='paper' chooses on test rows: leave validation out, or set protocol='honest'")
        if share is None and self.protocol == "honest" and not settings.bootstrap:
            raise InputError(
                "bootstrap=False leaves no out-of-bag rows to choose on: set validation=0.2, or bootstrap=True"
            )
        return float(share or 0.0)

    def sampled_rows(self, federation: Federation) -> np.ndarray | None:
        """Return which rows each tree sampled; None if some trees were not grown on all training rows of a site."""
        return None if self.validation or self.tune else super().sampled_rows(federation)

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return which rows the trees of models sampled; unknown for pretrained forests and for clusters."""
        found = super().draws(federation, candidates)
        if self._site_forests:
            return found
        for site in self.own_:
            alone = RowSamples((len(self.own_[site]),), (site,), self.row_sampling())
            found |= {forest.hash: alone for forest in (self.own_[site], self._local[site])}
        if self.forest_ is not None:
            sites = list(dict.fromkeys(self.owners_.tolist()))
            sizes = tuple(int((self.owners_ == site).sum()) for site in sites)
            together = RowSamples(sizes, tuple(sites), self.row_sampling(), bool(self.refit_leaves) and len(sites) > 1)
            for site, forest in {"": self.forest_, **self.forests_}.items():
                if self.strategies_.get(site, "global") == "global":
                    found[forest.hash] = together
                else:
                    found[forest.hash] = RowSamples((len(forest),), (site,), self.row_sampling())
        return found

    def site_candidates(self) -> list[Named]:
        """Return the models that a site may use, by name."""
        self._federated()  # raises an error before fit
        settings = self.forest_settings(self.schema_)
        apart = self.validation is not None or self.class_weight == "balanced"
        plain = apart and self.tune is None and not self._site_forests
        # with rows held out, or classes balanced over all sites, exchanged trees differ from local ones
        listed: list[Named] = [
            ("local", settings if plain else self._local),
            ("own", self.own_),
            ("global", self.globals_ if self.forest_ is None else self.forest_),
        ]
        if self.personal:
            listed.append(("personalised", self.forests_))
        listed.append(("federated", self.forests_))
        return listed


def _check_sizes(clusters: dict[str, list[str]], federation: Federation) -> None:
    """Raise ``InputError`` for clusters that are too small for secure sums, before any tree is grown."""
    least = federation.sums.least
    for centroid, members in clusters.items():
        if len(members) < least:
            raise InputError.about(
                "clusters",
                f"gives a cluster of {count_of(len(members), 'site')} around {centroid!r}, and {federation.sums.name} "
                f"sums hide parts among at least {least} sites: ask for fewer clusters, or leave clusters out",
            )
