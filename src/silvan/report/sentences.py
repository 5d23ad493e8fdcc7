"""Describes the results of a run in sentences.

They are made from the rounded figures of the summary, so that they never contradict its tables.
"""

from typing import Any

from silvan.study.run_folder import Record
from silvan.util.readable import format_bytes, format_count, signed

_LOSSLESS = ("HistogramForest", "VerticalForest")
"""Learners that should give the pooled forest."""


def sentences(record: Record, summary: dict[str, Any]) -> list[str]:
    """Return sentences that describe a run."""
    texts = (
        _outcome(summary),
        _with_noise(summary),
        _certainty(summary),
        _chosen_on_test_rows(summary),
        _small_test_parts(summary),
        _cost(record),
        _same_as_pooled(record),
    )
    return [text if record.by == "rows" else _of_parties(text, record) for text in texts if text]


def _of_parties(text: str, record: Record) -> str:
    """Rewrite a sentence about sites as one about parties that hold columns."""
    linear = not any(model.trees for model in record.models)
    for old, new in (
        ("No row left its site.", "Features stayed with their parties."),
        ("pooled rows", "the joined table"),
        (" a site)", " in all)"),
        ("single sites' figures", "figures"),
        ("sites", "parties"),
        ("site", "party"),
        *([("federated forest", "federated model")] if linear else []),
    ):
        text = text.replace(old, new)
    return text


def _outcome(summary: dict[str, Any]) -> str:
    metric, overall = summary["metric"], summary["overall"]
    if metric is None or overall is None or "local" not in overall["figures"]:
        return ""
    verdicts = [site["verdict"] for site in summary["sites"]]
    unknown = verdicts.count("unknown")
    texts = [_sites_that_gain(verdicts)] if unknown < len(verdicts) else []
    if unknown:
        where = "one site" if unknown == 1 else f"{format_count(unknown)} sites"
        texts.append(f"At {where} the {metric['title']} is not defined: no test rows, or one class only.")
    texts.append(_change_of_figure(summary["lead"], summary))
    return " ".join(filter(None, texts))


def _with_noise(summary: dict[str, Any]) -> str:
    """Return the figure that was asked with noise, between what it lies, and what asking cost."""
    noisy, metric = summary["noisy"], summary["metric"]
    if noisy is None:
        return ""
    digits, figure = metric["digits"], summary["overall"]["figures"].get("federated")
    if figure is None:
        text = f"Noise is larger than the counts of test rows: the {metric['title']} cannot be told."
    else:
        text = f"Over the test rows of all sites the {metric['title']} is {figure:.{digits}f}"
        *_, low, high = noisy["figures"][0]
        if low is not None:
            text += f", between {low:.{digits}f} and {high:.{digits}f} (95 % interval, noise included)"
        text += "."
    text += f" Figures were asked with noise, for epsilon {noisy['epsilon']:g}"
    if noisy["training"] is not None:
        total = noisy["training"] + noisy["epsilon"]
        text += f"; with training, for {noisy['training']:g}, that is {total:g} of every site's privacy budget"
    return f"{text}. No single site's figures are known."


def _change_of_figure(line: dict[str, Any], summary: dict[str, Any]) -> str:
    """Return how the figure changes, and why it may change the other way over all rows."""
    metric, overall = summary["metric"], summary["overall"]
    figures, digits = line["figures"], metric["digits"]
    if figures.get("local") is None or figures.get("federated") is None:
        return ""
    where = "On average over the sites" if line is summary["mean"] else f"Over all {line['test_rows']:,} test rows"
    pooled = figures.get("pooled")
    beside = "" if pooled is None else f"; pooled rows would give {pooled:.{digits}f}"
    text = (
        f"{where} the {metric['title']} goes from {figures['local']:.{digits}f} to "
        f"{figures['federated']:.{digits}f} ({_change(line['gains']['federated'], metric)}){beside}."
    )
    if line["verdict"] != "lost" and overall["verdict"] == "lost" and line is not overall:
        alone, joined = overall["figures"]["local"], overall["figures"]["federated"]
        text += (
            f" With all rows in one ranking it is the other way round ({alone:.{digits}f} against "
            f"{joined:.{digits}f}): there sites' own forests can also gain from knowing how common each class is "
            "at their site, as a forest for all cannot."
        )
    return text


def _change(gain: float, metric: dict[str, Any]) -> str:
    if metric["higher"] or not gain:
        return signed(gain, metric["digits"])
    return f"{abs(gain):.{metric['digits']}f} {'better' if gain > 0 else 'worse'}"


def _sites_that_gain(verdicts: list[str]) -> str:
    """Return how many sites gain by joining."""
    total = len(verdicts) - verdicts.count("unknown")
    gained, level, lost = (verdicts.count(v) for v in ("gained", "level", "lost"))
    for n, how in ((gained, "better {} than"), (level, "as well {} as"), (lost, "worse {} than")):
        if n == total > 1:
            return f"All {format_count(total)} sites do {how.format('with the federated forest')} alone."
    count = format_count(gained).capitalize() if gained else "None"
    text = f"{count} of {format_count(total)} {'site' if total == 1 else 'sites'} {_do(gained or 1)} better"
    others = [f"{format_count(n)} {_do(n)} {how}" for n, how in ((level, "as well"), (lost, "worse")) if n]
    return f"{', '.join([f'{text} with the federated forest than alone', *others])}."


def _do(n: int) -> str:
    return "does" if n == 1 else "do"


def _certainty(summary: dict[str, Any]) -> str:
    """Return at how many sites the difference is more than noise, where intervals are known."""
    found = [site["certainty"] for site in summary["sites"]]
    gained, lost, noise = (found.count(what) for what in ("gained", "lost", "noise"))
    total = gained + lost + noise
    if not total:
        few = "few" in found and "level" not in found
        return "No site has enough test rows to tell its gain from noise." if few else ""
    of = f"{format_count(total)} {'site' if total == 1 else 'sites'} with enough test rows to tell"
    if not gained and not lost:
        return f"Of {of}, none shows a difference that is more than noise (95 % intervals)."
    if total > 1 and total in (gained, lost):
        how = "better" if gained else "worse"
        return f"All {of} are {how} off by more than noise (95 % intervals)."
    texts = [
        f"{format_count(n)} {'is' if n == 1 else 'are'} {how} by more than noise"
        for n, how in ((gained, "better off"), (lost, "worse off"))
        if n
    ]
    return f"Of {of}, {' and '.join(texts)} (95 % intervals)."


def _chosen_on_test_rows(summary: dict[str, Any]) -> str:
    if summary["honest"]:
        return ""
    return "What each site uses was chosen on its test rows, as published: its figures flatter it."


def _small_test_parts(summary: dict[str, Any]) -> str:
    sizes = [site["test_rows"] for site in summary["sites"] if site["figures"] and summary["noisy"] is None]
    if not sizes or min(sizes) >= 50 or len(sizes) < 2:
        return ""
    spread = f"{min(sizes)} to {max(sizes)} rows" if min(sizes) < max(sizes) else f"{min(sizes)} rows"
    return f"Test parts are small ({spread} a site), so single sites' figures are rough."


def _cost(record: Record) -> str:
    if not record.models or not record.bytes or not record.rounds:
        return ""
    n = len(record.bytes)
    sent = sum(ways["sent"] for ways in record.bytes.values()) / n
    received = sum(ways["received"] for ways in record.bytes.values()) / n
    rounds = "one round" if record.rounds == 1 else f"{record.rounds} rounds"
    return (
        f"Training took {rounds}; on average a site sent {format_bytes(sent)} and received "
        f"{format_bytes(received)}. No row left its site."
    )


def _same_as_pooled(record: Record) -> str:
    kind = record.study.get("learner", {}).get("kind")
    if record.pooled_hash is None or len(record.models) != 1 or kind not in (None, *_LOSSLESS):
        return ""
    if record.models[0].hash == record.pooled_hash:
        return (
            "The forest is node for node the one that pooled rows would give: both have the hash "
            f"{record.pooled_hash[:12]}."
        )
    return "The forest is not the one that pooled rows would give; their hashes differ."
