"""Judging models without moving rows: each site scores its own test part.

Two rounds. A site's own figures are exact and it sends them as numbers (``ask``). The figures over all sites
come from counts on a grid of scores that are summed (``total``), so nobody sees another site's scores;
regression needs only the moments of the first round.
"""

from dataclasses import dataclass
from typing import ClassVar

import msgspec
import numpy as np

from silvan import metrics
from silvan.algorithms.merge import local_forest
from silvan.algorithms.shared_bins import schema_of
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError, RefusedError
from silvan.federation.agree import MAX_ROWS
from silvan.federation.federation import OVERALL, Federation
from silvan.federation.message import Blob, Reply, Request, Verb
from silvan.federation.question import Check
from silvan.federation.site import Site, answers
from silvan.tree.fit import Settings
from silvan.tree.forest import Forest
from silvan.tree.predict import scores
from silvan.tree.save import from_bytes, to_bytes


class Contender(msgspec.Struct, frozen=True):
    """A model to judge: one that is sent, or the site's own, grown there when it is judged."""

    sent: Blob | None = None
    own: Settings | None = None


class Figures(Reply, frozen=True, kw_only=True):
    """A site's figures, a row a model: the metrics in their order, or moments where a number is predicted."""

    rows: int
    figures: np.ndarray


class Judge(Request, frozen=True, kw_only=True):
    """Figures of merit of models on the site's own test rows."""

    verb: ClassVar[Verb] = "ask"
    reply: ClassVar[type[Reply]] = Figures

    schema: Blob
    contenders: list[Contender]
    feature_key: np.ndarray


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


# -- at a site


@answers(Judge)
def judge(site: Site, request: Judge) -> Figures:
    """Score the site's test part exactly."""
    schema = schema_of(site, request.schema)
    part = site.part(schema, test=True)
    rows = []
    for contender in request.contenders:
        answer = _scores(site, schema, contender, request.feature_key)
        if schema.n_classes:
            rows.append(list(metrics.classification(answer, part.y).values()))
        else:
            rows.append(metrics.moments(answer[:, 0], part.y).tolist())
    return Figures(rows=len(part), figures=np.array(rows, np.float64))


@answers(Tally)
def tally(site: Site, request: Tally) -> Counts:
    """Count the site's test part on the grid of scores."""
    schema = schema_of(site, request.schema)
    y = site.part(schema, test=True).y
    answer = [_scores(site, schema, contender, request.feature_key) for contender in request.contenders]
    return Counts(
        scores=np.array([metrics.count_scores(a, y, exact=False) for a in answer], np.int64),
        confusion=np.array([metrics.confusion(a, y) for a in answer], np.int64),
        bands=np.array([metrics.calibration_sums(a, y) for a in answer], np.int64),
    )


def _scores(site: Site, schema: Schema, contender: Contender, feature_key: np.ndarray) -> np.ndarray:
    """Score the test part; kept, since both rounds need it."""
    key = ("scores", msgspec.json.encode(contender), feature_key.tobytes(), schema.hash)
    if key not in site.cache:
        if contender.own is not None:
            forest = local_forest(site, schema, contender.own, feature_key, contender.own.n_estimators)
        elif contender.sent is not None:
            forest = from_bytes(site.blob(contender.sent.hash))
            if forest.schema != schema:
                raise FormatError("a model of another schema than the rows are encoded by")
        else:
            raise RefusedError("the question names no model for this site")
        site.cache[key] = scores(forest, site.part(schema, test=True).X, site.n_jobs)
    answer: np.ndarray = site.cache[key]
    return answer


# -- at the coordinator


@dataclass(frozen=True)
class Row:
    """One line of the table: a model's figures at a site, or over all."""

    site: str
    model: str
    rows: int
    figures: dict[str, float]


def evaluate(
    federation: Federation, schema: Schema, contenders: list[tuple[str, object]], feature_key: np.ndarray
) -> tuple[list[Row], Counts | None]:
    """Judge models at all sites.

    A model is a ``Forest``, a dict of them by site, or ``Settings`` for sites' own. Also gives the summed
    counts behind the overall figures, for curves; None for regression.
    """
    named = federation.blob(schema.to_json().encode())

    def ask(kind: type[Judge] | type[Tally]) -> dict[str, Judge | Tally]:
        return {
            site: kind(
                schema=named,
                contenders=[_contender(federation, site, model) for _, model in contenders],
                feature_key=feature_key,
            )
            for site in federation.active
        }

    with federation.counted_apart():
        told: dict[str, Figures] = federation.ask(ask(Judge), check=_check_figures(schema, len(contenders)))
        if not any(reply.rows for reply in told.values()):
            raise InputError(
                "no site has test rows: set test=0.2 when the federation is made, or pass a table to judge on"
            )
        counts: Counts | None = None
        if schema.n_classes:
            counts = federation.total(ask(Tally), check=_check_counts(schema, len(contenders)))
    rows = []
    for site, reply in told.items():
        for i, (name, _) in enumerate(contenders):
            rows.append(Row(site, name, reply.rows, _site_figures(schema, reply, i)))
    for i, (name, _) in enumerate(contenders):
        if counts is not None:
            n = int(counts.confusion[i].sum())
            figures = metrics.from_counts(list(counts.scores[i]), counts.confusion[i], counts.bands[i])
        else:
            n = sum(reply.rows for reply in told.values())
            figures = metrics.from_moments(np.array([reply.figures[i] for reply in told.values()]))
        rows.append(Row(OVERALL, name, n, figures))
    return rows, counts


def _check_figures(schema: Schema, n_models: int) -> Check:
    width = len(metrics.CLASSIFICATION) if schema.n_classes else 4

    def check(site: str, reply: Figures) -> None:
        figures = reply.figures
        if figures.shape != (n_models, width) or figures.dtype != np.float64 or not 0 <= reply.rows < MAX_ROWS:
            raise FormatError("its figures are not those asked for")
        if schema.n_classes:
            possible = np.isnan(figures) | (np.abs(figures) <= 1.0)
        else:
            possible = np.isfinite(figures) & (figures >= [reply.rows, 0.0, -np.inf, 0.0])
            possible[:, 0] &= figures[:, 0] <= reply.rows
        if not possible.all():
            raise FormatError("its figures are not possible")

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
    if isinstance(model, Settings):
        return Contender(own=model)
    if isinstance(model, dict) and site not in model:
        raise InputError(f"there is no model for site {site!r}; it was not there when the learner was fitted")
    forest = model[site] if isinstance(model, dict) else model
    if not isinstance(forest, Forest):
        raise TypeError(f"cannot judge a {type(forest).__name__}")
    return Contender(sent=federation.blob(to_bytes(forest)))
