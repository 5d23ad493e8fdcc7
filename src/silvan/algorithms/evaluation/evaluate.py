"""Evaluation of models without moving rows: each site scores its own test part.

Two rounds. A site sends its own figures as numbers of three digits (``ask``), with an interval for what each model
gains over the site's own one. The figures over all sites come from counts on a grid of scores that are summed
(``total``), so nobody sees another site's scores. Regression needs only the moments of the first round. Rows are scored
in groups where a policy says so (``score_groups.py``), and few models are judged (``contenders.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.contenders import (
    NO_RULE,
    Contender,
    Decide,
    MadeAtSite,
    check_contenders,
    list_contenders,
)
from silvan.algorithms.evaluation.details import (
    Detail,
    Floors,
    check_detail,
    detail_of,
    detail_over_all,
    nothing,
)
from silvan.algorithms.evaluation.figures import (
    LOCAL,
    MEAN_OF_SITES,
    Answer,
    Row,
    compared,
    for_site,
    rounded,
    rounded_intervals,
    with_detail,
)
from silvan.algorithms.evaluation.intervals import intervals
from silvan.algorithms.evaluation.judged_answers import answer_on_test_rows, shown_threshold, test_cells
from silvan.algorithms.evaluation.score_groups import arrange, hides_one_class
from silvan.algorithms.evaluation.site_thresholds import Draws
from silvan.algorithms.evaluation.subgroups import Subgroup, check_by, check_subgroups, name_of, places_of
from silvan.algorithms.shared.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation import wire
from silvan.federation.agreement.agree import MAX_ROWS
from silvan.federation.federation import OVERALL, Federation
from silvan.federation.message import Blob, Course, PartitionsWay, Reply, Request, Verb
from silvan.federation.question import Check
from silvan.federation.site import Site, answers
from silvan.privacy.gate.gate import policy_of
from silvan.util.readable import count_of

NO_TEST_ROWS = "no site has test rows: set test=0.2 when the federation is made, or pass a table to judge on"

_DETAILS = "; counts of these rows by decision and by groups of scores, and figures of these counts"


class Figures(Reply, frozen=True, kw_only=True):
    """A site's figures, a row a model: the metrics in their order, or moments where a number is predicted.

    And between which two numbers the gain over the site's own model lies; no numbers where test rows are few. Where the
    site's policy finds them too few to judge by, there are no figures at all: no numbers, or moments of no rows.
    """

    rows: int
    figures: np.ndarray
    intervals: np.ndarray
    details: tuple[Detail, ...] = ()
    subgroups: tuple[Subgroup, ...] = ()


class Judge(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of merit of models on the site's own test rows."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Figures
    partitions: ClassVar[PartitionsWay] = "site"

    schema: Blob
    contenders: list[Contender]
    feature_key: np.ndarray
    against: int = -1  # the one that gains are measured against, if any
    by: tuple[int, ...] = ()  # places of columns whose subgroups have figures of their own

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        n = len(self.contenders)
        apart = f", and of subgroups by {count_of(len(self.by), 'column')}" if self.by else ""
        if reply is None:
            return f"figures of merit of {count_of(n, 'model')} on the site's own test rows{apart}"
        return (
            f"{reply.figures.shape[1]} figures of merit of {count_of(n, 'model')} on the site's own test rows, how "
            "many these "
            f"are, and intervals of gains{_DETAILS if reply.details else ''}{apart}"
        )

    def course(self) -> Course:
        """Allow the question once: two models that differ on one row would show that row's label."""
        return Course(self.kind())


class Counts(Reply, frozen=True, kw_only=True):
    """Test rows by score and class, by true and voted class, and by band of probability, for each model."""

    scores: np.ndarray
    confusion: np.ndarray
    bands: np.ndarray


class Tally(Request, frozen=True, kw_only=True, omit_defaults=True):
    """How many test rows have which score on a grid, for each model."""

    verb: ClassVar[Verb] = "total"
    reply: ClassVar[type[Reply]] = Counts
    partitions: ClassVar[PartitionsWay] = "site"

    schema: Blob
    contenders: list[Contender]
    feature_key: np.ndarray
    by: tuple[int, ...] = ()  # as in the figures: rows are grouped by score within subgroups

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        return f"counts of test rows by score on a grid and by class, of {count_of(len(self.contenders), 'model')}"

    def alike(self) -> bytes:
        """Return all but the trees that each site made itself: a model that one site alone judged would be its part."""
        return wire.encode(msgspec.structs.replace(self, contenders=[one.alike() for one in self.contenders]))


# -- at a site


@answers(Judge)
def judge(site: Site, request: Judge) -> Figures:
    """Score the site's test part exactly."""
    if not -1 <= request.against < len(request.contenders):
        raise FormatError("gains are measured against a model that is not there")
    schema = schema_of(site, request.schema)
    check_by(schema, request.by)
    check_contenders(site, request.contenders, request.by)
    y = site.part(schema, test=True).y
    key, by = request.feature_key, request.by
    given = [answer_on_test_rows(site, schema, contender, key, by) for contender in request.contenders]
    between = _intervals(site, given, request.against, schema.n_classes)
    between = rounded_intervals(between, bool(schema.n_classes))
    thresholds = [shown_threshold(site, schema, contender, key) for contender in request.contenders]
    figures, details = _figures(site, schema, given, y, thresholds)
    between[[not len(detail.figures) for detail in details]] = np.nan
    subgroups, cells = [], test_cells(site, schema, by)
    for codes, rows in [] if cells is None else zip(cells.shown, cells.rows(), strict=False):
        some = [(Answer(answer.scores[rows], answer.decided[rows]), labels[rows]) for answer, labels in given]
        subgroups.append(Subgroup(codes, len(rows), *_figures(site, schema, some, y[rows], thresholds)))
    if subgroups and not schema.n_classes:  # groups of all rows would be other ones than those of subgroups
        details = tuple(msgspec.structs.replace(detail, groups=[]) for detail in details)
    return Figures(rows=len(y), figures=figures, intervals=between, details=details, subgroups=tuple(subgroups))


def _figures(
    site: Site, schema: Schema, given: list[tuple[Answer, np.ndarray]], y: np.ndarray, thresholds: Sequence[float]
) -> tuple[np.ndarray, tuple[Detail, ...]]:
    """Return figures (models, figures) and details of rows; none where the policy finds them too few."""
    if schema.n_classes:
        listed = [list(_classification(*one).values()) for one in given]
    else:
        listed = [metrics.moments(answer.scores[:, 0], labels).tolist() for answer, labels in given]
    figures = rounded(np.array(listed, np.float64).reshape(len(given), -1), bool(schema.n_classes))
    policy, details = policy_of(site), [nothing()] * len(given)
    for i, (answer, labels) in enumerate(given):
        if policy.allows_figures(y, schema.n_classes) and not hides_one_class(policy, labels, schema.n_classes):
            details[i] = detail_of(*answer, labels, schema.n_classes, Floors.of(policy), thresholds[i])
        else:  # not refused: a site with few rows would end everybody's evaluation
            figures[i] = np.nan if schema.n_classes else 0.0
    return figures, tuple(details)


@answers(Tally)
def tally(site: Site, request: Tally) -> Counts:
    """Count the site's test rows on the grid of scores; a model whose trees all abstain counts no rows."""
    schema = schema_of(site, request.schema)
    check_by(schema, request.by)
    check_contenders(site, request.contenders, request.by)
    scores, confusion, bands = [], [], []
    for contender in request.contenders:
        answer, y = answer_on_test_rows(site, schema, contender, request.feature_key, request.by)
        scored = slice(0, 0) if answer.silent else slice(None)
        found, labels = answer.scores[scored], y[scored]
        scores.append(metrics.count_scores(found, labels, exact=False))
        confusion.append(metrics.confusion(found, labels, answer.decided[scored]))
        bands.append(metrics.calibration_sums(found, labels))
    return Counts(
        scores=np.array(scores, np.int64), confusion=np.array(confusion, np.int64), bands=np.array(bands, np.int64)
    )


def _classification(answer: Answer, labels: np.ndarray) -> dict[str, float]:
    return metrics.classification(answer.scores, labels, answer.decided)


def _intervals(site: Site, given: list[tuple[Answer, np.ndarray]], against: int, n_classes: int) -> np.ndarray:
    """Return intervals of gains, (models, 2), from what figures are made of and nothing else.

    Where each model has labels of its own to count by, two at a time are compared by those of the one, with rows of a
    group so arranged that they agree with the other's as far as can be. The middle is the difference of the figures.
    """
    scores, labels = [answer.scores for answer, _ in given], [one for _, one in given]
    key, jobs = site.sampling_key, site.n_jobs
    if against < 0 or policy_of(site).score_groups == 1 or not n_classes:
        return intervals(scores, against, labels[0], n_classes, key, jobs)
    base, found = given[against], np.full((len(given), 2), np.nan)
    for i, one in enumerate(given):
        if i != against and not base[0].silent and not one[0].silent:
            arranged = arrange(*one, base[1])
            shift = _classification(base[0], arranged)["auc"] - _classification(*base)["auc"]
            pair = intervals([scores[against], scores[i]], 0, arranged, n_classes, key, jobs)[1]
            found[i] = np.clip(pair + shift, -1.0, 1.0)
    return found


# -- at the coordinator


class Evaluated(NamedTuple):
    """Lines of figures, of sites and over all; summed counts for curves; and lines of subgroups."""

    rows: list[Row]
    counts: Counts | None
    subgroups: list[Row]


def evaluate(
    federation: Federation,
    schema: Schema,
    contenders: list[tuple[str, object]],
    feature_key: np.ndarray,
    draws: Mapping[str, Draws] | None = None,
    decide: Decide = NO_RULE,
    by: Sequence[str] = (),
) -> Evaluated:
    """Judge models at all sites.

    A model is a ``Forest``, a dict of them by site, or ``Settings`` or ``Boosting`` for sites' own. ``draws`` says
    which rows the trees of a forest drew, by its hash, so that sites can choose thresholds; ``decide``, how the second
    of two classes is decided on; ``by``, which columns of categories make subgroups with figures of their own. There
    are no counts for curves where a number is predicted.

    Counts are summed of models that all sites judge alike; of one that differs by site there are none, and its overall
    figures are the mean of the sites', by their test rows.
    """
    names = [name for name, _ in contenders]
    against = names.index(LOCAL) if LOCAL in names else -1
    listed = list_contenders(federation, [model for _, model in contenders], draws or {}, decide)
    shared: dict[str, Any] = {
        "schema": federation.blob(schema.to_json().encode()),
        "feature_key": feature_key,
        "by": places_of(schema, by),
    }
    with federation.counted_apart():
        replies: dict[str, Figures] = federation.ask(
            {site: Judge(contenders=listed[site], against=against, **shared) for site in listed},
            check=_check_figures(schema, len(contenders), shared["by"]),
        )
        if not any(reply.rows for reply in replies.values()):
            raise InputError(NO_TEST_ROWS)
        counts: Counts | None = None
        if schema.n_classes:
            counts = _total_counts(federation, schema, {site: listed[site] for site in federation.active}, shared)
    rows = []
    for site, reply in replies.items():
        judged = [
            with_detail(Row(site, name, reply.rows, _named(schema, reply.figures[i])), _detail(reply, i), schema)
            for i, name in enumerate(names)
        ]
        models = [for_site(model, site) for _, model in contenders]
        rows += compared(judged, reply.intervals, [_mark(*pair) for pair in zip(listed[site], models, strict=True)])
    overall, means = [], set()
    for i, name in enumerate(names):
        if counts is None:
            n = int(sum(reply.figures[i, 0] for reply in replies.values()))
            figures = metrics.from_moments(np.array([reply.figures[i] for reply in replies.values()]))
        elif n := int(counts.confusion[i].sum()):
            figures = metrics.from_counts(list(counts.scores[i]), counts.confusion[i], counts.bands[i])
        else:
            n, figures = _mean_figures([row for row in rows if row.model == name])
            means.add(name)
        told = [(reply.rows, _detail(reply, i)) for reply in replies.values()]
        scores, matrix = (None, None) if counts is None else (counts.scores[i], counts.confusion[i])
        detail = detail_over_all(schema.n_classes, scores, matrix, told)
        line = with_detail(Row(OVERALL, name, n, figures), detail, schema)
        note = MEAN_OF_SITES if name in means and n else line.note
        overall.append(replace(line, note=note or _whose_thresholds(told)))
    return Evaluated([*rows, *compared(overall)], counts, _of_subgroups(schema, names, replies, shared["by"]))


def _mark(contender: Contender, model: object) -> bytes:
    """Return what is equal for models that are the same at a site: a mix may be the shared forest alone."""
    if isinstance(model, MadeAtSite) and model.takes_shared:
        contender = msgspec.structs.replace(contender, mixed=msgspec.UNSET)
    return msgspec.json.encode(contender)


def _whose_thresholds(told: Sequence[tuple[int, Detail]]) -> str:
    """Return of how many sites the figures at a threshold are, where some sites with test rows chose none."""
    chosen = [bool(detail.at_threshold.sum()) for rows, detail in told if rows]
    if all(chosen) or not any(chosen):
        return ""
    return f"sensitivity, specificity, precision of {sum(chosen)} of {len(chosen)} sites: the rest chose no threshold"


def _of_subgroups(schema: Schema, names: Sequence[str], replies: Mapping[str, Figures], by: Sequence[int]) -> list[Row]:
    """Return the lines of subgroups: of sites, and over those sites that show a subgroup, by its rows there."""
    found: dict[tuple[int, ...], list[tuple[str, Subgroup]]] = {}
    for site, reply in replies.items():
        for one in reply.subgroups:
            found.setdefault(tuple(one.codes), []).append((site, one))
    listed: list[Row] = []
    for codes, shown in sorted(found.items()):
        group = name_of(schema, by, codes)
        for i, name in enumerate(names):
            rows = []
            for site, one in shown:
                line = Row(site, name, one.rows, _named(schema, one.figures[i]), group=group)
                rows.append(with_detail(line, one.details[i], schema))
            if schema.n_classes:
                n, figures = _mean_figures(rows)
            else:
                moments = np.array([one.figures[i] for _, one in shown])
                n, figures = int(moments[:, 0].sum()), metrics.from_moments(moments)
            detail = detail_over_all(schema.n_classes, None, None, [(one.rows, one.details[i]) for _, one in shown])
            listed += [*rows, with_detail(Row(OVERALL, name, n, figures, group=group), detail, schema)]
    return listed


def _detail(reply: Figures, i: int) -> Detail:
    return reply.details[i] if reply.details else nothing()


def _total_counts(
    federation: Federation, schema: Schema, listed: dict[str, list[Contender]], shared: dict[str, Any]
) -> Counts:
    """Sum the counts of models that all sites judge alike; those of others are 0."""
    n = len(next(iter(listed.values())))
    same = [i for i in range(n) if len({msgspec.json.encode(of[i].alike()) for of in listed.values()}) == 1]
    shapes = _count_shapes(schema, n)
    counts = Counts(**{name: np.zeros(shape, np.int64) for name, shape in shapes.items()})
    if same:
        total: Counts = federation.total(
            {site: Tally(contenders=[of[i] for i in same], **shared) for site, of in listed.items()},
            check=_check_counts(schema, len(same)),
        )
        for name in shapes:
            getattr(counts, name)[same] = getattr(total, name)
    return counts


def _mean_figures(rows: list[Row]) -> tuple[int, dict[str, float]]:
    """Return the mean figures of sites, by their rows, and how many rows these are."""
    figures = {}
    for name in metrics.CLASSIFICATION:
        known = [row for row in rows if not np.isnan(row.figures[name])]
        n = sum(row.rows for row in known)
        figures[name] = sum(row.figures[name] * row.rows for row in known) / n if n else np.nan
    return sum(row.rows for row in rows if not np.isnan(list(row.figures.values())).all()), figures


def _check_figures(schema: Schema, n_models: int, by: Sequence[int] = ()) -> Check:

    def check(site: str, reply: Figures) -> None:
        _check_some(schema, n_models, reply.rows, reply.figures)
        between = reply.intervals
        if between.shape != (n_models, 2) or between.dtype != np.float64:
            raise FormatError("its intervals are not those asked for")
        known = between[~np.isnan(between).all(axis=1)]
        most = 1.0 if schema.n_classes else np.finfo(np.float64).max
        if not ((known[:, 0] <= known[:, 1]).all() and (np.abs(known) <= most).all()):
            raise FormatError("its intervals are not possible")
        if len(reply.details) not in (0, n_models):
            raise FormatError("its details are not those asked for")
        check_subgroups(reply.subgroups, schema, by, reply.rows)
        for detail in reply.details:
            check_detail(detail, schema.n_classes, reply.rows)
        for one in reply.subgroups:
            for detail in one.details:
                check_detail(detail, schema.n_classes, one.rows)
            _check_some(schema, n_models, one.rows, one.figures)
            if len(one.details) != n_models:
                raise FormatError("its details are not those asked for")

    return check


def _check_some(schema: Schema, n_models: int, rows: int, figures: np.ndarray) -> None:
    """Raise ``FormatError`` for figures of so many rows that are not possible."""
    width = len(metrics.CLASSIFICATION) if schema.n_classes else 4
    if figures.shape != (n_models, width) or figures.dtype != np.float64 or not 0 <= rows < MAX_ROWS:
        raise FormatError("its figures are not those asked for")
    if schema.n_classes:
        possible = np.isnan(figures) | (np.abs(figures) <= 1.0)
    else:
        possible = np.isfinite(figures) & (figures >= [0.0, 0.0, -np.inf, 0.0])
        possible[:, 0] &= np.isin(figures[:, 0], (0.0, rows))  # all rows, or none if the model abstains
    if not possible.all():
        raise FormatError("its figures are not possible")


def _count_shapes(schema: Schema, n_models: int) -> dict[str, tuple[int, ...]]:
    n = schema.n_classes
    return {
        "scores": (n_models, 1 if n == 2 else n, 2, metrics.GRID),
        "confusion": (n_models, n, n),
        "bands": (n_models, metrics.BANDS, 3),
    }


def _check_counts(schema: Schema, n_models: int) -> Check:
    shapes = _count_shapes(schema, n_models)

    def check(site: str, reply: Counts) -> None:
        for name, shape in shapes.items():
            counts = getattr(reply, name)
            if counts.shape != shape or counts.dtype != np.int64 or counts.min() < 0:
                raise FormatError(f"its {name} are not those asked for")

    return check


def _named(schema: Schema, figures: np.ndarray) -> dict[str, float]:
    if schema.n_classes:
        return dict(zip(metrics.CLASSIFICATION, figures.tolist(), strict=True))
    return metrics.from_moments(figures)
