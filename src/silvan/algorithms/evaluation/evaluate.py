"""Evaluation of models without moving rows: each site scores its own test part.

Two rounds. A site sends its own figures as numbers of three digits (``ask``), with an interval for what each model
gains over the site's own one. The figures over all sites come from counts on a grid of scores that are summed
(``total``), so nobody sees another site's scores. Regression needs only the moments of the first round. Rows are scored
in groups where a policy says so (``score_groups.py``), and few models are judged (``contenders.py``).
"""

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.contenders import (
    NO_RULE,
    Contender,
    Decide,
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
from silvan.algorithms.evaluation.figures import LOCAL, Answer, Row, compared, with_detail
from silvan.algorithms.evaluation.intervals import intervals
from silvan.algorithms.evaluation.judged_answers import answer_on_test_rows, threshold_of
from silvan.algorithms.evaluation.score_groups import arrange, hides_one_class
from silvan.algorithms.evaluation.site_thresholds import Draws
from silvan.algorithms.shared.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation import wire
from silvan.federation.agreement.agree import MAX_ROWS
from silvan.federation.federation import OVERALL, Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.question import Check
from silvan.federation.site import Site, answers
from silvan.privacy.gate.gate import policy_of

NO_TEST_ROWS = "no site has test rows: set test=0.2 when the federation is made, or pass a table to judge on"

_DIGITS = 3
"""Digits of figures that leave a site."""

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


class Judge(Request, frozen=True, kw_only=True, omit_defaults=True):
    """Figures of merit of models on the site's own test rows."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Figures

    schema: Blob
    contenders: list[Contender]
    feature_key: np.ndarray
    against: int = -1  # the one that gains are measured against, if any

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        n = len(self.contenders)
        if reply is None:
            return f"figures of merit of {n:,} models on the site's own test rows"
        return (
            f"{reply.figures.shape[1]} figures of merit of {n:,} models on the site's own test rows, how many these "
            f"are, and intervals of gains{_DETAILS if reply.details else ''}"
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

    schema: Blob
    contenders: list[Contender]
    feature_key: np.ndarray

    def describe(self, reply: Any = None) -> str:
        """Describe what is asked for, or answered."""
        return f"counts of test rows by score on a grid and by class, of {len(self.contenders):,} models"

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
    check_contenders(site, request.contenders)
    y = site.part(schema, test=True).y
    given = [answer_on_test_rows(site, schema, contender, request.feature_key) for contender in request.contenders]
    if schema.n_classes:
        rows = [list(_classification(*one).values()) for one in given]
    else:
        rows = [metrics.moments(answer.scores[:, 0], labels).tolist() for answer, labels in given]
    between = _intervals(site, given, request.against, schema.n_classes)
    figures = np.array(rows, np.float64).reshape(len(given), -1)
    figures, between = rounded(figures, between, bool(schema.n_classes))
    policy, details = policy_of(site), [nothing()] * len(given)
    for i, ((answer, labels), contender) in enumerate(zip(given, request.contenders, strict=True)):
        if policy.allows_figures(y, schema.n_classes) and not hides_one_class(policy, labels, schema.n_classes):
            threshold = threshold_of(site, schema, contender, request.feature_key)
            details[i] = detail_of(*answer, labels, schema.n_classes, Floors.of(policy), threshold)
        else:  # not refused: a site with few rows would end everybody's evaluation
            figures[i], between[i] = np.nan if schema.n_classes else 0.0, np.nan
    return Figures(rows=len(y), figures=figures, intervals=between, details=tuple(details))


@answers(Tally)
def tally(site: Site, request: Tally) -> Counts:
    """Count the site's test rows on the grid of scores; a model whose trees all abstain counts no rows."""
    schema = schema_of(site, request.schema)
    check_contenders(site, request.contenders)
    scores, confusion, bands = [], [], []
    for contender in request.contenders:
        answer, y = answer_on_test_rows(site, schema, contender, request.feature_key)
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


def rounded(figures: np.ndarray, between: np.ndarray, classes: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return figures and intervals with three digits: decimals of shares, significant ones of moments of numbers.

    A mean has digits by how far numbers spread around it.
    """
    if classes:
        return np.round(figures, _DIGITS), np.round(between, _DIGITS)
    short = [[float(f"{x:.{_DIGITS}g}") for x in row] for row in figures]
    for row, exact in zip(short, figures, strict=True):
        spread = np.sqrt(exact[3] / exact[0]) if exact[0] else 0.0
        row[0] = exact[0]
        row[2] = exact[2] if not spread else round(exact[2], _DIGITS - 1 - math.floor(math.log10(spread)))
    return np.array(short).reshape(figures.shape), np.array(
        [[float(f"{x:.{_DIGITS}g}") for x in row] for row in between]
    )


# -- at the coordinator


def evaluate(
    federation: Federation,
    schema: Schema,
    contenders: list[tuple[str, object]],
    feature_key: np.ndarray,
    draws: Mapping[str, Draws] | None = None,
    decide: Decide = NO_RULE,
) -> tuple[list[Row], Counts | None]:
    """Judge models at all sites.

    A model is a ``Forest``, a dict of them by site, or ``Settings`` or ``Boosting`` for sites' own. ``draws`` says
    which rows the trees of a forest drew, by its hash, so that sites can choose thresholds; ``decide``, how the second
    of two classes is decided on. Return the rows of the table of figures, and the summed counts behind the overall
    ones, for curves; None for regression.

    Counts are summed of models that all sites judge alike; of one that differs by site there are none, and its overall
    figures are the mean of the sites', by their test rows.
    """
    names = [name for name, _ in contenders]
    against = names.index(LOCAL) if LOCAL in names else -1
    listed = list_contenders(federation, [model for _, model in contenders], draws or {}, decide)
    shared: dict[str, Any] = {
        "schema": federation.blob(schema.to_json().encode()),
        "feature_key": feature_key,
    }
    with federation.counted_apart():
        replies: dict[str, Figures] = federation.ask(
            {site: Judge(contenders=listed[site], against=against, **shared) for site in listed},
            check=_check_figures(schema, len(contenders)),
        )
        if not any(reply.rows for reply in replies.values()):
            raise InputError(NO_TEST_ROWS)
        counts: Counts | None = None
        if schema.n_classes:
            counts = _total_counts(federation, schema, {site: listed[site] for site in federation.active}, shared)
    rows = []
    for site, reply in replies.items():
        judged = [
            with_detail(Row(site, name, reply.rows, _site_figures(schema, reply, i)), _detail(reply, i), schema)
            for i, name in enumerate(names)
        ]
        rows += compared(judged, reply.intervals, [msgspec.json.encode(one) for one in listed[site]])
    overall = []
    for i, name in enumerate(names):
        if counts is None:
            n = int(sum(reply.figures[i, 0] for reply in replies.values()))
            figures = metrics.from_moments(np.array([reply.figures[i] for reply in replies.values()]))
        elif n := int(counts.confusion[i].sum()):
            figures = metrics.from_counts(list(counts.scores[i]), counts.confusion[i], counts.bands[i])
        else:
            n, figures = _mean_figures([row for row in rows if row.model == name])
        told = [(reply.rows, _detail(reply, i)) for reply in replies.values()]
        scores, matrix = (None, None) if counts is None else (counts.scores[i], counts.confusion[i])
        detail = detail_over_all(schema.n_classes, scores, matrix, told)
        overall.append(with_detail(Row(OVERALL, name, n, figures), detail, schema))
    return [*rows, *compared(overall)], counts


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


def _check_figures(schema: Schema, n_models: int) -> Check:
    width = len(metrics.CLASSIFICATION) if schema.n_classes else 4

    def check(site: str, reply: Figures) -> None:
        figures = reply.figures
        if figures.shape != (n_models, width) or figures.dtype != np.float64 or not 0 <= reply.rows < MAX_ROWS:
            raise FormatError("its figures are not those asked for")
        if schema.n_classes:
            possible = np.isnan(figures) | (np.abs(figures) <= 1.0)
        else:
            possible = np.isfinite(figures) & (figures >= [0.0, 0.0, -np.inf, 0.0])
            possible[:, 0] &= np.isin(figures[:, 0], (0.0, reply.rows))  # all rows, or none if the model abstains
        if not possible.all():
            raise FormatError("its figures are not possible")
        between = reply.intervals
        if between.shape != (n_models, 2) or between.dtype != np.float64:
            raise FormatError("its intervals are not those asked for")
        known = between[~np.isnan(between).all(axis=1)]
        most = 1.0 if schema.n_classes else np.finfo(np.float64).max
        if not ((known[:, 0] <= known[:, 1]).all() and (np.abs(known) <= most).all()):
            raise FormatError("its intervals are not possible")
        if len(reply.details) not in (0, n_models):
            raise FormatError("its details are not those asked for")
        for detail in reply.details:
            check_detail(detail, schema.n_classes, reply.rows)

    return check


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


def _site_figures(schema: Schema, reply: Figures, i: int) -> dict[str, float]:
    if schema.n_classes:
        return dict(zip(metrics.CLASSIFICATION, reply.figures[i].tolist(), strict=True))
    return metrics.from_moments(reply.figures[i])
