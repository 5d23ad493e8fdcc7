"""What people see on the command line: no Python jargon, correct counts, and any kind of folder."""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
from helpers.runs import fitted, silvan, write_study
from helpers.studies import parts, table
from rich.cells import cell_len
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

import silvan as sv
from silvan.auditing.audit_report import Report
from silvan.auditing.findings import ATTACKS
from silvan.cli.audit_command import table_of
from silvan.cli.ledger_tables import approvals_list, lines_table
from silvan.cli.main import app
from silvan.cli.plain_text import Terminal, isolate
from silvan.cli.terminal import further, print_parts, results
from silvan.federation.members import OVERALL
from silvan.privacy.site_folder import Approval, SiteFolder
from silvan.report.summary import summarise_run
from silvan.study.demo_studies import DEMOS
from silvan.study.run_folder import Run

PYTHON = re.compile(
    r"\bNone\b(?! of)|\bTrue\b|\bFalse\b|Traceback|<class|\bdict\b|NoneType|\w+Error\b|object at 0x|\bk must be"
    r"|\btuple\b|\bstr\b|\bint\b|\bbool\b|\bfloat\b|Literal\[|a bug in silvan|PosixPath"
    r"|\b1 (sites|rows|trees|lines|columns|parties|features|more|files|splits|predictions)\b"
)
VALUES = ("-1", "1.5", "nan", '""', '"x"', "[]", '["a"]', "true", "2020-01-01", "{a = 1}")
KEYS = (
    "name",
    "label",
    "test",
    "repeats",
    "random_state",
    "task",
    "sums",
    "exclude",
    "id",
    "match",
    "memory",
    "output",
)
TABLES = ("site", "table", "sites", "kinds", "schema", "reading", "policy", "learner", "parties")
PARAMETERS = (
    *("kind", "n_estimators", "max_depth", "max_features", "min_samples_leaf", "class_weight", "random_state"),
    *("threshold", "epsilon", "nonsense"),
)
POLICY = ("epsilon", "approve", "min_sites", "messages", "min_leaf", "nonsense")


def said(*words, code=None):
    """Runs a command that may fail; returns its output after checking that it contains no Python jargon."""
    result = silvan(*words, ok=False)
    text = result.stdout + result.stderr
    found = PYTHON.search(text)
    assert found is None, f"{found[0]!r} in: {text}"
    assert result.exit_code in ((0, 1, 2) if code is None else (code,)), text
    return text


@pytest.mark.parametrize("key", [*KEYS, *TABLES])
def test_wrong_values_in_a_study(tmp_path, key):
    good = write_study(tmp_path).read_text()
    rest = "\n".join(line for line in good.splitlines() if not line.startswith(f"{key} "))
    for value in VALUES:
        (tmp_path / "bad.toml").write_text(f"{key} = {value}\n{rest}\n")
        said("check", tmp_path / "bad.toml")


@pytest.mark.parametrize(("section", "keys"), [("learner", PARAMETERS), ("policy", POLICY)])
def test_wrong_values_in_a_section(tmp_path, section, keys):
    good = write_study(tmp_path, more="" if section == "learner" else "[policy]\n").read_text()
    for key in keys:
        rest = "\n".join(line for line in good.splitlines() if not line.startswith(f"{key} "))
        for value in VALUES:
            (tmp_path / "bad.toml").write_text(rest.replace(f"[{section}]", f"[{section}]\n{key} = {value}"))
            said("check", tmp_path / "bad.toml")


def test_invalid_weights_and_dates_are_reported(tmp_path):
    path = write_study(tmp_path)
    good = path.read_text()
    path.write_text(good + 'class_weight = ["a"]\n')
    assert "class_weight must be 'balanced', numbers by name, a list of numbers or 'none'" in said("fit", path, code=1)
    path.write_text(good + "threshold = 2020-01-01\n")
    assert "below 1 or 'none', got a date or a time" in said("fit", path, code=1)


WRONG = [
    ["fit", "nowhere.toml"],
    ["fit", "."],
    ["check", "nowhere.toml"],
    ["check", "0.csv"],
    ["advise", "study.toml", "--clusters", "9"],
    ["advise", "study.toml", "--clusters", "0"],
    ["advise", "study.toml", "--metric", "x"],
    ["advise", "study.toml", "--first", "x"],
    ["predict", "run", "nowhere.csv"],
    ["predict", "run", "0.csv", "--site", "x"],
    ["predict", "run", "0.csv", "--id", "x"],
    ["predict", "run", "0.csv", "1.csv"],
    ["predict", "0.csv", "0.csv"],
    ["predict", "run/model.silvan", "study.toml"],
    ["evaluate", "run", "study.toml"],
    ["evaluate", "run", "other.csv"],
    ["evaluate", "run/model.silvan"],
    ["evaluate", "nowhere"],
    ["audit", "run", "--limit", "x"],
    ["audit", "run", "--limit", "x=1"],
    ["audit", "run", "--limit", "membership=x"],
    ["audit", "run", "--others", "0.csv"],
    ["audit", "run", "--site", "x"],
    ["audit", "run", "--thresholds", "0.csv"],
    ["audit", "run", "--table", "nowhere.csv"],
    ["report", "nowhere"],
    ["doctor", "nowhere"],
    ["site", "ledger", "nowhere"],
    ["site", "ledger", "run", "--verify"],
    ["site", "ledger", "run", "--key", "x"],
    ["site", "status", "run"],
    ["site", "check", "run"],
    ["site", "approve", "run", "--withdraw"],
    ["site", "join", "0.csv", "--table", "0.csv"],
    ["study", "status", "run"],
    ["study", "status", "--in", "run"],
    ["study", "init", "x", "--site", "a/b"],
    ["study", "init", "x", "--site", "a", "--address", ":"],
    ["study", "run", "study.toml"],
    ["study", "job", "study.toml", "-o", "job"],
    ["demo", "--sites", "x"],
    ["nonsense"],
]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    fitted(folder)
    (folder / "other.csv").write_text("a,b\n1,2\n")
    return folder


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_wrong_command_lines(small, words, monkeypatch):
    monkeypatch.chdir(small)
    said(*words)


# -- run folders


def _empty(run):
    shutil.rmtree(run)
    run.mkdir()


def _cut(run):
    data = (run / "run.json").read_bytes()
    (run / "run.json").write_bytes(data[: len(data) // 2])


def _foreign(run):
    (run / "run.json").write_text('{"name": "of another program", "runs": []}')


def _newer(run):
    (run / "run.json").write_text('{"format": "silvan run", "version": 99}')


def _binary(run):
    (run / "run.json").write_bytes(bytes(range(256)))


def _without_model(run):
    (run / "model.silvan").unlink()


def _cut_model(run):
    (run / "model.silvan").write_bytes((run / "model.silvan").read_bytes()[:100])


def _started(run):
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "status": "started", "models": [], "evaluation": []}))


def _other_model(run):
    record = json.loads((run / "run.json").read_text())
    record["models"][0]["hash"] = "0" * 64
    (run / "run.json").write_text(json.dumps(record))


def _damaged_hashes(run):
    (run / "learnt_rows.private").write_bytes(b"nonsense")


SPOILED = (
    *(_empty, _cut, _foreign, _newer, _binary, _without_model, _cut_model, _started, _other_model, _damaged_hashes),
)


@pytest.mark.parametrize("spoil", SPOILED, ids=lambda f: f.__name__)
def test_half_written_and_foreign_run_folders(small, tmp_path, spoil):
    run = tmp_path / "run"
    shutil.copytree(small / "run", run)
    spoil(run)
    table = small / "0.csv"
    for words in (
        ["evaluate", run],
        ["evaluate", run, table],
        ["predict", run, table],
        ["report", run],
        ["audit", run],
        ["audit", run, "--table", table],
        ["check", run],
        ["site", "ledger", run],
        ["doctor", run],
    ):
        said(*words)


# -- training rows


def test_training_rows_are_recognised(tmp_path):
    """By keyed hashes in a file that only the owner can read."""
    fitted(tmp_path)
    run, learnt = tmp_path / "run", tmp_path / "run" / "learnt_rows.private"
    assert learnt.stat().st_mode & 0o077 == 0
    record = json.loads((run / "run.json").read_text())
    rows = {site["name"]: site["rows"] for site in record["sites"]}
    found = json.loads(silvan("evaluate", run, tmp_path / "0.csv", "--json").stdout)
    assert found["learnt_from"] == rows["north"]  # and not those that were held out for evaluation
    assert set(found) == {"run", "table", "learnt_from", "evaluation"}
    shown = silvan("evaluate", run, tmp_path / "0.csv").stderr
    assert f"{rows['north']} of" in shown
    assert "metrics are too good for them; evaluate on other rows" in shown
    table(n=40, seed=9).write_csv(tmp_path / "new.csv")
    assert "trained on no row of" in silvan("evaluate", run, tmp_path / "new.csv").stderr
    pl.concat([pl.read_csv(tmp_path / "0.csv")[:40], pl.read_csv(tmp_path / "new.csv")], how="vertical_relaxed").sample(
        fraction=1.0, shuffle=True, seed=0
    ).write_csv(tmp_path / "mixed.csv")
    mixed = json.loads(silvan("evaluate", run, tmp_path / "mixed.csv", "--json").stdout)
    assert 0 < mixed["learnt_from"] <= 40
    (tmp_path / "1.csv").unlink()  # the study's tables may be gone
    again = json.loads(silvan("evaluate", run, tmp_path / "0.csv", "--json").stdout)
    assert again["learnt_from"] == rows["north"]
    learnt.unlink()  # as in a folder that was passed on
    assert json.loads(silvan("evaluate", run, tmp_path / "0.csv", "--json").stdout)["learnt_from"] is None


def test_row_hashes_are_useless_without_their_key_and_are_not_copied(small, tmp_path):
    from silvan.deploy.membership.flare_folder import copy_results

    copy_results(Run(small / "run"), tmp_path / "copy")
    assert not (tmp_path / "copy" / "learnt_rows.private").exists()
    other = tmp_path / "other"
    other.mkdir()
    fitted(other)  # the same study again: other hashes
    here, there = ((folder / "run" / "learnt_rows.private").read_bytes() for folder in (small, other))
    assert len(here) == len(there)
    assert here != there


# -- audits, predictions, names


def test_json_has_the_documented_keys(small, tmp_path):
    """One object on standard output, and nothing else there."""

    def keys(*words):
        return set(json.loads(silvan(*words, "--json", ok=False).stdout))

    assert keys("evaluate", small / "run", small / "0.csv") == {"run", "table", "learnt_from", "evaluation"}
    assert keys("audit", small / "run", "--table", small / "0.csv", "-o", tmp_path / "audit") == {"passed", "reports"}
    assert keys("doctor", tmp_path) == {"passed", "checks"}
    assert keys("check", small / "study.toml") == {"columns", "files", "questions"}
    site = SiteFolder(tmp_path / "site")
    words = dict.fromkeys(("site", "study", "task", "kind", "what", "how", "question", "asked", "answer"), "x")
    site.ledger.write(**words, round=1, bytes=1, outcome="answered")
    assert "1 line: 1 answered" in said("site", "ledger", site.path, code=0)
    assert keys("site", "ledger", site.path) == {"total", "lines"}
    assert keys("site", "ledger", site.path, "--verify") == {"whole", "key", "verified"}


def test_shell_completion_works():
    shown = silvan("--help").output
    assert "--install-completion" in shown
    assert "--show-completion" in shown


def test_a_class_without_rows_and_a_site_without_test_rows(tmp_path):
    """Metrics that cannot be computed are shown as undefined, and nothing fails."""
    tables = dict(zip(("north", "east", "south"), parts(table(n=120), 3).values(), strict=True))
    tables["tiny"] = tables["north"][:1]
    fitted(tmp_path, tables=tables)
    one = tables["south"].filter(pl.col("label") == "no")
    one.write_csv(tmp_path / "one.csv")
    text = said("evaluate", tmp_path / "run", tmp_path / "one.csv", code=0)
    assert "undefined" in text
    assert "undefined" in said("evaluate", tmp_path / "run", code=0) or "–" in said("evaluate", tmp_path / "run")


def test_two_hundred_sites(small, tmp_path):
    """The page and the terminal's tables are complete."""
    shutil.copytree(small / "run", tmp_path / "run")
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    names = [f"the university hospital of town {i}" for i in range(200)]
    record["sites"] = [{**record["sites"][0], "name": name} for name in names]
    for key in ("evaluation", "counts"):
        kept = [row for row in record[key] if row["site"] in ("north", OVERALL)]
        record[key] = [{**row, "site": s} for row in kept for s in ([OVERALL] if row["site"] == OVERALL else names)]
    (tmp_path / "run" / "run.json").write_text(json.dumps(record))
    silvan("report", tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(name in page for name in names)
    console = Console(width=80, file=io.StringIO())
    print_parts(results(summarise_run(tmp_path / "run")), console=console)
    text = console.file.getvalue()
    assert "town 199" in " ".join(text.split())
    assert "…" not in text
    assert all(cell_len(line) <= 80 for line in text.splitlines())


def test_an_audit_is_never_shown_with_another_model(tmp_path):
    fitted(tmp_path)
    run = tmp_path / "run"
    hash_ = json.loads((run / "run.json").read_text())["models"][0]["hash"]
    report = {"name": "x", "hash": hash_, "passed": True}
    (run / "audit.json").write_text(json.dumps({"reports": [report]}))
    (run / "audit.html").write_text("<p>audit")
    silvan("report", run)
    assert f"Attacks on the model <code>{hash_[:12]}" in (run / "report.html").read_text()
    (run / "audit.json").write_text(json.dumps({"reports": [{**report, "hash": "f" * 64}]}))
    silvan("report", run)
    assert "is of another model (ffffffffffff)" in (run / "report.html").read_text()
    silvan("fit", tmp_path / "study.toml", "--output", run, "--fresh")
    assert (run / "earlier-1" / "audit.json").exists()
    assert (run / "earlier-1" / "learnt_rows.private").exists()
    assert not (run / "audit.json").exists()
    assert not (run / "audit.html").exists()


def test_predictions_with_ids_as_they_are_written(small, tmp_path):
    rows = pl.read_csv(small / "0.csv").with_columns(
        patient=pl.Series([f"00{i}" for i in range(len(pl.read_csv(small / "0.csv")))])
    )
    rows.write_csv(tmp_path / "new.csv")
    lines = silvan("predict", small / "run", tmp_path / "new.csv", "--id", "patient").stdout.splitlines()
    assert lines[0].startswith("row,patient,prediction,probability_")
    assert [line.split(",")[1] for line in lines[1:4]] == ["000", "001", "002"]
    plain = silvan("predict", small / "run", tmp_path / "new.csv").stdout.splitlines()
    assert [line.split(",")[2:] for line in lines] == [line.split(",")[1:] for line in plain]


def commands(group=None, path=()):
    """Yields the words of every command."""
    group = get_command(app) if group is None else group
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def test_help_pages_have_no_python_jargon():
    """Without types or values, and they fit a terminal."""
    pages = {path: narrow(*path, "--help") for path in commands()}
    assert len(pages) > 40
    for path, page in pages.items():
        assert not re.search(r"<[a-z]|\bNone\b|\bTrue\b|\bFalse\b|\bbool\b|\bstr\b|\blist\[", page), (path, page)
        assert max(map(cell_len, page.splitlines())) <= 80, path
    for name in DEMOS:
        assert name in pages["demo",]


WIDTHS = (120, 80, 60, 40)


def shown_in(width, *parts):
    console = Console(width=width, file=io.StringIO())
    print_parts(*parts, console=console)
    text = console.file.getvalue()
    assert all(cell_len(line) <= width for line in text.splitlines()), text
    assert "…" not in text
    return text


@pytest.mark.parametrize("width", WIDTHS)
def test_metrics_are_complete_at_any_terminal_width(small, width):
    """What does not fit beside the rest continues below; nothing is cut off."""
    summary = summarise_run(small / "run")
    text = shown_in(width, results(summary), *further(summary))
    for name in (*map(str.capitalize, summary["models"]), "Brier", "Sens.", "Spec.", "Pos.", "Test", "95% CI"):
        assert name in text


@pytest.mark.parametrize("width", WIDTHS)
def test_choices_are_complete_at_any_terminal_width(small, width):
    summary = summarise_run(small / "run")
    uses = "the shared forest with its own trees, 3 to 1: AUC 0.887 on 212 rows (the shared forest 0.851)"
    summary["choices"] = {"a hospital with a very long name": uses, "[red]west": "the shared forest"}
    text = shown_in(width, *further(summary))
    assert all(word in text for word in (*uses.split(), "[red]west"))


@pytest.mark.parametrize("width", WIDTHS)
def test_audits_are_complete_at_any_terminal_width(width):
    limits = dict(zip(ATTACKS, (-1.0, -0.4, 0.0, *[-0.2] * len(ATTACKS)), strict=False))
    findings = [
        replace(one, value=-0.512, low=-0.734, high=-0.111, undefended=-0.999, limit=limits[name])
        for name, one in ATTACKS.items()
    ]
    text = shown_in(width, table_of(Report("a model", "0" * 64, 3, 120, 40, findings)))
    verdicts = [line.split()[-1] for line in text.splitlines() if line.split()[-1:] and line.split()[-1] in VERDICTS]
    assert sorted(verdicts) == sorted(word.split()[-1] for word in (one.verdict for one in findings))
    assert text.count("\N{MINUS SIGN}0.734–\N{MINUS SIGN}0.111") == len(findings)


VERDICTS = ("held", "close", "exceeded", "run")


@pytest.mark.parametrize("width", WIDTHS)
def test_ledgers_and_approvals_are_complete_at_any_terminal_width(tmp_path, width):
    fed = sv.federate_rows(parts(table(n=90), 3), test=0.3, sums="masked", ledgers=tmp_path)
    sv.HistogramForest(n_estimators=2, max_depth=2).fit(fed).evaluate(fed)
    lines = next(iter(fed.local_sites.values())).outbox.ledger.lines()
    text = " ".join(shown_in(width, lines_table(lines, len(lines))).split())
    assert all(word in text for word in ("counts", "masked", "hidden", "HistogramForest (1)"))
    assert f"{len(lines)} lines: {len(lines)} answered" in text
    ids = [f"heart {digit * 64}" for digit in "ab"]
    given = {"messages": ["Describe", "GrowLevel"], "sites": ["a hospital with a long name", "west"], "losses": 1}
    shown = shown_in(
        width, approvals_list([Approval(study=one, at="2026-01-01T10:00:00+00:00", **given) for one in ids])
    )
    assert all(one.split()[1] in "".join(shown.split()) for one in ids)
    assert "Tasks: any number" in shown


NAMES = ("[red]Klinik[/red] <b>", "בית החולים שערי צדק", "[bold]", "n" * 90)


def test_names_of_any_kind_and_long_ones_at_80_columns(tmp_path):
    """Nothing is cut off or too wide for the terminal, control characters are removed, and pages escape everything."""
    long = "a very long name of a column that is far wider than any terminal of eighty"
    frame = table(n=240).rename({"age": long, "noise": "a\N{RIGHT-TO-LEFT OVERRIDE}evil\x1b[2J"})
    tables = dict(zip(NAMES, parts(frame, 4).values(), strict=True))
    lines = []
    for i, (site, rows) in enumerate(tables.items()):
        rows.write_csv(tmp_path / f"{i}.csv")
        lines.append(f'{json.dumps(site)} = "{i}.csv"')
    study = tmp_path / "study.toml"
    study.write_text(
        'name = "names"\ntest = 0.3\noutput = "run"\n[sites]\n' + "\n".join(lines) + "\n[learner]\nn_estimators = 3\n"
    )
    shown = [narrow("check", study), narrow("fit", study), narrow("advise", study)]
    run = tmp_path / "run"
    shown += [narrow("evaluate", run), narrow("evaluate", run, tmp_path / "0.csv"), narrow("audit", run)]
    for text in shown:
        assert "\x1b[2J" not in text
        assert "\N{RIGHT-TO-LEFT OVERRIDE}" not in text
        assert "…" not in text
        for line in text.splitlines():
            if "/" not in line:  # a path is not broken, so that it can be copied
                assert cell_len(line) <= 80, line
    assert "exceeded" in shown[-1] or "held" in shown[-1]
    page = (run / "report.html").read_text()
    assert "[red]Klinik[/red] <b>" not in page
    assert "[red]Klinik[/red] &lt;b&gt;" in page


def narrow(*words):
    """Runs a command in a terminal of 80 columns."""
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "80"})
    assert result.exit_code in (0, 1), result.output
    assert "silvan: " not in result.output, result.output
    return result.stdout


def test_right_to_left_names_do_not_reorder_lines():
    """Each run of such letters in a line is isolated, but only in a terminal: output for programs stays as it is."""
    assert isolate("Köln 3") == "Köln 3"
    assert isolate("בית חולים  35 rows") == "\u2068בית חולים\u2069  35 rows"
    assert isolate("מרפאה\n12") == "\u2068מרפאה\u2069\n12"
    raw = io.BytesIO()
    out = Terminal(raw, encoding="utf-8", errors="strict")
    out.write("מרפאה 7\n")
    out.flush()
    assert raw.getvalue().decode() == "\u2068מרפאה\u2069 7\n"


def test_articles_agree_with_type_names():
    """Articles must agree with names, as in "an AutoForest"."""
    source = Path(sv.__file__).parent
    found = [
        (path.name, line.strip())
        for path in source.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r"\b[Aa]n? \{[^}]*(__name__|kind)\b", line)
    ]
    assert not found


def test_a_wrong_key_of_a_learner_names_the_learner(tmp_path):
    (tmp_path / "rows.csv").write_text("x,label\n1,0\n2,1\n")
    (tmp_path / "study.toml").write_text(
        '[sites]\na = "rows.csv"\nb = "rows.csv"\n[learner]\nkind = "AutoForest"\nn_tree = 3\n'
    )
    assert "unknown key 'n_tree' in [learner] of kind AutoForest; " in said("check", tmp_path / "study.toml")
