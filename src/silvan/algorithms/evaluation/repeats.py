"""Metrics over many splits of the same tables, with intervals that account for shared rows.

Rows of every site are shuffled and assigned to folds; models trained on the others are evaluated on each fold in turn.
Differences of two models on the same rows spread less over such splits than over new rows, because splits share most of
their training rows. Nadeau and Bengio (2003, "Inference for the generalization error", Machine Learning 52) correct for
that: the variance of the mean of J differences is (1/J + n_test/n_train) S^2 instead of S^2/J. Bouckaert and Frank
(2004) use it for repeated cross-validation, as here.
"""

from collections.abc import Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any

import numpy as np

from silvan.algorithms.evaluation.details import join_details
from silvan.algorithms.evaluation.evaluation import LOCAL, Row
from silvan.data.holdout import Fold
from silvan.errors import InputError
from silvan.federation.members import OVERALL

MOST_REPEATS = 1000

_NOTHING = 1e-12  # a spread below this is due to rounding
_FEWEST_SPLITS = 5  # minimum number of splits with a difference for an interval


def folds_of(test: float, repeats: Any) -> list[Fold]:
    """Return the splits in which every row is a test row ``repeats`` times; ``test`` is their share in a split.

    Without a share it is a tenth: ten times ten folds are what Bouckaert and Frank advise.
    """
    whole = isinstance(repeats, Integral) and not isinstance(repeats, bool)
    if not whole or not 1 <= repeats <= MOST_REPEATS:
        raise InputError.wrong("repeats", f"a whole number between 1 and {MOST_REPEATS:,}", repeats)
    n = 10 if test <= 0.0 else max(2, round(1.0 / test))
    return [Fold(number, n, shuffle) for shuffle in range(repeats) for number in range(n)]


def corrected_interval(gains: np.ndarray, ratio: float) -> tuple[float, float] | None:
    """Return the 95% CI of a mean difference over splits; None if there are too few splits.

    ``ratio`` is the number of test rows per training row.
    """
    if len(gains) < _FEWEST_SPLITS:
        return None
    from scipy.special import stdtrit  # a tenth of a second, which every site would wait for

    mean, spread = float(gains.mean()), float(gains.std(ddof=1))
    if spread < _NOTHING:
        return (0.0, 0.0) if abs(mean) < _NOTHING else None  # the models predict alike, or all splits are too alike
    reach = float(stdtrit(len(gains) - 1, 0.975)) * spread * float(np.sqrt(1.0 / len(gains) + ratio))
    return mean - reach, mean + reach


def over_splits(splits: Sequence[Sequence[Row]], folds: Sequence[Fold]) -> list[Row]:
    """Return a row for each site and model: mean metrics over splits, and the gain with its interval.

    Over all sites, a split's metrics are the means of the sites', by their test rows. ``rows`` counts every row once.
    """
    ratio = 1.0 / (folds[0].of - 1)
    found: list[Row] = []
    sites = dict.fromkeys(row.site for rows in splits for row in rows if row.site != OVERALL)
    by_site = {site: [[row for row in rows if row.site == site] for rows in splits] for site in sites}
    by_site[OVERALL] = [_mean_of_sites([row for row in rows if row.site != OVERALL]) for rows in splits]
    for of_splits in by_site.values():
        found += _of_site(of_splits, folds[0].of, ratio)
    return found


def over_sites(splits: Sequence[Sequence[Row]]) -> list[Row]:
    """Return the rows of sites that took no part in training, each of its own split, and their mean.

    A site without metrics, such as one with rows of a single class, is not in the mean. Nothing is gained or lost: a
    site that takes no part has no local model.
    """
    rows = [row for split in splits for row in split if row.site != OVERALL]
    models = dict.fromkeys(row.model for row in rows)
    return rows + [_mean_over_sites([row for row in rows if row.model == name]) for name in models]


def _mean_over_sites(rows: list[Row]) -> Row:
    """Return the mean of one model's metrics over sites, each with the same weight."""
    means = {key: _mean(np.array([row.metrics[key] for row in rows])) for key in rows[0].metrics}
    more = {key: _mean(np.array([row.more.get(key, np.nan) for row in rows])) for key in rows[0].more}
    more = {key: value for key, value in more.items() if not key.endswith(("_low", "_high"))}  # means are no ends
    positive = rows[0].positive
    return Row(OVERALL, rows[0].model, sum(row.rows for row in rows), means, more=more, positive=positive)


def _of_site(splits: list[list[Row]], n_folds: int, ratio: float) -> list[Row]:
    """Summarise the rows of one site, or those over all."""
    models = dict.fromkeys(row.model for rows in splits for row in rows)
    first = {
        name: np.array([next((row.leading for row in rows if row.model == name), np.nan) for rows in splits])
        for name in models
    }
    listed = []
    for name in models:
        rows = [row for split in splits for row in split if row.model == name]
        means = {key: _mean(np.array([row.metrics[key] for row in rows])) for key in rows[0].metrics}
        tested = sum(row.rows for split in splits[:n_folds] for row in split if row.model == name)
        same = {row.same_as for row in rows}
        more = {key: _mean(np.array([row.more.get(key, np.nan) for row in rows])) for key in rows[0].more}
        more = {key: value for key, value in more.items() if not key.endswith(("_low", "_high"))}  # means are no ends
        note = rows[0].note if np.isnan(next(iter(means.values()))) else ""
        alike = same.pop() if len(same) == 1 else ""
        detail = join_details([row.detail for row in rows if row.detail is not None])
        one = Row(rows[0].site, name, tested, means, same_as=alike, more=more, detail=detail, note=note)
        one = replace(one, positive=rows[0].positive)
        if name != LOCAL and LOCAL in first:
            gains = one.sign * (first[name] - first[LOCAL])
            gains = gains[~np.isnan(gains)]
            if len(gains):
                low, high = corrected_interval(gains, ratio) or (None, None)
                one = replace(one, gain=float(gains.mean()), low=low, high=high)
        listed.append(one)
    return listed


def _mean_of_sites(rows: list[Row]) -> list[Row]:
    """Return the means of the sites' metrics in one split, by their test rows; of sites where all models have one."""
    models = list(dict.fromkeys(row.model for row in rows))
    known = {row.site for row in rows} - {row.site for row in rows if np.isnan(row.leading)}
    listed = []
    for name in models:
        some = [row for row in rows if row.model == name and row.site in known]
        n = sum(row.rows for row in some)
        names = rows[0].metrics
        means = {key: sum(row.metrics[key] * row.rows for row in some) / n if n else np.nan for key in names}
        n_rows = sum(row.rows for row in rows if row.model == name)
        detail = join_details([row.detail for row in rows if row.model == name and row.detail is not None])
        listed.append(Row(OVERALL, name, n_rows, means, detail=detail, positive=rows[0].positive))
    return listed


def _mean(values: np.ndarray) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else np.nan


def best_candidate(rows: Sequence[Row], candidates: Sequence[str]) -> str:
    """Return the candidate with the best mean metric at a site; in a tie the first, and the first if none has one."""
    scored = {row.model: row.sign * row.leading for row in rows if row.model in candidates}
    known = {name: scored[name] for name in candidates if not np.isnan(scored.get(name, np.nan))}
    return max(known, key=lambda name: known[name]) if known else candidates[0]
