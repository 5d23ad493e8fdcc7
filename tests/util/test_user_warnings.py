"""A warning names the user's line, not one of ours."""

import warnings

import numpy as np
import pytest

import silvan as sv
from silvan.util.user_warnings import warn_user


def test_a_users_warning():
    with pytest.warns(UserWarning, match="look out") as caught:
        warn_user("look out")
    assert caught[0].filename == __file__


@pytest.mark.parametrize("learner", [sv.AdaBoostPL(2), sv.MultBoost(2), sv.BOFRF(2)])
def test_a_warning_from_deep_inside(learner):
    """A constant column carries no information."""
    flat = np.ones((20, 1)), np.arange(20) % 2
    fed = sv.federate_rows({"a": flat, "b": flat})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        learner.fit(fed)
    assert {warning.filename for warning in caught} == {__file__}
