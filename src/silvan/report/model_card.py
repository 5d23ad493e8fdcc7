"""The model card of a run: purpose, limits, data, privacy and citations."""

from typing import Any

from silvan.learners.registry import LEARNERS
from silvan.study.run_folder import Record
from silvan.util.readable import count_of, format_count, list_some

SEEN = {
    "trusted": "Sums were not protected: the coordinator added the sites' parts and saw each of them; with "
    'sums = "masked" it sees only the sums.',
    "ring": "Sums went round a ring of the sites, encrypted from each site to the next: the coordinator and the first "
    "site of the ring saw only the sums. The two neighbours of a site could find out its part if they colluded.",
    "masked": "Secure aggregation: masks that cancel in the sum hid each site's part, so the coordinator saw only the "
    "sums.",
}
"""What the coordinator sees, by the way in which sums are formed."""

_FAR_SLOPE = (0.8, 1.25)
"""A calibration slope outside this range is listed among the limits, given enough rows."""

_ENOUGH = 200

_NADEAU = "C. Nadeau, Y. Bengio: Inference for the Generalization Error. Machine Learning 52, 2003"

_MOST_WARNINGS = 3


def model_card(record: Record, summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """Return the card: titles, each with its sentences."""
    parts = {"What it is for": _use, "Limits": _limits, "Data": _data, "Privacy": _privacy}
    card = {title: write(record, summary) for title, write in parts.items()} | {"To cite": _citations(record)}
    return [(title, texts) for title, texts in card.items() if texts]


def importance_note(record: Record) -> str:
    """Explain why there are no importances."""
    learner = record.study.get("learner", {})
    trees = any(model.trees for model in record.models)
    if not record.models:
        return "Not available: nothing is trained yet."
    if learner.get("epsilon") is not None:
        return "Not available: trees grown from noisy counts keep no gains; counting them would cost privacy budget."
    if record.by == "columns":
        return "Not available: each party keeps the splits on its own columns." if trees else ""
    if all(model.site for model in record.models):
        return "Not available for all sites together: each site has its own model."
    spec = LEARNERS.get(learner.get("kind"))
    if spec is not None and spec.trees == "stumps":
        return "Not available: stumps are weighted by their votes and keep no gains."
    return "Not available: trees leave their site without gains. Set importance = true in [evaluation] to compute it."


def _use(record: Record, summary: dict[str, Any]) -> list[str]:
    kind = record.study.get("learner", {}).get("kind", "a forest")
    what = (
        "a number"
        if record.classes is None
        else f"one of {count_of(len(record.classes), 'class', words=True)}: {', '.join(record.classes[:6])}"
        + (" and others" if len(record.classes) > 6 else "")
        + (f"; the positive class is {record.positive}" if record.positive is not None else "")
    )
    who = "parties" if record.by == "columns" else "sites"
    return [
        f"Predicts {record.label} ({what}) from {count_of(record.features, 'feature')}, trained by {kind} "
        f"at {format_count(len(summary['among']))} {who}.",
        "Use it for rows like theirs: the same columns, measured in the same way, from the same population.",
        "It finds associations, not causes. Before it affects decisions about people, have domain experts check it on "
        "data from the place where it will be used.",
    ]


def _limits(record: Record, summary: dict[str, Any]) -> list[str]:
    more = len(record.warnings) - _MOST_WARNINGS
    texts = record.warnings[:_MOST_WARNINGS] + ([f"{more} more warnings are listed above."] if more > 0 else [])
    metric, sites = summary["metric"], summary["sites"]
    if not record.evaluation:
        return [*texts, "It has not been evaluated: there are no test rows."]
    few = [site["title"] for site in sites if site["certainty"] == "few"]
    level = [site["title"] for site in sites if site["certainty"] == "noise"]
    lost = [site["title"] for site in sites if site["certainty"] == "lost"]
    undefined = [site["title"] for site in sites if not any(v is not None for v in site["metrics"].values())]
    if undefined and summary["noisy"] is None and metric is not None and not record.copy_for and record.by == "rows":
        texts.append(
            f"{metric['title']} is undefined at {list_some(undefined, 'site', 6)}: no test rows, or only one class."
        )
    if few:
        texts.append(f"Too few test rows for a confidence interval of the gain: {list_some(few, 'site', 6)}.")
    if level:
        texts.append(f"Not significantly better or worse than the local model: {list_some(level, 'site', 6)}.")
    if lost:
        texts.append(f"Significantly worse than the local model: {list_some(lost, 'site', 6)}.")
    texts += cautions(record, summary)
    beyond = "places" if record.date_split is not None else "times" if record.left_out else "places or times"
    return [*texts, f"It has not been evaluated on data from other {beyond}."]


def cautions(record: Record, summary: dict[str, Any]) -> list[str]:
    """Explain why the model's scores should not be read as probabilities."""
    texts, model = list[str](), summary["leading"]
    slopes = {
        site["title"]: slope
        for site in summary["evaluated"]
        if model in site["models"] and site["models"][model]["rows"] >= _ENOUGH
        if (slope := site["models"][model]["more"].get("calibration_slope")) is not None
    }
    off = [f"{site} ({slope:.2f})" for site, slope in slopes.items() if not _FAR_SLOPE[0] <= slope <= _FAR_SLOPE[1]]
    if off:
        texts.append(
            f"Scores are not calibrated probabilities at {list_some(off, 'site', 6)}: the calibration slope in brackets"
            " should be near 1. Recalibrate before using them as risks."
        )
    if record.study.get("learner", {}).get("class_weight") == "balanced":
        texts.append("Classes were balanced in training, so scores overstate the probability of rare classes.")
    return texts


def _data(record: Record, summary: dict[str, Any]) -> list[str]:
    is_copy = len(summary["among"]) > len(record.sites)
    where = " at this site" if is_copy else ""
    rows = f"{count_of(summary['rows'], 'training row')}{where}" if summary["rows"] else ""
    test = f"{summary['test_rows']:,} test rows" if summary["test_rows"] else ""
    noun, who = ("party", "parties") if record.by == "columns" else ("site", "sites")
    sizes = ", ".join(filter(None, [rows, test])) or "The number of rows is not disclosed"
    texts = [f"{sizes}; {who}: {list_some(summary['among'], noun, 6)}." if summary["among"] else ""]
    if record.repeats:
        times = "once" if record.repeats == 1 else f"{record.repeats} times"
        texts.append(f"Every row was evaluated {times}, in {count_of(record.repeats * record.folds, 'split')}.")
    if record.left_out:
        texts.append("Each site was left out in turn; all its rows were evaluated with a model of the other sites.")
    positives = [s.positives for s in record.sites if s.positives is not None]
    if positives and record.positive is not None:
        ends = list(dict.fromkeys(f"{share:.0%}" for share in (min(positives), max(positives))))
        texts.append(f"{record.label} is {record.positive} in {' to '.join(ends)} of a site's rows.")
    if record.differences:
        n = len(record.differences)
        texts.append(f"The tables differ in {format_count(n)} {'way' if n == 1 else 'ways'}, listed above.")
    texts.append(f"Created {record.made.replace('T', ' ').replace('+00:00', ' UTC')}." if record.made else "")
    return [text for text in texts if text]


def _privacy(record: Record, summary: dict[str, Any]) -> list[str]:
    columns = record.by == "columns"
    texts = ["No feature left its party." if columns else "No row left its site."]
    if not columns and any(kind.verb == "total" for kind in record.kinds):
        texts.append(SEEN.get(record.sums, ""))
    epsilon = record.study.get("learner", {}).get("epsilon")
    noisy = summary["noisy"]
    if epsilon is not None:
        spent = epsilon + (noisy["epsilon"] if noisy else 0.0)
        texts.append(
            f"The model is differentially private, epsilon {epsilon:g} for training"
            + (f" and {noisy['epsilon']:g} for evaluation, {spent:g} in all." if noisy else ".")
        )
    else:
        texts.append(
            "The model is not differentially private: its leaves may reveal something about single rows to whoever "
            "has it. An audit measures how much."
        )
    audit = summary["audit"]
    for report in audit["reports"] if audit else []:
        failed = [f["title"] for f in report["findings"] if f["verdict"] == "exceeded"]
        ran = sum(f["verdict"] != "not run" for f in report["findings"])
        result = f"these exceeded their limits: {'; '.join(failed)}" if failed else "none exceeded its limit"
        texts.append(f"Audit of model {report['hash'][:12]}: of {ran} attacks, {result}.")
    if not audit and summary["looked_beside"] and record.by == "rows" and not record.copy_for:
        texts.append("It has not been audited; silvan audit RUN does so.")
    return [text for text in texts if text]


def _citations(record: Record) -> list[str]:
    learner = record.study.get("learner", {})
    version = record.versions.get("silvan", "")
    spec = LEARNERS.get(learner.get("kind"))
    texts = [] if spec is None else list(spec.papers)
    if learner.get("epsilon") is not None:
        texts.append("C. Dwork, A. Roth: The Algorithmic Foundations of Differential Privacy. 2014.")
    if record.repeats:
        texts.append(f"{_NADEAU} (intervals).")
    return [*texts, f"silvan {version}, the software that made it.".replace(" ,", ",")]
