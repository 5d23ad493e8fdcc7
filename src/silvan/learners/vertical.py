"""The learner of vertical forests: trees on columns that stay with their parties."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluation import Evaluation, answer_of
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.coordinator import VerticalCoordinator
from silvan.algorithms.vertical.encoded import EncodedCoordinator
from silvan.algorithms.vertical.encrypted import EncryptedCoordinator
from silvan.algorithms.vertical.kept_shares import restore_shares
from silvan.algorithms.vertical.party_shares import ShowShare, share_key, share_of, show_shares
from silvan.algorithms.vertical.prediction import ReachLeaves, find_leaves, find_leaves_classically
from silvan.algorithms.vertical.scores_of_rows import (
    EvaluateScores,
    KeepPredictions,
    RowLeaves,
    RowScores,
    ask_label_holder,
    keep_predictions,
    scores_of_leaves,
)
from silvan.data.schema import Schema
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.arrays import Combine
from silvan.forest.forest import Forest
from silvan.forest.forest_shares import Share, Structure, put_together
from silvan.learners.base import Learner
from silvan.learners.column_models import (
    ScoredRows,
    asked_of_parties,
    read_parameters,
    read_part,
    score_by_id,
    share_file,
    write_model,
)
from silvan.learners.in_shares import InShares
from silvan.learners.parameter_docs import write_shared_entries
from silvan.learners.result import Result, SharedModel
from silvan.privacy.announce import Questions
from silvan.tree.fit import Settings

Method = Literal["one round", "classical"]

_STRUCTURE = "structure.silvan"


class _Fitted(InShares):
    """Attributes that ``fit`` sets; not parameters, so not fields of the dataclass below."""

    structure_: Structure
    shares_: dict[str, Share]  # of the parties whose shares are known here


@write_shared_entries
@dataclass(repr=False, eq=False)
class VerticalForest(Learner, _Fitted):
    """A forest of columns that stay with their parties: exactly the one that a joined table would give.

    A level of all trees takes two rounds of messages, so ``max_depth`` is limited by default.

    Parameters
    ----------
    %(parameters)s

    Attributes
    ----------
    forest_
        The whole forest, a ``Forest``. Known in one process, or with ``auditor``; an ``InputError`` otherwise.
    forests_
        The forest of each party, by party: the same for all. Known where ``forest_`` is.
    structure_
        What the coordinator keeps: which party splits which node, and the values of leaves unless they are secret.
    shares_
        The splits of each party whose splits are known here, by party.
    lacking_
        Number of rows that each party lacked in the last prediction with ``incomplete=True``.
    %(fit_attributes)s

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

    max_depth: int | None = 10
    vote: str = "soft"
    labels: str = "encoded"
    auditor: bool = False
    key_bits: int = 2048

    @property
    def expected_rounds(self) -> int | None:
        """The most rounds that training can take, where that is known before."""
        each = 3 if self.labels == "encrypted" else 2
        return None if self.max_depth is None else each * int(self.max_depth) + 2 + self.auditor

    def asks(self, schema: Schema | None = None) -> tuple[type[Request], ...]:
        """Return the kinds of messages that fitting may ask of parties, whatever their columns are."""
        kinds = (EncryptedCoordinator if self.labels == "encrypted" else EncodedCoordinator).asks
        return (*kinds, ShowShare) if self.auditor else kinds

    def questions(self, federation: Federation) -> Questions:
        """Return what fitting asks of parties; it is known before they agree on anything."""
        return asked_of_parties(self, self.asks(), min_leaf=self.min_samples_leaf)

    def questions_of_judging(
        self, federation: Federation, by: Sequence[str] = (), epsilon: float | None = None
    ) -> Questions:
        """Return what judging by the test rows asks of parties."""
        return asked_of_parties(self, (ReachLeaves, EvaluateScores))

    def questions_of_predicting(self) -> Questions:
        """Return what predictions of new rows, which the label holder keeps, ask of parties."""
        return asked_of_parties(self, (ReachLeaves, KeepPredictions))

    def grow(self, federation: Federation, settings: Settings, feature_key: np.ndarray) -> None:
        """Grow the forest."""
        columns = columns_of(federation)
        coordinator: VerticalCoordinator
        if self.labels == "encoded":
            coordinator = EncodedCoordinator(federation, columns, columns.schema, settings)
        elif self.labels == "encrypted":
            coordinator = EncryptedCoordinator(federation, columns, columns.schema, settings, self.key_bits)
        else:
            raise InputError.wrong("labels", "'encoded' or 'encrypted'", self.labels)
        structure = coordinator.grow(feature_key)
        shares = show_shares(federation, structure) if self.auditor else {}
        if federation.local_sites:
            shares = {name: share_of(federation.party(name), structure.model) for name in structure.parties}
        self._keep(structure, shares)

    def _keep(self, structure: Structure, shares: dict[str, Share]) -> None:
        self.__dict__.pop("_whole", None)
        self.schema_ = structure.named_schema({party: share.schema for party, share in shares.items()})
        self.structure_, self.shares_ = structure, shares

    def result(self) -> Result:
        """Return what was learnt: the whole forest only where it is known."""
        shared = SharedModel(self.fingerprint, len(self.structure_), len(self.structure_.owner), self.save)
        forest = self.forest_ if self.is_whole else None
        return Result(self.rounds_, self.bytes_, forest, shared=shared, threshold=self.threshold_)

    @property
    def kept(self) -> Structure:
        """The coordinator's part of the model; raise ``InputError`` before ``fit``."""
        if "structure_" not in self.__dict__:
            raise InputError("this learner is not fitted yet; call fit(federation) first")
        return self.structure_

    @property
    def share_schemas(self) -> dict[str, Schema]:
        """The columns of each party whose share is known here."""
        return {party: share.schema for party, share in self.shares_.items()}

    def _whole_fingerprint(self) -> str:
        return self.forest_.hash

    def answers(self, X: np.ndarray, absent: np.ndarray) -> Answer:
        """Score encoded rows of all columns, where the whole forest is known."""
        return answer_of(self.forest_, X, absent)

    # -- the whole forest, where it is known

    @cached_property
    def _whole(self) -> Forest:
        return replace(put_together(self.kept, self.shares_), combine=self._combine)

    @property
    def forest_(self) -> Forest:  # type: ignore[override]
        """The whole forest: in one process, or with an auditor; nobody has it otherwise."""
        lacking = [party for party in self.kept.parties if party not in self.shares_]
        if lacking:
            raise InputError(
                f"the whole forest is in no one place: the share of party {lacking[0]!r} is not known here; fit with "
                "auditor=True to have every party show its own"
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

    def predict(self, X: Any, site: str | None = None, **how: Any) -> Any:
        """Predict the rows of a federation by columns: a data frame of ids and predictions, in one round.

        Parameters
        ----------
        X
            The federation; or a joined table or array, where the whole forest is known.
        site
            For a table: whose forest to use. All are the same.
        method
            "one round", or "classical" to ask the owner of one node after the other, as a comparison.
        incomplete
            Also predict rows that some parties lack, whose columns then count as missing. A column ``lacking`` names
            these parties, and ``lacking_`` counts the rows that each lacks.
        """
        if not isinstance(X, Federation):
            return super().predict(X, site)
        _ = self.kept  # raises an error before fit
        classes = self.schema_.label.classes

        def answer(found: RowScores) -> np.ndarray:
            if classes is None:
                return found.scores[:, 0]
            return found.scores.argmax(axis=1) if found.decided is None else found.decided

        scored = self._score_by_id(X, answer, **how)
        answers = scored.scores if classes is None else [classes[code] for code in scored.scores]
        return scored.with_answers({"prediction": answers})

    def predict_proba(self, X: Any, site: str | None = None, **how: Any) -> Any:
        """Return class probabilities of the rows of a federation: a data frame of ids and a column a class."""
        if not isinstance(X, Federation):
            return super().predict_proba(X, site)
        _ = self.kept  # raises an error before fit
        classes = self.schema_.label.classes
        if classes is None:
            raise InputError("predict_proba is for classification; this forest predicts a number")
        scored = self._score_by_id(X, lambda found: found.scores, **how)
        return scored.with_answers({str(name): scored.scores[:, code] for code, name in enumerate(classes)})

    def _score_by_id(
        self,
        federation: Federation,
        answer: Callable[[RowScores], np.ndarray],
        method: Method = "one round",
        incomplete: bool = False,
    ) -> ScoredRows:
        def score(digests: np.ndarray) -> np.ndarray:
            found = self._found(self._leaves(federation, digests, method))
            return answer(
                scores_of_leaves(self._secret_values(federation), found) if isinstance(found, RowLeaves) else found
            )

        scored = score_by_id(federation, score, incomplete)
        if incomplete:
            self.lacking_ = scored.lacking
        return scored

    def _secret_values(self, federation: Federation) -> np.ndarray:
        """Return what leaves are worth from the share of the label holder, if that is known here."""
        holder = self.kept.label_holder
        if holder in federation.local_sites:
            return share_of(federation.party(holder), self.kept.model).value
        if holder not in self.shares_:
            raise InputError(
                f"only party {holder!r} knows what the leaves are worth, so predictions stay with it; predict in a "
                "study, or fit with auditor=True"
            )
        return self.shares_[holder].value

    def _leaves(self, federation: Federation, digests: np.ndarray, method: Method = "one round") -> np.ndarray:
        if method not in ("one round", "classical"):
            raise InputError.wrong("method", "'one round' or 'classical'", method)
        structure = self.kept
        restore_shares(federation, structure, share_key(structure.model), self.shares_, self.share_schemas)
        find = find_leaves if method == "one round" else find_leaves_classically
        return find(federation, structure, digests)

    def send_predictions(self, federation: Federation, digests: np.ndarray) -> int:
        """Send the label holder what the forest predicts for rows, to write down beside ids; return how many.

        Where only the label holder knows what leaves are worth, it is sent leaves, and nobody else sees predictions.
        """
        with federation.working_on(f"predicting by {type(self).__name__}"):
            return keep_predictions(federation, self.kept, digests, self._found(self._leaves(federation, digests)))

    def _found(self, leaves: np.ndarray) -> RowScores | RowLeaves:
        """Return what the label holder is sent of rows: scores and classes, or leaves if their values are its own."""
        structure = self.kept
        found = RowLeaves(structure.model, leaves, structure.weights, self._combine == "vote", self.threshold_)
        return scores_of_leaves(structure.value[structure.leaf_row], found) if len(structure.value) else found

    # -- evaluation

    def candidates(self, federation: Federation) -> list[Named]:
        """Return the models to compare, by name; none between machines, where nobody has the whole forest."""
        return super().candidates(federation) if federation.local_sites else []

    def evaluation(
        self,
        federation: Federation,
        table: Any = None,
        *,
        candidates: Sequence[Named] | None = None,
        epsilon: float | None = None,
        by: Sequence[str] = (),
    ) -> Evaluation:
        """Evaluate the model on test rows that all parties score, and whose labels the label holder has.

        In one process it is compared with what each party has alone, were it told the label, and with the forest of the
        joined table. All parties have the same rows, so they have the same metrics.
        """
        columns, structure = columns_of(federation), self.kept
        if by or epsilon is not None or table is not None or columns.label_holder is None or not len(columns.test):
            # without a table, raises an error that names what is lacking
            return super().evaluation(federation, table, candidates=candidates, epsilon=epsilon, by=by)
        candidates = self.candidates(federation) if candidates is None else candidates
        with federation.counted_apart():
            found = self._found(self._leaves(federation, columns.test))
        with federation.working_on(f"judging {type(self).__name__}"):
            row = ask_label_holder(federation, columns.label_holder, structure.schema, columns.test, found)
        if not federation.local_sites:
            return Evaluation([row])
        return super().evaluation(federation, candidates=candidates).with_metrics(row)

    # -- files

    def save(self, folder: str | Path) -> None:
        """Write the structure and every share that is known here, each to a file of its own.

        A party can take its own file away, or delete it: the other files hold nothing about its splits.
        The structure is written last, so a folder that was not finished holds no model.
        """
        parameters = self.get_params()
        if self.vote == "soft":  # as files had it before there was a choice
            del parameters["vote"]
        if isinstance(self.monotonic_cst, np.ndarray):
            parameters["monotonic_cst"] = self.monotonic_cst.tolist()
        for name in ("threshold", "max_samples", "monotonic_cst"):
            if parameters[name] is None:
                del parameters[name]
        write_model(folder, _STRUCTURE, self.kept, self.shares_, parameters)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote; shares that are not there are not known."""
        structure = read_part(Path(folder) / _STRUCTURE, Structure.from_bytes)
        shares = {}
        for party in structure.parties:
            path = share_file(folder, party)
            if path.exists():
                shares[party] = read_part(path, Share.from_bytes)
                structure.check_share(shares[party], party)
        model = read_parameters(folder, cls)
        model._keep(structure, shares)
        model.threshold_ = model.threshold
        return model
