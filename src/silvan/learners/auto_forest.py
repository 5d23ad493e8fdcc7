"""The learner AutoForest: a weighted federated and merged forest, and local trees where a site differs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

import numpy as np
from msgspec.structs import replace as replace_fields

from silvan import metrics
from silvan.algorithms.class_counts import asks_for_classes, balance_classes
from silvan.algorithms.evaluation.candidates import Models, Named, PersonalForest
from silvan.algorithms.evaluation.out_of_bag import asks_for_threshold
from silvan.algorithms.evaluation.personal_forest import (
    MIXES,
    OWN_ALONE,
    UNTOLD,
    ChooseShare,
    ChosenShare,
    Ingredients,
    choose_shares,
    make_forest,
    site_models,
)
from silvan.algorithms.horizontal import histogram_forest, merged_forest
from silvan.algorithms.horizontal.weigh_halves import MOST_GAP, REFITTED, Compared, CompareHalves, compare, join_halves
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.refit_leaves import CountLeafLabels, CountLeafRows
from silvan.algorithms.shared_bins import CountFine, CountGrid
from silvan.data.schema import Schema, Task
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.forest import Forest
from silvan.learners.base import Learner
from silvan.learners.registry import AutoForestParameters
from silvan.learners.result import Result
from silvan.tree.fit import Settings
from silvan.util.readable import count_of, html_table

_CAPTION = (
    "Measured on out-of-bag training rows. A site's own trees and rows count as much as they gain beyond chance:\n"
    "with little evidence a site stays near the shared forest."
)

_ADOPTED = "The shared forest was adopted: it was trained elsewhere, before these sites joined."
_ELSEWHERE = "(elsewhere)"  # owner of an adopted forest's trees, which sampled rows of no site here

SHARED = "shared"  # name of the global forest in tables of metrics, if some site uses another


class Choices(dict[str, str]):
    """What each site uses and why, one sentence per site; ``shared`` describes the shared forest.

    ``caption`` says how sites chose, if they did.
    """

    def __init__(self, choices: Mapping[str, str], shared: str = "", caption: str = _CAPTION) -> None:
        super().__init__(choices)
        self.shared, self.caption = shared, caption

    def __str__(self) -> str:
        width = max(map(len, self), default=0)
        rows = [f"{site.ljust(width)}  {text}" for site, text in self.items()]
        return "\n".join([*rows, "", *filter(None, [self.shared, self.caption])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return html_table(("site", "uses"), list(self.items()), note=f"{self.shared}\n{self.caption}".strip())


class AutoForest(AutoForestParameters, Learner):
    """A shared forest, half federated and half merged, and for each site the mix with local trees that suits it.

    The shared forest has ``n_estimators`` trees grown from summed histograms, like a ``HistogramForest``, and the same
    number from every site, with re-estimated leaves, like a ``MergedForest``. The halves are weighted by their
    performance on the out-of-bag training rows of all sites. On the same rows each site then compares mixes of the
    shared forest, of its trees with leaf values from the site's own rows, and of the site's own trees. Own rows and
    trees count as much as they gain beyond chance; with little evidence a site stays near the shared forest. A site's
    mix stays there: between machines nobody else has it.

    Attributes
    ----------
    forest_
        The shared forest, a ``Forest``.
    forests_
        The forest that each site should use, by site. Between machines only sites that use the shared forest are
        listed.
    at_sites_
        Sites whose forest stays with them and is not in ``forests_``.
    weights_
        Weights of both halves of the shared forest, "sums" and "sites", which add up to 1.
    shares_
        Weight of a site's own trees, by site: 0 to 1, in quarters; NaN if undisclosed, as between machines.
    fitted_
        Weight of the shared trees with leaf values from the site's own rows, by site, likewise.
    choices_
        What each site uses and why, one sentence per site; prints as a table.

    Examples
    --------
    >>> import silvan as sv
    >>> fed = sv.federate_rows(sv.datasets.heart_disease(), site="hospital", label="disease")
    >>> model = sv.AutoForest(n_estimators=20, max_depth=4).fit(fed)
    >>> len(model.forest_), sorted(model.shares_)
    (100, ['Cleveland', 'Hungarian', 'Switzerland', 'VA'])
    >>> model.predict(sv.datasets.heart_disease()[:2])
    array([0, 1])
    """

    sends_trees: ClassVar[bool] = True
    chooses_threshold: ClassVar[bool] = True
    restorable: ClassVar[bool] = False  # sites rebuild their forests when these are evaluated

    _made: Mapping[str, PersonalForest] = MappingProxyType({})
    _drawn: RowSamples | None = None  # which rows the trees of the shared forest drew
    _adopted: Forest | None = None  # what ``grow`` takes for the shared forest, in place of growing one

    @property
    def fits_leaves(self) -> bool:
        """Whether sites may take leaf values from their own rows."""
        return self.monotonic_cst is None if self.fit_leaves is None else bool(self.fit_leaves)

    @property
    def makes_site_forests(self) -> bool:
        """Whether sites make forests and adjust curves during training."""
        return bool(self.choose)

    @property
    def refits_leaves(self) -> bool:
        """Whether leaves of sites' trees are re-estimated."""
        return self.monotonic_cst is None if self.refit_leaves is None else self.refit_leaves

    @property
    def expected_rounds(self) -> int | None:
        """The maximum number of training rounds, if known in advance."""
        if self.max_depth is None:
            return None
        more = (self.class_weight == "balanced") + self.rounds_to_trust
        return int(self.max_depth) + 3 + 2 * bool(self.choose) + 2 * bool(self.refits_leaves) + more

    def check(self) -> None:
        """Raise ``InputError`` for invalid parameters, before any request."""
        super().check()
        if self.fit_leaves and self.monotonic_cst is not None:
            raise InputError("leaf values from a site's rows may violate monotonic_cst: leave one of the two out")
        if self.fit_leaves and self.class_weight is not None:
            raise InputError("leaf values from a site's rows ignore class_weight: leave out fit_leaves")
        if self.fit_leaves and not self.choose:
            raise InputError.about("fit_leaves", "is for sites that choose: leave out fit_leaves, or choose=False")
        if self.choose and not self.bootstrap:
            raise InputError("bootstrap=False leaves no out-of-bag rows to choose on: set choose=False")

    def asks(self, schema: Schema) -> tuple[type[Request], ...]:
        """Return the requests that fitting may make."""
        return (
            *asks_for_classes(self.class_weight),
            CountGrid,
            CountFine,
            *histogram_forest.asks(schema),
            merged_forest.GrowTrees,
            *((CountLeafRows, CountLeafLabels) if self.refits_leaves else ()),
            *((CompareHalves, ChooseShare) if self.choose else ()),
            *asks_for_threshold(self.threshold),
        )

    def adopt(self, forest: Any, federation: Federation) -> Self:
        """Take a forest that others share, at sites that join after it was trained.

        Each new site scores its training rows by the forest as it is, by its trees with leaf values from the site's
        own rows, and by trees of its own, chooses a mix of the three, and adjusts the calibration curve. Test rows take
        no part, so ``evaluate`` says whether that helps: ``local`` is the site alone, ``shared`` the forest as it was,
        and ``federated`` what the site makes of it. The sites that trained the forest are not asked.

        Parameters
        ----------
        forest
            The shared forest: a ``Forest``, or the path of a ``.silvan`` file.
        federation
            The new sites, in this process: ``federate_rows({name: table}, label=..., schema=forest.schema, test=0.3)``.

        Returns
        -------
        self
            With the attributes of a fitted AutoForest; ``weights_`` is empty.

        Examples
        --------
        >>> import silvan as sv
        >>> table = sv.datasets.heart_disease()
        >>> others, here = table.filter(table["hospital"] != "VA"), table.filter(table["hospital"] == "VA")
        >>> fed = sv.federate_rows(others, site="hospital", label="disease")
        >>> forest = sv.AutoForest(n_estimators=20, max_depth=4).fit(fed).forest_
        >>> new = sv.federate_rows({"VA": here}, label="disease", schema=forest.schema, test=0.3)
        >>> model = sv.AutoForest(n_estimators=20, max_depth=4).adopt(forest, new)
        >>> model.evaluate(new).filter(site="VA")["model"].to_list()
        ['local', 'shared', 'federated', 'pooled']
        """
        shared = _read_shared(forest)
        if federation.columns is not None or not federation.local_sites:
            raise InputError.about("federation", "must be one of rows in this process: federate_rows(...)")
        if federation.schema != shared.schema:
            raise InputError.about(
                "federation", "has another schema than the forest: pass schema=forest.schema to federate_rows"
            )
        if not self.choose:
            raise InputError.about("choose", "must be True: sites choose what they make of a forest that they adopt")
        self._adopted = shared
        try:
            return self.fit(federation)
        finally:
            self._adopted = None

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow both halves, combine them, and let every site choose the weight of its local trees."""
        merged_forest.limit_trees(settings, None, self.refits_leaves)
        settings = balance_classes(federation, self.schema_, settings)
        of_all = replace(settings, n_estimators=settings.n_estimators * len(federation.active))
        compared = Compared()
        if self._adopted is None:
            federated = histogram_forest.fit(federation, self.schema_, settings, feature_key)
            influence = merged_forest.Influence(None, True, None, self.refits_leaves)
            merged = merged_forest.fit(federation, self.schema_, of_all, feature_key, influence)
            halves, sites = (federated, merged.forest), list(merged.forests)
            if self.choose:
                compared = compare(federation, self.schema_, halves, self._draws_of_halves(sites))
            share = compared.share(REFITTED if merged.refitted else 1.0)
            self.weights_ = {"sums": 1.0 - share, "sites": share}
            shared, self._drawn = join_halves(halves, share), self._draws(sites)
        else:
            merged = merged_forest.fit(federation, self.schema_, of_all, feature_key, merged_forest.Influence())
            self.weights_, shared = {}, self._adopted
            self._drawn = RowSamples((len(shared),), (_ELSEWHERE,), self.row_sampling())  # of no rows here
        self.forest_ = self.trusted(federation, shared, self._drawn) if self.choose else shared
        chosen: dict[str, ChosenShare] = {}
        models: dict[str, PersonalForest] = {}
        if self.choose:
            fit = self.fits_leaves and settings.class_weight is None
            models = site_models(federation, self.forest_, self._drawn, merged.blobs, fit)
            chosen = choose_shares(federation, self.schema_, models, self._fixed_threshold())
        mixes = {site: _mix_of(chosen.get(site)) for site in federation.active}
        self.shares_ = {site: own for site, (own, _) in mixes.items()}
        self.fitted_ = {site: fitted for site, (_, fitted) in mixes.items()}
        self._made = {
            site: replace(models[site], takes_shared=not reply.choice and not self.trusts_rows)
            for site, reply in chosen.items()
        }
        for site, model in self._made.items():
            if model.takes_shared or federation.local_sites:
                forest = self._site_forest(federation, site, model, merged.forests)
                self._made[site] = replace(model, forest=forest)
        self.at_sites_ = sorted(site for site, model in self._made.items() if model.forest is None)
        known = {site: model.forest for site, model in self._made.items() if model.forest is not None}
        self.forests_ = {s: known.get(s, self.forest_) for s in federation.active if s not in self.at_sites_}
        reasons = {site: _reason(mix, chosen.get(site)) for site, mix in mixes.items()}
        said = _ADOPTED if self._adopted else _shared_reason(self.weights_, compared, self.schema_.label.task)
        self.choices_ = Choices(reasons, said, _CAPTION if self.choose else "")

    def result(self) -> Result:
        """Return the result, with the sites' choices."""
        choices = self.choices_
        return replace(super().result(), choices=choices, shared_forest=choices.shared)

    def _fixed_threshold(self) -> float | None:
        """Return the decision threshold, if it does not depend on the forest."""
        return None if self.threshold is None or isinstance(self.threshold, str) else float(self.threshold)

    def _site_forest(
        self, federation: Federation, site: str, model: PersonalForest, trees: Mapping[str, Forest]
    ) -> Forest:
        """Return the forest that a site in this process makes, or uses unchanged."""
        if model.takes_shared:
            return model.shared
        parts = Ingredients(model.shared.plain(), model.draws, trees[site], model.fit, model.shared)
        return make_forest(federation.site(site), self.schema_, parts).forest

    def _draws(self, sites: list[str]) -> RowSamples:
        """Return which rows the trees of the shared forest drew."""
        sizes, refitted = [self.n_estimators] * (len(sites) + 1), self.refits_leaves and len(sites) > 1
        return RowSamples(tuple(sizes), ("", *sites), self.row_sampling(), refitted)

    def _draws_of_halves(self, sites: list[str]) -> list[RowSamples]:
        """Return which rows the trees of both halves drew."""
        all_trees = self._draws(sites)
        of_sites = RowSamples(all_trees.sizes[1:], all_trees.owners[1:], all_trees.bootstrap, all_trees.refitted)
        return [RowSamples((self.n_estimators,), bootstrap=all_trees.bootstrap), of_sites]

    def draws(self, federation: Federation, candidates: Sequence[Named]) -> dict[str, RowSamples]:
        """Return the rows that the trees of models sampled, if known."""
        found, n, forest = super().draws(federation, candidates), self.n_estimators, self.forest_
        shared = self._drawn or self._draws(list(federation.active))
        if forest is None or len(forest) != sum(shared.sizes):
            return found
        found[forest.hash] = shared
        for site, one in self.forests_.items():  # for sites of another federation; sites of this one know it
            fitted = not np.array_equal(one.value[: len(forest.value)], forest.value)
            draws = replace_fields(shared, refitted=shared.refitted or fitted)
            if self.shares_[site] == 1.0:
                found[one.hash] = RowSamples((n,), (site,), shared.bootstrap)
            elif len(one) == len(forest) + n:
                sizes, owners = (*shared.sizes, n), (*shared.owners, site)
                found[one.hash] = replace_fields(draws, sizes=sizes, owners=owners)
            elif len(one) == len(forest):
                found[one.hash] = draws
        return found

    def _federated(self) -> Models:
        found = super()._federated()
        others = (one for site, one in self.forests_.items() if site not in self._made)
        if not self._made and self._adjusted:
            return found
        if all(one.takes_shared for one in self._made.values()) and all(one == self.forest_ for one in others):
            return found
        return {**self.forests_, **self._made}

    def site_candidates(self) -> list[Named]:
        """Return the models that a site may use, by name."""
        local, federated = super().site_candidates()
        if self.forest_ is None or federated[1] is self.forest_:
            return [local, federated]
        return [local, (SHARED, self.forest_), federated]


_FITTED = "the shared trees with leaf values from own rows"

_TURNED = (0.35, 30)
"""Below this AUC, on at least this many rows, the shared forest ranks a site's rows the wrong way round."""


def _mix_of(reply: ChosenShare | None) -> tuple[float, float]:
    """Return the weights of local trees and local leaf values at a site; NaN if it does not disclose them."""
    if reply is None:
        return MIXES[0]
    return (np.nan, np.nan) if reply.choice == UNTOLD else MIXES[reply.choice]


def _use(mix: tuple[float, float]) -> str:
    """Describe a mix."""
    own, fitted = mix
    if np.isnan(own):
        return "a forest that it made from the shared one, its own rows and trees"
    parts = {
        "the shared forest": 1.0 - own - fitted,
        "its trees with leaf values from own rows" if own + fitted < 1.0 else _FITTED: fitted,
        "own trees": own,
    }
    if own == 1.0:
        return "its own trees alone"
    if max(parts.values()) == 1.0:
        return max(parts, key=lambda name: parts[name])
    return ", ".join(f"{share:.0%} {name}" for name, share in parts.items() if share)


def _reason(mix: tuple[float, float], reply: ChosenShare | None) -> str:
    """Return what a site uses, and the metrics behind the choice."""
    use = _use(mix)
    if reply is None:
        return use
    if not reply.measure:
        return f"{use}: too few rows to choose by"
    if np.isnan(reply.metric):
        return f"{use}: its policy shows no metrics"
    name = "C-index" if reply.measure == "c_index" else metrics.BY_KEY[reply.measure].title
    largest = float(np.nanmax([reply.metric, *reply.metrics]))
    digits = 3 if largest <= 1 else max(0, 3 - len(str(int(largest))))  # metrics have three digits
    others = [(_use(MIXES[i]), reply.metrics[i]) for i in (0, OWN_ALONE) if i != reply.choice]
    beside = [f"{other} {metric:.{digits}f}" for other, metric in others if metric >= 0.0]
    compared = f" ({'; '.join(beside)})" if beside else ""
    turned = reply.measure == "auc" and reply.rows >= _TURNED[1] and reply.metrics[0] < _TURNED[0]
    hint = "; the shared forest ranks rows the wrong way round: is the label coded the same way here?" if turned else ""
    return f"{use}: {name} {reply.metric:.{digits}f} on {count_of(reply.rows, 'row')}{compared}{hint}"


def _read_shared(forest: Any) -> Forest:
    """Return a forest to adopt; raise ``InputError`` for what cannot be mixed with a site's own trees."""
    if isinstance(forest, str | Path):
        forest = Forest.load(forest)
    if not isinstance(forest, Forest):
        raise InputError.wrong("forest", "a Forest or the path of a .silvan file", forest)
    if forest.combine != "mean":
        raise InputError.about(
            "forest",
            "must predict the mean of its trees, such as those of AutoForest, HistogramForest and MergedForest",
        )
    return forest


def _shared_reason(weights: Mapping[str, float], compared: Compared, task: Task) -> str:
    """Return the weights of both halves of the shared forest, and the metrics behind them."""
    uses = f"The shared forest: {weights['sums']:.0%} trees from sums, {weights['sites']:.0%} sites' trees"
    if not compared.sites:
        return f"{uses}."
    measures: dict[Task, str] = {"classification": "AUC", "regression": "explained variance", "survival": "C-index"}
    measure, order = measures[task], "higher" if compared.gap >= 0 else "lower"
    by = f"{'at least ' if abs(compared.gap) >= MOST_GAP else ''}{abs(compared.gap):.3f}"
    return f"{uses}, whose {measure} is {by} {order} on average over {count_of(compared.sites, 'site')}."
