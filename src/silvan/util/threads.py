"""Run independent work on threads: compiled kernels release the interpreter lock, so plain threads suffice."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from numbers import Integral
from threading import Thread
from typing import Any, TypeVar

from silvan.errors import InputError

T = TypeVar("T")
R = TypeVar("R")


def thread_count(n_jobs: int | None) -> int:
    """Return the number of threads for ``n_jobs``, as in scikit-learn, but None means all cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if n_jobs is None:
        return cores
    if not isinstance(n_jobs, Integral) or n_jobs == 0:
        raise InputError.wrong("n_jobs", "a whole number but 0, -1 for all cores, or None", n_jobs)
    return int(n_jobs) if n_jobs > 0 else max(1, cores + 1 + int(n_jobs))


def thread_map(work: Callable[[T], R], items: Iterable[T], n_jobs: int) -> list[R]:
    """Call ``work`` for every item on up to ``n_jobs`` threads; return the results in the order of the items.

    This thread is one of them: a pool with a future for every item takes several times as long to set up. Raise the
    error of the first item that fails.
    """
    items = list(items)
    if n_jobs == 1 or len(items) <= 1:
        return [work(item) for item in items]
    results: list[Any] = [None] * len(items)
    left, failed = deque(range(len(items))), dict[int, BaseException]()

    def run() -> None:
        while left:
            try:
                item = left.popleft()
            except IndexError:  # another thread was faster
                return
            try:
                results[item] = work(items[item])
            except BaseException as error:
                failed[item] = error
                left.clear()

    threads = [Thread(target=run) for _ in range(min(n_jobs, len(items)) - 1)]
    try:
        for thread in threads:
            thread.start()
        run()
    finally:
        left.clear()  # an interruption may come at any time
        for thread in threads:
            if thread.ident is not None:
                thread.join()
    if failed:
        raise failed[min(failed)]
    return results


@contextmanager
def algebra_threads(n_jobs: int | None) -> Iterator[None]:
    """Limit the threads of the library behind NumPy's linear algebra, which otherwise uses all cores."""
    with _libraries().limit(limits=thread_count(n_jobs), user_api="blas"):
        yield


@cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]  # comes with scikit-learn

    return ThreadpoolController()
