"""How often a study is handed in again."""

import pytest

from silvan.deploy.supervise import MOST_TRIES, Attempts
from silvan.errors import FederationError


def test_a_study_that_gets_further_is_handed_in_at_once_and_for_ever():
    attempts = Attempts()
    assert [attempts.next(answers, "killed") for answers in range(1, 100)] == [0.0] * 99


def test_a_study_that_gets_no_further_waits_longer_each_time_and_ends():
    attempts = Attempts()
    attempts.next(5, "")
    waits = [attempts.next(5, "") for _ in range(MOST_TRIES - 1)]
    assert waits == sorted(waits)
    assert waits[0] == 2.0
    assert waits[-1] == 60.0
    with pytest.raises(FederationError, match=f"{MOST_TRIES} jobs ended without .* answer: site 'a' has left"):
        attempts.next(5, "site 'a' has left the job")


def test_one_new_answer_and_it_begins_anew():
    attempts = Attempts()
    for _ in range(MOST_TRIES - 1):
        attempts.next(0, "")
    assert attempts.next(1, "") == 0.0
    assert attempts.next(1, "") == 2.0
