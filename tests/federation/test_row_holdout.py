"""Held-out rows chosen independently of each other: noisy replies depend on it."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
from helpers.private_study import federate, one_more, schema
from helpers.studies import table

import silvan as sv
from silvan.data.holdout import Fold
from silvan.errors import InputError, RefusedError
from silvan.federation import row_holdout
from silvan.federation.handlers import HANDLERS
from silvan.federation.site import Site

KEY = b"a key of sixteen"


def rows_of(frame, test=False, **settings):
    """The rows of one part, with multiplicity."""
    return both_parts(frame, **settings)[test]


def both_parts(frame, **settings):
    """The training rows and the test rows, with multiplicity."""
    given = {"test": 0.3, "test_key": KEY, "schema": schema(), **settings}
    site = Site("a", frame, **given)
    parts = [site.part(schema(), test, strict=False) for test in (False, True)]
    return [Counter((x.tobytes(), int(y)) for x, y in zip(part.X, part.y, strict=True)) for part in parts]


def difference(a, b):
    return sum(((a - b) + (b - a)).values())


def plenty(n=60):
    """A table in which most rows occur several times."""
    some = table(n=12)
    return pl.concat([some] * 4 + [table(n=n - 48, seed=3)]).sample(fraction=1.0, shuffle=True, seed=5)


@pytest.mark.parametrize("memory", [None, 1 << 20])
@pytest.mark.parametrize("fold", [None, Fold(1, 3), Fold(0, 3, 2)])
def test_removing_a_row_moves_no_other(memory, fold):
    frame, settings = plenty(), {"memory": memory, "fold": fold}
    learnt, judged = both_parts(frame, **settings)
    assert len(learnt) > 5
    assert len(judged) > 5
    for row in range(len(frame)):
        fewer = pl.concat([frame[:row], frame[row + 1 :]])
        parts = both_parts(fewer, **settings)
        assert difference(learnt, parts[0]) + difference(judged, parts[1]) == 1


def test_nor_does_removing_an_odd_row(tmp_path):
    """A text in a numeric column, a label outside the classes, an unknown category."""
    frame = table(n=40).cast(dict.fromkeys(("age", "dose", "noise"), pl.String))
    for i, values in enumerate(({"age": "unknown"}, {"label": "perhaps"}, {"ward": "zz", "noise": ""})):
        odd = pl.DataFrame({name: ["1"] for name in ("age", "dose", "noise")} | {"sex": ["f"], "ward": ["a"]})
        odd = odd.with_columns(label=pl.lit("no")).with_columns(**{k: pl.lit(v) for k, v in values.items()})
        paths = [tmp_path / f"{i} {name}.csv" for name in ("with", "without")]
        pl.concat([odd.select(frame.columns), frame]).write_csv(paths[0])
        frame.write_csv(paths[1])
        assert sum(difference(*(rows_of(str(path), test) for path in paths)) for test in (False, True)) == 1


def test_stratified_by_class_removing_a_row_moves_others():
    """Why there are two ways: the other one is not suitable for noisy replies."""
    frame = plenty()
    learnt = rows_of(frame, test_key=None)
    assert max(difference(learnt, rows_of(frame[i + 1 :].vstack(frame[:i]), test_key=None)) for i in range(5)) > 1


def test_the_share_and_folds(monkeypatch):
    frame = plenty(3000)
    assert sum(rows_of(frame, True).values()) == pytest.approx(900, abs=80)
    folds = [rows_of(frame, True, fold=Fold(i, 4)) for i in range(4)]
    assert sum(folds, Counter()) == rows_of(frame, test=True, fold=Fold(0, 1))
    assert all(sum(fold.values()) == pytest.approx(750, abs=80) for fold in folds)
    assert rows_of(frame, True, test_key=b"another") != rows_of(frame, True) != rows_of(frame, True, split_seed=1)
    judged = rows_of(frame, True)
    monkeypatch.setattr(row_holdout, "_SORTED", 100)  # sorted in thirty groups
    assert rows_of(frame, True) == rows_of(frame, True, memory=1 << 20) == judged


def test_equal_rows_are_sampled_independently():
    """Otherwise a table with few distinct rows would be held out in lumps."""
    frame = pl.concat([table(n=1)] * 1000)
    assert sum(rows_of(frame, True).values()) == pytest.approx(300, abs=60)


@pytest.mark.parametrize("private", [{"policy": sv.Policy(epsilon=1.0)}, {"test_by": "row"}, {"budgets": True}])
def test_federations_with_budgets_sample_independently(private, tmp_path):
    private = {**private, "budgets": tmp_path} if "budgets" in private else private
    frame = table(n=240)
    parts = []
    for rows in (frame, one_more(frame)):
        fed = federate(frame=rows, n_sites=1, test=0.25, **private)
        site = fed.site("site 0")
        parts.append([{x.tobytes() for x in site.part(schema(), test).X} for test in (False, True)])
    assert sum(len(a ^ b) for a, b in zip(*parts, strict=True)) == 1
    assert 30 < len(parts[0][1]) < 90


def test_noise_is_refused_with_stratified_test_rows():
    fed = federate(n=300, test=0.25, policy=sv.Policy(epsilon=5.0), test_by="class")
    with pytest.raises(RefusedError, match="before anything was asked: the site keeps test rows that were sampled"):
        sv.HistogramForest(epsilon=1.0).fit(fed)
    assert all(site.outbox.budget.spent == 0.0 for site in fed.local_sites.values())
    fed = federate(n=300, policy=sv.Policy(epsilon=5.0), test_by="class")  # there are none
    assert sv.HistogramForest(epsilon=1.0).fit(fed).forest_ is not None


def test_without_a_budget_it_is_a_warning():
    fed = federate(n=300, test=0.25)
    with pytest.warns(UserWarning, match="so that one more row moves others"):
        sv.HistogramForest(epsilon=1.0).fit(fed)


def test_sampling_rows_needs_a_schema():
    with pytest.raises(InputError, match="test_by='row' needs a schema"):
        sv.federate_rows({"a": table(n=40)}, test_by="row")
    with pytest.raises(InputError, match="test_by must be"):
        sv.federate_rows({"a": table(n=40)}, test_by="site")
    plain = sv.federate_rows({"a": table(n=40)}, test=0.5, n_jobs=1).site("a")
    budgeted = sv.federate_rows(
        {"a": table(n=40)}, test=0.5, n_jobs=1, policy=sv.Policy(epsilon=1.0, messages=tuple(HANDLERS))
    )
    assert np.array_equal(plain.held_out.bits, budgeted.site("a").held_out.bits)  # no noise is requested there
