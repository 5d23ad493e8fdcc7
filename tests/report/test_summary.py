"""Sentences about a run: they agree with the metrics, and numbers are formatted for people."""

from pathlib import Path

import msgspec
import pytest

from silvan.report.charts import nice_scale, tick_labels
from silvan.report.summary import summarise
from silvan.study.run_folder import Kind, MetricsRow, Model, Record, SiteRows, Traffic
from silvan.util.readable import format_bytes, format_count, format_interval, format_metric, format_time, signed

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def record(figures, metric="auc", **more):
    """Makes a record of sites with metrics (local, federated), the last of them overall."""
    sites = [SiteRows(f"s{i}", 100, 60) for i in range(len(figures) - 1)]
    names = [*(site.name for site in sites), "all"]
    rows = [
        MetricsRow(name, model, 60, {metric: value})
        for name, pair in zip(names, figures, strict=True)
        for model, value in zip(("local", "federated"), pair, strict=True)
    ]
    return Record(name="r", sites=sites, evaluation=rows, **more)


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        (
            [(0.8, 0.9), (0.7, 0.8), (0.7, 0.9)],
            "No site has enough test rows for a confidence interval of its gain.",
        ),
        ([(0.8, 0.9), (0.7, 0.8), (0.7, 0.9)], "from 0.750 to 0.850 (+0.100, no confidence interval)"),
        ([(None, 0.9), (0.7, 0.8), (0.7, 0.9)], "At one site the AUC is undefined"),
        ([(None, None), (None, None), (None, None)], "At two sites the AUC is undefined"),
    ],
)
def test_without_intervals_nothing_is_claimed(figures, said):
    assert said in summarise(record(figures))["sentences"][0]


def sure(*intervals, gain=0.03, local=0.7, metric="auc", **more):
    """Makes a record of sites whose gains have intervals; None for no interval."""
    sign = -1 if metric == "rmse" else 1
    made = record([(local, local + sign * gain)] * (len(intervals) + 1), metric, **more)
    rows = []
    for row in made.evaluation:
        if row.model == "federated" and row.site != "all":
            low, high = intervals[int(row.site[1:])] or (None, None)
            row = msgspec.structs.replace(row, gain=gain, gain_low=low, gain_high=high, use=True)
        rows.append(row)
    made.evaluation = rows
    return made


@pytest.mark.parametrize(
    ("interval", "what", "use"),
    [
        ((0.01, 0.05), "gained", "federated"),
        ((-0.01, 0.07), "noise", "either"),
        ((-0.07, -0.01), "lost", "local"),
        ((0.0, 0.0), "level", "either"),
        (None, "few", "unclear"),
        ((0.0004, 0.05), "noise", "either"),  # it is shown as +0.000
        ((0.0, 0.05), "noise", "either"),
    ],
)
@pytest.mark.parametrize("metric", ["auc", "rmse"])
def test_advice_depends_on_significance(interval, what, use, metric):
    [site] = summarise(sure(interval, metric=metric))["sites"]
    assert (site["certainty"], site["use"]) == (what, use)


@pytest.mark.parametrize(
    ("interval", "said"),
    [
        ((0.01, 0.05), "(+0.030, 95% CI +0.010 to +0.050, significant)."),
        ((-0.01, 0.07), "(+0.030, 95% CI −0.010 to +0.070, not significant)."),
        (None, "(+0.030, no confidence interval)."),
    ],
)
def test_a_sites_copy_states_the_significance_of_its_gain(interval, said):
    made = sure(interval, (0.01, 0.05))
    own = msgspec.structs.replace(made, among=[site.name for site in made.sites], copy_for=made.sites[0].name)
    own.sites = made.sites[:1]
    assert said in summarise(own)["sentences"][0]


def test_an_undefined_metric_is_not_called_insignificant():
    made = record([(None, None), (0.7, 0.8)])
    made.evaluation = [msgspec.structs.replace(row, use=row.model == "federated") for row in made.evaluation]
    [site] = summarise(made)["sites"]
    assert site["certainty"] == "unknown"
    assert (site["low"], site["high"], site["use"]) == (None, None, "unclear")


def test_equal_metrics_without_an_interval():
    [site] = summarise(sure(None, gain=0.0))["sites"]
    assert site["certainty"] == "level"


@pytest.mark.parametrize(
    ("intervals", "said"),
    [
        (
            [(0.01, 0.05), (-0.1, 0.1), None],
            "One of three sites does better with the federated forest than with the local one (significant, 95% CI); "
            "at one the difference is not significant, one has too few test rows to tell.",
        ),
        (
            [(0.01, 0.05), (-0.2, -0.1)],
            "One of two sites does better with the federated forest than with the local one (significant, 95% CI), one "
            "does worse.",
        ),
        (
            [(0.01, 0.05)] * 2,
            "Both sites do better with the federated forest than with the local one (significant, 95% CI).",
        ),
        (
            [(-0.1, 0.1), (-0.1, 0.1)],
            "Joining makes no significant difference at either site (95% CI).",
        ),
        ([(-0.1, 0.1)], "Joining makes no significant difference at the one site that can be compared (95% CI)."),
        (
            [(0.01, 0.05)],
            "The one site that can be compared does better with the federated forest than with the local one",
        ),
        ([(0.0, 0.0)] * 2, "Both sites do as well with the federated forest as with the local one."),
        ([None, None], "No site has enough test rows for a confidence interval of its gain."),
        ([(0.01, 0.05)] * 2, "(+0.030, 95% CI +0.016 to +0.044, significant)"),
        ([(-0.01, 0.07)] * 2, "(+0.030, 95% CI +0.002 to +0.058, significant)"),
        ([(-0.09, 0.15)] * 2, "not significant)"),
    ],
)
def test_the_privacy_guarantee_in_words(intervals, said):
    assert said in " ".join(summarise(sure(*intervals))["sentences"])


@pytest.mark.parametrize(
    ("sums", "seen"),
    [
        ("trusted", "each site's part"),
        ("ring", "only the sum over the sites"),
        ("masked", "only the sum"),
    ],
)
def test_who_sees_what_by_the_sums_that_were_used(sums, seen):
    kinds = [Kind("Grow", "asks", "answers", "total"), Kind("Look", "asks", "answers", "ask")]
    traffic = [Traffic("s0", kind.name, 10 - i, 1) for i, kind in enumerate(kinds)]
    listed = summarise(record([(0.8, 0.9)] * 2, sums=sums, kinds=kinds, traffic=traffic))["traffic"]["kinds"]
    assert listed[0]["seen"].startswith(seen)
    assert listed[1]["seen"] == "each site's reply"


def test_choices_on_test_rows_are_reported():
    paper = {"learner": {"kind": "BOFRF", "protocol": "paper"}}
    assert "chose its model on its test rows" in " ".join(summarise(sure((0.01, 0.05), study=paper))["sentences"])
    assert "chose its model on its test rows" not in " ".join(summarise(sure((0.01, 0.05)))["sentences"])


def test_the_variant_that_a_site_should_use():
    made = sure((0.01, 0.05))
    made.evaluation = [msgspec.structs.replace(row, same_as="own" if row.use else "") for row in made.evaluation]
    assert summarise(made)["sites"][0]["use"] == "federated (own)"


def test_the_mean_of_sites_leads_where_rows_are_ranked():
    summary = summarise(record([(0.8, 0.9), (0.6, 0.7), (0.95, 0.85)]))
    assert summary["lead"] is summary["mean"]
    assert summary["mean"]["metrics"] == {"local": 0.7, "federated": 0.8}
    assert "the other way round (0.950 against 0.850)" in summary["sentences"][0]


def test_one_ranking_of_all_rows_is_explained():
    """If only one site has a metric, all rows come first; the page also says that local forests know class shares."""
    text = summarise(record([(0.8, 0.9), (None, None), (0.95, 0.85)]))["sentences"][0]
    assert "from 0.950 to 0.850" in text
    assert "In one ranking of all rows, local forests also profit from knowing how common" in text


def test_smaller_errors_are_better():
    summary = summarise(record([(30.0, 20.0), (30.0, 40.0), (30.0, 25.0)], metric="rmse"))
    assert [site["verdict"] for site in summary["sites"]] == ["gained", "lost"]
    assert summary["lead"] is summary["overall"]
    assert "(5.00 better, no confidence interval)" in summary["sentences"][0]


def test_gains_agree_with_what_is_shown():
    summary = summarise(record([(0.80049, 0.80051), (0.7, 0.7), (0.7, 0.7)]))
    assert summary["sites"][0]["metrics"] == {"local": 0.8, "federated": 0.801}
    assert summary["sites"][0]["gains"]["federated"] == 0.001


@pytest.mark.parametrize(("pooled", "said"), [("ab", "node by node"), ("cd", "differs from the forest")])
def test_same_as_pooled_only_if_hashes_are_equal(pooled, said):
    made = record([(0.8, 0.9), (0.7, 0.8), (0.7, 0.9)], models=[Model("m", "ab", 1, 1)], pooled_hash=pooled)
    assert said in " ".join(summarise(made)["sentences"])


def test_a_record_survives_its_file():
    made = record([(0.8, None), (0.7, 0.8), (0.7, 0.9)])
    assert msgspec.json.decode(msgspec.json.encode(made), type=Record) == made


def test_every_key_of_the_file_is_documented():
    text = PAGE.read_text()
    assert [key for key in Record.__struct_fields__ if f"`{key}`" not in text] == []


def test_numbers_in_words():
    assert [format_bytes(n) for n in (0, 999, 1000, 99_949, 999_499, 1_000_000, 2.5e12)] == [
        "0 bytes",
        "999 bytes",
        "1.0 KB",
        "99.9 KB",
        "999 KB",
        "1.0 MB",
        "2500 GB",
    ]
    assert [format_time(s) for s in (0.2, 59.4, 61, 3725)] == ["1 s", "59 s", "1 min 01 s", "1 h 02 min"]
    assert [signed(x, 2) for x in (0.004, 0.12, -0.12)] == ["±0.00", "+0.12", "−0.12"]
    assert format_interval(-0.01, 0.074, 2) == "−0.01 to +0.07"
    assert format_interval(None, None, 2) == ""
    assert [format_metric(*x) for x in ((0.5, 2), (None, 2), (None, 2, 0))] == ["0.50", "undefined", "–"]
    assert [format_count(n) for n in (0, 3, 1234)] == ["no", "three", "1,234"]


@pytest.mark.parametrize(
    ("low", "high", "top"), [(0.978, 1.0, 1.0), (0.5, 0.5, 1.0), (43.7, 60.0, None), (-2.0, 0.9, 1.0), (1.0, 1.0, 1.0)]
)
def test_scales_hold_all_values(low, high, top):
    ticks = nice_scale(low, high, top)
    assert ticks[0] <= low + 1e-9
    assert ticks[-1] >= high - 1e-9
    assert 2 <= len(ticks) <= 9
    assert len(set(tick_labels(ticks))) == len(ticks)
    assert top is None or ticks[-1] <= top
