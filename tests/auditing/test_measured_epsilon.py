"""An empirical lower bound on epsilon: at most the claim, and above it where the accounting is wrong.

Thousands of samples per side; ``python -m experiments.privacy.epsilon`` takes the number as an option.
"""

from functools import cache
from unittest import mock

import numpy as np
import polars as pl
import pytest
from experiments.privacy.measured_epsilon import (
    Bound,
    audit_all,
    audit_counts,
    audit_rows,
    clopper_pearson,
    lower_bound,
)
from helpers.private_study import FAR, composed, hostile_schema, one_more, requests, rows_scored, schema
from helpers.studies import TASKS, table

from silvan.privacy.noise.laplace import Noise
from silvan.privacy.noise.noisy_request import Noisy

DRAWS = 10_000
FEW_DRAWS = 3_000
"""Enough to refute accounts that are wrong by much."""

EPSILON = 1.5
SURE = 1 - 1e-7
"""Noise comes from the operating system, so no seed keeps the tests from failing by chance; this does."""


@cache
def pairs(task):
    """Every request of every private forest, with its exact replies on a table and on one with a distant extra row."""
    frame = table(task, 120)
    far = one_more(frame, label=FAR[task])
    return list(zip(requests(task, frame, EPSILON), requests(task, far, EPSILON), strict=True))


AUDITED = {
    "binary": ("columns", "tables", "level", "scores", "people", "tally"),
    "several": ("scores", "tally"),
    "number": ("tables", "level", "targets", "slopes", "tally"),
}
"""What depends on the task, and all the rest once."""


@pytest.mark.parametrize("task", TASKS)
def test_no_request_reveals_more_than_it_claims(task):
    """And the attack finds a fair share of the claim."""
    for (name, request, without), (_, _, with_row) in pairs(task):
        if name in AUDITED[task]:
            found = audit_counts(request, schema(task), with_row, without, DRAWS, confidence=SURE)
            assert not found.refuted, (name, found)
            assert found.at_least > 0.1 * EPSILON, (name, found)


@pytest.mark.parametrize("task", TASKS)
def test_one_row_changes_replies_by_at_most_their_sensitivity(task):
    """A row at the end, or the first one, whose removal shifts all others."""
    frame = table(task, 120)
    fewer = zip(requests(task, frame[1:], EPSILON), requests(task, frame, EPSILON), strict=True)
    for (name, request, without), (_, _, with_row) in [*pairs(task), *fewer]:
        noises = request.noises(schema(task))
        change = np.abs(with_row - without).reshape(-1, len(noises)).sum(axis=0)
        assert (change <= [noise.sensitivity for noise in noises]).all(), name
        assert change.max() > 0, name


def of_persons(frame, visits):
    """People with several visits each; in the second table one more person has many, all far from the others."""
    who = pl.Series("person", [f"p{i // visits}" for i in range(len(frame))])
    frame = frame.with_columns(who)
    for _ in range(visits):
        frame = one_more(frame, label=FAR["binary"], person="another")
    return frame[:-visits], frame


def test_with_groups_no_request_reveals_more_about_a_person():
    """A person with six rows changes replies as one row does; where rows count instead, the claim is refuted."""
    without, with_one = of_persons(table(n=240), 6)
    for group, holds in (("person", True), (None, False)):
        more = {"group": group, "exclude": ("person",)}
        pair = zip(
            requests("binary", without, EPSILON, **more), requests("binary", with_one, EPSILON, **more), strict=True
        )
        for (name, request, before), (_, _, after) in pair:
            noises = request.noises(schema())
            change = np.abs(after - before).reshape(-1, len(noises)).sum(axis=0)
            assert (change <= [noise.sensitivity for noise in noises]).all() == holds, name
            if name in ("columns", "tables", "level", "people"):
                found = audit_counts(request, schema(), after, before, DRAWS, confidence=SURE)
                assert found.refuted != holds, (name, found)
                assert found.at_least > 0.1 * EPSILON, (name, found)


def test_all_requests_of_a_form_together():
    """All replies together reveal at most the sum of their claims."""
    asked, claimed = composed("tables", table(n=120), EPSILON)
    found = audit_all(asked, schema(), claimed, DRAWS, confidence=SURE)
    assert claimed == pytest.approx(EPSILON)
    assert not found.refuted, found
    assert found.at_least > 0.1 * EPSILON, found


@pytest.mark.parametrize(("sharers", "lost"), [(3, 0), (2, 1)])
def test_shares_make_the_sum_private(sharers, lost):
    """Only the total of three sites is used, or of two where the loss of one is tolerated."""
    frame = table(n=120)
    asked = requests("binary", frame, EPSILON, sharers)
    for (name, request, without), (_, _, with_row) in zip(
        asked, requests("binary", one_more(frame), EPSILON, sharers), strict=True
    ):
        found = audit_counts(request, schema(), with_row, without, DRAWS, 3 - lost, SURE)
        assert not found.refuted, (name, found)
        assert found.at_least > 0.1 * EPSILON, (name, found)


@pytest.mark.parametrize("form", ["tables", "levels"])
@pytest.mark.parametrize("task", ["binary", "number"])
def test_a_form_with_one_lost_and_one_curious_site(form, task):
    """Two shares are the whole noise and four sites add one: without a lost one and a known one, two remain."""
    asked, claimed = composed(form, table(task, 60), EPSILON, task, 2)
    found = audit_all(asked, schema(task), claimed, FEW_DRAWS, 2, SURE)
    assert not found.refuted, found


@pytest.mark.parametrize("form", ["tables", "levels", "input"])
@pytest.mark.parametrize("task", ["binary", "number"])
def test_a_coordinator_that_chooses_the_schema(form, task):
    """The worst that a site allows: bounds as close as possible, or classes that most rows lack."""
    known = hostile_schema(task)
    if form == "input":
        found = audit_rows(lambda row, draws: rows_scored(task, row, draws, 6.0, known), 6.0, FEW_DRAWS, SURE)
    else:
        asked, claimed = composed(form, table(task, 60), EPSILON, task, 1, known)
        found = audit_all(asked, known, claimed, FEW_DRAWS, 1, SURE)
    assert not found.refuted, found


def test_numbers_that_are_not_clipped_after_rounding_are_caught():
    """Bounds one float apart make a row count twice as much."""
    (_, request, total), *_ = [q for q in requests("number", table("number", 60), 3.0) if q[0] == "targets"]
    assert audit_counts(request, schema("number"), total + 254, total, FEW_DRAWS, confidence=SURE).refuted


def test_an_unplanned_loss_is_caught():
    """Of four sites' shares, three are the whole noise: without a lost one and a known one, two remain."""
    (_, request, n), *_ = [q for q in requests("binary", table(n=60), 1.0, 3) if q[0] == "people"]
    assert audit_counts(request, schema(), n + 1, n, DRAWS, 2, SURE).refuted


def test_too_few_shares_are_caught():
    """Of four shares, two are lost and none was allowed for: the sum is opened with half of its noise."""
    (_, request, without), *_ = [q for q in requests("binary", table(n=120), 3.0, 4) if q[0] == "people"]
    found = audit_counts(request, schema(), without + 1, without, DRAWS, 2, SURE)
    assert found.refuted


# -- deliberately wrong accounting


def parallel(self, sensitivity, share=1):
    """Noise as if the columns, tables, levels or trees that all see a row were queried in parallel."""
    return Noise(1, self.epsilon, self.sharers)


@pytest.mark.parametrize("name", ["columns", "tables", "level"])
def test_features_counted_as_parallel_are_caught(name):
    with mock.patch.object(Noisy, "noise", parallel):
        for (kind, request, without), (_, _, with_row) in pairs("binary"):
            if kind == name:
                found = audit_counts(request, schema(), with_row, without, FEW_DRAWS, confidence=SURE)
                assert found.refuted, found


def test_rounds_counted_as_parallel_are_caught():
    """Each request uses the whole epsilon, and all of them together claim it once."""
    asked = [(request, with_row, without) for (_, request, without), (_, _, with_row) in pairs("binary")]
    found = audit_all(asked, schema(), EPSILON, FEW_DRAWS, confidence=SURE)
    assert found.refuted, found


def test_sums_counted_as_rows_are_caught():
    with mock.patch.object(Noisy, "noise", lambda self, sensitivity, share=1: Noise(1, self.epsilon)):
        for (kind, request, without), (_, _, with_row) in pairs("number"):
            if kind in ("targets", "slopes"):
                found = audit_counts(request, schema("number"), with_row, without, FEW_DRAWS, confidence=SURE)
                assert found.refuted, found


def test_halved_noise_is_caught():
    whole = Noisy.noise
    with mock.patch.object(Noisy, "noise", lambda self, s, share=1: whole(self, s, 3 * share)):
        (_, request, without), *_ = [q for q in requests("binary", table(n=120), EPSILON) if q[0] == "people"]
        assert audit_counts(request, schema(), without + 1, without, FEW_DRAWS, confidence=SURE).refuted


# -- randomised rows


@pytest.mark.parametrize("task", TASKS)
def test_randomised_rows_reveal_no_more_than_they_claim(task):
    found = audit_rows(lambda row, draws: rows_scored(task, row, draws, 6.0), 6.0, DRAWS, SURE)
    assert not found.refuted, found
    assert found.at_least > 1.0, found


@pytest.mark.parametrize("task", ["binary", "number"])
def test_columns_randomised_in_parallel_are_caught(task):
    """Each column with the whole epsilon: the label alone would be fine, all together are not."""
    whole = 1.0
    found = audit_rows(lambda row, draws: rows_scored(task, row, draws, 6 * whole), whole, FEW_DRAWS, SURE)
    assert found.refuted, found


# -- the bound itself


def test_clopper_pearson():
    """Known values, and the ends."""
    low, high = clopper_pearson(7, 20)
    assert (low, high) == pytest.approx((0.15391, 0.59219), abs=1e-5)
    assert clopper_pearson(0, 50)[0] == 0.0
    assert clopper_pearson(50, 50)[1] == 1.0


def test_the_bound_has_its_nominal_coverage():
    """For a mechanism that is exactly epsilon-private, the bound exceeds epsilon in at most one of twenty runs."""
    rng = np.random.default_rng(0)
    alpha = np.exp(-1.0)

    def noisy(centre):
        return centre + rng.geometric(1 - alpha, 2000) - rng.geometric(1 - alpha, 2000)

    bounds = np.array([lower_bound(noisy(1), noisy(0)) for _ in range(100)])
    assert (bounds > 1.0).mean() <= 0.08  # 0.05, plus room for chance
    assert bounds.mean() > 0.7


def test_pure_noise_refutes_nothing():
    rng = np.random.default_rng(1)
    assert lower_bound(rng.normal(size=4000), rng.normal(size=4000)) < 0.2
    assert not Bound(1.0, 1.0).refuted
