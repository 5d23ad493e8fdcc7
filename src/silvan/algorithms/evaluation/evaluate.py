"""Evaluation of models without moving rows: each site scores its own test rows.

It takes two rounds. A site sends its own metrics with three digits (``ask``), and an interval for the gain of each
model over its local one. The metrics over all sites come from counts on a grid of scores that are summed
(``total``), so nobody sees another site's scores. Regression needs only the moments of the first round. Rows are scored
in groups where a policy says so (``score_groups.py``), and few models are evaluated (``candidates.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.candidates import (
    NO_THRESHOLDS,
    Candidate,
    Models,
    Named,
    PersonalForest,
    PersonalModel,
    SentModel,
    Thresholds,
    alike,
    check_candidates,
    list_candidates,
)
from silvan.algorithms.evaluation.details import Detail, Floors, check_detail, detail_of, detail_over_all, nothing
from silvan.algorithms.evaluation.evaluation import (
    LOCAL,
    MEAN_OF_SITES,
    Evaluation,
    Row,
    compared,
    metrics_by_name,
    never_decided,
    pooled_hash,
    rounded,
    rounded_intervals,
)
from silvan.algorithms.evaluation.score_groups import (
    Answer,
    Subgroup,
    arrange,
    check_by,
    check_subgroups,
    hides_one_class,
    name_of,
    places_of,
)
from silvan.algorithms.evaluation.score_quality import intervals
from silvan.algorithms.evaluation.site_models import (
    answer_on_test_rows,
    shown_reach,
    shown_threshold,
    test_cells,
)
from silvan.algorithms.keyed_rows import RowSamples
from silvan.algorithms.requests import counts_of, schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, reject
from silvan.federation import wire
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.message import (
    Agreed,
    Ask,
    Blob,
    Derived,
    Fixed,
    PartitionsWay,
    Reply,
    Request,
    SummedReply,
    Total,
)
from silvan.federation.outgoing import Check
from silvan.federation.site import Site, answers
from silvan.privacy.gate import policy_of

NO_TEST_ROWS = "no site has test rows: set test=0.2 when the federation is made, or pass a table to evaluate on"


class SiteMetrics(Reply, frozen=True, kw_only=True):
    """A site's main metrics, one row per model, in their order; in regression, moments.

    And the interval of each model's gain over the local one; no numbers where test rows are few. Where the site's
    policy finds them too few, there are no metrics at all: no numbers, or moments of no rows.
    """

    rows: int
    metrics: np.ndarray
    intervals: np.ndarray
    details: tuple[Detail, ...]
    subgroups: tuple[Subgroup, ...] = ()


class OfCandidates(Request, frozen=True, kw_only=True, omit_defaults=True):
    """A request about scores of test rows."""

    partitions: ClassVar[PartitionsWay] = "site"

    schema: Agreed[Blob]
    candidates: Fixed[list[Candidate]]
    feature_key: Fixed[np.ndarray]
    # columns with metrics by subgroup: rows are grouped by score within them
    by: Fixed[tuple[int, ...]] = ()


class EvaluateModels(OfCandidates, Ask[SiteMetrics], frozen=True, kw_only=True, omit_defaults=True):
    """Metrics of models on the site's test rows."""

    once: ClassVar[bool] = True  # two models that differ on one row would reveal that row's label

    against: Derived[int] = -1  # the baseline of gains, if any


class ScoreCounts(SummedReply, frozen=True, kw_only=True):
    """Test rows by score and class, by true and voted class, and by band of probability, for each model."""

    scores: np.ndarray
    confusion: np.ndarray
    bands: np.ndarray


class CountByScore(OfCandidates, Total[ScoreCounts], frozen=True, kw_only=True, omit_defaults=True):
    """The number of test rows for each score on a grid, per model."""

    def alike(self) -> bytes:
        """Return all except trees made at the site, because a sum would not hide counts of a single site's model."""
        return wire.encode(msgspec.structs.replace(self, candidates=[alike(one) for one in self.candidates]))


# -- at a site
@answers(EvaluateModels)
def evaluate_models(site: Site, request: EvaluateModels) -> SiteMetrics:
    """Score the site's test rows exactly."""
    reject(not -1 <= request.against < len(request.candidates), "gains are measured against a model that is not there")
    schema = _check(site, request)
    y = site.part(schema, test=True).y
    key, by = request.feature_key, request.by
    given = [answer_on_test_rows(site, schema, candidate, key, by) for candidate in request.candidates]
    between = _intervals(site, schema, given, request.against)
    between = rounded_intervals(between, bool(schema.n_classes))
    thresholds = [shown_threshold(site, schema, candidate, key) for candidate in request.candidates]
    reaches = [shown_reach(site, schema, candidate, key) for candidate in request.candidates]
    values, details = _metrics(site, schema, given, y, thresholds, reaches)
    between[[not len(detail.metrics) for detail in details]] = np.nan
    subgroups, cells = [], test_cells(site, schema, by)
    for codes, rows in [] if cells is None else zip(cells.shown, cells.rows(), strict=False):
        some = [(Answer(answer.scores[rows], answer.decided[rows]), labels[rows]) for answer, labels in given]
        subgroups.append(Subgroup(codes, len(rows), *_metrics(site, schema, some, y[rows], thresholds, reaches)))
    if subgroups and not schema.n_classes:  # groups of all rows would differ from those of subgroups
        details = tuple(msgspec.structs.replace(detail, groups=[]) for detail in details)
    return SiteMetrics(rows=len(y), metrics=values, intervals=between, details=details, subgroups=tuple(subgroups))


def _check(site: Site, request: OfCandidates) -> Schema:
    """Check the objects that a request refers to, and return its schema."""
    schema = schema_of(site, request.schema)
    check_by(schema, request.by)
    check_candidates(site, request.candidates, request.by)
    return schema


def _metrics(
    site: Site,
    schema: Schema,
    given: list[tuple[Answer, np.ndarray]],
    y: np.ndarray,
    thresholds: Sequence[float],
    reaches: Sequence[float],
) -> tuple[np.ndarray, tuple[Detail, ...]]:
    """Return main metrics (models, metrics) and details of rows; empty if the policy requires more rows."""
    positive = schema.label.positive_code
    if schema.n_classes:
        listed = [list(_classification(*one, positive).values()) for one in given]
    else:
        listed = [metrics.moments(answer.scores[:, 0], labels).tolist() for answer, labels in given]
    values = rounded(np.array(listed, np.float64).reshape(len(given), -1), bool(schema.n_classes))
    policy, details = policy_of(site), [nothing()] * len(given)
    for i, (answer, labels) in enumerate(given):
        if policy.allows_metrics(len(y)) and not hides_one_class(policy, labels, schema.n_classes):
            at, floors = thresholds[i], Floors.of(policy)
            details[i] = detail_of(*answer, labels, schema.n_classes, floors, at, positive, reaches[i])
        else:  # not refused: otherwise a site with few rows would end everybody's evaluation
            values[i] = np.nan if schema.n_classes else 0.0
    return values, tuple(details)


@answers(CountByScore)
def count_by_score(site: Site, request: CountByScore) -> ScoreCounts:
    """Count the site's test rows on the grid of scores; a model whose trees all abstain counts no rows."""
    schema = _check(site, request)
    scores, confusion, bands = [], [], []
    for candidate in request.candidates:
        answer, y = answer_on_test_rows(site, schema, candidate, request.feature_key, request.by)
        scored = slice(0, 0) if answer.silent else slice(None)
        found, labels = answer.scores[scored], y[scored]
        scores.append(metrics.count_scores(found, labels, exact=False, positive=schema.label.positive_code))
        confusion.append(metrics.confusion(found, labels, answer.decided[scored]))
        bands.append(metrics.calibration_sums(found, labels))
    return ScoreCounts(
        scores=np.array(scores, np.int64), confusion=np.array(confusion, np.int64), bands=np.array(bands, np.int64)
    )


def _classification(answer: Answer, labels: np.ndarray, positive: int) -> dict[str, float]:
    return metrics.classification(answer.scores, labels, answer.decided, positive)


def _intervals(site: Site, schema: Schema, given: list[tuple[Answer, np.ndarray]], against: int) -> np.ndarray:
    """Return intervals of gains, (models, 2), using only the data behind the metrics.

    If each model has its own assigned labels, two at a time are compared by those of one, with rows of a group
    arranged to agree with the other's as far as possible. The centre is the difference of the metrics.
    """
    scores, labels = [answer.scores for answer, _ in given], [one for _, one in given]
    key, jobs, n_classes, positive = site.sampling_key, site.n_jobs, schema.n_classes, schema.label.positive_code
    if against < 0 or policy_of(site).score_groups == 1 or not n_classes:
        return intervals(scores, against, labels[0], n_classes, key, jobs)
    base, found = given[against], np.full((len(given), 2), np.nan)
    for i, one in enumerate(given):
        if i != against and not base[0].silent and not one[0].silent:
            arranged = arrange(*one, base[1])
            shift = _classification(base[0], arranged, positive)["auc"] - _classification(*base, positive)["auc"]
            pair = intervals([scores[against], scores[i]], 0, arranged, n_classes, key, jobs)[1]
            found[i] = np.clip(pair + shift, -1.0, 1.0)
    return found


# -- at the coordinator
def evaluate(
    federation: Federation,
    schema: Schema,
    candidates: Sequence[Named],
    feature_key: np.ndarray,
    draws: Mapping[str, RowSamples] | None = None,
    thresholds: Thresholds = NO_THRESHOLDS,
    by: Sequence[str] = (),
) -> Evaluation:
    """Evaluate models at all sites.

    ``draws`` has the samples of a forest's trees by its hash, so that sites can choose thresholds; ``by`` has the
    categorical columns of subgroups with separate metrics. Regression has no counts for curves.

    Counts are summed of models that are the same at all sites; of one that differs by site there are none, and its
    overall metrics are the mean of the sites', by their test rows. A sum over one site would be the site's own counts:
    there is none.
    """
    names, models = tuple(name for name, _ in candidates), [model for _, model in candidates]
    against = names.index(LOCAL) if LOCAL in names else -1
    listed = list_candidates(federation, models, draws or {}, thresholds)
    shared: dict[str, Any] = {
        "schema": federation.blob(schema.to_json().encode()),
        "feature_key": feature_key,
        "by": places_of(schema, by),
    }
    with federation.counted_apart():
        replies: dict[str, SiteMetrics] = federation.ask(
            {site: EvaluateModels(candidates=listed[site], against=against, **shared) for site in listed},
            check=_check_metrics(schema, len(candidates), shared["by"]),
        )
        if not any(reply.rows for reply in replies.values()):
            raise InputError(NO_TEST_ROWS)
        counts: ScoreCounts | None = None
        if schema.n_classes and len(federation.active) > 1:
            counts = _total_counts(federation, schema, {site: listed[site] for site in federation.active}, shared)
    rows = []
    for site, reply in replies.items():
        marks = [_mark(one, model, site) for one, model in zip(listed[site], models, strict=True)]
        rows += compared(_site_rows(schema, site, names, reply), reply.intervals, marks)
    overall = [_overall_row(schema, name, i, rows, list(replies.values()), counts) for i, name in enumerate(names)]
    return Evaluation(
        [*rows, *compared(overall)],
        _subgroup_rows(schema, names, replies, shared["by"]),
        names,
        None if counts is None else counts.scores,
        pooled_hash(candidates),
        never_decided(overall, schema),
    )


def _site_rows(
    schema: Schema, site: str, names: Sequence[str], given: SiteMetrics | Subgroup, group: str = ""
) -> list[Row]:
    """Return the rows of one site: of all its test rows, or of a subgroup."""
    return [
        Row(site, name, given.rows, metrics_by_name(schema.n_classes, values), group=group).with_detail(detail, schema)
        for name, values, detail in zip(names, given.metrics, given.details, strict=True)
    ]


def _overall_row(
    schema: Schema,
    name: str,
    place: int,
    rows: Sequence[Row],
    given: Sequence[SiteMetrics | Subgroup],
    counts: ScoreCounts | None = None,
    group: str = "",
) -> Row:
    """Return a model's row over all sites: from summed counts, from moments, or as the mean of sites."""
    scores, matrix, mean, positive = None, None, False, schema.label.positive_code
    if not schema.n_classes:
        moments = np.array([one.metrics[place] for one in given])
        n, found = int(moments[:, 0].sum()), metrics.from_moments(moments)
    elif counts is not None and counts.confusion[place].any():
        scores, matrix = counts.scores[place], counts.confusion[place]
        n, found = int(matrix.sum()), metrics.from_counts(list(scores), matrix, counts.bands[place], positive)
    else:
        mean = True
        n, found = _mean_metrics([row for row in rows if row.model == name], schema.n_classes)
    told = [(one.rows, one.details[place]) for one in given]
    detail = detail_over_all(schema.n_classes, scores, matrix, told, positive)
    row = Row(OVERALL, name, n, found, group=group).with_detail(detail, schema)
    if group:
        return row
    return replace(row, note=(MEAN_OF_SITES if mean and n else row.note) or _whose_thresholds(told))


def _mark(candidate: Candidate, models: Models, site: str) -> bytes:
    """Return a key that is equal for identical models at a site: a personal forest may equal the shared one."""
    model = models.get(site) if isinstance(models, Mapping) else models
    if isinstance(candidate, PersonalModel) and isinstance(model, PersonalForest) and model.takes_shared:
        candidate = SentModel(candidate.shared, draws=candidate.draws, threshold=candidate.threshold)
    return msgspec.json.encode(candidate)


def _whose_thresholds(told: Sequence[tuple[int, Detail]]) -> str:
    """Return the number of sites behind metrics at a threshold, if some sites with test rows chose none."""
    chosen = [bool(detail.at_threshold.sum()) for rows, detail in told if rows]
    if all(chosen) or not any(chosen):
        return ""
    return f"sensitivity, specificity, precision of {sum(chosen)} of {len(chosen)} sites: the rest chose no threshold"


def _subgroup_rows(
    schema: Schema, names: Sequence[str], replies: Mapping[str, SiteMetrics], by: Sequence[int]
) -> list[Row]:
    """Return the lines of subgroups: of sites, and over those sites that show a subgroup, weighted by its rows."""
    found: dict[tuple[int, ...], list[tuple[str, Subgroup]]] = {}
    for site, reply in replies.items():
        for one in reply.subgroups:
            found.setdefault(tuple(one.codes), []).append((site, one))
    listed: list[Row] = []
    for codes, shown in sorted(found.items()):
        group, given = name_of(schema, by, codes), [one for _, one in shown]
        rows = [row for site, one in shown for row in _site_rows(schema, site, names, one, group)]
        for i, name in enumerate(names):
            listed += [row for row in rows if row.model == name]
            listed.append(_overall_row(schema, name, i, rows, given, group=group))
    return listed


def _total_counts(
    federation: Federation, schema: Schema, listed: dict[str, list[Candidate]], shared: dict[str, Any]
) -> ScoreCounts:
    """Sum the counts of models that are the same at all sites; those of others are 0."""
    n = len(next(iter(listed.values())))
    same = [i for i in range(n) if len({msgspec.json.encode(alike(of[i])) for of in listed.values()}) == 1]
    shapes = _count_shapes(schema, n)
    counts = ScoreCounts(**{name: np.zeros(shape, np.int64) for name, shape in shapes.items()})
    if same:
        total: ScoreCounts = federation.total(
            {site: CountByScore(candidates=[of[i] for i in same], **shared) for site, of in listed.items()},
            check=counts_of(**_count_shapes(schema, len(same))),
        )
        for name in shapes:
            getattr(counts, name)[same] = getattr(total, name)
    return counts


def _mean_metrics(rows: list[Row], n_classes: int) -> tuple[int, dict[str, float]]:
    """Return the mean metrics of sites, weighted by rows, and the number of rows."""
    found = {}
    for metric in metrics.main_metrics(n_classes):
        known = [row for row in rows if not np.isnan(row.metrics[metric.key])]
        n = sum(row.rows for row in known)
        found[metric.key] = sum(row.metrics[metric.key] * row.rows for row in known) / n if n else np.nan
    return sum(row.rows for row in rows if not np.isnan(list(row.metrics.values())).all()), found


def _check_metrics(schema: Schema, n_models: int, by: Sequence[int]) -> Check:

    def check(site: str, reply: SiteMetrics) -> None:
        between = reply.intervals
        reject(
            between.shape != (n_models, 2) or between.dtype != np.float64, "its intervals are not the ones requested"
        )
        known = between[~np.isnan(between).all(axis=1)]
        most = 1.0 if schema.n_classes else np.finfo(np.float64).max
        if not ((known[:, 0] <= known[:, 1]).all() and (np.abs(known) <= most).all()):
            raise FormatError("its intervals are not possible")
        check_subgroups(reply.subgroups, schema, by, reply.rows)
        given: list[SiteMetrics | Subgroup] = [reply, *reply.subgroups]
        for one in given:
            _check_some(schema, n_models, one.rows, one.metrics)
            reject(len(one.details) != n_models, "its details are not the ones requested")
            for detail in one.details:
                check_detail(detail, schema.n_classes, one.rows)

    return check


def _check_some(schema: Schema, n_models: int, rows: int, values: np.ndarray) -> None:
    """Raise ``FormatError`` for impossible metrics."""
    known = metrics.main_metrics(schema.n_classes)
    width = len(known) if schema.n_classes else 4
    if values.shape != (n_models, width) or values.dtype != np.float64 or not 0 <= rows < MAX_ROWS:
        raise FormatError("its metrics are not the ones requested")
    if schema.n_classes:
        possible = all(metric.possible(x) for line in values.tolist() for metric, x in zip(known, line, strict=True))
    else:
        fits = np.isfinite(values) & (values >= [0.0, 0.0, -np.inf, 0.0])
        fits[:, 0] &= np.isin(values[:, 0], (0.0, rows))  # all rows, or none if the model abstains
        possible = bool(fits.all())
    reject(not possible, "its metrics are not possible")


def _count_shapes(schema: Schema, n_models: int) -> dict[str, tuple[int, ...]]:
    n = schema.n_classes
    return {
        "scores": (n_models, 1 if n == 2 else n, 2, metrics.GRID),
        "confusion": (n_models, n, n),
        "bands": (n_models, metrics.BANDS, 3),
    }
