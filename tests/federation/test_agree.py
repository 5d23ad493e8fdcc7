"""Agreement: how tables may differ, how differences are resolved, and what stays undisclosed."""

import warnings

import numpy as np
import polars as pl
import pytest
from helpers.studies import Recorded, federate

import silvan as sv
from silvan.data.schema import MAX_CATEGORIES
from silvan.errors import AgreementError, InputError, RefusedError, SchemaError, SiteError
from silvan.federation import wire
from silvan.federation.agree import agree_on
from silvan.federation.describe import (
    BUCKETS,
    FLOOR,
    MANY,
    CategoryCounts,
    CountCategories,
    Describe,
    NameCategories,
    buckets,
)
from silvan.federation.message import Envelope


def plain(n=30, label=("no", "yes"), seed=0, **columns):
    rng = np.random.default_rng(seed)
    base = {"age": rng.normal(50, 9, n), "ward": ["a", "b"] * (n // 2)}
    return pl.DataFrame({**base, **columns, "label": [label[i % len(label)] for i in range(n)]}, strict=False)


def notes(fed, column):
    return [(what, done) for name, what, done in fed.differences.notes if name == column]


# -- columns


def test_identical_tables():
    fed = federate({"a": plain(), "b": plain()})
    assert fed.schema.names == ("age", "ward")
    assert fed.schema.label.classes == ("no", "yes")
    assert fed.differences.notes == fed.differences.warnings == []
    assert fed.rows == {"a": 30, "b": 30}


def test_another_order():
    fed = federate({"a": plain(), "b": plain().select("label", "ward", "age")})
    assert fed.schema.names == ("age", "ward")
    assert notes(fed, "(all)") == [("columns stand in another order at some sites", "matched by name")]


@pytest.mark.filterwarnings("ignore:.* absent at")
def test_columns_missing_at_some_sites():
    """The first site's columns, then new ones in the order of sites; where a column is absent, values are missing."""
    fed = federate({"a": plain(), "b": plain(late=range(30)).drop("ward"), "c": plain(later=range(30))})
    assert fed.schema.names == ("age", "ward", "late", "later")
    assert notes(fed, "ward") == [("absent at b", "counts as missing there")]
    assert notes(fed, "late") == [("absent at a, c", "counts as missing there")]
    assert notes(fed, "(all)") == []
    assert np.isnan(fed.site("b").part(fed.schema).X[:, 1]).all()


def test_the_treatment_of_absent_columns_is_reported():
    tables = {"a": plain(), "b": plain(late=range(30)).drop("ward"), "c": plain()}
    with pytest.warns(UserWarning, match=".* absent at") as caught:
        fed = federate(tables)
    told = "trees can tell these rows by that, and what the values mean is learned from the other sites alone"
    assert [str(one.message) for one in caught] == [
        f"'ward' is absent at b and missing in all rows there: {told}; absent = 'drop' leaves such columns out",
        f"'late' is absent at a, c and missing in all rows there: {told}; absent = 'drop' leaves such columns out",
    ]
    assert fed.differences.warnings == [str(one.message) for one in caught]


def test_absent_columns_may_be_left_out():
    fed = federate({"a": plain(), "b": plain(late=range(30)).drop("ward")}, absent="drop")
    assert fed.schema.names == ("age",)
    assert notes(fed, "ward") == [("absent at b", "left out")]
    assert fed.differences.warnings == []
    with pytest.raises(InputError, match="absent must be 'missing' or 'drop', got 'keep'"):
        federate({"a": plain()}, absent="keep")
    with pytest.raises(AgreementError, match="no column is at all sites, and absent = 'drop' leaves out all others"):
        federate({"a": plain().select("label", "age"), "b": plain().select("label", "ward")}, absent="drop")


def test_one_class_everywhere_is_a_warning():
    with pytest.warns(UserWarning, match="all rows of all sites are of one class of 'label', 'yes'"):
        federate({"a": plain(label=("yes",)), "b": plain(label=("yes",))})


def test_text_here_and_numbers_there():
    tables = {"a": plain(code=["1", "2"] * 15), "b": plain(code=[1, 2] * 15), "c": plain(code=[1.0, 2.0] * 15)}
    with pytest.raises(AgreementError, match=r"'code' is read as text at a and numbers at b, c; .*kinds: code = \"cat"):
        federate(tables)
    fed = federate(tables, kinds={"code": "numeric"})
    assert [f.categorical for f in fed.schema.features] == [False, True, False]
    fed = federate(tables, kinds={"code": "categorical"})
    [code] = [f for f in fed.schema.features if f.name == "code"]
    assert code.categories == ("1", "2")
    for site in fed.sites:
        assert fed.site(site).part(fed.schema).X[:4, 2].tolist() == [0.0, 1.0, 0.0, 1.0]


def test_an_empty_column_adopts_the_common_kind():
    tables = {"a": plain(code=["NA"] * 30), "b": plain(code=["x", "y"] * 15), "c": plain(code=[None] * 30)}
    fed = federate(tables)
    assert [f.categories for f in fed.schema.features][2] == ("x", "y")
    assert notes(fed, "code")[0] == ("without any value at a, c", "counts as missing there")
    assert np.isnan(fed.site("a").part(fed.schema).X[:, 2]).all()
    fed = federate({**tables, "b": plain(code=[1, 2] * 15)})
    assert not fed.schema.features[2].categorical


@pytest.mark.filterwarnings("ignore:.* absent at")
def test_the_table_of_differences_is_aligned():
    fed = federate({"a": plain(), "b": plain(x=range(30), label=("no", "maybe")).drop("ward")})
    notes, warnings = fed.differences.notes, fed.differences.warnings
    text = str(fed.differences).split("\n")
    lines = text[: len(notes)]
    assert len(lines) > 3
    assert text[len(notes) :] == [f"Warning: {warning}" for warning in warnings]
    assert len(warnings) == 2
    assert len({line.index(done) for line, (_, _, done) in zip(lines, notes, strict=True)}) == 1


def test_repeated_column_names():
    import pandas as pd

    twice = pd.DataFrame([[1, 2, "no"]] * 3, columns=["age", "age", "label"])
    with pytest.raises(SiteError, match="site 'b'") as caught:
        federate({"a": plain(), "b": twice})
    assert "more than one column called 'age'" in str(caught.value.__cause__)


def test_categories_of_some_sites():
    fed = federate({"a": plain(), "b": plain(ward=["b", "c"] * 15), "c": plain()})
    assert notes(fed, "ward") == [("no rows of 'a' at b", "kept"), ("no rows of 'c' at a, c", "kept")]


@pytest.mark.filterwarnings("ignore:.* absent at")
def test_excluded_columns():
    tables = {"a": plain(id=range(30)), "b": plain()}
    assert federate(tables, exclude=["id"]).schema.names == ("age", "ward")
    with pytest.raises(InputError, match="exclude names 'Id', which is not a column at any site"):
        federate(tables, exclude=["Id"])
    with pytest.raises(InputError, match="exclude must be a list"):
        federate(tables, exclude="id")


# -- the label


def test_classes_of_some_sites():
    fed = federate({"a": plain(label=("x",)), "b": plain(label=("y", "x")), "c": plain(label=("z",))})
    assert fed.schema.label.classes == ("x", "y", "z")
    assert notes(fed, "label") == [
        ("a has no rows of class y, z", "kept"),
        ("b has no rows of class z", "kept"),
        ("c has no rows of class x, y", "kept"),
    ]


@pytest.mark.parametrize("other", [(0.0, 1.0), (False, True), (1, 0)], ids=str)
def test_classes_that_are_equal_numbers(other):
    fed = federate({"a": plain(label=(0, 1)), "b": plain(label=other)})
    assert fed.schema.label.classes == (0, 1)
    for site in fed.sites:
        assert sorted(set(fed.site(site).part(fed.schema).y.tolist())) == [0, 1]


def test_classes_of_text_and_of_numbers():
    with pytest.raises(AgreementError, match="text at a, c and numbers at b; make them alike"):
        federate({"a": plain(label=("0", "1")), "b": plain(label=(0, 1)), "c": plain(label=("0",))})


def test_a_number_here_and_classes_there():
    tables = {"a": plain(label=(0.5, 1.0)), "b": plain(label=(0, 1)), "c": plain(label=(0.0, 1.0))}
    with pytest.raises(AgreementError, match="a number at a and has classes at b, c; pass task="):
        federate(tables)
    assert federate(tables, task="regression").schema.label.classes is None
    assert federate(tables, task="classification").schema.label.classes == (0, 0.5, 1)


@pytest.mark.parametrize(
    ("table", "text", "kind"),
    [
        (plain().drop("label"), "no label column 'label'", SchemaError),
        (
            plain().with_columns(label=pl.when(pl.col("age") > 45).then("label")),
            "label 'label' is missing in",
            InputError,
        ),
        (plain().with_columns(label=pl.lit(float("inf"))), "infinite", InputError),
        (plain().select("label"), "no column is left to predict", SchemaError),
        (plain()[:0], "no rows", InputError),
        (plain(when=pl.Series([0] * 30, dtype=pl.Duration)), "column 'when' holds Duration", SchemaError),
        (
            plain(when=[*map(str, range(29)), ">9"]),
            "column 'when' mixes numbers and text: 1 of its 30 cells",
            SchemaError,
        ),
    ],
    ids=["absent", "missing", "infinite", "alone", "no rows", "durations", "mixed"],
)
def test_a_table_that_cannot_be_used_names_the_site(table, text, kind):
    """Its owner learns why; only a fixed text leaves the site."""
    with pytest.raises(SiteError, match="site 'bad': Describe: the site") as caught:
        federate({"good": plain(), "bad": table})
    assert caught.value.site == "bad"
    assert isinstance(caught.value.__cause__, kind)
    assert text in str(caught.value.__cause__)


def test_a_bad_site_may_be_left_out():
    fed = federate({"good": plain(), "bad": plain().drop("label"), "fine": plain()}, quorum=2)
    assert fed.active == ["good", "fine"]
    assert list(fed.rows) == ["good", "fine"]


# -- units


@pytest.mark.parametrize(
    ("factors", "odd"),
    [
        ([1, 1, 1000], ["c"]),
        ([1, 0.001, 1], ["b"]),
        ([1, 1, 2.5], []),
        ([-1, 1, 1], []),
        ([1, 1000], ["a", "b"]),
        ([1, 10], ["a", "b"]),
        ([1, 1, 453, 453], ["a", "b", "c", "d"]),
        ([0, 1, 1], []),
    ],
    ids=str,
)
def test_other_units_are_suspected(factors, odd):
    tables = {name: plain(weight=np.linspace(60, 90, 30) * f) for name, f in zip("abcd", factors, strict=False)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fed = federate(tables)
    named = [f"weight: the median at {', '.join(odd)} is far from the others'; are the units the same?"] if odd else []
    assert [str(w.message) for w in caught] == fed.differences.warnings == named
    assert [what for _, what, _ in fed.differences.notes] == ([f"median far off at {', '.join(odd)}"] if odd else [])


@pytest.mark.filterwarnings("error")
def test_columns_around_zero_are_not_suspected():
    rng = np.random.default_rng(0)
    federate({f"s{i}": plain(z=rng.normal(size=30), few=[None] * 25 + [1e9] * 5) for i in range(12)})


# -- what is disclosed


def sent(tables, **settings):
    fed = federate(tables, Recorded, **settings)
    return fed.transport.sent(), fed


def naming(fed, column, words=None):
    """A request that claims that some words' hashes, or all hashes, are common."""
    counts = np.full((1, 2 * BUCKETS), 0 if words else FLOOR, np.int32)
    counts[0, [bucket for word in words or () for bucket in buckets(word)]] = FLOOR
    total = CategoryCounts(counts=counts)
    return NameCategories(names=[column], counts=fed.blob(wire.encode(total)), sites=fed.active)


def test_rare_categories_are_never_named():
    """Nine rows in all are too few, ten over several sites are enough."""
    few = ["Abracadabra"] * 4 + ["Zyzzyva"] * 5 + ["a"] * 21
    many = ["Abracadabra"] * 5 + ["Zyzzyva"] * 5 + ["b"] * 20
    data, fed = sent({"a": plain(ward=few), "b": plain(ward=many)})
    [ward] = [f for f in fed.schema.features if f.name == "ward"]
    assert ward.categories == ("Zyzzyva", "a", "b")
    assert ward.other
    assert b"Zyzzyva" in data
    assert b"Abracadabra" not in data
    assert b"Abracadabra" not in b"".join(d for *_, d in fed.transport.record)
    assert "Abracadabra" not in str(fed.differences)
    assert notes(fed, "ward")[-1] == (f"categories with fewer than {FLOOR} rows in all", "together as 'other'")
    assert fed.site("a").part(fed.schema).X[0, 1] == 3.0  # other


def test_names_of_people_are_never_disclosed():
    """With more names than hashes every hash is common; still no name is disclosed."""
    n = 200_000
    people = [f"Person{i:06}" for i in range(n)]
    tables = {
        "big": plain(n, patient=people),
        "small": plain(patient=[f"Person{i:06}" for i in range(n, n + 30)]),
    }
    with pytest.warns(UserWarning, match="'patient' has more than 254 categories.*leave it out if it is an identifier"):
        data, fed = sent(tables)
    [patient] = [f for f in fed.schema.features if f.name == "patient"]
    assert data.count(b"Person") <= 1  # of the few at the small site, hardly one shares both its hashes
    assert patient.other


def test_values_of_a_number_are_not_named_like_categories():
    """A numeric column that is text elsewhere discloses only what is common at the site itself."""
    values = [86753.5 + i for i in range(15)] + [7.0] * 15
    data, fed = sent({"a": plain(code=["7", "x"] * 15), "b": plain(code=values)}, kinds={"code": "categorical"})
    [code] = [f for f in fed.schema.features if f.name == "code"]
    assert code.categories == ("7", "x")
    assert b"8675" not in data
    with fed.working_on("something else"):
        assert fed.ask(naming(fed, "code", ["7", "86753.5"]))["b"].names == [["7"]]


def test_a_rare_name_that_shares_a_hash_with_a_common_one():
    common = buckets("a")
    for half in (0, 1):
        twin = next(w for w in map("word {}".format, range(10**6)) if buckets(w)[half] == common[half])
        assert buckets(twin) != common
        data, fed = sent({"one": plain(ward=[twin, *["a"] * 29]), "two": plain(ward=["a"] * 30)})
        assert fed.schema.features[1].categories == ("a",)
        assert twin.encode() not in data


def test_extremes_and_medians_are_not_disclosed():
    ages = np.linspace(40.125, 60.375, 31)
    data, _ = sent({"a": plain(), "b": plain(31, age=ages, ward=["a"] * 31)})
    for value in (ages.min(), ages.max(), np.median(ages)):
        for text in (str(value).encode(), np.float64(value).tobytes(), np.float32(value).tobytes()):
            assert text not in data


def test_a_site_limits_the_names_it_discloses():
    fed = federate({"a": plain(), "b": plain()})
    for words in (["no", "yes"], None):
        with fed.working_on("something else"):
            replies = fed.ask(naming(fed, "label", words))
            assert replies["a"].names == [[]]  # not of the label
    with fed.working_on("something else"):
        assert fed.total(CountCategories(names=["label", "nowhere"])).counts.sum() == 0


def test_classes_with_different_names_are_reported():
    english, german = plain(), plain(label=("ja", "nein"))
    with pytest.warns(UserWarning, match="'no', 'yes' at a and 'ja', 'nein' at b; if they mean the same, name them"):
        federate({"a": english, "b": german})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        federate({"a": english, "b": plain(label=("yes",))})  # an absent class is not another name
        grades = {"a": plain(label=("1", "2")), "b": plain(label=("3", "4"))}
        federate({**grades, "c": plain(label=("2", "3"))})  # nor one that a third site has beside theirs
        federate({"a": plain(ward=["1.0", "10"] * 15), "b": english})  # and these are two numbers


def test_free_text_is_named_only_where_the_site_itself_has_enough():
    texts = [f"note {i}" for i in range(MANY)] + ["seen often"] * FLOOR + ["seldom"] * (FLOOR - 1)
    fed = federate({"a": plain(len(texts) // 2 * 2, ward=texts[: len(texts) // 2 * 2])})
    [ward] = [f for f in fed.schema.features if f.name == "ward"]
    assert ward.categories == ("seen often",)


def test_too_many_categories_to_name():
    n = 300
    words = [f"w{i:03}" for i in range(n) for _ in range(FLOOR + (i >= 50))]
    with pytest.warns(
        UserWarning, match="'ward' has more than 254 categories.*group them in the same way at every site"
    ):
        fed = federate({"a": plain(len(words), ward=words, seed=1)})
    [ward] = [f for f in fed.schema.features if f.name == "ward"]
    assert ward.other
    assert notes(fed, "ward")[-1] == ("more than 254 categories", "the rarer together as 'other'")
    enough = [f"w{i % MAX_CATEGORIES}" for i in range(20 * MAX_CATEGORIES)]
    few = federate({"a": plain(len(enough), ward=enough)})
    assert few.differences.warnings == []
    assert 240 <= len(ward.categories) <= MAX_CATEGORIES
    assert sum(w >= "w050" for w in ward.categories) > 225  # the most frequent first


def test_more_categories_than_can_be_named_by_columns():
    codes = pl.DataFrame({"id": range(6000), "code": [f"c{i % 300:03}" for i in range(6000)]})
    labels = pl.DataFrame({"id": range(6000), "x": np.arange(6000.0), "label": ["no", "yes"] * 3000})
    with pytest.warns(UserWarning, match="'code' has more than 254 categories.*its holder can group them"):
        sv.federate_columns({"codes": codes, "labels": labels}, id="id", label="label")


def test_names_do_not_travel_where_no_column_is_text():
    data, fed = sent({"a": plain().drop("ward"), "b": plain().drop("ward")})
    assert {wire.decode(d, Envelope).kind for *_, d in fed.transport.record} == {"Describe", "Description"}
    assert fed.agreement_rounds == 1
    assert b"age" in data


def test_a_schema_agreed_earlier():
    first = federate({"a": plain(), "b": plain()})
    odd = plain(when=pl.Series([0] * 30, dtype=pl.Date), weight=np.linspace(1e6, 1e7, 30))
    fed = federate({"a": plain(), "b": odd}, schema=first.schema)
    assert fed.schema == first.schema
    assert fed.rows == {"a": 30, "b": 30}
    assert fed.differences.notes == []
    assert fed.agreement_rounds == 1


# -- between machines: sites that do not trust the coordinator


def remote(tables, proved=True):
    """Agrees as sites between machines do."""
    fed = federate(tables, signed=True, schema=sv.Schema.of(["age"]))
    for site in fed.local_sites.values():
        site.naming, site.schema = "proven", None
    if not proved:
        fed.before_sums = None
    return agree_on(fed, "label").schema


def test_machines_agree_on_the_same_schema_as_one_process():
    """A category that is rare at every site but common in all is named, because its counts are proven."""
    tables = {s: plain(ward=[s] * 6 + ["rare"] * 4 + ["a"] * 20) for s in ("one", "two", "three")}
    schema = remote(tables)
    assert schema == federate(tables).schema
    assert schema.features[1].categories == ("a", "rare")
    own = remote(tables, proved=False)  # where sites share no key
    assert own.features[1].categories == ("a",)
    assert own.features[1].other


def test_counts_that_are_not_proven_name_only_what_is_common_at_the_site():
    fed = federate({"a": plain(ward=["rare"] * 9 + ["a"] * 21), "b": plain()}, signed=True)
    fed.site("a").naming = "proven"
    with fed.working_on("names"):
        assert fed.ask(naming(fed, "ward", ["a", "rare"]))["a"].names == [["a"]]


def test_a_class_that_is_rare_at_one_site_is_counted_there():
    tables = {"a": plain(60, label=("no", "yes", "maybe")), "b": plain(label=["maybe"] * 3 + ["no"] * 27)}
    assert remote(tables).label.classes == ("maybe", "no", "yes")


@pytest.mark.parametrize("label", [["odd"] * 9 + ["no", "yes", "yes"] * 7, [f"rare {i}" for i in range(30)]])
def test_a_class_that_is_rare_at_every_site_must_be_in_the_schema(label):
    with pytest.raises(AgreementError, match=r"fewer than 10 rows there.*name all classes of the label in the study's"):
        remote({"a": plain(label=label), "b": plain(label=["no", "no", "yes"] * 10)})


def test_spellings_that_the_study_calls_one_class_are_counted_together():
    table = plain(label=["No"] * 14 + ["no"] * 2 + ["yes"] * 14)
    fed = federate({"a": table}, signed=True, kinds={"label": "folded"})
    fed.site("a").naming = "proven"
    told = fed.ask(Describe())["a"]
    assert (told.classes, told.unnamed) == (["No", "yes"], 0)


def test_numbers_are_classes_only_where_many_rows_share_one():
    grades = plain(200, label=tuple(range(30)))
    assert len(federate({"a": grades}).schema.label.classes) == 30
    with pytest.raises(RefusedError, match=r"more than 30 different numbers.*task='regression'"):
        federate({"a": plain(200, label=tuple(range(31)))})
    assert len(federate({"a": plain(60, label=tuple("abcdefghijklmnopqrst"))}).schema.label.classes) == 20
