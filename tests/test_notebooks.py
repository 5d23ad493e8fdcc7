"""What people see in a notebook, and what scikit-learn's tools need of fitted learners."""

from html.parser import HTMLParser

import numpy as np
import polars as pl
import pytest
from sklearn.base import is_classifier, is_regressor
from sklearn.calibration import CalibratedClassifierCV
from sklearn.frozen import FrozenEstimator
from sklearn.inspection import partial_dependence, permutation_importance
from sklearn.utils.validation import check_is_fitted

import silvan as sv

MARKUP = "<b>a & b</b>"


def rows(n=240, seed=0, numbers=False):
    rng = np.random.default_rng(seed)
    frame = pl.DataFrame({MARKUP: rng.normal(size=n), "dose": rng.normal(size=n), "ward": rng.choice(["x", "y"], n)})
    score = frame[MARKUP] + (frame["ward"] == "y") + rng.normal(scale=0.3, size=n)
    return frame.with_columns(label=score if numbers else pl.Series(["no", "yes"]).gather((score > 0.5).cast(pl.Int64)))


def federation(numbers=False, **options):
    frame = rows(numbers=numbers)
    tables = {MARKUP: frame[:90], "east": frame[90:160], "south": frame[160:]}
    return sv.federate_rows(tables, label="label", test=0.3, **options)


@pytest.fixture(scope="module")
def fitted():
    fed = federation()
    return fed, sv.HistogramForest(n_estimators=10, max_depth=4).fit(fed)


class Tags(HTMLParser):
    """Checks that tags are closed as they were opened, and keeps the text."""

    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags = [], [], []

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def read(html):
    parser = Tags()
    parser.feed(html)
    assert not parser.open
    assert "b" not in parser.tags  # markup in names is shown, not interpreted
    return parser.text


def test_summaries_escape_names(fitted):
    fed, model = fitted
    for thing in (fed, fed.schema, model.forest_, model.evaluate(fed), sv.advise(fed)):
        text = read(thing._repr_html_())
        assert any(MARKUP in part for part in text)
    assert "three sites" in repr(fed)
    assert "240" not in str(read(fed._repr_html_()))  # rows by site, of the training set
    compared = sv.compare(fed, [sv.MergedForest(n_estimators=8, max_depth=2)], repeats=1)
    assert "site" in read(compared._repr_html_())


def test_a_table_in_place_of_the_federation(fitted):
    _, model = fitted
    with pytest.raises(sv.InputError, match=r"got DataFrame; for a table, use evaluate\(federation, table\)"):
        model.evaluate(pl.DataFrame({"age": [1.0]}))


def test_displaying_a_federation_sends_no_messages():
    fed = federation()
    before = fed.exchanges, fed.bytes
    read(fed._repr_html_())
    assert (fed.exchanges, fed.bytes) == before


@pytest.mark.parametrize("width", [60, 80, 200])
def test_an_evaluation_prints_all_columns(fitted, monkeypatch, width):
    monkeypatch.setenv("COLUMNS", str(width))
    fed, model = fitted
    frame = model.evaluate(fed)
    assert isinstance(frame, pl.DataFrame)
    text = str(frame)
    assert "…" not in text
    heads = [line.split() for line in text.split("\n") if line.startswith("site")]
    shown = [name for head in heads for name in head]
    assert set(shown) == {name for name in frame.columns if name != "note" or any(frame["note"].to_list())}
    assert max(map(len, text.split("\n"))) <= width
    assert len([line for line in text.split("\n") if line.startswith("all")]) == len(heads) * len(
        frame.filter(site="all")
    )


def test_learners_are_estimators(fitted):
    _, model = fitted
    frame = rows(seed=1)
    X, y = frame.drop("label").to_pandas(), frame["label"].to_numpy()
    check_is_fitted(model)
    assert is_classifier(model)
    assert not is_regressor(model)
    assert model.classes_.tolist() == ["no", "yes"]
    assert model.n_features_in_ == 3
    assert model.feature_names_in_.tolist() == [MARKUP, "dose", "ward"]
    assert model.feature_importances_.sum() == pytest.approx(1)
    assert model.score(X, y) == (model.predict(X) == y).mean() > 0.8
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))
    drops = permutation_importance(model, X, y, n_repeats=2, random_state=0).importances_mean
    assert drops.argmax() == 0
    curve = partial_dependence(model, X, [MARKUP], grid_resolution=5)["average"]
    assert curve[0, -1] > curve[0, 0]
    calibrated = CalibratedClassifierCV(FrozenEstimator(model), cv=2).fit(X, y)
    assert calibrated.predict_proba(X).shape == (len(X), 2)


def test_learners_of_numbers_are_estimators(tmp_path):
    fed = federation(numbers=True)
    model = sv.MergedForest(n_estimators=9, max_depth=4).fit(fed)
    frame = rows(seed=1, numbers=True)
    X, y = frame.drop("label").to_pandas(), frame["label"].to_numpy()
    assert is_regressor(model)
    assert not hasattr(model, "classes_")
    assert not hasattr(model, "feature_importances_")
    assert model.score(X, y) > 0.5
    model.save(tmp_path / "model.silvan")
    assert sv.Forest.load(tmp_path / "model.silvan") == model.forest_
    assert partial_dependence(model, X, [MARKUP], grid_resolution=4)["average"].shape == (1, 4)


def test_before_fit_there_are_no_results():
    for learner in (sv.HistogramForest(), sv.BOFRF(), sv.VerticalForest(), sv.VerticalLinear()):
        for name in ("classes_", "n_features_in_", "feature_names_in_", "feature_importances_"):
            assert not hasattr(learner, name)
        assert not is_classifier(learner)


def test_columns_between_parties():
    frame = rows().with_row_index("id")
    tables = {"bank": frame.select("id", MARKUP, "label"), "shop": frame.select("id", "dose", "ward")}
    fed = sv.federate_columns(tables, label="label", id="id", test=0.2)
    model = sv.VerticalForest(n_estimators=6, max_depth=3).fit(fed)
    assert model.classes_.tolist() == ["no", "yes"]
    assert is_classifier(model)
    assert model.feature_importances_.shape == (3,)
    assert model.score(frame.drop("id", "label"), frame["label"]) > 0.7
    read(fed._repr_html_())


def test_a_schema_with_another_label_is_reported_at_once():
    schema = sv.Schema.of([MARKUP, "dose"], sv.Label("ill", ("no", "yes")))
    with pytest.raises(sv.InputError, match="the schema's label is 'ill' and label is 'label'"):
        sv.federate_rows({"a": rows()[:100], "b": rows()[100:]}, schema=schema)
