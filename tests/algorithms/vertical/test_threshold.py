"""Thresholds of vertical forests: every prediction uses them, also at the label holder."""

from unittest import mock

import numpy as np
import polars as pl
import pytest
from helpers.column_studies import federate, split, wide

import silvan as sv
from silvan.algorithms.vertical import encrypted_labels
from silvan.errors import InputError

AT = 0.2


def made(**settings):
    fed = federate(split(wide(n=90), 2), test=0.25)
    return fed, sv.VerticalForest(3, max_depth=3, threshold=AT, **settings)


@pytest.mark.parametrize("labels", ["encoded", "encrypted"])
def test_predictions_at_the_label_holder_use_the_threshold(tmp_path, labels):
    """Also where only the label holder knows the leaf values."""
    encrypted = {}
    if labels == "encrypted":
        pytest.importorskip("gmpy2", reason="gmpy2 is not installed: pip install 'silvan[vertical]'")
        encrypted = {"labels": labels, "key_bits": 256}
    with mock.patch.object(encrypted_labels, "TESTING", True):
        fed, model = made(**encrypted)
        model.fit(fed)
    fed.party(fed.label_holder).predictions = tmp_path / "predictions.csv"
    model.send_predictions(fed, fed.columns.common)
    found = pl.read_csv(tmp_path / "predictions.csv")
    wanted = np.where(found["probability_yes"].to_numpy() >= AT, "yes", "no")
    assert found["prediction"].to_list() == wanted.tolist()
    plain = found["probability_yes"].to_numpy() >= 0.5
    assert (plain != (wanted == "yes")).any()  # it makes a difference


def test_parties_accept_no_threshold_rule():
    fed, model = made()
    with pytest.raises(InputError, match="give a number between 0 and 1"):
        model.set_params(threshold="youden").fit(fed)
