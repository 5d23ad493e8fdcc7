"""Table 1: correct numbers from sums, and nothing about values that few rows of a site have."""

from functools import cache

import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import silvan as sv
from silvan.algorithms import describe_columns
from silvan.algorithms.describe_columns import CountCodes, DescribeRows, SiteNumbers, round_counts
from silvan.algorithms.table_one import ROUNDED_TO
from silvan.cli.main import app
from silvan.deploy.studies.send_results import copy_for
from silvan.errors import InputError, RefusedError, SiteError
from silvan.federation.describe import FLOOR
from silvan.federation.handlers import HANDLERS
from silvan.study.parse import describing, parse_remote_study
from silvan.study.run_folder import Run
from silvan.study.study_file import read_study
from silvan.study.study_text import text_of

SITES = ("a", "b", "c", "d")


@cache
def tables(n=300):
    """Integers, numbers with gaps, a common and a rare category, and a flag that four rows of each site have."""
    made = {}
    for place, site in enumerate(SITES):
        rng = np.random.default_rng(place)
        made[site] = pl.DataFrame(
            {
                "age": rng.integers(20 + 5 * place, 80, n),
                "bmi": np.where(rng.random(n) < 0.2, np.nan, rng.normal(27, 4, n)),
                "ward": rng.choice(["north", "south", "west"], n, p=[0.6, 0.37, 0.03]),
                "flag": (np.arange(n) < 4).astype(int),
                "y": rng.choice(["no", "yes"], n),
            }
        )
    return made


def write_study(folder, more=""):
    for site, frame in tables().items():
        frame.write_csv(folder / f"{site}.csv")
    sites = "\n".join(f'{site} = "{site}.csv"' for site in SITES)
    learner = '[learner]\nkind = "HistogramForest"\nn_estimators = 2\nmax_depth = 2\n'
    (folder / "study.toml").write_text(f'label = "y"\n{more}[sites]\n{sites}\n{learner}')
    return folder / "study.toml"


def run(*words):
    result = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def federation(**settings):
    return sv.federate_rows(tables(), label="y", **settings)


def line(table, name):
    return next(one for one in table.lines if one.name == name)


def test_quartiles_equal_those_of_the_pooled_rows():
    pooled, table = pl.concat(tables().values()), sv.describe(federation())
    assert table.rows == {"all": 1200, **dict.fromkeys(SITES, 300)}
    age, bmi = line(table, "age").by_site["all"], line(table, "bmi").by_site["all"]
    assert age.quartiles == tuple(pooled["age"].quantile(q) for q in (0.25, 0.5, 0.75))  # integers are exact
    known = pooled["bmi"].drop_nans()
    assert bmi.quartiles == pytest.approx([known.quantile(q) for q in (0.25, 0.5, 0.75)], rel=0.016)
    assert (bmi.mean, bmi.deviation) == pytest.approx((known.mean(), known.std()), rel=0.016)
    assert bmi.missing == 1200 - len(known)
    ward = line(table, "ward")
    counts = dict(zip(ward.categories, ward.by_site["all"].counts, strict=True))
    assert counts == dict(pooled["ward"].value_counts().rows())


def test_a_sites_numbers_match_its_rows():
    age = line(sv.describe(federation()), "age").by_site["b"]
    own = tables()["b"]["age"]
    assert age.mean == pytest.approx(own.mean(), rel=0.005)
    assert age.deviation == pytest.approx(own.std(), rel=0.005)
    assert age.quartiles == tuple(np.quantile(own, q, method="inverted_cdf") for q in (0.25, 0.5, 0.75))


def test_standardised_differences_match_the_tables():
    found = line(sv.describe(federation()), "age").difference
    a, d = tables()["a"]["age"], tables()["d"]["age"]
    assert found == pytest.approx((d.mean() - a.mean()) / np.sqrt((a.var() + d.var()) / 2), abs=0.02)


@pytest.mark.parametrize("how", [{"sums": "ring"}, {"sums": "masked"}, {"cold": True}])
def test_the_table_does_not_depend_on_the_kind_of_sums(how):
    assert sv.describe(federation(**how)) == sv.describe(federation())


def test_a_site_discloses_no_count_of_one_to_nine_rows():
    table = sv.describe(federation())
    for one in table.lines:
        for site in SITES:
            of = one.by_site[site]
            for count in (of.missing, *of.counts):
                assert count in (0, None) or (count >= FLOOR and count % ROUNDED_TO == 0)
    flag = line(table, "flag")
    assert flag.by_site["a"].mean is None  # four of 300, which a mean with three digits would reveal
    assert flag.by_site["a"].quartiles == (0.0, 0.0, 0.0)
    assert line(table, "bmi").by_site["a"].mean is not None


def test_hidden_counts_do_not_follow_from_sums(monkeypatch):
    """The attack: subtract what all other sites show from the sum. Without rounding it finds the hidden count."""

    def attack():
        ward = line(sv.describe(federation()), "ward")
        code = ward.categories.index("west")
        counts = {site: of.counts[code] for site, of in ward.by_site.items()}
        hidden = [site for site in SITES if counts[site] is None]
        assert len(hidden) == 1
        found = counts["all"] - sum(n for site in SITES if (n := counts[site]) is not None)
        return found, tables()[hidden[0]]["ward"].to_list().count("west")

    guess, truth = attack()
    assert guess != truth
    monkeypatch.setattr(describe_columns, "round_counts", describe_columns.hide_few)
    guess, truth = attack()
    assert guess == truth


def test_a_site_describes_its_rows_only_where_its_policy_allows():
    fed = federation()
    full = sv.describe(fed)
    fed.site("c").outbox.policy = sv.Policy(messages=("CountGrid", "CountFine", "CountCodes"))
    part = sv.describe(fed)
    assert part.refused == ["c"]
    assert list(part.rows) == ["all", "a", "b", "d"]
    assert line(part, "bmi").by_site["all"] == line(full, "bmi").by_site["all"]
    assert "No numbers of their own: c." in part.note


@pytest.mark.parametrize("kind", [CountCodes, DescribeRows])
def test_a_study_without_description_may_not_request_one(kind):
    fed = federation()
    blob = fed.blob(fed.schema.to_json().encode())
    with sv.HistogramForest().held_to_text(fed), pytest.raises(RefusedError, match="does not ask for"):
        (fed.ask if kind is DescribeRows else fed.total)(kind(schema=blob))


@pytest.mark.parametrize("described", [True, False])
def test_the_consent_text_states_whether_columns_are_described(described):
    plan = parse_remote_study(f'describe = {str(described).lower()}\nlabel = "y"\nsites = ["a", "b"]\n')
    assert ("described" in text_of(plan).fixed_by(federation().schema)) == described


def test_edges_of_a_schema_numbers_to_predict_and_few_rows():
    frames = {site: tables()[site].select("age", pl.col("bmi").fill_nan(25).alias("y")) for site in SITES}
    schema = sv.Schema((sv.Feature("age", edges=(40, 60)),), sv.Label("y"))
    table = sv.describe(sv.federate_rows(frames, label="y", schema=schema))
    assert line(table, "age").by_site["all"].missing == 0
    assert line(table, "y").by_site["all"].quartiles[1] == pytest.approx(26.3, rel=0.04)
    few = {"a": tables()["a"], "b": tables()["b"][:8]}
    shown = {
        line.by_site["b"] for line in sv.describe(sv.federate_rows(few, label="y")).lines if line.categories is None
    }
    assert all(of.quartiles == (None, None, None) and of.mean is None for of in shown)


def test_rounded_counts():
    assert round_counts(np.array([0, 1, 9, 10, 12, 13, 1002])).tolist() == [0, -1, -1, 10, 10, 15, 1000]


WITH_NOISE = '[schema]\nage = { bounds = [0, 120] }\ny = { classes = ["no", "yes"] }\n[learner]\nepsilon = 1.0\n'


@pytest.mark.parametrize(
    ("more", "wrong"),
    [
        ('describe = "some"\n', "describe must be true, false or 'only'"),
        (f"describe = true\n{WITH_NOISE}", "no noise protects the numbers"),
        ('describe = true\n[learner]\nkind = "VerticalForest"\n', "describe is for studies over rows"),
    ],
)
def test_what_a_study_cannot_describe(more, wrong):
    with pytest.raises(InputError, match=wrong):
        parse_remote_study(f'label = "y"\nsites = ["a", "b"]\n{more}')


@pytest.mark.parametrize(
    ("study", "wrong"), [(WITH_NOISE, "no noise"), ('[learner]\nkind = "VerticalForest"\n', "over rows")]
)
def test_what_the_command_cannot_describe(study, wrong):
    with pytest.raises(InputError, match=wrong):
        describing(parse_remote_study(f'label = "y"\nsites = ["a", "b"]\n{study}'))


def test_a_study_has_table_one_in_its_report(tmp_path):
    study = write_study(tmp_path, "describe = true\n")
    run("fit", study, "--output", tmp_path / "run")
    record = Run(tmp_path / "run").read()
    assert record.models
    assert line(record.table_one, "age") == line(sv.describe(federation()), "age")
    assert "Table 1" in (tmp_path / "run" / "report.html").read_text()
    own = copy_for(record, read_study(study), "a").table_one
    assert {site for one in own.lines for site in one.by_site} == {"all", "a"}


def test_describing_trains_nothing(tmp_path):
    study = write_study(tmp_path)
    shown = run("describe", study, "--csv", tmp_path / "t.csv", "--html", tmp_path / "t.html")
    assert "median [quartiles]" in shown
    assert pl.read_csv(tmp_path / "t.csv").filter(column="age", site="all")["rows"].item() == 1200
    assert "<table>" in (tmp_path / "t.html").read_text()
    assert not (tmp_path / "runs").exists()
    run("fit", write_study(tmp_path, 'describe = "only"\n'), "--output", tmp_path / "run")
    record = Run(tmp_path / "run").read()
    assert (record.status, record.models) == ("done", [])
    assert "Table 1" in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize(
    "wrong",
    [
        {"missing": np.zeros(1, np.int64)},
        {"numbers": np.zeros((6, 4))},
        {"counts": np.full(5, -2, np.int64)},
        {"rows": 0},
    ],
)
def test_malformed_descriptions_are_refused(monkeypatch, wrong):
    handler = describe_columns.describe_rows

    def lies(site, request):
        honest = handler(site, request)
        return SiteNumbers(**{name: getattr(honest, name) for name in honest.__struct_fields__} | wrong)

    monkeypatch.setitem(HANDLERS.maps[0], "DescribeRows", (DescribeRows, lies))
    with pytest.raises(SiteError):
        sv.describe(federation())
