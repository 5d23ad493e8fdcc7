"""Vertical forests as a learner: trees on columns that stay with their parties."""

from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluation import answer_of
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.coordinator import VerticalCoordinator
from silvan.algorithms.vertical.encoded import EncodedCoordinator
from silvan.algorithms.vertical.encrypted import EncryptedCoordinator
from silvan.algorithms.vertical.kept_shares import restore_shares
from silvan.algorithms.vertical.party_shares import (
    ReachLeaves,
    ShowShare,
    find_leaves,
    share_key,
    share_of,
    show_shares,
)
from silvan.algorithms.vertical.scores_of_rows import RowLeaves, RowScores, scores_of_leaves
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.arrays import Combine
from silvan.forest.forest import Forest
from silvan.forest.forest_shares import Share, Structure, put_together
from silvan.forest.model_in_shares import ModelInShares
from silvan.learners.base import Learner
from silvan.learners.in_shares import InShares
from silvan.learners.registry import VerticalForestParameters
from silvan.learners.result import Result, SharedModel
from silvan.privacy.announce import RequestPlan
from silvan.tree.fit import Settings


class VerticalForest(VerticalForestParameters, InShares, Learner):
    """A forest on columns that stay with their parties, identical to the forest of the joined table.

    A level of all trees takes two rounds of messages, so ``max_depth`` is limited by default.

    Attributes
    ----------
    forest_
        The whole forest, a ``Forest``: in one process, or with ``auditor``; otherwise an ``InputError``.
    forests_
        The same forest for each party, by party, if ``forest_`` is known.
    structure_
        The coordinator's part: which party splits which node, and the leaf values unless they are secret.
    shares_
        The splits of each party, where known here.
    lacking_
        Number of rows missing at each party in the last prediction with ``incomplete=True``.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> from sklearn.datasets import load_iris
    >>> X, y = load_iris(return_X_y=True)
    >>> flower = pl.Series("flower", range(150))
    >>> north = pl.DataFrame(X[:, :2], schema=["a", "b"]).with_columns(flower, label=y)
    >>> south = pl.DataFrame(X[:, 2:], schema=["c", "d"]).with_columns(flower)
    >>> fed = sv.federate_columns({"north": north, "south": south}, label="label", id="flower")
    >>> model = sv.VerticalForest(n_estimators=20, max_depth=4).fit(fed)
    >>> model.rounds_ <= 2 * 4 + 3
    True
    >>> model.forest_ == sv.PooledForest(n_estimators=20, max_depth=4).fit(fed).forest_
    True
    >>> model.predict(fed).columns
    ['flower', 'prediction']
    """

    file: ClassVar[str] = "structure.silvan"
    model_type: ClassVar[type[Structure]] = Structure
    share_type: ClassVar[type[Share]] = Share
    scored_by: ClassVar[type[Request]] = ReachLeaves

    @property
    def structure_(self) -> Structure:
        """The coordinator's part of the model."""
        structure: Structure = self.kept
        return structure

    @property
    def expected_rounds(self) -> int | None:
        """The maximum number of training rounds, if known in advance."""
        each = 3 if self.labels == "encrypted" else 2
        return None if self.max_depth is None else each * int(self.max_depth) + 2 + self.auditor

    def asks(self, schema: Schema | None = None) -> tuple[type[Request], ...]:
        """Return the requests that fitting may make."""
        kinds = (EncryptedCoordinator if self.labels == "encrypted" else EncodedCoordinator).asks
        return (*kinds, ShowShare) if self.auditor else kinds

    def request_plan(self, federation: Federation) -> RequestPlan:
        """Return the requests of fitting, known before the agreement."""
        return self.asked(self.asks(), min_leaf=self.min_samples_leaf)

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        columns = columns_of(federation)
        coordinator: VerticalCoordinator
        if self.labels == "encoded":
            coordinator = EncodedCoordinator(federation, columns, columns.schema, settings)
        else:
            coordinator = EncryptedCoordinator(federation, columns, columns.schema, settings, self.key_bits)
        structure = coordinator.grow(feature_key)
        shares = show_shares(federation, structure) if self.auditor else {}
        if federation.local_sites:
            shares = {name: share_of(federation.party(name), structure.model) for name in structure.parties}
        self.keep(structure, shares)

    def keep(self, model: ModelInShares, shares: dict[str, Any]) -> None:
        """Set the structure, and the shares that are known here."""
        super().keep(model, shares)
        self.__dict__.pop("_whole", None)
        self.threshold_ = None if self.threshold is None else float(self.threshold)

    def result(self) -> Result:
        """Return the result, with the whole forest if that is known."""
        shared = SharedModel(self.fingerprint, len(self.structure_), len(self.structure_.owner), self.save)
        forest = self.forest_ if self.is_whole else None
        return Result(self.rounds_, self.bytes_, forest, shared=shared, threshold=self.threshold_)

    def _whole_fingerprint(self) -> str:
        return self.forest_.hash

    def answers(self, X: np.ndarray, absent: np.ndarray) -> Answer:
        """Score encoded rows of all columns; needs the whole forest."""
        return answer_of(self.forest_, X, absent)

    # -- the whole forest, where it is known
    @cached_property
    def _whole(self) -> Forest:
        return replace(put_together(self.kept, self.shares_), combine=self._combine)

    @property
    def forest_(self) -> Forest:  # type: ignore[override]
        """The whole forest: in one process, or with an auditor; otherwise nobody has it."""
        lacking = [party for party in self.kept.parties if party not in self.shares_]
        if lacking:
            raise InputError(
                f"the whole forest is not known here, because the share of party {lacking[0]!r} is missing; fit with "
                "auditor=True to collect all shares"
            )
        return self._whole

    @property
    def forests_(self) -> dict[str, Forest]:  # type: ignore[override]
        """The same forest for every party."""
        return dict.fromkeys(self.kept.parties, self.forest_)

    @property
    def _combine(self) -> Combine:
        return "vote" if self.vote == "hard" else "mean"

    # -- prediction
    def predict(self, X: Any, site: str | None = None, *, incomplete: bool = False) -> Any:
        """Predict the rows of a federation by columns: a data frame of ids and predictions, in one round.

        Parameters
        ----------
        X
            The federation; or a joined table or array, if the whole forest is known.
        site
            For a table: whose forest to use; all are the same.
        incomplete
            Also predict rows that some parties do not have; their columns count as missing. The column ``lacking``
            names these parties, and ``lacking_`` counts the missing rows of each.
        """
        if not isinstance(X, Federation):
            return super().predict(X, site)
        return self.predict_by_id(X, incomplete=incomplete)

    def predict_proba(self, X: Any, site: str | None = None, *, incomplete: bool = False) -> Any:
        """Return class probabilities of the rows of a federation: a data frame of ids and one column per class."""
        if not isinstance(X, Federation):
            return super().predict_proba(X, site)
        return self.probabilities_by_id(X, incomplete=incomplete)

    def leaves_of_rows(self, federation: Federation, digests: np.ndarray) -> np.ndarray:
        """Return the leaf of every row in every tree, numbered from left to right: (rows, trees)."""
        structure = self.kept
        restore_shares(federation, structure, share_key(structure.model), self.shares_, self.share_schemas)
        return find_leaves(federation, structure, digests)

    def found(self, federation: Federation, digests: np.ndarray) -> RowScores | RowLeaves:
        """Return what the label holder receives for rows: scores and classes, or leaves if it keeps their values."""
        structure, leaves = self.structure_, self.leaves_of_rows(federation, digests)
        positive = self.schema_.label.positive_code
        found = RowLeaves(
            structure.model, leaves, structure.weights, self._combine == "vote", self.threshold_, positive
        )
        return scores_of_leaves(structure.value[structure.leaf_row], found) if len(structure.value) else found

    def scores_here(self, federation: Federation, found: RowScores | RowLeaves) -> RowScores:
        """Return the scores of rows, from the label holder's share if only that has the leaf values."""
        if isinstance(found, RowScores):
            return found
        holder = self.structure_.label_holder
        if holder in federation.local_sites:
            return scores_of_leaves(share_of(federation.party(holder), found.model).value, found)
        if holder not in self.shares_:
            raise InputError(
                f"only party {holder!r} knows the leaf values, so predictions stay there; predict in a study, or fit "
                "with auditor=True"
            )
        return scores_of_leaves(self.shares_[holder].value, found)

    # -- evaluation
    def candidates(self, federation: Federation) -> list[Named]:
        """Return the models to compare, by name; none between machines, where nobody has the whole forest."""
        return super().candidates(federation) if federation.local_sites else []
