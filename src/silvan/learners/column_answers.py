"""What learners of columns ask of parties, and predictions for the rows of a federation, as frames of ids."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from silvan.algorithms.baselines.in_one_place import id_column, list_rows
from silvan.algorithms.vertical.columns import columns_of
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.privacy.gate.announce import Questions
from silvan.privacy.identity import all_digests, find_digests

if TYPE_CHECKING:
    import polars as pl


def asked_of_parties(
    learner: BaseEstimator, kinds: tuple[type[Request], ...], tasks: int = 1, min_leaf: int | None = None
) -> Questions:
    """Return what a learner is about to ask of parties, for an announcement."""
    settings = repr([type(learner).__name__, sorted(learner.get_params(deep=False).items(), key=str)])
    return Questions(kinds, min_leaf=min_leaf, settings=settings, tasks=tasks)


class ScoredRows(NamedTuple):
    """Rows by id, in the order of the first party's table, and their scores."""

    frame: "pl.DataFrame"
    scores: np.ndarray
    lacking: dict[str, int]  # rows that a party lacks

    def with_answers(self, answers: dict[str, Any]) -> "pl.DataFrame":
        """Return the data frame with columns of answers after the ids."""
        import polars as pl

        clash = [name for name in answers if name in self.frame.columns]
        if clash:
            raise InputError(f"the id column is called {clash[0]!r}, like an answer; rename it")
        return pl.concat([self.frame[:, :1], pl.DataFrame(answers), self.frame[:, 1:]], how="horizontal")


def score_by_id(
    federation: Federation, score: Callable[[np.ndarray], np.ndarray], incomplete: bool = False
) -> ScoredRows:
    """Score the rows in common, or all rows that any party has, by their digests."""
    import polars as pl

    columns = columns_of(federation)
    digests, lacking, counts = columns.common, {}, {}
    if incomplete:
        if columns.known is None:
            raise InputError("incomplete=True needs match='keyed': with 'psi' nobody knows the rows not in common")
        digests = all_digests(columns.known)
        absent = {party: find_digests(known, digests) < 0 for party, known in columns.known.items()}
        counts = {party: int(rows.sum()) for party, rows in absent.items()}
        lacking = {"lacking": [", ".join(p for p, rows in absent.items() if rows[i]) for i in range(len(digests))]}
    scores = score(digests)
    if not federation.local_sites:
        named = {"row": [row.tobytes().hex() for row in digests.astype(">u8")]}
        return ScoredRows(pl.DataFrame({**named, **lacking}), scores, counts)
    order, ids = list_rows(federation, digests)
    frame = pl.DataFrame({id_column(federation): ids, **{k: [v[i] for i in order] for k, v in lacking.items()}})
    return ScoredRows(frame, scores[order], counts)
