"""Held-out rows: folds are disjoint and of equal size, and some training rows remain."""

import numpy as np
import polars as pl
import pytest

from silvan.data.batches import Whole
from silvan.data.holdout import Fold, hold_out


def held_out(labels, share, fold=None):
    frame = pl.DataFrame({"x": np.arange(len(labels)), "label": labels})
    return hold_out(Whole(frame), "label", share, 0, fold=fold).between(0, len(labels))


@pytest.mark.parametrize("labels", [list("ab") * 10, list("aaabbbcccddd") * 3, np.arange(31) + 0.5], ids=len)
def test_folds_are_disjoint_and_of_one_size(labels):
    folds = np.array([held_out(labels, 0.25, Fold(number, 4)) for number in range(4)])
    assert (folds.sum(axis=0) == 1).all()
    sizes = folds.sum(axis=1)
    assert sizes.max() - sizes.min() <= 1


@pytest.mark.parametrize("n", [1, 2, 5])
def test_training_rows_remain(n):
    assert not held_out(["a"] * n, 0.99).all()
