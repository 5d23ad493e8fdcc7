"""A personal forest, made at the site: the shared forest, its trees with local leaf values, and local trees.

Trees of all sites have better splits than those of one site, but a site's own rows give the best leaf values for that
site. So a site computes leaf values of the shared trees from its own rows, where there are enough: a forest between the
shared one and the local one. It mixes the three in shares of quarters.

Leaf values from one site's rows, at leaves that others chose, disclose something about these rows: two trees whose
leaves differ by one person reveal that person's label. So this forest does not leave the site. It follows from the
shared forest, the site's own trees and its rows, so the site can build it again for a request.

The gain of a mix over the shared forest is measured on out-of-bag rows, less 1.28 standard errors, which chance exceeds
one time in ten; the clearer the lead of some mix, the less is subtracted. The site takes the mix nearest to the mean of
all, each weighted by its gain: with few rows it stays near the shared forest, and a lead of several hundredths moves it
all the way. AUCs of several classes are weighted by the pairs of rows that they compare.

Sites report their mix in one round. The coordinator learns metrics and, in one process, which of fifteen mixes it is;
with grouped rows only whether it is the shared forest, because a choice among many reveals something about rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan.algorithms.evaluation.candidates import PersonalForest, PersonalModel, check_candidates, model_of
from silvan.algorithms.evaluation.details import three_digits
from silvan.algorithms.evaluation.out_of_bag import score_unseen
from silvan.algorithms.evaluation.reliability import adjusted
from silvan.algorithms.evaluation.score_groups import Answer, hides_one_class, in_groups
from silvan.algorithms.evaluation.score_quality import MetricName, ScoreQuality, score_quality
from silvan.algorithms.kept_results import keep_made_model
from silvan.algorithms.keyed_rows import RowSamples, check_samples, rows_sampled
from silvan.algorithms.refit_leaves import counted_labels, fixed_point, label_columns, mean_label
from silvan.algorithms.requests import check_metrics, read_trees, schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, reject
from silvan.federation.agree import MAX_ROWS
from silvan.federation.describe import FLOOR
from silvan.federation.federation import Federation
from silvan.federation.message import Agreed, Ask, Blob, Fixed, Reply
from silvan.federation.site import Site, answers
from silvan.federation.store import CacheKey
from silvan.forest.curves import hazards
from silvan.forest.forest import Forest, at_times_of, join_forests
from silvan.forest.score import labels_at_leaves
from silvan.privacy.gate import policy_of

MIXES = tuple((own / 4, fitted / 4) for own in range(5) for fitted in range(5 - own))
"""Shares of local trees, and of shared trees with local leaf values; the shared forest has the rest.

The first is the shared forest alone.
"""

OWN_ALONE = MIXES.index((1.0, 0.0))

_LUCK = 1.28  # standard errors subtracted from the gain of a mix: exceeded by chance one time in ten
_NO_LUCK = (2.5, 4.0)
"""If a mix leads by more standard errors than the first, less is subtracted, and nothing at the second."""

_SCALE = 0.003
"""The gain, in AUC or in explained variance, at which a mix has e times as much weight as the shared forest."""

_SURE_SCALE = 0.2
"""The same in standard errors of the least certain gain, if that is smaller: many rows distinguish small gains."""

_LEAST_ROWS = 5  # minimum number of the site's rows at a leaf for a local value
_PRIOR_ROWS = 1.0  # how many rows the shared value of a leaf counts for beside these


UNTOLD = -1  # a mix other than the shared forest alone, which the site does not disclose


# -- messages
class ChosenShare(Reply, frozen=True, kw_only=True):
    """The mix a site will use, rounded metrics of it and of all mixes, and the number of rows behind them."""

    choice: int  # its position among the mixes, or ``UNTOLD``
    measure: MetricName  # empty: there were too few rows for a choice, or none
    rows: int
    metric: float  # of the chosen mix
    metrics: np.ndarray  # one per mix; NaN if the site's policy withholds it, as in ``figure``


class ChooseShare(Ask[ChosenShare], frozen=True, kw_only=True):
    """The share of local trees and local leaf values at the site, chosen on its training rows."""

    once: ClassVar[bool] = True

    schema: Agreed[Blob]
    model: Fixed[PersonalModel]  # the shared forest, the samples of its trees, and the parts of the mix

    def describe(self, reply: Any = None) -> str:
        """Describe the request, or the reply."""
        n = len(MIXES)
        if reply is not None:
            n = int((~np.isnan(reply.metrics)).sum()) + (reply.choice == UNTOLD and not np.isnan(reply.metric))
        return (
            "how much say the site's own trees and rows will have in a forest that stays there, and rounded metrics of "
            f"{'1 mix' if n == 1 else f'{n} mixes'} on its own training rows"
        )


# -- at a site
@dataclass(frozen=True)
class Ingredients:
    """The parts of a site's forest, see ``PersonalModel``.

    The forest that is made gets the curve and the errors of ``trusted``, the shared one as it was sent, adjusted to the
    site's rows.
    """

    shared: Forest  # without a curve or errors
    draws: RowSamples  # the rows that the trees of the shared forest sampled
    own: Forest
    fit: bool = True
    trusted: Forest | None = None

    def __post_init__(self) -> None:
        """Convert curves of the site's own trees to the times of the shared ones, because their means are mixed."""
        if self.shared.times is not None:
            object.__setattr__(self, "own", at_times_of(self.own, self.shared))

    @classmethod
    def read(cls, site: Site, schema: Schema, model: PersonalModel) -> "Ingredients":
        """Read the objects of a request. Nothing after this can fail because of the contents of the site's rows."""
        shared, draws = model_of(site, schema, model.shared), model.draws
        reject(shared.combine != "mean", "trees of a mix answer by their mean")
        check_samples(draws, len(shared))
        reject(not draws.bootstrap, "if trees sample all rows, none are left for choosing")
        own = read_trees(site.blob(model.own.hash), schema)
        return cls(shared.plain(), draws, own, model.fit, shared)

    @property
    def name(self) -> tuple[str, ...]:
        """The identity of the parts."""
        return self.shared.hash, self.own.hash, msgspec.json.encode([self.draws, self.fit]).decode()

    def fitted_draws(self) -> RowSamples:
        """Return which rows fitted trees sampled: the site's, in every tree."""
        return msgspec.structs.replace(self.draws, refitted=True)


class MixChoice(NamedTuple):
    """The mix that a site chose: its position in ``MIXES``, and the metrics behind the choice.

    ``scores`` are of training rows, by mix, and ``quality`` how good they are; both are None of a mix that was not
    offered, and empty where there was nothing to choose by.
    """

    choice: int
    y: np.ndarray
    scores: tuple[np.ndarray | None, ...] = ()
    quality: tuple[ScoreQuality | None, ...] = ()


def choose_mix(site: Site, schema: Schema, parts: Ingredients) -> MixChoice:
    """Score all mixes on training rows and choose one; cached, because it is requested again."""

    def choose() -> MixChoice:
        alone = RowSamples((len(parts.own),), (site.name,), parts.draws.bootstrap)
        scored = [score_unseen(site, schema, parts.shared, parts.draws), score_unseen(site, schema, parts.own, alone)]
        if parts.fit:
            scored.append(score_unseen(site, schema, fit_leaves(site, schema, parts), parts.fitted_draws()))
        if any(one is None for one in scored):
            return MixChoice(0, np.zeros(0, np.int64))
        each = [one.scores for one in scored if one is not None]
        known = ~np.isnan(sum(each)).any(axis=1)
        y = next(one.y for one in scored if one is not None)[known]
        if len(y) < FLOOR or not policy_of(site).allows_metrics(len(y)):
            return MixChoice(0, y)
        each = [scores[known] for scores in each]
        mixes = tuple(None if by and not parts.fit else _mix(each, own, by) for own, by in MIXES)
        quality = tuple(mix if mix is None else score_quality(mix, y, schema.n_classes, by_pairs=True) for mix in mixes)
        if quality[0] is None or quality[0].metric == "accuracy":
            return MixChoice(0, y)  # all rows have one class
        return MixChoice(likely_mix(quality, y), y, mixes, quality)

    return site.cache.once(CacheKey[MixChoice]("chosen mix", schema.hash, *parts.name), choose)


def _mix(scores: list[np.ndarray], own: float, fitted: float) -> np.ndarray:
    mixed = (1.0 - own - fitted) * scores[0] + own * scores[1]
    return mixed + fitted * scores[2] if fitted else mixed


def likely_mix(quality: tuple[ScoreQuality | None, ...], y: np.ndarray) -> int:
    """Return the position of the mix nearest to the mean of all, each weighted by its certain gain."""
    offered = [(place, one) for place, one in enumerate(quality) if one is not None]
    first = offered[0][1]
    unit = float(np.var(y)) if first.metric == "rmse" else 1.0
    if unit <= 0.0:
        return 0  # a constant label: nothing to gain
    gains, errors = np.array([one.lead(first) for _, one in offered]).T / unit
    ahead = float(np.max(gains / np.maximum(errors, np.finfo(np.float64).tiny)))
    luck = _LUCK * float(np.interp(ahead, _NO_LUCK, (1.0, 0.0)))
    surely = gains - luck * errors
    shares = np.array([(1.0 - sum(MIXES[place]), *MIXES[place]) for place, _ in offered])
    scale = max(min(_SCALE, _SURE_SCALE * float(errors.max())), np.finfo(np.float64).tiny)
    weights = np.exp((surely - surely.max()) / scale)
    distances = ((shares - weights @ shares / weights.sum()) ** 2).sum(axis=1)
    return offered[int(np.argmin(distances))][0]


def fit_leaves(site: Site, schema: Schema, parts: Ingredients) -> Forest:
    """Compute leaf values of the shared trees from the rows that each tree samples at the site; cached."""

    def fit() -> Forest:
        forest, part = parts.shared, site.part(schema)
        drawn, places = rows_sampled(site, part, parts.fitted_draws())
        offset, scale = (0.0, 1.0) if schema.n_classes else fixed_point([forest])
        codes, amounts = counted_labels(forest, part.y, offset, scale)
        counts, trees = np.zeros((len(forest.value), label_columns(forest)), np.int64), np.arange(len(forest))
        labels_at_leaves(forest, part.X, codes.astype(np.int64), amounts, trees, drawn, places, counts, site.n_jobs)
        if forest.times is not None:
            n, means = counts.sum(axis=1, keepdims=True), hazards(counts)
        elif schema.n_classes:
            n = counts.sum(axis=1, keepdims=True)
            means = counts / np.maximum(n, 1)
        else:
            n, means = counts[:, :1], mean_label(counts, offset, scale)[:, None]
        share = n / (n + _PRIOR_ROWS)
        values = share * means + (1.0 - share) * forest.value
        return replace(forest, value=np.where(n >= _LEAST_ROWS, values, forest.value))

    return site.cache.once(CacheKey[Forest]("fitted leaves", schema.hash, *parts.name), fit)


class SiteForest(NamedTuple):
    """A site's forest of a model, and the rows its trees sampled, if known."""

    forest: Forest
    draws: RowSamples | None


def make_forest(site: Site, schema: Schema, parts: Ingredients) -> SiteForest:
    """Build the forest that the site should use, its curve and errors adjusted to the site's rows."""
    made, trusted = _make_trees(site, schema, parts), parts.trusted
    if trusted is None or (trusted.curve is None and trusted.errors is None):
        return made
    given = replace(made.forest, curve=trusted.curve, errors=trusted.errors)
    return SiteForest(adjusted(site, schema, given, made.draws), made.draws)


def _make_trees(site: Site, schema: Schema, parts: Ingredients) -> SiteForest:
    own, by = MIXES[choose_mix(site, schema, parts).choice]
    forest, draws, n = parts.shared, parts.draws, len(parts.own)
    if own == 1.0:
        return SiteForest(parts.own, RowSamples((n,), (site.name,), draws.bootstrap))
    if by:
        part = by / (1.0 - own)
        value = (1.0 - part) * forest.value + part * fit_leaves(site, schema, parts).value
        forest, draws = replace(forest, value=value), parts.fitted_draws()
    if own:
        owners = draws.owners or ("",)
        sizes, owners = (*draws.sizes, n), (*owners, site.name)
        draws = msgspec.structs.replace(draws, sizes=sizes, owners=owners)
    return SiteForest(mixed_forest(forest, parts.own, own), draws)


def mixed_forest(shared: Forest, own: Forest, share: float) -> Forest:
    """Return the forest that mixes a share of local trees with the shared forest."""
    if share == 0.0:
        return shared
    say = shared.weights.sum() / max(own.weights.sum(), 1.0)
    return join_forests([shared, own], [1.0 - share, share * float(say)])


@answers(ChooseShare)
def choose_share(site: Site, request: ChooseShare) -> ChosenShare:
    """Choose a mix on training rows; keep the resulting forest if the study's results are to be kept."""
    schema, model = schema_of(site, request.schema), request.model
    reject(model.made_in != site.task, "a mix needs the trees that the site made in this task")
    check_candidates(site, [model])
    parts = Ingredients.read(site, schema, model)
    chosen = choose_mix(site, schema, parts)
    if site.results is not None and (chosen.choice or parts.trusted != parts.shared):
        keep_made_model(site.results, make_forest(site, schema, parts).forest)
    if not chosen.quality or chosen.quality[0] is None:
        empty = np.full(len(MIXES), np.nan)
        return ChosenShare(choice=0, measure="", rows=len(chosen.y), metric=np.nan, metrics=empty)
    told = policy_of(site).score_groups == 1
    shown = range(len(MIXES)) if told else [0]
    metrics = np.array(
        [_figure(site, chosen, i, schema.n_classes) if i in shown else np.nan for i in range(len(MIXES))]
    )
    return ChosenShare(
        choice=chosen.choice if told or not chosen.choice else UNTOLD,
        measure=chosen.quality[0].metric,
        rows=len(chosen.y),
        metric=_figure(site, chosen, chosen.choice, schema.n_classes),
        metrics=metrics,
    )


def _figure(site: Site, chosen: MixChoice, place: int, n_classes: int) -> float:
    """Return the metric of a mix, as far as the site's policy discloses it: of rows in groups, rounded."""
    mix, policy = chosen.scores[place], policy_of(site)
    if mix is None:
        return np.nan
    answer, labels = in_groups(Answer(mix, mix.argmax(axis=1)), chosen.y, n_classes, policy.score_groups)
    if hides_one_class(policy, labels, n_classes):
        return np.nan
    return three_digits(score_quality(answer.scores, labels, n_classes, by_pairs=True).value)


# -- at the coordinator
def choose_shares(
    federation: Federation, schema: Schema, models: Mapping[str, PersonalForest], threshold: float | None = None
) -> dict[str, ChosenShare]:
    """Ask every site for its mix: one round. The shared forest is sent as in an evaluation."""
    schema_blob = federation.blob(schema.to_json().encode())
    requests = {
        site: ChooseShare(schema=schema_blob, model=model.candidate(federation, threshold))
        for site, model in models.items()
    }
    replies: dict[str, ChosenShare] = federation.ask(requests, check=check_chosen)
    return replies


def site_models(
    federation: Federation, shared: Forest, draws: RowSamples, own: Mapping[str, Blob], fit: bool
) -> dict[str, PersonalForest]:
    """Return the parts of personal forests at sites that sent trees; ``draws`` has the shared trees' samples."""
    found = {}
    for site, blob in own.items():
        tasks = [owner.task for owner in federation.makers(blob) if owner.site == site]
        if site in federation.active and tasks:
            found[site] = PersonalForest(shared, draws, blob, tasks[-1], fit)
    return found


def check_chosen(site: str, reply: ChosenShare) -> None:
    """Raise ``FormatError`` for an impossible reply."""
    if not UNTOLD <= reply.choice < len(MIXES) or not 0 <= reply.rows < MAX_ROWS:
        raise FormatError("its choice was not on offer")
    check_metrics(reply.metrics, (len(MIXES),))
    check_metrics(np.array(reply.metric), ())
