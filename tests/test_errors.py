"""Errors carry their data, so that no program parses their texts."""

import polars as pl
import pytest

import silvan as sv
from silvan.errors import InputError, SchemaError, SiteError

TABLE = pl.DataFrame({"age": [30, 40, 50, 60] * 5, "label": [0, 1, 0, 1] * 5})


def fit(**settings):
    sv.HistogramForest(**settings).fit(sv.federate_rows({"a": TABLE, "b": TABLE}))


@pytest.mark.parametrize(
    ("make", "parameter", "given"),
    [
        (lambda: fit(max_depth=5000), "max_depth", 5000),
        (lambda: fit(criterion="worst"), "criterion", "worst"),
        (lambda: fit(n_estimators=0), "n_estimators", 0),
        (lambda: fit(bins="odd"), "bins", "odd"),
        (lambda: fit(epsilon=-1), "epsilon", -1),
        (lambda: sv.Policy(min_leaf=0), "min_leaf", 0),
        (lambda: sv.Table("x.csv", decimal="!"), "decimal", "!"),
        (lambda: sv.federate_rows({"a": TABLE}, test=2), "test", 2),
        (lambda: sv.federate_rows({"a": TABLE}, exclude=["weight"]), "exclude", None),
        (lambda: sv.federate_rows({"a": TABLE}, exclude=["label"]), "exclude", None),
        (lambda: sv.federate_columns({"a": TABLE, "b": TABLE}, id="age", label="x", exclude=["x"]), "exclude", None),
        (lambda: sv.federate_rows({"a": TABLE}, kinds={"age": "odd"}), "kinds", None),
    ],
)
def test_input_errors_name_the_parameter(make, parameter, given):
    with pytest.raises(InputError) as caught:
        make()
    assert (caught.value.parameter, caught.value.given) == (parameter, given)
    assert parameter in str(caught.value)


def test_error_texts_use_the_attributes():
    error = SchemaError.wrong("max_depth", expected="at most 8", given="9")
    assert isinstance(error, SchemaError)
    assert str(error) == "max_depth must be at most 8, got '9'"
    assert (error.parameter, error.expected, error.given) == ("max_depth", "at most 8", "9")
    assert str(InputError.about("by", "is for rows")) == "by is for rows"
    assert InputError("something else").parameter is None


def test_site_errors_keep_the_sites_report_separate():
    error = SiteError("north", "Describe: the table does not fit", code="schema", owner_hint="where")
    assert str(error) == "site 'north': Describe: the table does not fit; its owner sees where"
    assert (error.site, error.text, error.code) == ("north", "Describe: the table does not fit", "schema")


def test_a_refusal_names_the_site_and_its_reason():
    with pytest.raises(sv.RefusedError) as caught:
        sv.federate_rows({"a": TABLE}, policy=sv.Policy(messages=["CountRows"]))
    assert (caught.value.site, caught.value.reason) == ("a", "the site's policy does not allow Describe")
