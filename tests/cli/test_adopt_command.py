"""``silvan adopt``: a site that joins after training."""

import polars as pl
import pytest
from helpers.runs import silvan

import silvan as sv


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path, table = tmp_path_factory.mktemp("adopt"), sv.datasets.heart_disease()
    fed = sv.federate_rows(table.filter(hospital="Cleveland"), site="hospital", label="disease")
    sv.HistogramForest(n_estimators=15, max_depth=4).fit(fed).save(path / "shared.silvan")
    table.filter(hospital="Hungarian").drop("hospital").write_csv(path / "ours.csv")
    return path


def test_it_says_whether_the_adopted_forest_helps_and_writes_it(folder):
    out = folder / "adopted.silvan"
    shown = silvan("adopt", folder / "shared.silvan", folder / "ours.csv", "--trees", "15", "-o", out).stdout
    assert "ours uses" in shown
    for name in ("local forest", "shared forest as it is", "adopted forest", "Adopted against local"):
        assert name in shown
    table = pl.read_csv(folder / "ours.csv")
    adopted, shared = sv.Forest.load(out), sv.Forest.load(folder / "shared.silvan")
    assert adopted.predict_proba(table).shape == (len(table), 2)
    assert adopted.hash != shared.hash  # its curve is the site's


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (lambda t: t.drop("disease"), "disease"),
        (lambda t: t.select("disease", other=pl.col("age")), "age"),
        (lambda t: t[:0], "rows"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(folder, tmp_path, table, said):
    table(pl.read_csv(folder / "ours.csv")).write_csv(tmp_path / "bad.csv")
    result = silvan("adopt", folder / "shared.silvan", tmp_path / "bad.csv", ok=False)
    assert result.exit_code == 1
    assert said in result.stderr
    assert "Traceback" not in result.stderr
