"""Describes the results of a run in sentences.

They use the rounded metrics of the summary, so that they never contradict its tables.
"""

from typing import Any

from silvan.learners.registry import LEARNERS
from silvan.study.run_folder import Record
from silvan.util.readable import count_of, format_bytes, format_count, format_interval, signed

_FLATTERED = "As in the publication, each site chose its model on its test rows, so these metrics are too optimistic."


def sentences(record: Record, summary: dict[str, Any]) -> list[str]:
    """Return sentences that describe a run."""
    is_copy = len(record.among) > len(record.sites)
    texts = (
        _outcome_at_site(record, summary) if is_copy else _outcome(summary),
        _at_new_sites(summary) if record.left_out else "",
        _with_noise(summary),
        "" if summary["honest"] else _FLATTERED,
        _by_date(record),
        _of_persons(record),
        _evaluated_rows(summary),
        _cost(record),
        _same_as_pooled(record),
        f"Verification: {record.verification}." if record.verification else "",
    )
    return [text if record.by == "rows" else _of_parties(text, record) for text in texts if text]


def _of_parties(text: str, record: Record) -> str:
    """Rewrite a sentence about sites as one about parties that hold columns."""
    linear = not any(model.trees for model in record.models)
    for old, new in (
        ("No row left its site.", "Features stayed with their parties."),
        ("pooled rows", "the joined table"),
        (" per site)", " in all)"),
        ("metrics of single sites", "metrics"),
        ("sites", "parties"),
        ("site", "party"),
        *([("federated forest", "federated model")] if linear else []),
    ):
        text = text.replace(old, new)
    return text


def _outcome(summary: dict[str, Any]) -> str:
    metric, overall = summary["metric"], summary["overall"]
    if metric is None or overall is None or "local" not in overall["metrics"]:
        return ""
    known = [site["certainty"] for site in summary["sites"] if site["verdict"] != "unknown"]
    unknown = len(summary["sites"]) - len(known)
    texts = [_sites_that_gain(known)] if known else []
    if unknown:
        where = "one site" if unknown == 1 else f"{format_count(unknown)} sites"
        why = "no test rows, or only one class"
        if any(site["test_rows"] for site in summary["sites"]):
            texts.append(f"At {where} the {metric['title']} is undefined: {why}.")
    texts.append(_change_of_metric(summary["lead"], summary))
    return " ".join(filter(None, texts))


def _at_new_sites(summary: dict[str, Any]) -> str:
    """Describe how the model does at a site that took no part."""
    metric, overall, model = summary["metric"], summary["overall"], summary["leading"]
    values = [line["metrics"].get(model) for line in summary["sites"]]
    values = sorted(value for value in values if value is not None)
    if metric is None or not values:
        return ""
    text = f"At a site outside the training federation, expect {metric['title']} {values[0]:.{metric['digits']}f}"
    if len(values) > 1:
        text += f" to {values[-1]:.{metric['digits']}f}"
    if overall is not None and overall["metrics"].get(model) is not None:
        text += f", {overall['metrics'][model]:.{metric['digits']}f} on average"
    return f"{text}: each site was left out in turn and evaluated with a model of the other sites."


def _outcome_at_site(record: Record, summary: dict[str, Any]) -> str:
    """Describe what a site gains, for a copy without the metrics of other sites."""
    metric, lines = summary["metric"], [line for line in summary["sites"] if line["title"] == record.copy_for]
    if metric is None:
        return ""
    texts = []
    for line in lines:
        metrics, digits = line["metrics"], metric["digits"]
        if metrics.get("local") is not None and metrics.get("federated") is not None:
            texts.append(
                f"At {line['title']} the {metric['title']} goes from {metrics['local']:.{digits}f} with the local "
                f"forest to {metrics['federated']:.{digits}f} with the federated one "
                f"({_change(line['gains']['federated'], metric)}{_sure(line, digits)})."
            )
    if summary["overall"] is not None and "local" in summary["overall"]["metrics"]:
        texts.append(_change_of_metric(summary["overall"], summary))
    return " ".join(filter(None, texts))


def _with_noise(summary: dict[str, Any]) -> str:
    """Describe the noisy metric, its range, and its privacy cost."""
    noisy, metric = summary["noisy"], summary["metric"]
    if noisy is None:
        return ""
    digits, value = metric["digits"], summary["overall"]["metrics"].get("federated")
    if value is None:
        text = f"The noise exceeds the counts of test rows, so the {metric['title']} cannot be estimated."
    else:
        text = f"Over the test rows of all sites the {metric['title']} is {value:.{digits}f}"
        *_, low, high = noisy["metrics"][0]
        if low is not None:
            text += f", between {low:.{digits}f} and {high:.{digits}f} (95% CI, noise included)"
        text += "."
    text += f" The metrics include noise, for epsilon {noisy['epsilon']:g}"
    if noisy["training"] is not None:
        total = noisy["training"] + noisy["epsilon"]
        text += f"; together with training ({noisy['training']:g}), {total:g} of each site's privacy budget was spent"
    return f"{text}. There are no metrics for single sites."


def _change_of_metric(line: dict[str, Any], summary: dict[str, Any]) -> str:
    """Describe how the metric changes, and why it may change the other way over all rows."""
    metric, overall = summary["metric"], summary["overall"]
    metrics, digits = line["metrics"], metric["digits"]
    if line["gains"].get("federated") is None:
        return ""
    mean = line is summary["mean"] or summary["repeats"]
    where = "On average over the sites" if mean else f"Over all {count_of(line['test_rows'], 'test row')}"
    pooled = metrics.get("pooled")
    beside = "" if pooled is None else f"; pooled rows would give {pooled:.{digits}f}"
    text = (
        f"{where} the {metric['title']} goes from {metrics['local']:.{digits}f} to "
        f"{metrics['federated']:.{digits}f} ({_change(line['gains']['federated'], metric)}{_sure(line, digits)})"
        f"{beside}."
    )
    if not line["gains"]["federated"]:
        text = f"{where} the {metric['title']} stays at {metrics['local']:.{digits}f}{beside}."
    prevalence = (
        "local forests also profit from knowing how common each class is at their site; a shared forest cannot."
    )
    if overall["mean_of_sites"]:
        return text
    if line is overall and line["verdict"] == "lost" and metric["ranks"]:
        text += f" In one ranking of all rows, {prevalence}"
    elif line["verdict"] != "lost" and overall["verdict"] == "lost":
        alone, joined = overall["metrics"]["local"], overall["metrics"]["federated"]
        text += (
            f" In one ranking of all rows it is the other way round ({alone:.{digits}f} against "
            f"{joined:.{digits}f}): there, {prevalence}"
        )
    return text


def _sure(line: dict[str, Any], digits: int) -> str:
    """Return the confidence interval of a gain; empty if there is no gain."""
    if not line["gains"]["federated"]:
        return ""
    low, high = line["intervals"]["federated"]
    if low is None:
        return ", no confidence interval"
    sure = line["sure"]["federated"] in ("gained", "lost")
    return f", 95% CI {format_interval(low, high, digits)}, {'significant' if sure else 'not significant'}"


def _change(gain: float, metric: dict[str, Any]) -> str:
    if metric["higher"] or not gain:
        return signed(gain, metric["digits"])
    return f"{abs(gain):.{metric['digits']}f} {'better' if gain > 0 else 'worse'}"


def _sites_that_gain(known: list[str]) -> str:
    """Count the sites that gain significantly by joining; claim nothing without an interval."""
    total, n = len(known), {what: known.count(what) for what in dict.fromkeys(known)}
    gained, lost, noise, level, few = (n.get(what, 0) for what in ("gained", "lost", "noise", "level", "few"))
    if not gained + lost + noise + level:
        return "No site has enough test rows for a confidence interval of its gain."
    everywhere = "Both" if total == 2 else f"All {format_count(total)}"
    if level == total:
        who = "The site does" if total == 1 else f"{everywhere} sites do"
        return f"{who} as well with the federated forest as with the local one."
    than = "with the federated forest than with the local one (significant, 95% CI)"
    parts = [(count, how) for count, how in ((gained, "better"), (lost, "worse")) if count]
    if noise == total:
        where = (
            "the one site that can be compared"
            if total == 1
            else "either site"
            if total == 2
            else f"any of the {format_count(total)} sites"
        )
        return f"Joining makes no significant difference at {where} (95% CI)."
    if total == 1:
        does = f"does {parts[0][1]} {than}" if parts else "has too few test rows to tell"
        return f"The one site that can be compared {does}."
    if len(parts) == 1 and parts[0][0] == total:
        return f"{everywhere} sites do {parts[0][1]} {than}."
    of = f"of {format_count(total)} sites"
    if not parts:
        text = f"Joining makes no significant difference at any {of} (95% CI)"
    else:
        (count, how), *more = parts
        text = f"{format_count(count).capitalize()} {of} {_do(count)} {how} {than}"
        text += "".join(f", {format_count(count)} {_do(count)} {how}" for count, how in more)
    rest = [f"at {format_count(noise)} the difference is not significant"] * bool(noise and parts)
    rest += [f"at {format_count(level)} there is none"] * bool(level)
    rest += [f"{format_count(few)} {'has' if few == 1 else 'have'} too few test rows to tell"] * bool(few)
    return f"{'; '.join([text, ', '.join(rest)] if rest else [text])}."


def _do(n: int) -> str:
    return "does" if n == 1 else "do"


def _by_date(record: Record) -> str:
    """Describe which rows are test rows, if the split is by date."""
    if record.date_split is None:
        return ""
    by, test = record.date_split
    which = f"the {test} of every site's rows" if test.startswith("last") else f"the rows {test}"
    return f"Test rows are {which}, by {by}; the model was trained on earlier ones."


def _of_persons(record: Record) -> str:
    """Describe how rows of the same person are counted."""
    group = record.study.get("group")
    if group is None:
        return ""
    return f"Rows are grouped by {group}: all rows of one {group} are in the training set, or all in the test set."


def _evaluated_rows(summary: dict[str, Any]) -> str:
    """Describe the number of evaluated rows, if it needs an explanation."""
    if summary["repeats"]:
        times = "once" if summary["repeats"] == 1 else f"{format_count(summary['repeats'])} times"
        splits = count_of(summary["splits"], "split")
        return (
            f"Each row was evaluated {times}, with models that had not seen it ({splits}); intervals are corrected for "
            "overlapping splits."
        )
    sizes = [site["test_rows"] for site in summary["sites"] if site["metrics"] and summary["noisy"] is None]
    if sizes and not max(sizes):
        return "There are no test rows, so the model has not been evaluated."
    if len(sizes) < 2 or min(sizes) >= 50:
        return ""
    most = count_of(max(sizes), "row")
    spread = most if min(sizes) == max(sizes) else f"{min(sizes)} to {most}"
    return f"Test sets are small ({spread} per site), so metrics of single sites are imprecise."


def _cost(record: Record) -> str:
    if not record.models or not record.bytes or not record.rounds:
        return ""
    n = len(record.bytes)
    sent = sum(ways.get("sent", 0) for ways in record.bytes.values()) / n
    received = sum(ways.get("received", 0) for ways in record.bytes.values()) / n
    rounds = "one round" if record.rounds == 1 else f"{record.rounds:,} rounds"
    who = "this site" if record.copy_for else "the average site"
    both = f"sent {format_bytes(sent)} and received {format_bytes(received)}"
    return f"Training took {rounds}; {who} {both}. No row left its site."


def _same_as_pooled(record: Record) -> str:
    kind = record.study.get("learner", {}).get("kind")
    lossless = (None, *(name for name, spec in LEARNERS.items() if spec.lossless))
    if record.pooled_hash is None or len(record.models) != 1 or kind not in lossless:
        return ""
    if record.models[0].hash == record.pooled_hash:
        same = "The forest is identical to the forest of the pooled rows, node by node"
        return f"{same}: both have the hash {record.pooled_hash[:12]}."
    return "The forest differs from the forest of the pooled rows: their hashes are not equal."
