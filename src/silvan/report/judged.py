"""How the model does at each site, beyond one figure: intervals, calibration, thresholds, and groups for curves."""

from typing import Any

from silvan.federation.federation import OVERALL
from silvan.study.run_folder import Counts, Figures, Record

MORE = {
    "brier": ("Brier", "mean squared distance of probability and outcome; less is better"),
    "log_loss": ("Log loss", "mean of minus the logarithm of the true class's probability; less is better"),
    "calibration_intercept": ("Intercept", "0 is right; above 0 scores are too low, below 0 too high"),
    "calibration_slope": ("Slope", "1 is right; below 1 scores are too extreme, above 1 too timid"),
    "threshold": ("Threshold", "the score from which on a row counts as positive, chosen on the site's training rows"),
    "sensitivity": ("Sensitivity", "share of positive rows that are found at the threshold"),
    "specificity": ("Specificity", "share of other rows that are left alone at the threshold"),
    "precision": ("Precision", "share of positive rows among those found at the threshold"),
    "mae": ("MAE", "mean absolute error; less is better"),
}
"""Of each further figure: its title, and what it is."""

_LARGEST = 1e100


def leading_model(models: list[str]) -> str | None:
    """Return the model that the report is about."""
    return "federated" if "federated" in models else models[-1] if models else None


def judged_at_sites(record: Record, models: list[str]) -> list[dict[str, Any]]:
    """Return what is known of models at each site, all rows together first."""
    counts = {(c.site, c.model): c for c in record.counts}
    rows = {(row.site, row.model): row for row in record.evaluation}
    sites = [OVERALL, *(site.name for site in record.sites)]
    listed = []
    for site in sites:
        known = [model for model in models if (site, model) in rows]
        if known:
            found = {m: _one(rows[site, m], counts.get((site, m), Counts(site, m)), record) for m in known}
            notes = [rows[site, m].note for m in known if rows[site, m].note]
            listed.append({"title": "all rows" if site == OVERALL else site, "overall": site == OVERALL,
                           "models": found, "note": notes[0] if notes else ""})  # fmt: skip
    return listed


def _one(row: Figures, counts: Counts, record: Record) -> dict[str, Any]:
    """Return what is known of one model at one site; groups that cannot be are left out, as files may be damaged."""
    return {
        "rows": row.rows,
        "auc": row.figures.get("auc"),
        "numbers": {key: row.figures.get(key) for key in ("rmse", "r2") if key in row.figures},
        "between": (row.more.get("auc_low"), row.more.get("auc_high")),
        "more": {key: row.more.get(key) for key in MORE if key in row.more},
        "at_threshold": _table(counts.at_threshold),
        "groups": {of: _groups(groups, record.classes is None) for of, groups in counts.groups.items()},
        "net_benefit": [point for point in counts.net_benefit if _possible(*point) and 0 <= point[0] <= 1],
    }


def _groups(groups: list[tuple[float, float, float]], of_number: bool) -> list[tuple[float, float, float]]:
    """Return groups of rising score, or prediction, that rows can be in."""
    fine = [g for g in groups if _possible(*g) and g[2] >= 0 and (of_number or g[1] >= 0)]
    return sorted(g for g in fine if of_number or 0.0 <= g[0] <= 1.0)


def _possible(*numbers: float) -> bool:
    """Return whether numbers can be added, squared and drawn."""
    return all(abs(number) < _LARGEST for number in numbers)


def _table(table: list[list[int]]) -> list[list[int]]:
    """Return a table of two classes; none if it is of others, or of no rows."""
    fits = len(table) == 2 and all(len(line) == 2 for line in table) and any(map(any, table))
    return table if fits else []


def threshold_titles(judged: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return key, title and meaning of the further figures that some site has."""
    found = [one["more"] for site in judged for one in site["models"].values()]
    return [(key, *MORE[key]) for key in MORE if any(more.get(key) is not None for more in found)]
