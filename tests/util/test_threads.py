"""Work on threads: in order, each item once, and the first error."""

import threading
import time

import pytest

from silvan.util.threads import thread_map


@pytest.mark.parametrize("n_jobs", [1, 2, 5])
def test_every_item_once_and_in_order(n_jobs):
    seen: list[int] = []

    def work(item):
        seen.append(item)
        return 2 * item

    assert thread_map(work, iter(range(40)), n_jobs) == list(range(0, 80, 2))
    assert sorted(seen) == list(range(40))
    assert thread_map(work, [], n_jobs) == []


def test_the_calling_thread_works_too():
    meeting = threading.Barrier(3)  # passed only if three are at work at once

    def work(_):
        meeting.wait(10)
        return threading.current_thread()

    at_work = thread_map(work, range(3), 3)
    assert len(set(at_work)) == 3
    assert threading.current_thread() in at_work


@pytest.mark.parametrize("n_jobs", [1, 2, 4])
def test_the_first_error_is_raised_and_no_thread_remains(n_jobs):
    before = set(threading.enumerate())

    def work(item):
        if item in (1, 2):
            time.sleep(0.02 * (3 - item))  # the second to fail is the first to be raised
            raise ValueError(item)

    with pytest.raises(ValueError, match="1"):
        thread_map(work, range(9), n_jobs)
    assert not set(threading.enumerate()) - before  # threads of other tests may end meanwhile


def test_work_within_work():
    assert thread_map(lambda k: thread_map(lambda j: 10 * k + j, range(3), 2), range(3), 2) == [
        [0, 1, 2],
        [10, 11, 12],
        [20, 21, 22],
    ]


def test_an_interruption_ends_the_work():
    def work(item):
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        time.sleep(0.001)

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        thread_map(work, range(10_000), 2)
    assert not set(threading.enumerate()) - before  # threads of other tests may end meanwhile
