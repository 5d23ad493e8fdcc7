"""Rows of a site that lie encoded on the workers of a Dask cluster: what the site's own process is told of them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from silvan.data.dask_cluster import Cluster
from silvan.errors import InputError, RefusedError
from silvan.federation.part import Part, row_keys
from silvan.federation.partition_worker import (
    Marked,
    add_up,
    answer_question,
    labels_of,
    rows_of,
    score_rows,
    some_columns,
    some_rows,
)
from silvan.forest.forest import Forest

IN_PARTITIONS = (
    "the site's rows are partitions on a Dask cluster: they learn by HistogramForest (bins='shared', no epsilon) and "
    "judge models; everything else needs all rows in one place"
)
_TOGETHER = 8
"""Answers that one worker adds up."""


class Spread:
    """All partitions of a site, encoded: what stands for each on the cluster, and what each is called.

    ``sizes`` are their rows: to learn from, and to judge by.
    """

    def __init__(self, cluster: Cluster, futures: list[Any], names: list[str], sizes: np.ndarray) -> None:
        self.cluster, self.futures, self.names, self.sizes = cluster, futures, names, sizes
        self.n_jobs = max(1, cluster.threads // len(futures))
        self._marks: dict[int, int] = {}

    def total(self, handler: Callable[[Any, Any], Any], asked: bytes) -> dict[str, np.ndarray]:
        """Ask every partition a question, and add up."""
        message = self.cluster.send(asked)
        answers = [self.cluster.submit(answer_question, rows, handler, message) for rows in self.futures]
        while len(answers) > _TOGETHER:
            groups = [answers[i : i + _TOGETHER] for i in range(0, len(answers), _TOGETHER)]
            answers = [self.cluster.submit(add_up, group) for group in groups]
        total: dict[str, np.ndarray] = self.same_rows(add_up(self.cluster.collect(answers)))
        return total

    def each(
        self, function: Callable[..., Marked], *given: Any, among: Sequence[Sequence[Any]] | None = None
    ) -> Iterator[Any]:
        """Yield what a function of its rows returns of every partition; ``among`` has what else each is given."""
        more = [()] * len(self.futures) if among is None else among
        asked = ((rows, *given, *own) for rows, own in zip(self.futures, more, strict=True))
        for answer in self.cluster.in_turn(function, asked):
            yield self.same_rows(answer)

    def same_rows(self, answer: Marked) -> Any:
        """Return an answer; raise ``InputError`` if it is of other rows than answers before it."""
        marks, value = answer
        for place, mark in marks.items():
            if self._marks.setdefault(place, mark) != mark:
                raise InputError(
                    f"{self.names[place]} was worked out again, since a worker was lost, and came out with other rows; "
                    "write the table to Parquet files, and use these"
                )
        return value


class SpreadPart(Part):
    """Rows on a cluster: to learn from, or to judge by. Whoever asks for all of their features at once is refused."""

    def __init__(self, site: str, spread: Spread, test: bool) -> None:
        for name, value in {"site": site, "spread": spread, "test": test}.items():
            object.__setattr__(self, name, value)

    site: str
    spread: Spread
    test: bool

    @property
    def X(self) -> np.ndarray:  # noqa: N802
        """All features: refused."""
        raise RefusedError(IN_PARTITIONS)

    @property
    def y(self) -> np.ndarray:
        """All labels."""
        return np.concatenate(list(self.spread.each(labels_of, self.test)))

    @property
    def row_keys(self) -> np.ndarray:
        """All keys."""
        return row_keys(self.site, len(self))

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each partition."""
        sizes: np.ndarray = self.spread.sizes[:, int(self.test)]
        return sizes

    def __len__(self) -> int:
        return int(self.sizes.sum())

    def pieces(self) -> Iterator[Part]:
        """Yield the rows of each partition, which come to the site's own process for it."""
        first = 0
        for X, y in self.spread.each(rows_of, self.test):
            yield Part(X, y, row_keys(self.site, len(X), first))
            first += len(X)

    def answers(self, forest: Forest, absent: np.ndarray, n_jobs: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Score all rows, where they lie."""
        model = self.spread.cluster.send(forest.to_bytes())
        scored = self.spread.each(score_rows, self.test, model, absent, self.spread.n_jobs)
        scores, decided = (np.concatenate(column) for column in zip(*scored, strict=True))
        return scores, decided

    def take(self, places: np.ndarray) -> np.ndarray:
        """Return the features of some rows, ascending."""
        ends = np.cumsum(self.sizes)
        bounds = np.searchsorted(places, [0, *ends])
        here = [(places[a:b] - (end - n),) for a, b, end, n in zip(bounds, bounds[1:], ends, self.sizes, strict=False)]
        return np.concatenate(list(self.spread.each(some_rows, self.test, among=here)))

    def columns(self, columns: Sequence[int]) -> np.ndarray:
        """Return some features of all rows."""
        return np.concatenate(list(self.spread.each(some_columns, self.test, list(columns))))
