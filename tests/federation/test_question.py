"""When a site is given up, and what does not count."""

from silvan.federation.outgoing import Tries, UnreachedError, WaitingError


def over(tries, error, seconds):
    return tries.give_up("north", "Describe", error, seconds)


def test_waiting_for_an_owner_does_not_count_against_the_timeout():
    tries = Tries(timeout=60)
    assert not any(over(tries, WaitingError("not approved yet"), day * 86400.0) for day in range(30))
    begun = 29 * 86400.0
    assert not over(tries, UnreachedError("it has not answered yet"), begun + 59)
    assert "within 60 s" in str(over(tries, UnreachedError("it has not answered yet"), begun + 60))


def test_waiting_for_an_owner_has_its_own_limit():
    tries = Tries(timeout=None, patience=2 * 86400.0)
    assert not over(tries, WaitingError("its owner has not approved the study yet"), 86400.0)
    error = over(tries, WaitingError("its owner has not approved the study yet"), 2 * 86400.0)
    assert "its owner has not approved the study yet, after 2 days" in str(error)


def test_silence_counts_from_the_beginning():
    assert over(Tries(timeout=60), UnreachedError("it cannot be reached"), 60)
