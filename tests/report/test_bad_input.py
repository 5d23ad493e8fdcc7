"""Reports of unusual studies read well: odd names, very many sites and columns, no test rows."""

import re

import msgspec
import pytest

from silvan.federation.agreement import ColumnAtSites
from silvan.report.html import render
from silvan.report.markdown import markdown
from silvan.report.summary import summarise
from silvan.study.run_folder import Counts, Kind, MetricsRow, Record, SiteRows, Traffic

RISING = [(0.1, 9.0, 1.0), (0.5, 5.0, 5.0), (0.9, 1.0, 9.0)]
LONG = "adenocarcinoma of the lung with mutation of the epidermal growth factor receptor, confirmed by biopsy"


def study(sites, classes=("no", "yes"), columns=3, rows=30, label="sick"):
    """Makes the record of a study whose sites all gain a little."""
    gains = {"gain": 0.03, "gain_low": -0.01, "gain_high": 0.07}
    metrics = {"auc": 0.8, "accuracy": 0.7} if rows else {"auc": None, "accuracy": None}
    evaluation = [MetricsRow(site, "local", rows, metrics) for site in (*sites, "all")]
    evaluation += [
        MetricsRow(site, "federated", rows, metrics, use=site != "all", **(gains if rows else {}))
        for site in (*sites, "all")
    ]
    counts = [Counts(row.site, row.model, groups=dict.fromkeys(classes[-1:], RISING)) for row in evaluation if rows]
    kinds = [Kind(f"Message{i}", "asks", "answers", "total") for i in range(12)]
    return Record(
        name="study",
        status="done",
        label=label,
        classes=list(classes),
        positive=classes[1] if len(classes) == 2 else None,
        features=columns,
        sites=[SiteRows(site, 100, rows, 0.3) for site in sites],
        evaluation=evaluation,
        counts=counts,
        kinds=kinds,
        traffic=[Traffic(site, kind.name, 100 - i, 10) for site in sites for i, kind in enumerate(kinds)],
        columns=[ColumnAtSites(f"column {i}", "numeric", list(sites)) for i in range(min(columns, 200))],
        importances={f"column {i}": 1 / columns for i in range(columns)},
    )


def without_files(page):
    """Returns the text of a page without style and without the files in its links."""
    return re.sub(r'href="data:[^"]*"', "", page.split("</style>", 1)[1])


CASES = {
    "markup": study(["<b>north</b>", '"><script>alert(1)</script>', "a & b"], label="<i>sick</i>"),
    "right to left": study(["בית חולים צפון", "مستشفى الجنوب", "north"], classes=("لا", "نعم"), label="מחלה"),
    "sixty sites": study([f"site {i}" for i in range(60)]),
    "three hundred columns": study(["north", "south"], columns=300),
    "long class names": study(["north", "south"], classes=(f"no {LONG}", f"an {LONG}")),
    "many long classes": study(["north", "south"], classes=tuple(f"{i} {LONG}" for i in range(20))),
    "no test rows": study(["north", "south"], rows=0),
    "one class": study(["north", "south"], classes=("no",)),
    "one site": study(["north"]),
}


@pytest.mark.parametrize("case", CASES)
def test_the_page_and_the_markdown_read_well(case):
    summary = summarise(CASES[case])
    page = without_files(render(summary))
    assert "<script" not in page
    assert "<b>north" not in page
    assert not re.search(r"\b(nan|inf|None)\b", page)
    assert markdown(summary).startswith("# study")


def test_many_sites_are_folded():
    page = render(summarise(CASES["sixty sites"]))
    before, _, after = without_files(page).partition("<summary>All 60 sites</summary>")
    assert before.count('class="track"') == 2  # their mean and all rows
    assert after.count('class="track"') == 60
    assert len(page) < 1_500_000


def test_message_kinds_without_a_colour_are_merged():
    page = without_files(render(summarise(CASES["one site"])))
    legend = page.split('id="bytes"')[1].split("</div>")[0]
    colours = re.findall(r'class="(k\d)"', legend)
    assert len(colours) == len(set(colours)) == 8
    assert "5 other kinds" in legend


def test_the_tile_counts_the_bytes_that_the_bars_show():
    summary = summarise(CASES["sixty sites"])
    assert summary["sent_each"] == sum(100 - i for i in range(12))
    assert summary["sent_all"] == 60 * summary["sent_each"] == sum(site["sent"] for site in summary["traffic"]["sites"])


def test_uncalibrated_scores_are_reported_at_the_top():
    made = study(["north", "south"], rows=300)
    assert "Before you use this model" not in render(summarise(made))
    made.evaluation = [msgspec.structs.replace(row, more={"calibration_slope": 0.5}) for row in made.evaluation]
    page = render(summarise(made))
    assert page.index("Before you use this model") < page.index("Does joining help?")
    assert "all rows (0.50), north (0.50), south (0.50)" in page


def test_rows_of_repeated_evaluation_are_counted_once():
    made = study(["north", "south"], rows=130)
    made.repeats, made.folds = 10, 5
    page = without_files(render(summarise(made)))
    assert "260 rows, each evaluated 10 times by cross-validation" in page
    assert "test rows" not in page.split('class="lead')[0]
    assert "covered the true gain in 99.5% of cases" in page


def test_only_three_screens_are_open():
    """The part that is not folded fits three screens: the recommendation, gains, overall curves, and importance."""
    page = without_files(render(summarise(CASES["right to left"])))
    open_part = page.split('<div class="folds">')[0]
    assert open_part.count("<h2>") == 3
    for word in ("SHA-256", "Message0", "numba"):
        assert word not in open_part
