"""The results of an evaluation: metrics of models at sites and over all, and which model each site should use.

One rule, ``ADVICE``, recommends a model: the federated one, or the local one, if the 95% interval of the gain shows a
significant difference, and otherwise neither.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.candidates import Named, for_site
from silvan.algorithms.evaluation.details import Detail, Floors, detail_of, three_digits
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.evaluation.score_quality import intervals
from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Class, Schema
from silvan.data.table import read_table
from silvan.federation.members import OVERALL
from silvan.forest.forest import Forest
from silvan.forest.intervals import reach_of
from silvan.forest.predict import scores_if_any
from silvan.privacy.noise.accounting import Privacy
from silvan.util.readable import format_names

LOCAL, FEDERATED, POOLED = "local", "federated", "pooled"
"""Names of the model that a site has alone, which gains are measured against, of the one that it should use, and of
that of all rows in one place."""

MEAN_OF_SITES = "the mean of the sites' metrics, since their models differ: not one ranking of all rows"
"""Why metrics over all sites of a model cannot be compared with those of another."""

CERTAINTY = {
    "gained": "significant gain",
    "lost": "significant loss",
    "noise": "not significant",
    "level": "no difference seen",
    "few": "too few test rows",
    "unknown": "undefined",
}
"""Verdicts on the gain of the recommended model."""

ADVICE = {
    "gained": FEDERATED,
    "lost": LOCAL,
    "noise": "either",
    "level": "either",
    "few": "unclear",
    "unknown": "unclear",
}
"""The model that a site should use, by the certainty of its gain: without evidence there is no advice."""

_DIGITS = 3  # digits of metrics that leave a site


@dataclass(frozen=True)
class Row:
    """A model's metrics at a site, or over all.

    ``metrics`` are the main ones, the first of which leads. ``gain`` is how much better the leading one is than that of
    the site's local model, from ``low`` to ``high`` its 95% interval; None where it is not known. ``use`` marks the
    model that the site should use by ``ADVICE``; ``same_as`` names the variant of the model that it equals, if there is
    one. Metrics with noise for ``epsilon`` lie ``between`` two numbers each. ``more`` and ``detail`` are what sites
    disclose beside the main metrics (``details.py``); ``note`` says why metrics are lacking. ``group`` is the subgroup
    of rows, empty for all. ``positive`` is the positive class of two, which metrics are about; None unless there are
    two.
    """

    site: str
    model: str
    rows: int
    metrics: dict[str, float]
    gain: float | None = None
    low: float | None = None
    high: float | None = None
    use: bool = False
    same_as: str = ""
    between: dict[str, tuple[float, float]] = field(default_factory=dict)
    epsilon: float | None = None
    more: dict[str, float] = field(default_factory=dict)
    detail: Detail | None = None
    note: str = ""
    group: str = ""
    positive: Class | None = None

    @property
    def leading(self) -> float:
        """The metric that models are compared by."""
        return next(iter(self.metrics.values()))

    @property
    def sign(self) -> float:
        """1 if larger values of the leading metric are better, and -1 if smaller ones are."""
        return 1.0 if metrics.BY_KEY[next(iter(self.metrics))].higher else -1.0

    def with_detail(self, detail: Detail, schema: Schema) -> "Row":
        """Return the row with details, the positive class, and a note on missing metrics."""
        more, positive = detail.by_name(schema.n_classes), schema.label.positive_class
        return replace(self, more=more, detail=detail, note=_note(self, schema, detail), positive=positive)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation of models found; learners return it, ``evaluate`` shows it, a study records it.

    ``curves`` counts all sites' test rows by model, class and score on a grid, for the models that are named; None
    where there are no classes or counts cannot be summed. ``guarantee`` says what differential privacy covers, if
    the model has any, and ``privacy`` what the evaluation itself cost.
    """

    rows: list[Row]
    subgroups: list[Row] = field(default_factory=list)
    models: tuple[str, ...] = ()
    curves: np.ndarray | None = None
    pooled_hash: str | None = None  # hash of the pooled forest
    warnings: list[str] = field(default_factory=list)
    guarantee: str = ""
    privacy: Privacy | None = None

    def with_metrics(self, row: Row) -> "Evaluation":
        """Return the evaluation in which the federated model has the main metrics of a row."""
        rows = [replace(one, metrics=row.metrics) if one.model == FEDERATED else one for one in self.rows]
        return replace(self, rows=rows)


def certainty(gain: float | None, low: float | None, high: float | None) -> str:
    """Return the verdict of an interval on a gain: one of the keys of ``CERTAINTY``."""
    if gain is None:
        return "unknown"
    if low is None or high is None:
        return "few" if gain else "level"
    if low == high == 0.0:
        return "level"
    return "gained" if low > 0 else "lost" if high < 0 else "noise"


def pooled_hash(candidates: Sequence[Named]) -> str | None:
    """Return the hash of the pooled forest among the candidates."""
    pooled = dict(candidates).get(POOLED)
    return pooled.hash if isinstance(pooled, Forest) else None


def metrics_by_name(n_classes: int, values: np.ndarray) -> dict[str, float]:
    """Return main metrics by name, as sites send them: in order, or as moments for a numeric label."""
    if not n_classes:
        return metrics.from_moments(values)
    return dict(zip((metric.key for metric in metrics.main_metrics(n_classes)), values.tolist(), strict=True))


def _note(row: Row, schema: Schema, detail: Detail) -> str:
    if not row.rows:
        return "no test rows"
    if all(np.isnan(value) for value in row.metrics.values()):
        return "too few test rows for the site's policy, or columns are lacking that all trees need"
    if np.isnan(row.metrics.get("auc", 0.0)):
        return "no AUC: all test rows are of one class"
    without = classes_without_rows(detail, schema) if schema.n_classes > 2 else []
    return f"no test rows of {format_names(without)}: metrics are of the other classes" if without else ""


def classes_without_rows(detail: Detail, schema: Schema) -> list[str]:
    """Return the classes without test rows; none for very many classes, whose rows are not counted."""
    rows = detail.confusion.sum(axis=1)
    return [str(name) for name, n in zip(schema.label.classes or (), rows.tolist(), strict=False) if not n]


_NAMED_CLASSES = 3  # above this number of never predicted classes, one warning covers all


def never_decided(rows: Sequence[Row], schema: Schema) -> list[str]:
    """Return a warning for each class with test rows that the federated model never predicts.

    One more is about classes without test rows.
    """
    tables = [row.detail.confusion for row in rows if (row.site, row.model) == (OVERALL, FEDERATED) and row.detail]
    found, remedy = [], ", or threshold='youden'" if schema.n_classes == 2 else ""
    for table in tables:
        never = [c for c in range(len(table)) if table[c].sum() and not table[:, c].sum()]
        label, classes = schema.label.name, schema.label.classes or ()
        if unseen := [c for c in range(len(table)) if len(table) > 2 and table.sum() and not table[c].sum()]:
            named = format_names([str(classes[c]) for c in unseen], _NAMED_CLASSES)
            found.append(f"no test row is of {label} = {named}: metrics are of the other classes")
        if len(never) > _NAMED_CLASSES:
            numbers = all(isinstance(c, int | float) for c in classes)
            hint = "is it a number? then set task='regression'" if numbers else "set class_weight='balanced'"
            text = f"the federated model never predicts {len(never):,} of {len(table):,} classes of {label}"
            return [f"{text} that test rows are of: {hint}"]
        found += [
            f"the federated model never predicts {label} = {classes[c]!r}, though {int(table[c].sum()):,} of "
            f"{int(table.sum()):,} test rows are of that class: set class_weight='balanced'{remedy}"
            for c in never
        ]
    return found


def compared(
    rows: list[Row], between: np.ndarray | None = None, fingerprints: Sequence[object] | None = None
) -> list[Row]:
    """Add to one site's rows what each model gains over the local one, and mark the one that the site should use.

    ``between`` (models, 2) are the intervals. Equal models have equal ``fingerprints``, which find the variant to use.
    """
    local = next((row.leading for row in rows if row.model == LOCAL), np.nan)
    done = []
    for i, row in enumerate(rows):
        gain = row.sign * (row.leading - local) + 0.0  # never -0
        if row.model != LOCAL and not np.isnan(gain) and row.note != MEAN_OF_SITES:
            low, high = (None, None) if between is None or np.isnan(between[i]).any() else map(float, between[i])
            row = replace(row, gain=float(gain), low=low, high=high)
        if row.model == FEDERATED and row.site != OVERALL:
            marks = range(len(rows)) if fingerprints is None else fingerprints
            same = [r.model for j, r in enumerate(rows) if j != i and marks[j] == marks[i]]
            row = replace(row, same_as=next((name for name in same if name != POOLED), ""))
        done.append(row)
    return advised(done)


def advised(rows: list[Row]) -> list[Row]:
    """Mark the model that each site should use, by the gain of the federated one."""
    words = {row.site: certainty(row.gain, row.low, row.high) for row in rows if row.model == FEDERATED}
    advice = {site: ADVICE[word] for site, word in words.items() if site != OVERALL}
    return [replace(row, use=row.model == advice.get(row.site)) for row in rows]


# -- on given rows
def answer_of(forest: Forest, X: np.ndarray, absent: np.ndarray, n_jobs: int | None = None) -> Answer:
    """Score rows of a table that may lack columns; scores are NaN if that makes every tree abstain."""
    return Answer(*scores_if_any(forest, X, absent, n_jobs))


def evaluate_answers(
    schema: Schema,
    site: str,
    answers: Mapping[str, Answer],
    y: np.ndarray,
    key: np.ndarray,
    fingerprints: Sequence[object] | None = None,
    reaches: Mapping[str, float] = MappingProxyType({}),
) -> list[Row]:
    """Return the rows of models at a site, by their answers on rows at hand, with intervals of their gains.

    ``reaches`` are how far the intervals or sets of models go.
    """
    listed, positive = [], schema.label.positive_code
    for name, answer in answers.items():
        if schema.n_classes:
            found = metrics.classification(answer.scores, y, answer.decided, positive)
        else:
            found = metrics.regression(answer.scores[:, 0], y)
        reach = reaches.get(name, np.nan)
        detail = detail_of(*answer, y, schema.n_classes, Floors(), positive=positive, reach=reach)
        listed.append(Row(site, name, len(y), found).with_detail(detail, schema))
    against = list(answers).index(LOCAL) if LOCAL in answers else -1
    between = intervals([answer.scores for answer in answers.values()], against, y, schema.n_classes, key)
    return compared(listed, between, fingerprints)


EncodedRows = tuple[np.ndarray, np.ndarray, np.ndarray]  # features, labels, and which columns are absent


def evaluate_forests(
    schema: Schema,
    models: Sequence[tuple[str, Forest | Mapping[str, Forest]]],
    sites: Sequence[str],
    rows: EncodedRows,
    key: np.ndarray,
    threshold: float | None = None,
) -> list[Row]:
    """Evaluate models on encoded rows, as each site would, and those shared by all sites also over all."""
    X, y, absent = rows
    known: dict[str, Answer] = {}

    def answer(forest: Forest) -> Answer:
        if forest.hash not in known:
            found = answer_of(forest, X, absent)
            if threshold is not None and schema.n_classes == 2:
                found = Answer(found.scores, metrics.decided_at(threshold, found.scores, schema.label.positive_code))
            known[forest.hash] = found
        return known[forest.hash]

    def at(site: str, forests: dict[str, Forest]) -> list[Row]:
        answers = {name: answer(forest) for name, forest in forests.items()}
        reaches = {name: reach_of(forest, metrics.COVERAGE) for name, forest in forests.items()}
        return evaluate_answers(schema, site, answers, y, key, [forest.hash for forest in forests.values()], reaches)

    listed = []
    for site in sites:
        listed += at(site, {name: for_site(m, site) if isinstance(m, Mapping) else m for name, m in models})
    return listed + at(OVERALL, {name: model for name, model in models if isinstance(model, Forest)})


def read_rows(schema: Schema, table: Any) -> EncodedRows:
    """Read a table with the label: features, labels, and which columns are absent."""
    frame = read_table(table, schema.label.name, schema)
    absent = np.array([name not in frame.columns for name in schema.columns], np.bool_)
    return encode_features(frame, schema, fill_absent=True), encode_label(frame, schema), absent


# -- rounding
def rounded(values: np.ndarray, classes: bool) -> np.ndarray:
    """Return metrics with three digits: decimals of shares, significant ones of moments of numbers.

    A mean has digits by how far numbers spread around it.
    """
    if classes:
        return np.asarray(np.round(values, _DIGITS))
    short = [[three_digits(x) for x in row] for row in values]
    for row, exact in zip(short, values, strict=True):
        spread = np.sqrt(exact[3] / exact[0]) if exact[0] else 0.0
        row[0] = exact[0]
        row[2] = exact[2] if not spread else round(exact[2], _DIGITS - 1 - math.floor(math.log10(spread)))
    return np.array(short).reshape(values.shape)


def rounded_intervals(between: np.ndarray, classes: bool) -> np.ndarray:
    """Return intervals with three digits."""
    if classes:
        return np.asarray(np.round(between, _DIGITS))
    return np.array([[three_digits(x) for x in row] for row in between])
