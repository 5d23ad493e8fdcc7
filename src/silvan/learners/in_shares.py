"""The base of learners for columns: the coordinator keeps a part of the model, and every party its share."""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from silvan.algorithms.evaluation.score_groups import Answer
from silvan.data.schema import Schema
from silvan.federation.federation import Federation
from silvan.forest.model_in_shares import ModelInShares
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.privacy.announce import Questions


class InShares(FederatedEstimator):
    """A learner for parties that hold columns of the same rows."""

    federated_by: ClassVar[str] = "federate_columns"

    threshold_: float | None = None
    lacking_: dict[str, int]  # rows that a party lacked in the last prediction

    @property
    @abstractmethod
    def kept(self) -> ModelInShares:
        """The coordinator's part of the model; raise ``InputError`` before ``fit``."""

    @property
    @abstractmethod
    def share_schemas(self) -> Mapping[str, Schema]:
        """The columns of each party whose share is known here."""

    @property
    def is_whole(self) -> bool:
        """Whether the shares of all parties are known here."""
        return not set(self.kept.parties) - set(self.share_schemas)

    @property
    def named_columns(self) -> Schema:
        """The schema of the columns that are known by name."""
        return Schema(tuple(f for own in self.share_schemas.values() for f in own.features), self.schema_.label)

    @property
    def fingerprint(self) -> str:
        """A hash of the model and of all parties' shares: the same for the same model.

        Where shares are not known here it is one of the coordinator's part alone, which differs from run to run.
        """
        return self._whole_fingerprint() if self.is_whole else hash_of([self.kept.to_bytes()])

    @abstractmethod
    def _whole_fingerprint(self) -> str:
        """Return the hash of a model whose shares are all known."""

    @abstractmethod
    def questions_of_predicting(self) -> Questions:
        """Return what predictions of new rows, which the label holder keeps, ask of parties."""

    @abstractmethod
    def send_predictions(self, federation: Federation, digests: np.ndarray) -> int:
        """Send the label holder what the model predicts for rows, to write down beside ids; return how many."""

    @abstractmethod
    def predict(self, X: Any, *, incomplete: bool = False) -> Any:
        """Predict the rows of a federation by columns, or of a joined table."""

    @abstractmethod
    def predict_proba(self, X: Any, *, incomplete: bool = False) -> Any:
        """Return class probabilities of the rows of a federation by columns, or of a joined table."""

    @abstractmethod
    def answers(self, X: np.ndarray, absent: np.ndarray) -> Answer:
        """Score encoded rows of all columns, some of which may be absent, where all shares are known."""

    @abstractmethod
    def save(self, folder: str | Path) -> None:
        """Write the coordinator's part, and every share that is known here to a file of its own."""

    @classmethod
    @abstractmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote; shares that are not there are not known."""


def hash_of(parts: Iterable[bytes]) -> str:
    """Return a hash of several parts, each of any length."""
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()
