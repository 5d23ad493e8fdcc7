"""Figures of merit of models on rows at hand, and the rows of the table that shows them.

Which model a site should use was decided by the learner, before any test row was looked at. The interval of its gain
over what the site has alone shows whether the test rows confirm that; where they show that it is worse, the site should
stay with what it has.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from silvan import metrics
from silvan.algorithms.evaluation.details import Detail, Floors, detail_of
from silvan.algorithms.evaluation.intervals import intervals
from silvan.data.encode import encode_features, encode_label
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.federation.federation import OVERALL
from silvan.forest.forest import Forest
from silvan.forest.predict import scores_if_any

LOCAL, FEDERATED = "local", "federated"
"""Names of the model that a site has alone, which gains are measured against, and of the one that it should use."""


MEAN_OF_SITES = "the mean of the sites' figures, since their models differ: not one ranking of all rows"
"""Why figures over all sites of a model cannot be set beside those of another."""


_DIGITS = 3
"""Digits of figures that leave a site."""


class Answer(NamedTuple):
    """A model's scores of rows, (rows, outputs), all NaN if it abstains, and the classes that it decides on."""

    scores: np.ndarray
    decided: np.ndarray

    @property
    def silent(self) -> bool:
        """Whether the model abstains."""
        return bool(np.isnan(self.scores).any())


def answer_of(forest: Forest, X: np.ndarray, absent: np.ndarray, n_jobs: int | None = None) -> Answer:
    """Score rows of a table that may lack columns; scores are NaN if that makes every tree abstain."""
    return Answer(*scores_if_any(forest, X, absent, n_jobs))


def figures_of(schema: Schema, answer: Answer, y: np.ndarray) -> dict[str, float]:
    """Return exact figures of a model's answer."""
    if schema.n_classes:
        return metrics.classification(answer.scores, y, answer.decided)
    return metrics.regression(answer.scores[:, 0], y)


@dataclass(frozen=True)
class Row:
    """One row of the table: a model's figures at a site, or over all.

    ``gain`` is how much better the first figure is than that of the site's own model, ``low`` and ``high`` are its 95 %
    interval; None where it is not known. ``use`` marks the model that the learner chose for the site; ``same_as`` names
    the variant of the model that it is equal to, if there is one. Figures with noise for ``epsilon`` lie ``between``
    two numbers each. ``more`` and ``detail`` are what is told beside the figures (``details.py``); ``note`` says why
    figures are lacking. ``group`` is the subgroup of rows, empty for all.
    """

    site: str
    model: str
    rows: int
    figures: dict[str, float]
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


def with_detail(row: Row, detail: Detail, schema: Schema) -> Row:
    """Add details to a line of the table of figures, and a word where figures are lacking."""
    return replace(row, more=detail.by_name(schema.n_classes), detail=detail, note=_note(row, schema))


def judged_row(schema: Schema, site: str, name: str, answer: Answer, y: np.ndarray) -> Row:
    """Return the line of a model on rows that are at hand, with its details."""
    detail = detail_of(answer.scores, answer.decided, y, schema.n_classes, Floors())
    return with_detail(Row(site, name, len(y), figures_of(schema, answer, y)), detail, schema)


def _note(row: Row, schema: Schema) -> str:
    if not row.rows:
        return "no test rows"
    if all(np.isnan(value) for value in row.figures.values()):
        return "too few test rows for the site's policy, or columns are lacking that all trees need"
    if np.isnan(row.figures.get("auc", 0.0)):
        return "no AUC: all test rows are of one class" if schema.n_classes <= 2 else "no AUC: a class has no test rows"
    return ""


_NAMED_CLASSES = 3
"""Of more classes that are never predicted one warning speaks of all."""


def never_decided(rows: Sequence[Row], schema: Schema) -> list[str]:
    """Return a warning for each class that test rows have and the federated model never decides on."""
    tables = [row.detail.confusion for row in rows if (row.site, row.model) == (OVERALL, FEDERATED) and row.detail]
    found, remedy = [], ", or threshold='youden'" if schema.n_classes == 2 else ""
    for table in tables:
        never = [c for c in range(len(table)) if table[c].sum() and not table[:, c].sum()]
        if len(never) > _NAMED_CLASSES:
            numbers = all(isinstance(c, int | float) for c in schema.label.classes or ())
            hint = "is it a number? then set task='regression'" if numbers else "set class_weight='balanced'"
            text = f"the federated model never predicts {len(never):,} of {len(table):,} classes of {schema.label.name}"
            return [f"{text} that test rows are of: {hint}"]
        for c in range(len(table)):
            if table[c].sum() and not table[:, c].sum():
                name, n = (schema.label.classes or ())[c], int(table[c].sum())
                found.append(
                    f"the federated model never predicts {schema.label.name} = {name!r}, though {n:,} of "
                    f"{int(table.sum()):,} test rows are of that class: set class_weight='balanced'{remedy}"
                )
    return found


def compared(
    rows: list[Row], between: np.ndarray | None = None, fingerprints: Sequence[object] | None = None
) -> list[Row]:
    """Add to one site's rows what each model gains over the site's own, and which one the site should use.

    ``between`` (models, 2) are the intervals. ``fingerprints`` are equal for equal models: by them the variant is found
    that a site should use.
    """
    own = next((_first(row) for row in rows if row.model == LOCAL), np.nan)
    done = []
    for i, row in enumerate(rows):
        gain = own - _first(row) if "rmse" in row.figures else _first(row) - own
        if row.model != LOCAL and not np.isnan(gain) and row.note != MEAN_OF_SITES:
            low, high = (None, None) if between is None or np.isnan(between[i]).any() else map(float, between[i])
            row = replace(row, gain=float(gain), low=low, high=high)
        if row.model == FEDERATED and row.site != OVERALL:
            marks = range(len(rows)) if fingerprints is None else fingerprints
            same = [r.model for j, r in enumerate(rows) if j != i and marks[j] == marks[i]]
            row = replace(row, use=True, same_as=next((name for name in same if name != "pooled"), ""))
        done.append(row)
    if any(row.use and row.high is not None and row.high < 0.0 for row in done):
        # the test rows speak against joining, by more than noise: no site is told to use what they show to be worse
        return [replace(row, use=row.model == LOCAL) for row in done]
    return done


def _first(row: Row) -> float:
    return next(iter(row.figures.values()))


def on_table(
    schema: Schema,
    models: Sequence[tuple[str, Forest | dict[str, Forest]]],
    sites: Sequence[str],
    table: Any,
    key: np.ndarray,
    threshold: float | None = None,
) -> list[Row]:
    """Judge models on one table, as each site would, and those that all sites share also over all."""
    frame = read_table(table, schema.label.name, schema)
    X, y = encode_features(frame, schema, fill_absent=True), encode_label(frame, schema)
    absent = np.array([name not in frame.columns for name in schema.columns], np.bool_)
    return on_rows(schema, models, sites, X, y, absent, key, threshold)


def on_rows(
    schema: Schema,
    models: Sequence[tuple[str, Forest | dict[str, Forest]]],
    sites: Sequence[str],
    X: np.ndarray,
    y: np.ndarray,
    absent: np.ndarray,
    key: np.ndarray,
    threshold: float | None = None,
) -> list[Row]:
    """Judge models on rows that are encoded already.

    With a ``threshold``, the second of two classes is decided on from that score on.
    """
    answers: dict[str, Answer] = {}

    def judged(site: str, of: Sequence[tuple[str, Forest]]) -> list[Row]:
        for _, forest in of:
            if forest.hash not in answers:
                found = answer_of(forest, X, absent)
                if threshold is not None and schema.n_classes == 2:
                    found = Answer(found.scores, (found.scores[:, 1] >= threshold).astype(np.int64))
                answers[forest.hash] = found
        names, given = [name for name, _ in of], [answers[forest.hash] for _, forest in of]
        listed = [judged_row(schema, site, name, a, y) for name, a in zip(names, given, strict=True)]
        against = names.index(LOCAL) if LOCAL in names else -1
        between = intervals([a.scores for a in given], against, y, schema.n_classes, key)
        return compared(listed, between, [forest.hash for _, forest in of])

    listed = []
    for site in sites:
        listed += judged(site, [(name, for_site(m, site)) for name, m in models])
    return listed + judged(OVERALL, [(name, m) for name, m in models if isinstance(m, Forest)])


def for_site(model: Any, site: str) -> Any:
    """Return a site's model, given one for all sites or one for each."""
    if not isinstance(model, dict):
        return model
    if site not in model:
        raise InputError(f"there is no model for site {site!r}; it was not there when the learner was fitted")
    return model[site]


def rounded(figures: np.ndarray, classes: bool) -> np.ndarray:
    """Return figures with three digits: decimals of shares, significant ones of moments of numbers.

    A mean has digits by how far numbers spread around it.
    """
    if classes:
        return np.asarray(np.round(figures, _DIGITS))
    short = [[float(f"{x:.{_DIGITS}g}") for x in row] for row in figures]
    for row, exact in zip(short, figures, strict=True):
        spread = np.sqrt(exact[3] / exact[0]) if exact[0] else 0.0
        row[0] = exact[0]
        row[2] = exact[2] if not spread else round(exact[2], _DIGITS - 1 - math.floor(math.log10(spread)))
    return np.array(short).reshape(figures.shape)


def rounded_intervals(between: np.ndarray, classes: bool) -> np.ndarray:
    """Return intervals with three digits."""
    if classes:
        return np.asarray(np.round(between, _DIGITS))
    return np.array([[float(f"{x:.{_DIGITS}g}") for x in row] for row in between])
