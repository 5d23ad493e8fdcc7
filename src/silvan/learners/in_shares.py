"""The base of learners over columns: the coordinator keeps a part of the model, and every party its share.

A saved model is a folder with one file for the coordinator's part and one for each party's share.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

import msgspec
import numpy as np

from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluation import Evaluation
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.scores_of_rows import (
    EvaluateScores,
    KeepPredictions,
    RowLeaves,
    RowScores,
    ask_label_holder,
    keep_predictions,
)
from silvan.data.schema import Schema
from silvan.errors import FormatError, InputError
from silvan.federation.federation import Federation
from silvan.federation.message import Request
from silvan.forest.model_in_shares import ModelInShares
from silvan.learners.federated_estimator import FederatedEstimator
from silvan.learners.in_one_place import id_column, joined_test_rows, list_rows
from silvan.metrics import decided_at
from silvan.privacy.announce import RequestPlan
from silvan.privacy.identity.identity import all_digests, find_digests
from silvan.util.files import UNREADABLE, file_name, write_whole

if TYPE_CHECKING:
    import polars as pl

_PARAMETERS, _SHARE = "parameters.json", ".share.silvan"

T = TypeVar("T")


class ScoredRows(NamedTuple):
    """Rows by id, in the order of the first party's table, and their scores."""

    frame: "pl.DataFrame"
    scores: np.ndarray

    def with_answers(self, answers: dict[str, Any]) -> "pl.DataFrame":
        """Return the data frame with columns of answers after the ids."""
        import polars as pl

        clash = [name for name in answers if name in self.frame.columns]
        if clash:
            raise InputError(f"the id column has the name of a result column, {clash[0]!r}; rename it")
        return pl.concat([self.frame[:, :1], pl.DataFrame(answers), self.frame[:, 1:]], how="horizontal")


class InShares(FederatedEstimator):
    """A learner for parties that hold columns of the same rows."""

    federated_by: ClassVar[str] = "federate_columns"
    file: ClassVar[str]  # name of the file with the coordinator's part
    model_type: ClassVar[Any]  # type of the coordinator's part
    share_type: ClassVar[Any]
    scored_by: ClassVar[type[Request]]  # the request of predictions
    prediction_tasks: ClassVar[int] = 1

    shares_: dict[str, Any]  # by party, where known here
    threshold_: float | None = None
    lacking_: dict[str, int]  # rows missing at each party in the last prediction

    _kept: ModelInShares | None = None

    @property
    def kept(self) -> Any:
        """The coordinator's part of the model; raise ``InputError`` before ``fit``."""
        if self._kept is None:
            raise InputError("this learner is not fitted yet; call fit(federation) first")
        return self._kept

    def keep(self, model: ModelInShares, shares: dict[str, Any]) -> None:
        """Set the coordinator's part, and the shares that are known here."""
        self._kept, self.shares_ = model, shares
        self.schema_ = model.named_schema(self.share_schemas)

    @property
    def share_schemas(self) -> dict[str, Schema]:
        """The columns of each party whose share is known here."""
        return {party: share.schema for party, share in self.shares_.items()}

    @property
    def is_whole(self) -> bool:
        """Whether the shares of all parties are known here."""
        return not set(self.kept.parties) - set(self.shares_)

    @property
    def named_columns(self) -> Schema:
        """The schema of the columns whose names are known here."""
        return Schema(tuple(f for own in self.share_schemas.values() for f in own.features), self.schema_.label)

    @property
    def fingerprint(self) -> str:
        """A hash of the model and of all parties' shares, equal for equal models.

        If shares are unknown here, it is a hash of the coordinator's part only, which differs from run to run.
        """
        return self._whole_fingerprint() if self.is_whole else hash_of([self.kept.to_bytes()])

    @abstractmethod
    def _whole_fingerprint(self) -> str:
        """Return the hash of a model whose shares are all known."""

    # -- requests to parties
    def asked(
        self, kinds: tuple[type[Request], ...], tasks: int | None = None, min_leaf: int | None = None
    ) -> RequestPlan:
        """Return the plan of some requests to parties, for an announcement."""
        settings = repr([type(self).__name__, sorted(self.get_params(deep=False).items(), key=str)])
        tasks = self.prediction_tasks if tasks is None else tasks
        return RequestPlan(kinds, min_leaf=min_leaf, settings=settings, tasks=tasks)

    def evaluation_plan(
        self, federation: Federation, by: Sequence[str] = (), epsilon: float | None = None
    ) -> RequestPlan:
        """Return the requests of an evaluation on the test rows."""
        return self.asked((self.scored_by, EvaluateScores))

    def prediction_plan(self) -> RequestPlan:
        """Return the requests of predictions of new rows, which the label holder keeps."""
        return self.asked((self.scored_by, KeepPredictions))

    # -- prediction
    @abstractmethod
    def found(self, federation: Federation, digests: np.ndarray) -> RowScores | RowLeaves:
        """Return what the label holder receives for rows: scores and classes, or leaves if it keeps their values."""

    @abstractmethod
    def scores_here(self, federation: Federation, found: RowScores | RowLeaves) -> RowScores:
        """Return the scores of rows, if they can be known here."""

    @abstractmethod
    def answers(self, X: np.ndarray, absent: np.ndarray) -> Answer:
        """Score encoded rows of all columns, some of which may be absent; needs all shares."""

    def send_predictions(self, federation: Federation, digests: np.ndarray) -> int:
        """Send the model's predictions to the label holder, which writes them with ids; return their number.

        If only the label holder knows leaf values, it receives leaves, and nobody else sees predictions.
        """
        with federation.working_on(f"predicting by {type(self).__name__}"):
            return keep_predictions(federation, self.kept, digests, self.found(federation, digests))

    def predict_by_id(self, federation: Federation, *, incomplete: bool = False) -> "pl.DataFrame":
        """Predict the rows of a federation: a data frame of ids and predictions."""
        _ = self.kept  # raises an error before fit
        scored = self._score_by_id(federation, self.decided, incomplete)
        return scored.with_answers({"prediction": self.named(scored.scores)})

    def decided(self, found: RowScores) -> np.ndarray:
        """Return the predicted class codes, or the numbers."""
        if self.schema_.label.classes is None:
            return found.scores[:, 0]
        if found.decided is not None:
            return found.decided
        at, positive = self.threshold_, self.schema_.label.positive_code
        return found.scores.argmax(axis=1) if at is None else decided_at(at, found.scores, positive)

    def named(self, decided: np.ndarray) -> Any:
        """Return classes for their codes; numbers stay as they are."""
        classes = self.schema_.label.classes
        return decided if classes is None else [classes[code] for code in decided]

    def probabilities_by_id(self, federation: Federation, *, incomplete: bool = False) -> "pl.DataFrame":
        """Return class probabilities of the rows of a federation: a data frame of ids and one column per class."""
        classes = self.check_classes()
        scored = self._score_by_id(federation, lambda found: found.scores, incomplete)
        return scored.with_answers({str(name): scored.scores[:, code] for code, name in enumerate(classes)})

    def check_classes(self) -> tuple[Any, ...]:
        """Return the classes; raise ``InputError`` for regression, and before ``fit``."""
        _ = self.kept
        if self.schema_.label.classes is None:
            raise InputError("predict_proba is for classification; this model predicts a number")
        return self.schema_.label.classes

    def _score_by_id(
        self, federation: Federation, answer: Callable[[RowScores], np.ndarray], incomplete: bool
    ) -> ScoredRows:
        """Score the common rows, or all rows of any party, and apply a function to the scores."""
        import polars as pl

        columns = columns_of(federation)
        digests, lacking = columns.common, {}
        if incomplete:
            if columns.known is None:
                raise InputError(
                    "incomplete=True needs match='keyed': with 'psi' rows that are not in common are unknown"
                )
            digests = all_digests(columns.known)
            absent = {party: find_digests(known, digests) < 0 for party, known in columns.known.items()}
            self.lacking_ = {party: int(rows.sum()) for party, rows in absent.items()}
            lacking = {"lacking": [", ".join(p for p, rows in absent.items() if rows[i]) for i in range(len(digests))]}
        scores = answer(self.scores_here(federation, self.found(federation, digests)))
        if not federation.local_sites:
            named = {"row": [row.tobytes().hex() for row in digests.astype(">u8")]}
            return ScoredRows(pl.DataFrame({**named, **lacking}), scores)
        order, ids = list_rows(federation, digests)
        frame = pl.DataFrame({id_column(federation): ids, **{k: [v[i] for i in order] for k, v in lacking.items()}})
        return ScoredRows(frame, scores[order])

    # -- evaluation
    def evaluation_on_test_rows(
        self, federation: Federation, candidates: Sequence[Named], by: Sequence[str]
    ) -> Evaluation:
        """Evaluate the model on test rows that all parties score and whose labels the label holder has.

        In one process it is compared with each party's own model, trained on the label, and with the model of the
        joined table. All parties have the same rows, and therefore the same metrics.
        """
        columns, kept = columns_of(federation), self.kept
        if columns.label_holder is None:
            raise InputError("no party holds the label, so nothing can be evaluated")
        if not len(columns.test):
            raise InputError("there are no test rows: set test=0.2 when the federation is made, or pass a table")
        with federation.counted_apart():
            found = self.found(federation, columns.test)
        with federation.working_on(f"evaluating {type(self).__name__}"):
            row = ask_label_holder(federation, columns.label_holder, kept.schema, columns.test, found)
        if not federation.local_sites:
            return Evaluation([row])
        rows = joined_test_rows(federation)
        everything = rows.X, rows.y, np.zeros(len(self.schema_.features), np.bool_)
        return self.compare(federation, candidates, everything).with_metrics(row)

    # -- files
    def save(self, folder: str | Path) -> None:
        """Write the coordinator's part and every share known here, each to a separate file.

        A party can remove or delete its own file: the other files contain nothing about its columns. The coordinator's
        part is written last, so an unfinished folder holds no model.
        """
        model, folder = self.kept, Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for party, share in self.shares_.items():
            write_whole(folder / (file_name(party) + _SHARE), share.to_bytes())
        parameters = msgspec.json.encode(self.get_params(), enc_hook=lambda numbers: numbers.tolist())
        write_whole(folder / _PARAMETERS, parameters)
        write_whole(folder / self.file, model.to_bytes())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote; missing shares are unknown."""
        folder, shares = Path(folder), {}
        model = _read_part(folder / cls.file, cls.model_type.from_bytes)
        for party in model.parties:
            path = folder / (file_name(party) + _SHARE)
            if path.exists():
                shares[party] = _read_part(path, cls.share_type.from_bytes)
                model.check_share(shares[party], party)
        path = folder / _PARAMETERS
        parameters = _read_part(path, lambda data: msgspec.json.decode(data, type=dict[str, Any]))
        try:
            learner = cls(**parameters)
        except TypeError:
            raise FormatError(f"{path}: not the parameters of {cls.__name__}") from None
        learner.keep(model, shares)
        return learner


def hash_of(parts: Iterable[bytes]) -> str:
    """Return a hash of several parts of any length."""
    return hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest()


def _read_part(path: Path, read: Callable[[bytes], T]) -> T:
    """Read a file; errors begin with its path."""
    if not path.is_file():
        raise InputError(f"there is no file {str(path)!r}; is {str(path.parent)!r} a saved model?")
    try:
        return read(path.read_bytes())
    except (FormatError, *UNREADABLE) as error:
        kind = type(error) if isinstance(error, FormatError) else FormatError
        raise kind(f"{path}: {error}") from None
