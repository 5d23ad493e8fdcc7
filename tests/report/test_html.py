"""The page: one file that loads nothing, shows the results and is safe with any names."""

import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from helpers.needs import CHROMIUM
from helpers.runs import fitted, silvan
from helpers.studies import parts, table

from silvan.report.charts import SHARES, Axis, Chart
from silvan.study.run_folder import Record

DRAWN = ("text", "title", "path", "circle", "rect", "line")
HOSTILE = '<script>alert("1")</script>'
OTHER = '"><img src=x onerror=alert(1)>'
VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """Collects tags, and whatever would be fetched."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.fetched, self.open, self.words, self.saved = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            assert not name.startswith("on"), f"{tag} has {name}"
            self.saved += [value] if value and value.startswith(("data:text/csv", "data:image/svg+xml")) else []
            if name in ("src", "href", "srcset", "data", "action", "xlink:href", "poster") and not value.startswith(
                ("#", "data:,", "data:text/csv", "data:image/svg+xml")
            ):
                self.fetched.append((tag, name, value))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"{tag} is closed where it is not open"

    def handle_data(self, data):
        self.words.append(data)


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    frame = table(n=150).rename({"noise": "<b onclick=x>noise</b>"})
    tables = dict(zip((HOSTILE, OTHER, "[red]plain[/red]"), parts(frame, 3).values(), strict=True))
    tables[OTHER] = tables[OTHER].drop("dose")
    fitted(folder, tables=tables, name=HOSTILE)
    return (folder / "run" / "report.html").read_text()


def page_of(folder, **settings):
    fitted(folder, **settings)
    return (folder / "run" / "report.html").read_text()


def test_nothing_is_loaded(hostile):
    page = Page(hostile)
    assert page.fetched == []
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|@import|url\(", unquote(hostile))
    assert not {"script", "iframe", "img", "object", "embed"} & set(page.tags)
    assert page.open == []
    assert "default-src &#39;none&#39;" in hostile or "default-src 'none'" in hostile


def test_saved_charts_are_whole_files(hostile):
    saved = [unquote(link).split(",", 1) for link in Page(hostile).saved]
    charts = [ElementTree.fromstring(text) for kind, text in saved if "svg" in kind]  # noqa: S314  our own
    assert len(charts) == len([kind for kind, _ in saved if "csv" in kind]) > 3
    for chart in charts:
        assert chart.tag == "{http://www.w3.org/2000/svg}svg"
        assert float(chart.get("width")) > 0
        assert {node.tag.split("}")[1] for node in chart.iter()} <= {"svg", "style", *DRAWN}
    assert all(len(text.splitlines()) > 1 for kind, text in saved if "csv" in kind)


def test_a_drawn_line_stays_within_a_tenth_of_a_pixel_of_its_points():
    rng = np.random.default_rng(0)
    points = [(0.0, 0.0), *zip(*np.sort(rng.random((2, 800)), axis=1).tolist(), strict=True), (1.0, 1.0)]
    chart = Chart("line", Axis(SHARES, "x"), Axis(SHARES, "y"))
    chart.line(points, "curve", "all")
    kept = np.array([chart.at(x, y) for _, x, y in chart.numbers[1:]])
    assert len(kept) < len(points) / 2
    for place in (np.array(chart.at(*point)) for point in points):
        along = np.diff(kept, axis=0)
        share = np.clip(((place - kept[:-1]) * along).sum(axis=1) / (along**2).sum(axis=1), 0.0, 1.0)
        assert np.hypot(*(kept[:-1] + share[:, None] * along - place).T).min() <= 0.1


def test_hostile_names_are_only_text(hostile):
    text = "".join(Page(hostile).words)
    for name in (HOSTILE, OTHER, "[red]plain[/red]", "<b onclick=x>noise</b>"):
        assert name in text
    assert "<script" not in hostile
    assert "<img" not in hostile


def test_hostile_names_in_the_terminal(tmp_path):
    tables = dict(zip((HOSTILE, "[/red]"), parts(table(n=100), 2).values(), strict=True))
    result = silvan("fit", _study(tmp_path, tables))
    assert "[/red]" in result.stdout


def _study(folder, tables):
    from helpers.runs import write_study

    return write_study(folder, tables)


def test_it_shows_the_results_of_the_run(tmp_path):
    page = page_of(tmp_path)
    text = " ".join("".join(Page(page).words).split())
    from silvan.report.summary import summarise_run

    summary = summarise_run(tmp_path / "run")
    for sentence in summary["sentences"]:
        assert sentence in text
    for site in summary["sites"]:
        assert site["title"] in text
    for _, digest in summary["hashes"]:
        assert digest in text.replace(" ", "")
    for kind in summary["traffic"]["kinds"]:
        assert kind["name"] in text
        assert kind["asks"] in text
    for word in ("ROC", "Model card", "What left each site", "numba", "age"):
        assert word in text


@pytest.mark.parametrize("task", ["several", "number"])
def test_other_tasks(tmp_path, task):
    page = page_of(tmp_path, tables=parts(table(task, n=150), 3))
    assert page.count('class="roc"') == {"several": 4 + 1, "number": 1}[task]  # sites have too few rows for groups
    assert Page(page).fetched == []


def test_an_unfinished_run_has_a_page(tmp_path):
    from silvan.report.html import write_report
    from silvan.study.run_folder import Run

    run = Run(tmp_path)
    run.write(Record(name="just begun"))
    assert "not finished" in write_report(run).read_text()


def test_one_class_only_at_a_site(tmp_path):
    tables = parts(table(n=150), 3)
    tables["site 1"] = tables["site 1"].with_columns(pl.lit("no").alias("label"))
    page = page_of(tmp_path, tables=tables)
    assert "only one class" in page
    assert page.count("undefined") >= 3
    assert "nan" not in page.lower().split("</style>")[1]


def test_it_shows_whether_joining_helps(tmp_path):
    page = page_of(tmp_path, tables=parts(table(n=400), 3))
    text = " ".join("".join(Page(page).words).split())
    from silvan.report.summary import summarise_run
    from silvan.util.readable import format_interval, signed

    assert "Does joining help?" in text
    for site in summarise_run(tmp_path / "run")["sites"]:
        between = format_interval(site["low"], site["high"], 3)
        assert between
        assert f"{signed(site['gains']['federated'], 3)} {between}{site['use']}" in "".join(Page(page).words)


def test_report_command(tmp_path):
    fitted(tmp_path)
    path = tmp_path / "run" / "report.html"
    before = path.read_text()
    path.unlink()
    assert silvan("report", tmp_path / "run").stdout.strip() == str(path)
    assert path.read_text() == before
    missing = silvan("report", tmp_path, ok=False)
    assert missing.exit_code == 1
    assert "is no run" in missing.stderr


def browse(path: Path, folder: Path):
    """Opens a page in Chromium; returns its final tree and the console output."""
    words = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--no-first-run",
        "--disable-background-networking",
    ]
    words += [f"--user-data-dir={folder}", "--enable-logging=stderr", "--dump-dom", path.resolve().as_uri()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.mark.needs("chromium")
def test_in_a_browser(hostile, tmp_path):
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><script>nonsense()</script>")
    assert browse(bad, tmp_path / "one")[1], "the console is not heard, so its silence would mean nothing"
    path = tmp_path / "report.html"
    path.write_text(hostile)
    tree, console = browse(path, tmp_path / "two")
    assert console == []
    assert tree.count('class="track"') == 5
    assert "alert(" in tree
    assert "<script" not in tree
