"""The learner of linear models: regression on columns that stay with their parties, a baseline of vertical forests."""

import warnings
from collections.abc import Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from silvan.algorithms.evaluation.candidates import Named
from silvan.algorithms.evaluation.evaluation import (
    FEDERATED,
    LOCAL,
    POOLED,
    Evaluation,
    Row,
    evaluate_answers,
    read_rows,
)
from silvan.algorithms.evaluation.score_groups import Answer
from silvan.algorithms.vertical import linear_fit
from silvan.algorithms.vertical.columns import columns_of
from silvan.algorithms.vertical.in_one_place import alone_at, joined, joined_test_rows, own_schema
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
from silvan.algorithms.vertical.scores_of_rows import (
    EvaluateScores,
    KeepPredictions,
    RowScores,
    ask_label_holder,
    keep_predictions,
)
from silvan.data.encode import encode_features
from silvan.data.schema import Schema
from silvan.data.table import read_table
from silvan.errors import InputError
from silvan.federation.federation import OVERALL, Federation
from silvan.learners.column_models import (
    ScoredRows,
    asked_of_parties,
    read_parameters,
    read_part,
    score_by_id,
    share_file,
    write_model,
)
from silvan.learners.in_shares import InShares, hash_of
from silvan.learners.parameter_docs import write_shared_entries
from silvan.learners.result import Result, SharedModel
from silvan.privacy.announce import Questions
from silvan.tree.draw import make_key
from silvan.util.threads import algebra_threads

if TYPE_CHECKING:
    import polars as pl

_MODEL = "linear.silvan"

_FINEST = 1e-8
"""The least ``tol``: sums in fixed point are no more exact."""


@write_shared_entries
class VerticalLinear(InShares):
    """Logistic or linear regression, as the label is, of columns that stay with their parties.

    With a ridge penalty; the same as scikit-learn's ``Ridge`` or ``LogisticRegression`` on the joined table, up to
    ``tol``. Columns are put on one scale (mean 0, standard deviation 1 on the training rows) by the party that holds
    them; categories are columns of zeros and ones, and a missing value stands at the mean, with a column that tells so.

    Parameters
    ----------
    %(parameters)s

    Attributes
    ----------
    model_
        What the coordinator keeps: the constant, and which party holds which columns.
    shares_
        The coefficients of each party whose coefficients are known here, by party; ``coefficients`` lists them.
    n_iter_
        Number of steps taken.
    lacking_
        Number of rows that each party lacked in the last prediction with ``incomplete=True``.
    %(fit_attributes)s

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

    model_: LinearModel
    shares_: dict[str, LinearShare]  # of the parties whose shares are known here
    n_iter_: int

    def __init__(self, alpha: float = 1.0, tol: float = 1e-4, max_iter: int = 100) -> None:
        self.alpha, self.tol, self.max_iter = alpha, tol, max_iter

    def check(self) -> None:
        """Raise ``InputError`` for parameters that make no sense."""
        alpha, tol, max_iter = self.alpha, self.tol, self.max_iter
        if isinstance(alpha, bool) or not isinstance(alpha, Real) or not 0 < float(alpha) < np.inf:
            raise InputError.wrong("alpha", "a number above 0", alpha)
        if isinstance(tol, bool) or not isinstance(tol, Real) or not _FINEST <= float(tol) < 1:
            raise InputError.wrong("tol", f"a number from {_FINEST:g} to 1", tol)
        if isinstance(max_iter, bool) or not isinstance(max_iter, Integral) or int(max_iter) < 1:
            raise InputError.wrong("max_iter", "a whole number of at least 1", max_iter)

    def questions(self, federation: Federation) -> Questions:
        """Return what fitting asks of parties; it is known before they agree on anything."""
        return asked_of_parties(self, linear_fit.ASKS)

    def questions_of_judging(
        self, federation: Federation, by: Sequence[str] = (), epsilon: float | None = None
    ) -> Questions:
        """Return what judging by the test rows asks of parties."""
        return asked_of_parties(self, (SumPredictors, EvaluateScores), tasks=2)

    def questions_of_predicting(self) -> Questions:
        """Return what predictions of new rows, which the label holder keeps, ask of parties."""
        return asked_of_parties(self, (SumPredictors, KeepPredictions), tasks=2)

    def train(self, federation: Federation) -> None:
        """Learn from all parties' columns."""
        columns, alpha, tol, most = columns_of(federation), float(self.alpha), float(self.tol), int(self.max_iter)
        found = linear_fit.fit(federation, columns, columns.schema, alpha=alpha, tol=tol, max_iter=most)
        if not found.converged:
            warnings.warn(
                f"stopped after {found.steps} steps, before a step would have changed predictions by less than "
                f"tol={self.tol:g}; raise max_iter or alpha, or leave out columns that say the same",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.n_iter_, shares = found.steps, {}
        if federation.local_sites:
            parties = found.model.parties
            shares = {name: linear_share_of(federation.party(name), found.model.model) for name in parties}
        self._keep(found.model, shares)

    def _keep(self, model: LinearModel, shares: dict[str, LinearShare]) -> None:
        self.model_, self.shares_ = model, shares
        self.schema_ = model.named_schema({party: share.design.schema for party, share in shares.items()})

    def result(self) -> Result:
        """Return what was learnt."""
        return Result(self.rounds_, self.bytes_, None, shared=SharedModel(self.fingerprint, 0, 0, self.save))

    @property
    def kept(self) -> LinearModel:
        """The coordinator's part of the model; raise ``InputError`` before ``fit``."""
        if "model_" not in vars(self):
            raise InputError("this learner is not fitted yet; call fit(federation) first")
        return self.model_

    @property
    def share_schemas(self) -> dict[str, Schema]:
        """The columns of each party whose share is known here."""
        return {party: share.design.schema for party, share in self.shares_.items()}

    def _whole_fingerprint(self) -> str:
        kept = self.kept
        parts = [self.schema_.to_json().encode(), *(a.tobytes() for a in (kept.present, kept.constant, kept.unit))]
        for share in self.shares_.values():
            design = share.design
            arrays = (design.fill, design.gaps, design.mean, design.scale, share.coefficients)
            parts += [share.party.encode(), *(array.tobytes() for array in arrays)]
        return hash_of(parts)

    def answers(self, X: np.ndarray, absent: np.ndarray) -> Answer:
        """Score encoded rows of all columns, where all shares are known; an absent column counts as missing."""
        return _answer(self.score_rows(X))

    # -- the coefficients, where they are known

    def coefficients(self) -> "pl.DataFrame":
        """List the coefficients of all columns whose party's share is known here.

        They are of columns of mean 0 and standard deviation 1; ``mean`` and ``deviation`` say what these were (a
        column that never varies has none). With more than two classes there is a column a class. A number that is
        predicted is taken in standard deviations, too.
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
            The federation; or a joined table, where all shares are known.
        incomplete
            Also predict rows that some parties lack, whose columns then count as missing. A column ``lacking`` names
            these parties, and ``lacking_`` counts the rows that each lacks.
        """
        _ = self.kept  # raises an error before fit
        classes = self.schema_.label.classes

        def decided(scores: np.ndarray) -> Any:
            return scores[:, 0] if classes is None else [classes[code] for code in scores.argmax(axis=1)]

        if not isinstance(X, Federation):
            return np.asarray(decided(self._on_table(X)))
        scored = self._score_by_id(X, incomplete)
        return scored.with_answers({"prediction": decided(scored.scores)})

    def predict_proba(self, X: Any, incomplete: bool = False) -> Any:
        """Return class probabilities of the rows of a federation: a data frame of ids and a column a class."""
        _ = self.kept  # raises an error before fit
        classes = self.schema_.label.classes
        if classes is None:
            raise InputError("predict_proba is for classification; this model predicts a number")
        if not isinstance(X, Federation):
            return self._on_table(X)
        scored = self._score_by_id(X, incomplete)
        return scored.with_answers({str(name): scored.scores[:, code] for code, name in enumerate(classes)})

    def _score_by_id(self, federation: Federation, incomplete: bool) -> ScoredRows:
        scored = score_by_id(federation, lambda digests: self._scores(federation, digests), incomplete)
        if incomplete:
            self.lacking_ = scored.lacking
        return scored

    def _scores(self, federation: Federation, digests: np.ndarray) -> np.ndarray:
        model = self.kept
        restore_shares(federation, model, linear_key(model.model), self.shares_, self.share_schemas)
        with federation.working_on(f"predicting by {type(self).__name__}"):
            return predict(federation, model, digests)

    def send_predictions(self, federation: Federation, digests: np.ndarray) -> int:
        """Send the label holder what the model predicts for rows, to write down beside ids; return how many."""
        found = RowScores(self._scores(federation, digests))
        with federation.working_on("keeping predictions"):
            return keep_predictions(federation, self.kept, digests, found)

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
        """Return no models: what this one is compared with is fitted on rows at hand."""
        return []

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

        In one process it is compared with what each party has alone, were it told the label, and with the model of the
        joined table. With a ``table`` of all columns every model is scored on that instead.
        """
        model, columns = self.kept, columns_of(federation)
        if by or epsilon is not None:
            raise InputError("by and epsilon are for sites that hold rows; leave them out here")
        if table is not None:
            if not federation.local_sites:
                raise InputError("a table to evaluate on needs a federation in this process")
            X, y, _ = read_rows(self.schema_, table)
            return Evaluation(self._compare_on_rows(federation, X, y))
        if columns.label_holder is None:
            raise InputError("no party holds the label, so there is nothing to judge by")
        if not len(columns.test):
            raise InputError("there are no test rows: set test=0.2 when the federation is made, or pass a table")
        with federation.counted_apart():
            found = RowScores(self._scores(federation, columns.test))
        with federation.working_on(f"judging {type(self).__name__}"):
            row = ask_label_holder(federation, columns.label_holder, model.schema, columns.test, found)
        if not federation.local_sites:
            return Evaluation([row])
        rows = joined_test_rows(federation)
        return Evaluation(self._compare_on_rows(federation, rows.X, rows.y)).with_metrics(row)

    def _compare_on_rows(self, federation: Federation, X: np.ndarray, y: np.ndarray) -> list[Row]:
        """Compare this model, the parties' own and that of the joined table on encoded rows of all columns."""
        schema, own, key = self.schema_, federation.owners, make_key(0, "resamples")
        learned = joined(federation, columns_of(federation).training)

        def alone(schema: Schema, mine: slice) -> Answer:
            with algebra_threads(federation.party(federation.sites[0]).n_jobs):
                model, share = fit_joined_rows(
                    learned.X[:, mine], learned.y, schema, float(self.alpha), float(self.tol)
                )
                return _answer(model.scores(share.predict(X[:, mine])))

        both = {FEDERATED: _answer(self.score_rows(X)), POOLED: alone(schema, slice(None))}
        rows: list[Row] = []
        for party in alone_at(federation):
            mine = slice(own[party].start, own[party].stop)
            answers = {LOCAL: alone(own_schema(federation, party), mine), **both}
            rows += evaluate_answers(schema, party, answers, y, key)
        return rows + evaluate_answers(schema, OVERALL, both, y, key)

    # -- files

    def save(self, folder: str | Path) -> None:
        """Write what the coordinator keeps, and every share that is known here to a file of its own."""
        write_model(folder, _MODEL, self.kept, self.shares_, self.get_params())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read what ``save`` wrote; shares that are not there are not known."""
        learner, shares = read_parameters(folder, cls), {}
        model = read_part(Path(folder) / _MODEL, LinearModel.from_bytes)
        for party in model.parties:
            path = share_file(folder, party)
            if path.exists():
                share = read_part(path, LinearShare.from_bytes)
                model.check_share(share, party)
                shares[party] = share
        learner._keep(model, shares)
        return learner


def _answer(scores: np.ndarray) -> Answer:
    return Answer(scores, scores.argmax(axis=1))
