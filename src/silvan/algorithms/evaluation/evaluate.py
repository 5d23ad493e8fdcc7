"""Evaluation of models without moving rows: each site scores its own test part.

Two rounds. A site's own figures are exact and it sends them as numbers (``ask``), with an interval for what each model
gains over the site's own one. The figures over all sites come from counts on a grid of scores that are summed
(``total``), so nobody sees another site's scores. Regression needs only the moments of the first round.
"""

from typing import Any, ClassVar

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.boosting.adaboost import local_boost
from silvan.algorithms.boosting.stumps import Boosting
from silvan.algorithms.evaluation.figures import LOCAL, Answer, Row, answer_of, compared, for_site
from silvan.algorithms.evaluation.intervals import intervals
from silvan.algorithms.horizontal.merged_forest import local_forest
from silvan.algorithms.shared.requests import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation import wire
from silvan.federation.agreement.agree import MAX_ROWS
from silvan.federation.federation import OVERALL, Federation
from silvan.federation.message import Blob, Course, Reply, Request, Verb
from silvan.federation.question import Check
from silvan.federation.site import Site, answers
from silvan.forest.forest import Forest
from silvan.privacy.gate.gate import policy_of
from silvan.tree.fit import Settings

NO_TEST_ROWS = "no site has test rows: set test=0.2 when the federation is made, or pass a table to judge on"


class Contender(msgspec.Struct, frozen=True):
    """A model to judge: one that is sent, or the site's own, grown there when it is judged."""

    sent: Blob | None = None
    own: Settings | None = None
    boosted: Boosting | None = None


class Figures(Reply, frozen=True, kw_only=True):
    """A site's figures, a row a model: the metrics in their order, or moments where a number is predicted.

    And between which two numbers the gain over the site's own model lies; no numbers where test rows are few. Where the
    site's policy finds them too few to judge by, there are no figures at all: no numbers, or moments of no rows.
    """

    rows: int
    figures: np.ndarray
    intervals: np.ndarray


class Judge(Request, frozen=True, kw_only=True):
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
            "are, and intervals of gains"
        )

    def course(self) -> Course:
        """Allow the question once: two models that differ on one row would show that row's label."""
        return Course(self.kind())


class Counts(Reply, frozen=True, kw_only=True):
    """Test rows by score and class, by true and voted class, and by band of probability, for each model."""

    scores: np.ndarray
    confusion: np.ndarray
    bands: np.ndarray


class Tally(Request, frozen=True, kw_only=True):
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
        """Return all but the models: sites may judge some of their own."""
        return wire.encode(msgspec.structs.replace(self, contenders=[Contender()] * len(self.contenders)))


# -- at a site


@answers(Judge)
def judge(site: Site, request: Judge) -> Figures:
    """Score the site's test part exactly."""
    if not -1 <= request.against < len(request.contenders):
        raise FormatError("gains are measured against a model that is not there")
    schema = schema_of(site, request.schema)
    y = site.part(schema, test=True).y
    given = [_answer(site, schema, contender, request.feature_key) for contender in request.contenders]
    if schema.n_classes:
        rows = [list(metrics.classification(a.scores, y, a.decided).values()) for a in given]
    else:
        rows = [metrics.moments(a.scores[:, 0], y).tolist() for a in given]
    between = intervals([a.scores for a in given], request.against, y, schema.n_classes, site.sampling_key, site.n_jobs)
    figures = np.array(rows, np.float64).reshape(len(given), -1)
    if not policy_of(site).allows_figures(y, schema.n_classes):
        # not refused: a site with few rows would end everybody's evaluation
        figures, between = np.full_like(figures, np.nan if schema.n_classes else 0.0), np.full_like(between, np.nan)
    return Figures(rows=len(y), figures=figures, intervals=between)


@answers(Tally)
def tally(site: Site, request: Tally) -> Counts:
    """Count the site's test rows on the grid of scores; a model whose trees all abstain counts no rows."""
    schema = schema_of(site, request.schema)
    y = site.part(schema, test=True).y
    scores, confusion, bands = [], [], []
    for contender in request.contenders:
        answer = _answer(site, schema, contender, request.feature_key)
        scored = slice(0, 0) if answer.silent else slice(None)
        found, labels = answer.scores[scored], y[scored]
        scores.append(metrics.count_scores(found, labels, exact=False))
        confusion.append(metrics.confusion(found, labels, answer.decided[scored]))
        bands.append(metrics.calibration_sums(found, labels))
    return Counts(
        scores=np.array(scores, np.int64), confusion=np.array(confusion, np.int64), bands=np.array(bands, np.int64)
    )


def _answer(site: Site, schema: Schema, contender: Contender, feature_key: np.ndarray) -> Answer:
    """Score the test part; scores are kept, since both rounds need them."""
    key = ("scores", msgspec.json.encode(contender), feature_key.tobytes(), schema.hash)
    if key not in site.cache:
        if contender.own is not None:
            forest = local_forest(site, schema, contender.own, feature_key, contender.own.n_estimators)
        elif contender.boosted is not None:
            forest = local_boost(site, schema, contender.boosted)
        elif contender.sent is not None:
            forest = Forest.from_bytes(site.blob(contender.sent.hash))
            if forest.schema != schema:
                raise FormatError("a model of another schema than the rows are encoded by")
        else:
            raise RefusedError("the question names no model for this site")
        part, absent = site.part(schema, test=True), site.absent(schema)
        pieces = [answer_of(forest, piece.X, absent, site.n_jobs) for piece in part.pieces()]
        site.cache[key] = Answer(*map(np.concatenate, zip(*pieces, strict=True))) if len(pieces) > 1 else pieces[0]
    answer: Answer = site.cache[key]
    return answer


# -- at the coordinator


def evaluate(
    federation: Federation, schema: Schema, contenders: list[tuple[str, object]], feature_key: np.ndarray
) -> tuple[list[Row], Counts | None]:
    """Judge models at all sites.

    A model is a ``Forest``, a dict of them by site, or ``Settings`` or ``Boosting`` for sites' own. Return the rows of
    the table of figures, and the summed counts behind the overall ones, for curves; None for regression.
    """
    names = [name for name, _ in contenders]
    against = names.index(LOCAL) if LOCAL in names else -1
    listed = {site: [_contender(federation, site, model) for _, model in contenders] for site in federation.active}
    shared: dict[str, Any] = {"schema": federation.blob(schema.to_json().encode()), "feature_key": feature_key}
    with federation.counted_apart():
        replies: dict[str, Figures] = federation.ask(
            {site: Judge(contenders=listed[site], against=against, **shared) for site in listed},
            check=_check_figures(schema, len(contenders)),
        )
        if not any(reply.rows for reply in replies.values()):
            raise InputError(NO_TEST_ROWS)
        counts: Counts | None = None
        if schema.n_classes:
            counts = federation.total(
                {site: Tally(contenders=listed[site], **shared) for site in federation.active},
                check=_check_counts(schema, len(contenders)),
            )
    rows = []
    for site, reply in replies.items():
        judged = [Row(site, name, reply.rows, _site_figures(schema, reply, i)) for i, name in enumerate(names)]
        rows += compared(judged, reply.intervals, [msgspec.json.encode(one) for one in listed[site]])
    overall = []
    for i, name in enumerate(names):
        if counts is not None:
            n = int(counts.confusion[i].sum())
            figures = metrics.from_counts(list(counts.scores[i]), counts.confusion[i], counts.bands[i])
        else:
            n = int(sum(reply.figures[i, 0] for reply in replies.values()))
            figures = metrics.from_moments(np.array([reply.figures[i] for reply in replies.values()]))
        overall.append(Row(OVERALL, name, n, figures))
    return [*rows, *compared(overall)], counts


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

    return check


def _check_counts(schema: Schema, n_models: int) -> Check:
    n = schema.n_classes
    shapes = {
        "scores": (n_models, 1 if n == 2 else n, 2, metrics.GRID),
        "confusion": (n_models, n, n),
        "bands": (n_models, metrics.BANDS, 3),
    }

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


def _contender(federation: Federation, site: str, model: object) -> Contender:
    model = for_site(model, site)
    if isinstance(model, Settings):
        return Contender(own=model)
    if isinstance(model, Boosting):
        return Contender(boosted=model)
    if not isinstance(model, Forest):
        raise TypeError(f"cannot judge a {type(model).__name__}")
    return Contender(sent=federation.blob(model.to_bytes()))
