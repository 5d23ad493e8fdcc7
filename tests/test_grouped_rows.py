"""Several rows per person: no learner is evaluated on a person in its training set, and all counts are of persons.

In the tables of visits a patient's label is a coin flip and the visits of a patient are nearly alike, so a model that
trains on one visit of a patient knows the label of the next. The true AUC is 0.5.
"""

import re
import tomllib

import numpy as np
import polars as pl
import pytest
from helpers.runs import said, silvan, write_study
from helpers.visits import SITES, one_site, visits

import silvan as sv
from silvan.algorithms.evaluation.out_of_bag import score_unseen
from silvan.algorithms.keyed_rows import learning_rows, rows_of_persons
from silvan.metrics import count_scores, roc_auc
from silvan.study.parse import parse_study
from silvan.study.run_folder import Run

NOISE = 0.22
"""More than three standard errors of an AUC of 72 patients."""

LEARNERS = {
    "histogram": lambda: sv.HistogramForest(n_estimators=12),
    "all rows": lambda: sv.HistogramForest(n_estimators=12, bootstrap=False),
    "adaptive": lambda: sv.HistogramForest(n_estimators=8, bins="adaptive", max_bins=16, max_depth=6),
    "merged": lambda: sv.MergedForest(n_estimators=12),
    "refitted": lambda: sv.MergedForest(n_estimators=12, refit_leaves=True),
    "bofrf": lambda: sv.BOFRF(n_estimators=12),
    "validation": lambda: sv.BOFRF(n_estimators=12, validation=0.3),
    "tuned": lambda: sv.BOFRF(n_estimators=10, tune={"max_depth": [2, 8]}),
    "personal": lambda: sv.BOFRF(n_estimators=12, personal=True),
    "auto": lambda: sv.AutoForest(n_estimators=12),
    "boosted": lambda: sv.AdaBoostPL(n_estimators=12),
    "boppid": lambda: sv.BOPPID(n_estimators=12),
    "multboost": lambda: sv.MultBoost(n_estimators=6),
    "local": lambda: sv.LocalForest(n_estimators=12),
}


def federation(grouped=True, test=0.3, seed=0, **options):
    tables = visits(seed)
    if not grouped:
        tables = {site: table.drop("patient") for site, table in tables.items()}
    return sv.federate_rows(tables, test=test, group="patient" if grouped else None, n_jobs=1, **options)


def auc(model, fed):
    """The largest AUC over all sites of any model, and its number of rows."""
    overall = model.evaluate(fed).filter(site="all")
    return overall["auc"].max(), overall["rows"].max()


@pytest.mark.parametrize("learner", LEARNERS)
def test_no_learner_has_seen_the_test_rows(learner):
    allowed = sv.Policy(messages=("*", "AdaptiveLevel")) if learner == "adaptive" else None
    measured, rows = auc(LEARNERS[learner]().fit(fed := federation(policy=allowed)), fed)
    assert abs(measured - 0.5) < NOISE
    assert rows == 72  # patients, not visits


@pytest.mark.parametrize("learner", ["histogram", "merged", "bofrf", "auto"])
def test_without_groups_the_same_learner_looks_good(learner):
    measured, _ = auc(LEARNERS[learner]().fit(fed := federation(grouped=False)), fed)
    assert measured > 0.9


def out_of_bag_auc(fed, model, site="a"):
    """The AUC of training rows, each predicted by trees that did not sample it."""
    forest = model.forest_
    found = score_unseen(fed.site(site), fed.schema, forest, model.draws(fed, [])[forest.hash])
    known = ~np.isnan(found.scores).any(axis=1)
    return roc_auc(*count_scores(found.scores[known], found.y[known], exact=True)[0])


@pytest.mark.parametrize("learner", ["histogram", "auto"])
def test_out_of_bag_rows_are_of_other_persons(learner):
    measured = {
        grouped: out_of_bag_auc(fed := federation(grouped, test=0.0), LEARNERS[learner]().fit(fed))
        for grouped in (True, False)
    }
    assert measured[True] < 0.5 + NOISE
    assert measured[False] > 0.9


def test_repeats_keep_persons_together():
    def measured(grouped):
        found = sv.compare(federation(grouped, test=0.25), [LEARNERS["histogram"]()], repeats=1).frame
        return found.filter(site="all")["auc"].max()

    assert abs(measured(True) - 0.5) < 0.12  # of all 240 patients
    assert measured(False) > 0.9


def test_a_site_left_out_counts_persons():
    found = sv.compare(federation(test=0.0), [LEARNERS["histogram"]()], split="sites").frame
    assert found.filter(site="all")["rows"].to_list() == [240]
    assert abs(found.filter(site="all")["auc"][0] - 0.5) < 0.15


def parts(fed, site="a"):
    """The person of each row of the training and test sets at a site, by the row's cells."""
    table = fed.site(site).source
    person = {row: who for who, row in zip(table["patient"], table["x0"].cast(pl.Float32), strict=True)}
    one = fed.site(site)
    some = {"train": one.part(fed.schema), "test": one.part(fed.schema, True), "all": one.rows_to_sample(fed.schema)}
    return {name: [person[float(x)] for x in part.X[:, 0]] for name, part in some.items()}


@pytest.mark.parametrize("options", [{}, {"memory": "100kB"}, {"cold": True}, {"test_by": "row"}], ids=str)
def test_parts_of_a_table_share_no_person(options):
    if "test_by" in options:
        options = {**options, "schema": federation().schema}
    found = parts(federation(**options))
    assert len(set(found["train"])) == len(found["train"])
    assert len(set(found["test"])) == len(found["test"])
    assert not set(found["all"]) & set(found["test"])
    assert set(found["all"]) == set(found["train"])
    assert len(found["all"]) == 3 * len(found["train"])
    assert len(found["train"]) + len(found["test"]) == 80


def test_sites_report_the_number_of_persons():
    assert federation().agreement.rows == dict.fromkeys(SITES, 56)


def test_validation_rows_belong_to_other_persons():
    fed = federation()
    site, schema = fed.site("a"), fed.schema
    kept, held = learning_rows(site, schema, 0.3)
    assert len(held) > 10
    assert not set(kept.row_keys) & set(held.row_keys)
    grown_on = rows_of_persons(site, schema, kept)
    assert set(grown_on.row_keys["person"]) == set(kept.row_keys)
    assert len(grown_on) == 3 * len(kept)


@pytest.mark.parametrize("sums", ["trusted", "ring", "masked"])
@pytest.mark.parametrize("target", ["classes", "number"])
def test_the_forest_equals_that_of_the_pooled_rows(sums, target):
    """With labels that differ between visits, so that a tree may have more rows of a class than one per person."""
    rng = np.random.default_rng(4)
    tables = {}
    for site in SITES:
        table = one_site(rng, site, rng.integers(1, 9, 50))
        label = rng.integers(0, 2, len(table)) if target == "classes" else rng.normal(size=len(table)) * 1000
        tables[site] = table.with_columns(label=pl.Series(label))
    forests = []
    for more in ({}, {"cold": True}, {"memory": "60kB"}):
        fed = sv.federate_rows(tables, group="patient", sums=sums, n_jobs=1, **more)
        forests.append(sv.HistogramForest(n_estimators=4).fit(fed).forest_.hash)
    pooled = sv.PooledForest(n_estimators=4).fit(fed).forest_
    assert forests == [pooled.hash] * 3


def test_ids_are_not_features_and_single_rows_count_as_before():
    tables = visits(each=1)
    grouped = sv.federate_rows(tables, group="patient", n_jobs=1)
    plain = sv.federate_rows({site: table.drop("patient") for site, table in tables.items()}, n_jobs=1)
    assert grouped.schema == plain.schema
    assert grouped.agreement.rows == plain.agreement.rows


# -- bad input
def broken(site, change):
    tables = visits(patients=20)
    return {**tables, site: change(tables[site])}


@pytest.mark.parametrize(
    ("tables", "options", "text"),
    [
        (broken("b", lambda t: t.drop("patient")), {}, "'b': .*no column 'patient', which group names"),
        (visits(patients=9), {"group": "patients"}, "no column 'patients', which group names"),
        (visits(patients=9), {"group": "label"}, "group names 'label', which is the label"),
        (pl.concat(visits(patients=9).values()), {"site": "x0", "group": "x0"}, "the column that names the site"),
        (
            broken("c", lambda t: t.with_columns(patient=pl.when(pl.col("x0") > 0).then("patient"))),
            {},
            r"'c': .*column 'patient', which group names, is missing in \d+ of 60 rows",
        ),
    ],
)
def test_bad_groups(tables, options, text):
    with pytest.raises(sv.SilvanError, match=text):
        sv.federate_rows(tables, **{"group": "patient", **options})


def test_a_schema_with_the_ids_is_refused():
    tables = {site: table.with_columns(patient=pl.col("x0")) for site, table in visits(patients=9).items()}
    known = sv.federate_rows(tables).schema
    with pytest.raises(sv.InputError, match="which the schema has as a feature"):
        sv.federate_rows(tables, schema=known, group="patient")


def test_ids_at_two_sites_are_named_by_number():
    tables = visits(patients=20)
    tables["b"] = tables["b"].with_columns(patient=pl.col("patient").replace({"b3": "a3", "b4": "a4"}))
    with pytest.warns(UserWarning, match="2 ids are at more than one site"):
        sv.federate_rows(tables, group="patient")


def test_an_excluded_column_may_be_the_group():
    tables = visits(patients=20)
    fed = sv.federate_rows(tables, group="patient", exclude=["patient"])
    assert "patient" not in fed.schema.names


def test_vertical_studies_refuse_groups(tmp_path):
    why = (
        "group is for horizontal studies: in vertical ones an aligned id is a person, and group would show every party"
    )
    with pytest.raises(sv.InputError, match=why):
        sv.federate_columns(visits(patients=9), id="patient", group="patient")
    text = 'id = "patient"\ngroup = "patient"\n[parties]\na = "a.csv"\n'
    visits(patients=9)["a"].write_csv(tmp_path / "a.csv")
    with pytest.raises(sv.InputError, match=f"study.toml:2: {why}"):
        parse_study(text, tomllib.loads(text), tmp_path / "study.toml")


# -- studies


def study_of_visits(folder, more='group = "patient"', tables=None, **how):
    return write_study(folder, tables or visits(patients=40), more=more, **how)


@pytest.mark.parametrize("kind", ["HistogramForest", "AutoForest"])
def test_a_study_counts_persons(tmp_path, kind):
    """Threshold, test rows and all counts of a run are of persons, and its sentences say so."""
    study = study_of_visits(tmp_path, kind=kind)
    study.write_text(study.read_text() + 'threshold = "youden"\n')
    shown = said(silvan("fit", study, "--output", tmp_path / "run"))
    record = Run(tmp_path / "run").read()
    assert [(site.rows, site.test_rows) for site in record.sites] == [(28, 12)] * 3
    [overall] = [row for row in record.evaluation if (row.site, row.model) == ("all", "federated")]
    assert overall.rows == 36
    assert abs(overall.metrics["auc"] - 0.5) < 0.33
    assert "all rows of one patient are in the training set, or all in the test set." in shown
    assert "patient" not in Run(tmp_path / "run").forest().schema.names


def test_a_threshold_is_chosen_on_rows_of_other_persons():
    """If trees knew the person, out-of-bag scores would look nearly perfect."""
    fed = federation(test=0.3)
    model = sv.HistogramForest(n_estimators=12, threshold="youden").fit(fed)
    assert 0.0 < model.threshold_ < 1.0
    found = model.evaluate(fed).filter(site="all", model="federated")
    assert abs(found["sensitivity"][0] + found["specificity"][0] - 1.0) < 2 * NOISE


def test_sites_choose_on_other_persons():
    """A site that chose on rows of persons known to its own trees would choose these trees."""
    fed = federation(test=0.0)
    told = " ".join(sv.AutoForest(n_estimators=12).fit(fed).choices_.values())
    aucs = [float(text) for text in re.findall(r"AUC (0\.\d+) on", told)]
    assert aucs
    assert max(aucs) < 0.5 + NOISE + 0.1  # the best of several mixes


@pytest.mark.parametrize(
    ("tables", "more", "text"),
    [
        (
            broken("b", lambda t: t.drop("patient")),
            'group = "patient"',
            "study.toml:7: site 'b': .*no column 'patient'",
        ),
        (
            broken("c", lambda t: t.with_columns(patient=pl.when(pl.col("x0") > 0).then("patient"))),
            'group = "patient"',
            "site 'c': column 'patient', which group names, is missing in .* of 60 rows; fill in the ids",
        ),
        (None, 'group = "label"', "study.toml:4: group names 'label', which is the label"),
        (None, "group = 3", "study.toml:4: group must be text"),
        (None, 'group = "patient"\n[schema]\npatient = {}\nlabel = { classes = [0, 1] }', "which the schema has"),
    ],
)
@pytest.mark.parametrize("command", ["check", "fit"])
def test_bad_groups_of_studies(tmp_path, tables, more, text, command):
    shown = said(silvan(command, study_of_visits(tmp_path, more, tables), ok=False))
    assert re.search(text, shown), shown


def test_persons_at_two_sites_are_asked_about(tmp_path):
    study = study_of_visits(
        tmp_path, tables=broken("b", lambda t: t.with_columns(pl.col("patient").str.replace("b", "a")))
    )
    for command in ("check", "fit"):
        assert "group: 20 ids are at more than one site; if these are the same persons" in said(silvan(command, study))


@pytest.mark.parametrize("more", ["", 'exclude = ["patient"]'])
def test_check_asks_about_ids_that_repeat(tmp_path, more):
    asked = "patient at a, b, c: looks like an id that repeats, in 3.0 rows each: does a person have several rows? then"
    assert f'{asked} set group = "patient"' in said(silvan("check", study_of_visits(tmp_path, more)))


@pytest.mark.parametrize("each", [1, 3])
def test_check_does_not_ask_if_groups_are_set_or_persons_unique(tmp_path, each):
    tables = visits(patients=60, each=each)
    tables = {
        site: t.with_columns(age=(pl.col("x0") * 9 + 50).round().cast(int) + pl.int_range(pl.len()) % 9)
        for site, t in tables.items()
    }
    more = 'group = "patient"' if each > 1 else 'exclude = ["patient"]'
    assert "looks like an id" not in said(silvan("check", study_of_visits(tmp_path, more, tables)))
