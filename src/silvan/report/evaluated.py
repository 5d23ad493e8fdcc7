"""How the model does at each site, beyond one figure: intervals, calibration, thresholds, and groups for curves."""

from typing import Any

from silvan.federation.federation import OVERALL
from silvan.metrics import METRICS, Metric, main_metrics
from silvan.study.run_folder import Counts, MetricsRow, Record

FURTHER = [metric for metric in METRICS if metric.title and not metric.main]
"""The metrics that are shown beside the main ones."""

_LARGEST = 1e100


def leading_model(models: list[str]) -> str | None:
    """Return the model that the report is about."""
    return "federated" if "federated" in models else models[-1] if models else None


def evaluated_at_sites(record: Record, models: list[str]) -> list[dict[str, Any]]:
    """Return what is known of models at each site, all rows together first."""
    counts = {(c.site, c.model): c for c in record.counts}
    rows, listed = {(row.site, row.model): row for row in record.evaluation}, []
    for site in [OVERALL, *(site.name for site in record.sites)]:
        known = [model for model in models if (site, model) in rows]
        if known:
            found = {m: _one(rows[site, m], counts.get((site, m), Counts(site, m)), record) for m in known}
            note = next((rows[site, m].note for m in known if rows[site, m].note), "")
            title, overall = "all rows" if site == OVERALL else site, site == OVERALL
            listed.append({"title": title, "overall": overall, "models": found, "note": note})
    return listed


def _one(row: MetricsRow, counts: Counts, record: Record) -> dict[str, Any]:
    """Return what is known of one model at one site; groups that cannot be are left out, as files may be damaged."""
    return {
        "rows": row.rows,
        "auc": row.figures.get("auc"),
        "numbers": {m.key: row.figures.get(m.key) for m in main_metrics(0) if m.key in row.figures},
        "between": (row.more.get("auc_low"), row.more.get("auc_high")),
        "more": {m.key: row.more.get(m.key) for m in FURTHER if m.key in row.more},
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


def further_metrics_of(judged: list[dict[str, Any]]) -> list[Metric]:
    """Return the further metrics that some site has."""
    found = [one["more"] for site in judged for one in site["models"].values()]
    return [metric for metric in FURTHER if any(more.get(metric.key) is not None for more in found)]
