"""Odd tables in separate files: what ``silvan check`` asks, or the one sentence with which it stops.

A case changes the tables of three sites, which are otherwise fine, or writes one of them as text. It expects part of
a question, part of an error (beginning with "!"), or nothing. Nothing is trained here.
"""

import numpy as np
import polars as pl
import pytest
from helpers.runs import said, silvan, write_study
from helpers.studies import table

N = 60  # rows of each site
LABEL = np.arange(N) % 2


def clean():
    frame = table(n=3 * N).drop("label")
    return {site: frame[i * N : (i + 1) * N].with_columns(label=LABEL) for i, site in enumerate("abc")}


def at(sites, **columns):
    """Changes columns of some sites; a function receives a generator and the number of rows."""

    def change(tables):
        for i, site in enumerate("abc"):
            if site in sites:
                n, rng = len(tables[site]), np.random.default_rng(i)
                made = {k: v(rng, n) if callable(v) else v for k, v in columns.items()}
                values = (
                    pl.Series(k, v, strict=False) if not isinstance(v, pl.Expr) else v.alias(k) for k, v in made.items()
                )
                tables[site] = tables[site].with_columns(values)
        return tables

    return change


def each(sites, change):
    def changed(tables):
        return {site: change(frame) if site in sites else frame for site, frame in tables.items()}

    return changed


def sometimes(code, values, every=3):
    return lambda rng, n: np.where(np.arange(n) % every == 0, code, values(rng, n))


def normal(mean, sd, digits=1):
    return lambda rng, n: np.round(rng.normal(mean, sd, n), digits)


def ids(times, prefix="p"):
    return lambda rng, n: [f"{prefix}{rng.integers(10**9)}" for _ in range(-(-n // times)) for _ in range(times)][:n]


def visits(name, times=2, **more):
    """Rows of people, alike in most columns."""

    def change(tables):
        for i, (site, frame) in enumerate(tables.items()):
            rng, n = np.random.default_rng(i), len(frame)
            who = np.arange(n) // times
            looks = rng.normal(size=(n, 3))[who] + rng.normal(size=(n, 3)) / 9
            frame = frame.with_columns(
                **{f"x{k}": pl.Series(looks[:, k]) for k in range(3)}, label=pl.Series(LABEL[who][:n])
            )
            tables[site] = frame.with_columns(pl.Series(name, [f"{site}{w}" for w in who]))
        return tables

    return change


def days(rng, n):
    return [f"2024-{1 + i % 12:02}-{1 + i % 28:02}" for i in range(n)]


def nothing(tables):
    return tables


def rename(site, **names):
    return each(site, lambda frame: frame.rename(names))


BY_DATE = 'split = { by = "seen", test = "last 20%" }'
CASES = {
    # nothing to ask
    "plain tables": (nothing, "", None),
    "heavy tails": (at("abc", crp=lambda rng, n: np.round(np.exp(rng.normal(1, 1.2, n)), 1)), "", None),
    "numbers below zero": (at("abc", excess=normal(0, 4)), "", None),
    "temperatures in winter": (at("abc", outside=normal(-3, 6)), "", None),
    "many ages": (at("abc", years=lambda rng, n: rng.integers(20, 90, n)), "", None),
    "zeros where nothing was given": (at("abc", units=lambda rng, n: rng.poisson(0.7, n)), "", None),
    "persons that are told": (visits("patient"), 'group = "patient"', None),
    "wards with many rows": (at("abc", place=lambda rng, n: rng.choice([f"w{i}" for i in range(9)], n)), "", None),
    "a site without women": (
        each("b", lambda frame: frame.with_columns(sex=pl.lit("m"))),
        "",
        "sex at b: has only one value",
    ),
    # codes for missing
    "-999 inside the range of sizes": (at("abc", dose=sometimes(-999, normal(900, 400, 0))), "", "-999 in"),
    "-1 among ages": (at("abc", age=sometimes(-1, normal(50, 12, 0), 9)), "", "age at a, b, c: -1 in"),
    "99 among scores of ten": (
        at("abc", pain=sometimes(99, lambda rng, n: rng.integers(0, 11, n), 6)),
        "",
        "pain at a, b, c: 99 in",
    ),
    "9999 at one site": (at("b", noise=sometimes(9999, normal(20, 5), 8)), "", "noise at b: 9999 in"),
    "a code that is said": (
        at("abc", dose=sometimes(-999, normal(900, 400, 0))),
        "",
        "missing = { dose = [-999] }",
    ),
    "words for missing": (
        at("abc", ward=sometimes("NA", lambda rng, n: rng.choice(["x", "y"], n))),
        "",
        "do they mean missing?",
    ),
    # rows and people
    "patients with visits": (
        visits("patient", 2),
        "",
        "patient at a, b, c: looks like an id that repeats, in 2.0 rows each",
    ),
    "ids that nothing names": (visits("k", 2), "", "k at a, b, c: looks like an id"),
    "ids that were left out": (visits("subject_id", 2), 'exclude = ["subject_id"]', 'set group = "subject_id"'),
    "rows appended twice": (
        each("a", lambda frame: pl.concat([frame, frame])),
        "",
        "the table of a: each row occurs 2 times",
    ),
    "rows of another site": (
        lambda tables: {**tables, "c": pl.concat([tables["c"], tables["a"][:9]])},
        "",
        "a and c (9 rows)",
    ),
    "one file at two sites": (
        lambda tables: {**tables, "b": tables["a"]},
        "",
        "the tables of a and b are alike in every column",
    ),
    # the label
    "one class": (at("abc", label=lambda rng, n: np.zeros(n, int)), "", "all rows of all sites are of class '0'"),
    "a rare class": (
        at("b", label=lambda rng, n: np.where(np.arange(n) < 2, 2, LABEL[:n])),
        'task = "classification"',
        "label: class '2' has 2 of",
    ),
    "a class at one site": (
        at("b", label=lambda rng, n: np.arange(n) % 3),
        'task = "classification"',
        "label: class '2' is at b alone",
    ),
    "a number of whole values": (
        at("abc", label=lambda rng, n: np.arange(n) * 7 % 301),
        "",
        "many numbers to predict: classes, or a number?",
    ),
    "labels that lack": (
        at("c", label=lambda rng, n: [None, *LABEL[1:n].tolist()]),
        "",
        "label at c: missing in 1 row",
    ),
    "no label at a site": (rename("b", label="outcome"), "", "label at b: there is no such column to predict"),
    "classes in two languages": (
        lambda t: at("c", label=lambda rng, n: np.where(LABEL[:n], "ja", "nein"))(
            at("ab", label=lambda rng, n: np.where(LABEL[:n], "yes", "no"))(t)
        ),
        "",
        "the two classes are 'no' and 'yes' at a, b, 'ja' and 'nein' at c",
    ),
    "a column that is the label": (
        at("abc", code=lambda rng, n: LABEL[:n] * 3 + 1),
        "",
        "tells the classes apart by itself (AUC 1.000)",
    ),
    # columns
    "a column that one site has": (
        at("a", sodium=normal(140, 3, 0)),
        "",
        "'sodium' at b, c: no such column, missing in all rows there",
    ),
    "the same, left out": (
        at("a", sodium=normal(140, 3, 0)),
        'absent = "drop"',
        "'sodium' at b, c: no such column, left out",
    ),
    "names in other letters": (rename("c", age="Age"), "", "'age', 'Age' differ in case"),
    "metres and centimetres": (
        lambda t: at("c", tall=normal(1.7, 0.1, 2))(at("ab", tall=normal(170, 10, 0))(t)),
        "",
        "are the units the same?",
    ),
    "Fahrenheit at one site": (
        lambda t: at("c", temp=normal(98.6, 0.9))(at("ab", temp=normal(37, 0.5))(t)),
        "",
        "degrees Celsius and Fahrenheit",
    ),
    "an infinite cell": (
        at("a", noise=lambda rng, n: [float("inf"), *rng.normal(size=n - 1)]),
        "",
        "infinite, or too large",
    ),
    "a column of nothing": (at("b", noise=lambda rng, n: [None] * n), "", "noise at b: all cells are empty"),
    "days as numbers": (
        at("abc", seen=lambda rng, n: 20240101 + np.arange(n) % 28),
        "",
        "looks like dates written as 20200131",
    ),
    "codes with zeros in front": (
        at("abc", icd=lambda rng, n: [f"{i % 7:04}" for i in range(n)]),
        "",
        "leading zeros are lost",
    ),
    "numbers and a word": (
        at("a", dose=lambda rng, n: ["much", *map(str, range(n - 1))]),
        "",
        "mixes numbers and text",
    ),
    "text at one site": (
        at("c", dose=lambda rng, n: rng.choice(["low", "high"], n)),
        "",
        "dose is numeric at a, b and categorical at c",
    ),
    # settings of studies
    "dates with gaps": (
        at("abc", seen=lambda rng, n: [None, None, *days(rng, n)[2:]]),
        BY_DATE,
        "!by 'seen': 2 rows of",
    ),
    "dates that are none": (
        at("abc", seen=lambda rng, n: ["soon", *days(rng, n)[1:]]),
        BY_DATE,
        "!by 'seen': 1 cell of",
    ),
    "one date": (at("abc", seen=lambda rng, n: ["2024-01-31"] * n), BY_DATE, "!by 'seen': no row is in the test set"),
    "no dates": (nothing, BY_DATE, "!split names 'seen', but the table has no such column"),
    "a date that splits and is excluded": (at("abc", seen=days), f'{BY_DATE}\nexclude = ["seen"]', None),
    "persons without ids": (
        lambda t: {
            s: f.with_columns(patient=pl.when(pl.int_range(pl.len()) > 2).then(pl.col("p"))).drop("p")
            for s, f in visits("p")(t).items()
        },
        'group = "patient"',
        "!column 'patient', which group names, is missing in 3 of 60 rows",
    ),
    "persons at two sites": (
        lambda t: each("b", lambda f: f.with_columns(pl.col("patient").str.replace("b", "a")))(visits("patient")(t)),
        'group = "patient"',
        "ids are at more than one site",
    ),
    "groups of the label": (nothing, 'group = "label"', "!group names 'label', which is the label"),
    "a positive class of nothing": (nothing, "positive = []", "!positive must be a class of the label"),
    "one site": (lambda tables: {"a": tables["a"]}, "", "there is only one site: nothing is federated"),
    "a table of a head alone": (each("b", lambda frame: frame[:0]), "", "!site 'b'"),
    "a table of one row": (each("b", lambda frame: frame[:1]), "", "b has 1 row: too few to learn from"),
    "exclude of the label": (nothing, 'exclude = ["label"]', "!exclude names the label 'label'"),
}


@pytest.mark.parametrize("case", CASES)
def test_check_asks_about_what_is_odd(tmp_path, case):
    change, more, expected = CASES[case]
    study = write_study(tmp_path, change(clean()), more=more)
    if "split" in more:
        study.write_text(study.read_text().replace("test = 0.3\n", ""))
    wrong = expected is not None and expected.startswith("!")
    result = silvan("check", study, ok=not wrong)
    shown = said(result)
    assert (result.exit_code != 0) == wrong, shown
    assert "Traceback" not in shown
    if expected is None:
        assert "Nothing looks odd." in shown, shown
    else:
        assert expected.removeprefix("!") in shown, shown
