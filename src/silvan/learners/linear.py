"""Linear models as a learner: regression on columns that stay with their parties, a baseline of vertical forests."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluation import (
    FEDERATED,
    LOCAL,
    POOLED,
    EncodedRows,
    Evaluation,
    Row,
    evaluate_answers,
)
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.vertical import linear_fit
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.kept_shares import restore_shares
from silvan.algorithms.vertical.linear_fit import fit_joined_rows
from silvan.algorithms.vertical.linear_shares import (
    LinearModel,
    LinearShare,
    SumPredictors,
    linear_key,
    linear_share_of,
    predict,
)
from silvan.algorithms.vertical.scores_of_rows import RowLeaves, RowScores
from silvan.data.encode import encode_features
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.federation.federation import Federation
from silvan.federation.members import OVERALL
from silvan.federation.message import Request
from silvan.learners.in_one_place import alone_at, joined, own_schema
from silvan.learners.in_shares import InShares, hash_of
from silvan.learners.registry import VerticalLinearParameters
from silvan.learners.result import Result, SharedModel
from silvan.privacy.announce import RequestPlan
from silvan.tree.sampling import make_key
from silvan.util.threads import algebra_threads

if TYPE_CHECKING:
    import polars as pl


class VerticalLinear(VerticalLinearParameters, InShares):
    """Logistic or linear regression, depending on the label, on columns that stay with their parties.

    It has a ridge penalty and equals scikit-learn's ``Ridge`` or ``LogisticRegression`` on the joined table, up to
    ``tol``. Each party standardises its columns (mean 0, standard deviation 1 on the training rows); categories become
    columns of zeros and ones, and a missing value becomes the mean, with an indicator column.

    Attributes
    ----------
    model_
        The coordinator's part: the constant, and which party holds which columns.
    shares_
        The coefficients of each party, where known here; ``coefficients`` lists them.
    n_iter_
        Number of steps taken.
    lacking_
        Number of rows missing at each party in the last prediction with ``incomplete=True``.

    Examples
    --------
    >>> import polars as pl
    >>> import silvan as sv
    >>> from sklearn.datasets import load_breast_cancer
    >>> X, y = load_breast_cancer(return_X_y=True, as_frame=True)
    >>> table = pl.from_pandas(X).with_columns(patient=pl.arange(len(X)), label=pl.Series(y))
    >>> tables = {"clinic": table[:, 15:], "lab": table.select("patient", *table.columns[:15])}
    >>> fed = sv.federate_columns(tables, label="label", id="patient", test=0.2)
    >>> model = sv.VerticalLinear().fit(fed)
    >>> model.rounds_ < 40
    True
    >>> model.predict(fed).columns
    ['patient', 'prediction']
    """

    one_table: ClassVar[str] = "for one table use LogisticRegression or Ridge of scikit-learn"

    file: ClassVar[str] = "linear.silvan"
    model_type: ClassVar[type[LinearModel]] = LinearModel
    share_type: ClassVar[type[LinearShare]] = LinearShare
    scored_by: ClassVar[type[Request]] = SumPredictors
    prediction_tasks: ClassVar[int] = 2

    n_iter_: int

    @property
    def model_(self) -> LinearModel:
        """The coordinator's part of the model."""
        model: LinearModel = self.kept
        return model

    def request_plan(self, federation: Federation) -> RequestPlan:
        """Return the requests of fitting, known before the agreement."""
        return self.asked(linear_fit.ASKS, tasks=1)

    def train(self, federation: Federation) -> None:
        """Train on all parties' columns."""
        columns, alpha, tol, most = columns_of(federation), float(self.alpha), float(self.tol), int(self.max_iter)
        found = linear_fit.fit(federation, columns, columns.schema, alpha=alpha, tol=tol, max_iter=most)
        if not found.converged:
            warnings.warn(
                f"stopped after {found.steps} steps without converging to tol={self.tol:g}; raise max_iter or "
                "alpha, or leave out redundant columns",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.n_iter_, shares = found.steps, {}
        if federation.local_sites:
            parties = found.model.parties
            shares = {name: linear_share_of(federation.party(name), found.model.model) for name in parties}
        self.keep(found.model, shares)

    def result(self) -> Result:
        """Return the result."""
        return Result(self.rounds_, self.bytes_, None, shared=SharedModel(self.fingerprint, 0, 0, self.save))

    def _whole_fingerprint(self) -> str:
        kept = self.kept
        parts = [self.schema_.to_json().encode(), *(a.tobytes() for a in (kept.present, kept.constant, kept.unit))]
        for share in self.shares_.values():
            design = share.design
            arrays = (design.fill, design.gaps, design.mean, design.scale, share.coefficients)
            parts += [share.party.encode(), *(array.tobytes() for array in arrays)]
        return hash_of(parts)

    def answers(self, X: np.ndarray, absent: np.ndarray) -> Answer:
        """Score encoded rows of all columns; needs all shares; an absent column counts as missing."""
        return _answer(self.score_rows(X))

    # -- the coefficients, where they are known
    def coefficients(self) -> "pl.DataFrame":
        """List the coefficients of all columns of parties whose shares are known here.

        They refer to standardised columns; ``mean`` and ``deviation`` are those of the original columns (a constant
        column has no deviation). With more than two classes there is one column per class. A numeric target is
        standardised as well.
        """
        import polars as pl

        model, rows = self.kept, []
        classes = self.schema_.label.classes
        several = [f"coefficient of {classes[code]}" for code in model.present] if classes is not None else []
        named = several if model.width > 1 else ["coefficient"]
        for party, share in self.shares_.items():
            design = share.design
            for name, mean, scale, values in zip(
                design.names, design.mean, design.scale, share.coefficients, strict=True
            ):
                column = {"party": party, "column": name, "mean": mean, "deviation": 1.0 / scale if scale else None}
                rows.append({**column, **dict(zip(named, values.tolist(), strict=True))})
        return pl.DataFrame(rows, schema_overrides={"deviation": pl.Float64})

    # -- prediction
    def predict(self, X: Any, incomplete: bool = False) -> Any:
        """Predict the rows of a federation by columns: a data frame of ids and predictions, in one round.

        Parameters
        ----------
        X
            The federation; or a joined table, if all shares are known.
        incomplete
            Also predict rows that some parties do not have; their columns count as missing. The column ``lacking``
            names these parties, and ``lacking_`` counts the missing rows of each.
        """
        if isinstance(X, Federation):
            return self.predict_by_id(X, incomplete=incomplete)
        return np.asarray(self.named(self.decided(RowScores(self._on_table(X)))))

    def predict_proba(self, X: Any, incomplete: bool = False) -> Any:
        """Return class probabilities of the rows of a federation: a data frame of ids and one column per class."""
        if isinstance(X, Federation):
            return self.probabilities_by_id(X, incomplete=incomplete)
        self.check_classes()
        return self._on_table(X)

    def found(self, federation: Federation, digests: np.ndarray) -> RowScores:
        """Return what the label holder receives for rows: their scores."""
        model = self.kept
        restore_shares(federation, model, linear_key(model.model), self.shares_, self.share_schemas)
        with federation.working_on(f"predicting by {type(self).__name__}"):
            return RowScores(predict(federation, model, digests))

    def scores_here(self, federation: Federation, found: RowScores | RowLeaves) -> RowScores:
        """Return the scores of rows, which the coordinator of a linear model knows."""
        if not isinstance(found, RowScores):
            raise TypeError("a linear model has no leaves")
        return found

    def _on_table(self, table: Any) -> np.ndarray:
        _ = self.kept  # raises an error before fit
        frame = read_table(table, self.schema_.label.name, self.schema_)
        return self.score_rows(encode_features(frame, self.schema_, fill_absent=True))

    def score_rows(self, X: np.ndarray) -> np.ndarray:
        """Score encoded rows of all columns, in one place."""
        model, predictor, start = self.kept, np.zeros((len(X), self.kept.width)), 0
        for party, width in zip(model.parties, model.columns, strict=True):
            if party not in self.shares_:
                raise InputError(f"the share of party {party!r} is not known here; predict on a federation instead")
            predictor += self.shares_[party].predict(X[:, start : start + width])
            start += width
        return model.scores(predictor)

    # -- evaluation
    def candidates(self, federation: Federation) -> list[Named]:
        """Return no models: the models to compare with are fitted on rows at hand."""
        return []

    def compare(self, federation: Federation, candidates: Sequence[Named], rows: EncodedRows) -> Evaluation:
        """Compare this model, the parties' own models and that of the joined table on encoded rows of all columns."""
        X, y, _ = rows
        schema, own, key = self.schema_, federation.owners, make_key(0, "resamples")
        learned = joined(federation, columns_of(federation).training)

        def alone(schema: Schema, mine: slice) -> Answer:
            with algebra_threads(federation.party(federation.sites[0]).n_jobs):
                model, share = fit_joined_rows(
                    learned.X[:, mine], learned.y, schema, float(self.alpha), float(self.tol)
                )
                return _answer(model.scores(share.predict(X[:, mine])))

        both = {FEDERATED: _answer(self.score_rows(X)), POOLED: alone(schema, slice(None))}
        found: list[Row] = []
        for party in alone_at(federation):
            mine = slice(own[party].start, own[party].stop)
            answers = {LOCAL: alone(own_schema(federation, party), mine), **both}
            found += evaluate_answers(schema, party, answers, y, key)
        return Evaluation(found + evaluate_answers(schema, OVERALL, both, y, key))


def _answer(scores: np.ndarray) -> Answer:
    return Answer(scores, scores.argmax(axis=1))
