"""Summarises a run as plain data: everything that tables and pages show, computed once.

Sentences and tables use the same rounded metrics, so that they never contradict each other.
"""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from silvan.algorithms.evaluation.evaluation import ADVICE, MEAN_OF_SITES, certainty
from silvan.errors import FormatError, SilvanError
from silvan.federation.members import OVERALL
from silvan.metrics import METRICS, Metric, main_metrics
from silvan.report.model_card import SEEN, cautions, importance_note, model_card
from silvan.report.sentences import sentences
from silvan.report.tree_outline import outline
from silvan.study.run_folder import AUDIT, RUN, Counts, Kind, MetricsRow, Record, Run
from silvan.util.files import try_json
from silvan.util.readable import digits_of

_TAKEN = (
    *(
        "name",
        "made",
        "status",
        "label",
        "classes",
        "positive",
        "features",
        "by",
        "copy_for",
        "repeats",
        "rounds",
        "bytes",
        "sums",
    ),
    *("agreement_rounds", "warnings", "versions", "seconds", "columns", "weights", "choices", "shared_forest"),
    *("at_sites", "threshold", "clusters", "dependence"),
)
"""Fields that the summary copies from the record."""

_OF_SUBGROUP = ("group", "site", "model", "rows", "metrics", "note")

_FURTHER = [metric for metric in METRICS if metric.title and not metric.main]
"""The metrics shown in addition to the main ones."""

_LARGEST = 1e100

_SEEN = {
    "ask": "each site's reply",
    "trusted": "each site's part",
    "ring": "only the sum over the sites",
    "masked": "only the sum over the sites",
}
"""What the coordinator sees of replies to ``ask``, and to ``total`` by the way in which sums are formed."""


def summarise_run(folder: str | Path) -> dict[str, Any]:
    """Read a run folder and return the summary of the run."""
    run = Run(folder)
    record = run.read()
    try:
        return summarise(record, read_beside(run, record))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise FormatError(f"{run.file(RUN)}: its content is inconsistent; run `silvan fit` again") from error


def summarise(record: Record, beside: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the summary of a run; ``beside`` is what other files in its folder add."""
    models = list(dict.fromkeys(row.model for row in record.evaluation))
    metric = _leading(record)
    sites = [_site(record, site, metric, models) for site in [s.name for s in record.sites]]
    known = any(row.site == OVERALL for row in record.evaluation)
    overall = _site(record, OVERALL, metric, models) if known else None
    mean = _mean(sites, metric, models) if record.by == "rows" and not record.on_splits else None
    learner = record.study.get("learner", {})
    evaluated = _evaluated_at_sites(record, models)
    further = [one["more"] for site in evaluated for one in site["models"].values()]
    importances, distances = record.permutation or record.importances or {}, record.distances
    summary: dict[str, Any] = {
        **{name: msgspec.to_builtins(getattr(record, name)) for name in _TAKEN},
        "among": record.among or [site.name for site in record.sites],
        "rows": _rows(record, [site.rows for site in record.sites]),
        "test_rows": _rows(record, [site.test_rows for site in record.sites]),
        "evaluated_rows": _rows(record, [line["test_rows"] for line in sites]),
        "metric": metric,
        "honest": learner.get("protocol") != "paper",
        "tau": learner.get("tau"),
        "left_out": record.left_out,
        "on_splits": record.on_splits,
        "splits": record.folds if record.left_out else record.repeats * record.folds,
        "models": models,
        "leading": "federated" if "federated" in models else models[-1] if models else None,
        "sites": sites,
        "mean": mean,
        "overall": overall,
        "lead": mean or overall or (sites[0] if record.copy_for and sites and record.evaluation else None),
        "noisy": _noisy(record, metric),
        "all_metrics": _all_metrics(record, 3 if metric is None else metric["digits"]),
        "evaluated": evaluated,
        "further": [metric.key for metric in _FURTHER if any(more.get(metric.key) is not None for more in further)],
        "subgroups": [{name: getattr(row, name) for name in _OF_SUBGROUP} for row in record.subgroups],
        "curves": msgspec.to_builtins(record.curves),
        "importances": sorted(importances.items(), key=lambda item: -item[1]),
        "importance_note": "" if importances else importance_note(record),
        "shuffled": record.permutation is not None,
        "distances": distances if all(len(row) == len(distances) for row in distances.values()) else {},
        "traffic": (traffic := _traffic(record)),
        "sent_all": (sent_all := sum(site["sent"] for site in traffic["sites"])),
        "sent_each": sent_all / max(len(traffic["sites"]), 1),
        "trained_each": sum(ways.get("sent", 0) for ways in record.bytes.values()) / max(len(record.bytes), 1),
        "seen": SEEN.get(record.sums, "") if record.by == "rows" else "",
        "table_one": record.table_one,
        "differences": [(d.column, d.what, d.done) for d in record.differences],
        "alike": _alike(record),
        "settings": _settings(record.study),
        "hashes": _hashes(record),
        "forests": [{"site": m.site, "trees": m.trees, "nodes": m.nodes, "hash": m.hash} for m in record.models],
        **(beside or {"tree": None, "audit": None, "complaints": []}),
        "looked_beside": beside is not None,
    }
    summary["sentences"] = sentences(record, summary)
    summary["cautions"] = cautions(record, summary)
    summary["card"] = model_card(record, summary)
    return summary


def summary_json(summary: dict[str, Any]) -> str:
    """Return the summary as JSON, for programs, ending with a newline."""
    return msgspec.json.format(msgspec.json.encode(summary), indent=1).decode() + "\n"


def _alike(record: Record) -> str:
    """Return the sentence shown if the tables have no known differences."""
    if record.by == "columns":
        return "All tables have the same rows."
    if len(record.sites) == 1:
        return "There is one table."
    if record.kinds and not any(kind.name == "Describe" for kind in record.kinds):
        return "Not known: the study defines the columns, so sites were not asked to describe theirs."
    return "All tables have the same columns, kinds and classes."


def _leading(record: Record) -> dict[str, Any] | None:
    present = record.evaluation[0].metrics if record.evaluation else {}
    metric = next((metric for metric in METRICS if metric.key in present), None)
    if metric is None:
        return None
    largest = max((abs(row.metrics.get(metric.key) or 0.0) for row in record.evaluation), default=0.0)
    digits = digits_of(largest) if metric.in_units else 3
    named = {name: getattr(metric, name) for name in ("key", "title", "meaning", "higher", "ranks")}
    return {**named, "digits": digits}


def _site(record: Record, name: str, metric: dict[str, Any] | None, models: list[str]) -> dict[str, Any]:
    """Return one line of the comparison: metrics, gains over the local model, and the verdict on them."""
    note = next((site for site in record.sites if site.name == name), None)
    by_model = {row.model: row for row in record.evaluation if row.site == name}
    line: dict[str, Any] = {
        "title": _title(record, name),
        "rows": note.rows if note else _rows(record, [s.rows for s in record.sites]),
        "test_rows": note.test_rows if note else _rows(record, [s.test_rows for s in record.sites]),
        "positives": note.positives if note else _positives(record),
        "metrics": {},
        "mean_of_sites": any(row.note == MEAN_OF_SITES for row in by_model.values()),
    }
    if record.on_splits and by_model:
        line["rows"] = line["test_rows"] = max(row.rows for row in by_model.values())
    if note is None and len(record.among) > len(record.sites):  # rows of other sites are not known here
        line |= {"rows": None, "test_rows": max((row.rows for row in by_model.values()), default=0), "positives": None}
    if metric is not None:
        line["metrics"] = {
            model: by_model[model].metrics.get(metric["key"]) if model in by_model else None for model in models
        }
    return _compared(line, metric, by_model)


def _title(record: Record, site: str) -> str:
    """Return the name of a site in tables, or the name for all of them."""
    if site != OVERALL:
        return site
    return "site mean" if record.on_splits else "all rows"


def _rows(record: Record, of_sites: list[int]) -> int:
    """Count the rows of all sites; parties share the same rows."""
    return max(of_sites, default=0) if record.by == "columns" else sum(of_sites)


def _noisy(record: Record, metric: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the noisy metrics with their intervals and their privacy cost; None if metrics are exact."""
    row = next((row for row in record.evaluation if row.epsilon is not None), None)
    if row is None or metric is None:
        return None
    listed = [m for m in METRICS if m.key in row.metrics]
    values = [(m.title, m.meaning, row.metrics[m.key], *row.between.get(m.key, (None, None))) for m in listed]
    training = record.study.get("learner", {}).get("epsilon")
    return {"epsilon": row.epsilon, "training": training, "rows": row.rows, "metrics": values}


def _mean(sites: list[dict[str, Any]], metric: dict[str, Any] | None, models: list[str]) -> dict[str, Any] | None:
    """Average the sites' metrics, weighted by test rows, for metrics that rank rows.

    One ranking of all rows favours local forests where the class balance differs between sites: belonging to a site
    with many positives is itself information, and only local forests have it.
    """
    known = [s for s in sites if s["metrics"] and all(s["metrics"].get(m) is not None for m in models)]
    if metric is None or not metric["ranks"] or len(known) < 2:
        return None
    total = sum(site["test_rows"] for site in known)
    values = {m: sum(s["exact"][m] * s["test_rows"] for s in known) / total for m in models}
    line = {"title": "site mean", "rows": None, "test_rows": total, "positives": None, "metrics": values}
    line = _compared(line, metric, {})
    for model, gain in line["gains"].items():
        line["intervals"][model] = _interval_of_mean(gain, model, known, metric["digits"])
        line["sure"][model] = certainty(gain, *line["intervals"][model])
    return line | {"certainty": line["sure"].get("federated", "unknown")}


def _interval_of_mean(
    gain: float | None, model: str, sites: list[dict[str, Any]], digits: int
) -> tuple[float | None, float | None]:
    """Return the interval of the sites' mean gain, weighted by test rows; None unless every site has an interval."""
    total = sum(site["test_rows"] for site in sites)
    ends = [site["intervals"].get(model, (None, None)) for site in sites]
    if gain is None or any(low is None or high is None for low, high in ends):
        return None, None
    shares = [site["test_rows"] / total for site in sites]
    reach = math.hypot(*(share * (high - low) / 2 for share, (low, high) in zip(shares, ends, strict=True)))
    return round(gain - reach, digits) + 0.0, round(gain + reach, digits) + 0.0


def _compared(line: dict[str, Any], metric: dict[str, Any] | None, rows: dict[str, MetricsRow]) -> dict[str, Any]:
    """Round a line's metrics, and add the gains over the local model with their certainty.

    ``rows`` are the models' metrics at the site, by model, with their intervals.
    """
    line |= {"exact": dict(line["metrics"]), "gains": {}, "intervals": {}, "sure": {}, "verdict": "unknown"}
    line |= {"use": "", "low": None, "high": None, "certainty": "unknown"}
    if metric is None:
        return line
    rounded = {m: None if v is None else round(v, metric["digits"]) for m, v in line["metrics"].items()}
    line["metrics"], local = rounded, rounded.get("local")
    for model, value in rounded.items():
        gain, row = None, rows.get(model)
        alike = row is None or row.note != MEAN_OF_SITES
        if model != "local" and local is not None and value is not None and alike:
            gain = round(value - local if metric["higher"] else local - value, metric["digits"]) + 0.0
        line["gains"][model] = gain
        low, high = (None, None) if row is None else (row.gain_low, row.gain_high)
        if low is not None and high is not None:
            low, high = (round(x, metric["digits"]) + 0.0 for x in (low, high))
        line["intervals"][model] = low, high
        line["sure"][model] = certainty(gain, low, high)
    gain = line["gains"].get("federated")
    line["verdict"] = "unknown" if gain is None else "gained" if gain > 0 else "lost" if gain < 0 else "level"
    line["low"], line["high"] = line["intervals"].get("federated", (None, None))
    joined = rows.get("federated")
    if joined is not None and joined.site != OVERALL and "local" in rounded:  # otherwise there is nothing to recommend
        line["use"] = ADVICE[line["sure"].get("federated", "unknown")]
        line["use"] += f" ({joined.same_as})" if line["use"] == joined.model and joined.same_as else ""
    if (line["use"] or line["low"] is not None) and "local" in rounded:
        line["certainty"] = line["sure"].get("federated", "unknown")
    return line


def _positives(record: Record) -> float | None:
    known = [(s.positives, s.rows + s.test_rows) for s in record.sites if s.positives is not None]
    return sum(share * n for share, n in known) / max(sum(n for _, n in known), 1) if known else None


def _all_metrics(record: Record, digits: int) -> dict[str, Any]:
    """Return all metrics of all models at all sites."""
    main: list[Metric] = [m for m in METRICS if record.evaluation and m.key in record.evaluation[0].metrics]
    more = [m for m in _FURTHER if any(row.more.get(m.key) is not None for row in record.evaluation)]
    rows = []
    for r in sorted(record.evaluation, key=lambda r: r.site == OVERALL):
        values = [*(r.metrics.get(m.key) for m in main), *(r.more.get(m.key) for m in more)]
        gain = {"gain": r.gain, "low": r.gain_low, "high": r.gain_high, "use": r.use}
        rows.append({"site": r.site, "model": r.model, "rows": r.rows, "values": values, **gain})
    return {
        "core": len(main),
        "digits": [digits if metric.in_units else 3 for metric in (*main, *more)],
        "titles": [(metric.title, metric.meaning) for metric in (*main, *more)],
        "rows": rows,
    }


def _traffic(record: Record) -> dict[str, Any]:
    """Return bytes by site and by kind of message, with a description of each kind, largest first."""
    described = {kind.name: kind for kind in record.kinds}
    sent, received = Counter[str](), Counter[str]()
    sites: dict[str, dict[str, Any]] = {site.name: {"sent": 0, "received": 0, "by_kind": {}} for site in record.sites}
    for t in record.traffic:
        site = sites.setdefault(t.site, {"sent": 0, "received": 0, "by_kind": {}})
        for counted, name in ((sent, "sent"), (received, "received")):
            counted[t.kind] += getattr(t, name)
            site[name] += getattr(t, name)
        site["by_kind"][t.kind] = t.sent
    kinds = []
    for name in sorted(sent, key=lambda name: -sent[name]):
        kind = described.get(name, Kind(name, "", "", ""))
        seen = _SEEN.get(record.sums if kind.verb == "total" else kind.verb, "not known")
        bytes_ = {"sent": sent[name], "received": received[name]}
        kinds.append({**msgspec.structs.asdict(kind), "seen": seen, **bytes_})
    return {"kinds": kinds, "sites": [{"name": name, **site} for name, site in sites.items()]}


def _settings(study: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the settings of the study, with sections as dotted keys."""
    listed = [(key, value) for key, value in study.items() if not isinstance(value, dict) and value not in (None, [])]
    for key, section in study.items():
        if isinstance(section, dict):
            listed += [(f"{key}.{k}", "none" if v is None else v) for k, v in section.items()]
    return [(key, ", ".join(map(str, v)) if isinstance(v, list) else str(v)) for key, v in listed]


def _hashes(record: Record) -> list[tuple[str, str]]:
    hashes = [("schema", record.schema_hash)]
    hashes += [(f"forest of {m.site}" if m.site else "forest" if m.trees else "model", m.hash) for m in record.models]
    if record.pooled_hash:
        hashes.append(("pooled forest", record.pooled_hash))
    return [*hashes, ("study and tables", record.fingerprint)]


# -- details of models at each site: intervals, calibration, thresholds, and groups for curves


def _evaluated_at_sites(record: Record, models: list[str]) -> list[dict[str, Any]]:
    """Return the models' details for all rows together, then for each site."""
    counts = {(c.site, c.model): c for c in record.counts}
    rows, listed = {(row.site, row.model): row for row in record.evaluation}, []
    for site in [OVERALL, *(site.name for site in record.sites)]:
        by_model = {
            m: _details(rows[site, m], counts.get((site, m), Counts(site, m)), record)
            for m in models
            if (site, m) in rows
        }
        if by_model:
            note = next((rows[site, m].note for m in by_model if rows[site, m].note), "")
            listed.append({"title": _title(record, site), "overall": site == OVERALL, "models": by_model, "note": note})
    return listed


def _details(row: MetricsRow, counts: Counts, record: Record) -> dict[str, Any]:
    """Return the details of one model at one site, without impossible groups, since files may be damaged."""
    return {
        "rows": row.rows,
        "auc": row.metrics.get("auc"),
        "numbers": {m.key: row.metrics.get(m.key) for m in main_metrics(0) if m.key in row.metrics},
        "between": (row.more.get("auc_low"), row.more.get("auc_high")),
        "more": {m.key: row.more.get(m.key) for m in _FURTHER if m.key in row.more},
        "groups": {of: _groups(groups, record.classes is None) for of, groups in counts.groups.items()},
        "net_benefit": [point for point in counts.net_benefit if _possible(*point) and 0 <= point[0] <= 1],
    }


def _groups(groups: list[tuple[float, float, float]], of_number: bool) -> list[tuple[float, float, float]]:
    """Return the possible groups of rows, by rising score or prediction."""
    fine = [g for g in groups if _possible(*g) and g[2] >= 0 and (of_number or g[1] >= 0)]
    return sorted(g for g in fine if of_number or 0.0 <= g[0] <= 1.0)


def _possible(*numbers: float) -> bool:
    """Return whether numbers can be added, squared and plotted."""
    return all(abs(number) < _LARGEST for number in numbers)


# -- files beside run.json: the model, of which one tree is shown, and an audit of this model


class _Finding(msgspec.Struct, frozen=True):
    title: str
    verdict: str
    measure: str = ""
    note: str = ""
    value: float | None = None
    chance: float | None = None
    limit: float | None = None


class _Report(msgspec.Struct, frozen=True):
    name: str
    hash: str
    findings: list[_Finding] = []
    passed: bool = True


class _Audit(msgspec.Struct, frozen=True):
    reports: list[_Report]


def read_beside(run: Run, record: Record) -> dict[str, Any]:
    """Return what other files in the folder add: ``tree``, ``audit``, and ``complaints`` about them."""
    complaints: list[str] = []
    return {"tree": _tree(run, record, complaints), "audit": _audit(run, record, complaints), "complaints": complaints}


def _tree(run: Run, record: Record, complaints: list[str]) -> dict[str, Any] | None:
    if record.by == "columns" or not record.models:
        return None
    first = record.models[0].site
    try:
        drawn = outline(run.forest(first or None))
    except (SilvanError, OSError) as error:
        complaints.append(f"The model could not be read, so no tree is shown: {error}")
        return None
    return None if drawn is None else drawn | {"site": first}


def _audit(run: Run, record: Record, complaints: list[str]) -> dict[str, Any] | None:
    """Return the findings of an audit of one of the run's models; None for an audit of another model."""
    path = run.file(AUDIT[0])
    if not path.is_file():
        return None
    audit = try_json(path, _Audit)
    if audit is None:
        complaints.append(f"{AUDIT[0]} in this run folder is damaged, or not an audit; it is ignored.")
        return None
    reports = audit.reports
    hashes = {model.hash for model in record.models}
    other = [report.hash for report in reports if report.hash not in hashes]
    if other:
        complaints.append(
            f"{AUDIT[0]} in this run folder is of another model ({other[0][:12]}) and is ignored: "
            "run `silvan audit` again."
        )
    kept = [report for report in reports if report.hash in hashes]
    return {"reports": msgspec.to_builtins(kept)} if kept else None
